//! Seeds of the targets about language models.

use std::fs;
use std::path::Path;

use stonechat_formats::ModelFile;

/// Texts of grammars by the byte in front of them.
const GRAMMARS: [&str; 14] = [
    "0root ::= \"yes\" | \"no\" ws\nws ::= [ \\t\\n]*",
    "0root ::= item{1,3} (\",\" item)* # list\nitem ::= [a-zA-Z0-9_] | [^\"\\\\\\x7F\\u00e4] | \"\\n\"?",
    "0root ::= object\nobject ::= \"{\" (string \":\" value (\",\" string \":\" value)*)? \"}\"\nvalue ::= object | string | \"true\"\nstring ::= \"\\\"\" [^\"]+ \"\\\"\"",
    "0root ::= <think> .* <[258]> [-a]+",
    "1{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-3,\"maximum\":12},\"b\":{\"enum\":[\"x\",null]}},\"required\":[\"a\"],\"additionalProperties\":false}",
    "1{\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a{2,4}$\"},{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"},\"maxItems\":3}]}},\"$ref\":\"#/$defs/t\"}",
    "1{\"type\":\"string\",\"format\":\"date-time\",\"maxLength\":30}",
    "1{\"allOf\":[{\"type\":\"number\",\"multipleOf\":0.5},{\"exclusiveMaximum\":3}]}",
    "1{}",
    "2[a-z]+(@|\\d{2,3})?(?i:x|y)*\\.com",
    "2(foo|bar\\s)+[^\\n\\p{L}]",
    "3start: \"a\" b* | /[0-9]+/\nb: \"x\"i~1..3\n%ignore /[ ]+/",
    "3start: WORD \",\" WORD\nWORD: /[a-z]/+ & ~/no/\n%import common.INT",
    "3start: obj\nobj: %json {\"type\":\"boolean\"} <think> gen\ngen[max_tokens=3]: /.*/",
];

/// Vocabularies of GGUF files in the form that the target takes.
const VOCABULARIES: [&str; 4] = [
    "llama\ndefault\n120000121111\x003<s>\n2<unk>\n3</s>\n6<0x41>\n1\u{2581}\n1a\n1b\n1ab\n1\u{2581}a\n\x00\x00ab a<s> b\x00",
    "gpt2\ngpt-2\n0120001211\x003<s>\n1a\n1b\n1\u{120}\n1ab\n1\u{120}ab\n1\u{10a}\n4<t>\x00a b\n\u{120} ab\n\x00ab ab<t>\n 12\x00",
    "bert\n\n012200111111\x003[PAD]\n3[UNK]\n3[CLS]\n1\u{2581}a\n1b\n1\u{2581}ab\n1c\x00\x00Ab \u{e4} c!\x00",
    "t5\n\n012000111111\x003<pad>\n2<unk>\n3</s>\n1\u{2581}\n1a\n1\u{2581}ab\n1b\x00\x00 ab  a\u{fb01}\x00\x04\x00\x00\x00\x00\x00\x00\x00x\x00",
];

/// Templates with and without a conversation.
const TEMPLATES: [&str; 4] = [
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}",
    "{%- set ns = namespace(x=0) -%}{%- macro f(a, b='c') -%}{{ a ~ b }}{%- endmacro -%}{{ f(bos_token)[::-1] }}{% if tools is defined %}{{ tools | tojson(indent=2) }}{% endif %}\0{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}],\"tools\":[{\"a\":1.5}]}",
    "{{ strftime_now('%d %b %Y %H:%M') }}{{ raise_exception('no') if messages[0]['role'] != 'user' }}{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}",
    "{{ 'a,b'.split(',')[1:] | list | length }}{{ '%s-%05d' | format('x', 7) }}{{ 2 ** 3 // 2 % 5 }}{{ range(3) | sum }}{{ 'x' * 3 }}{{ {'a': 1}.items() | list }}",
];

/// Writes all of them under `corpus`, and copies of larger seeds from the repository.
pub(crate) fn write(corpus: &Path) -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for target in ["llm", "tokenizer", "chat_template", "grammar"] {
        fs::create_dir_all(corpus.join(target))?;
    }
    for (target, seeds) in
        [("grammar", &GRAMMARS[..]), ("tokenizer", &VOCABULARIES), ("chat_template", &TEMPLATES)]
    {
        for (n, seed) in seeds.iter().enumerate() {
            fs::write(corpus.join(target).join(format!("seed{n}")), seed)?;
        }
    }
    for entry in fs::read_dir(root.join("crates/text/src/chat_template/builtin"))? {
        let entry = entry?;
        fs::copy(entry.path(), corpus.join("chat_template").join(entry.file_name()))?;
    }
    for entry in fs::read_dir(root.join("test-data/golden/llm"))? {
        let entry = entry?;
        let name = entry.file_name();
        let json = entry.path().join("tokenizer.json");
        if json.exists() {
            let seed = [fs::read(json)?, b"\0Hello w\xc3\xb6rld 12".to_vec()].concat();
            fs::write(corpus.join("tokenizer").join(name), seed)?;
        } else if entry.path().extension().is_some_and(|extension| extension == "gguf") {
            // A last byte of 0x3c makes weights of f32 0.0115 and plausible blocks.
            let seed = [header(fs::read(entry.path())?), vec![0x3c]].concat();
            fs::write(corpus.join("llm").join(name), seed)?;
        }
    }
    Ok(())
}

/// A GGUF file up to its weights, which end the file, each padded to 32 bytes.
fn header(mut bytes: Vec<u8>) -> Vec<u8> {
    let file = ModelFile::from_reader(bytes.clone()).expect("a model of the repository");
    let weights: usize = file.tensors().map(|tensor| tensor.data.len().next_multiple_of(32)).sum();
    bytes.truncate(bytes.len().saturating_sub(weights));
    bytes
}
