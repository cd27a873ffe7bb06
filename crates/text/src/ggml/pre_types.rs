//! The pre-tokenizers that `tokenizer.ggml.pre` names: patterns that cut text before merging, and
//! the flags that llama.cpp derives from the name.
//!
//! Source: the tables in `llama_vocab::impl::load` and `llm_tokenizer_bpe` of llama.cpp
//! `src/llama-vocab.cpp`. Patterns are the published ones of each tokenizer, rewritten without
//! look-ahead; category names stand inside brackets, where `split` writes them out.

/// Treatment of a run of white space that a pattern's last alternative, `\s+`, matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spaces {
    /// The run is not split.
    Whole,
    /// The last white space of the run goes to the text that follows: `\s+(?!\S)|\s+`.
    GiveBack,
    /// The same, where matches that end in a line break come from an earlier alternative.
    AfterLines,
    /// The same, and the rest is cut into powers of two.
    Powers,
}

/// One step of a pre-tokenizer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// A pattern over the categories of characters.
    Classes(&'static str, Spaces),
    /// The same, with a class for the Han script.
    HanClasses(&'static str, Spaces),
    /// A pattern over characters.
    Text(&'static str),
    /// Numbers in threes from the end of the run.
    NumberGroups,
    /// ASCII digits in threes from the end of the run.
    DigitGroups,
}

/// Steps and flags of a pre-tokenizer.
#[derive(Debug, Clone)]
pub(super) struct PreType {
    pub(super) steps: &'static [Step],
    /// A piece that is itself a token needs no merging.
    pub(super) whole_pieces: bool,
    pub(super) add_bos: bool,
    /// Tokens hold UTF-8 rather than GPT-2's printable form of bytes.
    pub(super) raw_text: bool,
    /// Spaces are written as U+2581.
    pub(super) escapes_spaces: bool,
    /// A piece of line breaks that is itself a token needs no merging.
    pub(super) whole_line_breaks: bool,
    /// No BOS unless the file names one.
    pub(super) no_default_bos: bool,
    /// BOS is added whatever the file says.
    pub(super) forces_bos: bool,
}

use Spaces::{AfterLines, GiveBack, Powers, Whole};
use Step::{Classes, DigitGroups, HanClasses, NumberGroups, Text};

/// English contractions in any case, as an optional end or a word of their own.
macro_rules! contraction {
    () => {
        r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
    };
}

/// Words with one leading character, numbers as given, punctuation with the line breaks after it,
/// white space: the shape that most tokenizers since GPT-4 share.
macro_rules! gpt4_like {
    ($numbers:literal) => {
        concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}]+|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
        )
    };
}

/// Words split where an upper-case run follows a lower-case one, as in GPT-4o; `$letter` are the
/// characters of a word, `$end` an optional ending.
macro_rules! cased_words {
    ($letter:literal, $end:expr, $numbers:literal) => {
        concat!(
            "[^\\r\\n\\p{L}\\p{N}]?[",
            $letter,
            "&&[^a-z]]*[",
            $letter,
            "&&[^A-Z]]+",
            $end,
            "|[^\\r\\n\\p{L}\\p{N}]?[",
            $letter,
            "&&[^a-z]]+[",
            $letter,
            "&&[^A-Z]]*",
            $end,
            "|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
        )
    };
}

/// As [`cased_words`], for tokenizers whose cases llama.cpp does not distinguish.
macro_rules! marked_words {
    ($numbers:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:",
            contraction!(),
            ")?|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
        )
    };
}

const GPT2: Step =
    Classes(r"'(?:[stmd]|re|ve|ll)| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+", GiveBack);
const LLAMA3: Step = Classes(gpt4_like!(r"[\p{N}]{1,3}"), AfterLines);
const QWEN2: Step = Classes(gpt4_like!(r"[\p{N}]"), AfterLines);
const LINES: Step = Classes(r"[^\n]+|\n+", Whole);
const EACH_NUMBER: Step = Classes(r"[\p{N}]", Whole);
const NUMBERS_TO_3: Step = Classes(r"[\p{N}]{1,3}", Whole);
const CJK: Step = Text(r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+");
/// Punctuation that starts a word of ASCII letters, and the alternatives of deepseek-v3 after it.
macro_rules! deepseek3 {
    ($punctuation_end:literal, $lines:literal) => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
            r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+",
            $punctuation_end,
            "|",
            $lines,
            r"|\s+"
        )
    };
}
const DEEPSEEK3_WORDS: Step = Classes(deepseek3!(r"[\r\n]*", r"\s*[\r\n]+"), AfterLines);
const BLOOM: Step = Text(r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+");
const HANGUL_AND_IDEOGRAPHS: Step = Text(r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+");

const NO_PRE_TYPE: PreType = PreType {
    steps: &[
        Classes(r"[\p{P}$+<=>^~|]+", Whole),
        GPT2,
        Classes(r"[\p{N}]+", Whole),
        Classes(r"[0-9][0-9][0-9]", Whole),
    ],
    whole_pieces: false,
    add_bos: false,
    raw_text: false,
    escapes_spaces: false,
    whole_line_breaks: false,
    no_default_bos: false,
    forces_bos: false,
};

/// The pre-tokenizer `name`, or `None` if llama.cpp does not know it either.
pub(super) fn pre_type(name: &str) -> Option<PreType> {
    let plain = |steps| PreType { steps, ..NO_PRE_TYPE };
    let whole = |steps| PreType { whole_pieces: true, ..plain(steps) };
    Some(match name {
        "" | "default" => NO_PRE_TYPE,
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" | "jina-v5-nano" => PreType { add_bos: true, ..whole(&[LLAMA3]) },
        "dbrx" | "smaug-bpe" => plain(&[LLAMA3]),
        "chatglm-bpe" => PreType { no_default_bos: true, ..plain(&[LLAMA3]) },
        "glm4" | "glm5" => PreType { no_default_bos: true, ..whole(&[LLAMA3]) },
        "jais-2" => plain(&[Classes(gpt4_like!(r"[\p{N}]{1,3}"), Powers)]),
        "minicpm5" => whole(&[NUMBERS_TO_3, Classes(gpt4_like!(r"[\p{N}]+"), AfterLines)]),
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan"
        | "solar-open" | "grok-2" => plain(&[QWEN2]),
        "laguna" => plain(&[LINES, QWEN2]),
        "qwen35" => plain(QWEN35),
        "ufakzeka" => plain(UFAKZEKA),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => plain(BAILING),
        "seed-coder" => plain(SEED_CODER),
        "exaone-moe" => plain(EXAONE_MOE),
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de"
        | "a.x-4.0" | "mellum" | "modern-bert" | "exaone4" | "mpt" | "olmo" | "jais"
        | "trillion" | "granite-docling" | "jina-v1-en" | "jina-v2-code" | "roberta-bpe" => {
            plain(&[GPT2])
        }
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => plain(&[EACH_NUMBER, GPT2]),
        "falcon" => plain(FALCON),
        "chameleon" => PreType { add_bos: true, ..plain(CHAMELEON) },
        "deepseek-llm" => plain(DEEPSEEK_LLM),
        "deepseek-coder" => plain(DEEPSEEK_CODER),
        "deepseek-v3" | "hunyuan-dense" | "hy_v4" | "joyai-llm" => {
            plain(&[NUMBERS_TO_3, CJK, DEEPSEEK3_WORDS])
        }
        "spark2_5" => plain(SPARK),
        "youtu" => whole(YOUTU),
        "afmoe" => plain(AFMOE),
        "poro-chat" | "bloom" | "gpt3-finnish" => plain(&[BLOOM]),
        "viking" => plain(&[BLOOM, EACH_NUMBER]),
        "tekken" => PreType { add_bos: true, ..whole(TEKKEN) },
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => plain(GPT4O),
        "granite-embed-multi-97m" => whole(GRANITE_EMBEDDING),
        "tiny_aya" | "cohere2moe" => plain(TINY_AYA),
        "kimi-k2" => plain(KIMI_K2),
        "superbpe" => plain(&[Classes(r"[\p{N}]+", Whole), DigitGroups]),
        "gemma4" | "granite-embed-multi-311m" => {
            PreType { whole_line_breaks: true, forces_bos: true, ..spaces_escaped() }
        }
        "sarvam-moe" => spaces_escaped(),
        "whitespace" => PreType { raw_text: true, ..plain(&[Classes(r"\S+", Whole)]) },
        _ => return None,
    })
}

/// BPE over text with escaped spaces, cut at line breaks only.
fn spaces_escaped() -> PreType {
    PreType { steps: &[LINES], raw_text: true, escapes_spaces: true, ..NO_PRE_TYPE }
}

const QWEN35: &[Step] = &[Classes(
    concat!(
        contraction!(),
        r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|[\p{N}]| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
    ),
    AfterLines,
)];
const UFAKZEKA: &[Step] = &[Classes(
    r"[^\r\n\p{L}\p{N}]?[\p{L}]+|[\p{N}]| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    AfterLines,
)];
const BAILING: &[Step] = &[Classes(
    concat!(
        contraction!(),
        r"|[^\r\n\p{L}\p{N}]?[\p{L}]+|[\p{N}]| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+"
    ),
    AfterLines,
)];
const SEED_CODER: &[Step] = &[Classes(
    concat!(
        contraction!(),
        r"|[^\r\n\p{L}\p{N}]?[\p{L}]+|[\p{N}]| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+"
    ),
    AfterLines,
)];
const EXAONE_MOE: &[Step] = &[Classes(
    concat!(
        contraction!(),
        r"|[^\r\n\p{L}\p{N}]?(?:[\p{L}][\p{M}]*(?: [\p{L}][\p{M}]*)*)+|[\p{N}]",
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+"
    ),
    AfterLines,
)];
const FALCON: &[Step] =
    &[Classes(r"[\p{P}$+<=>^~|`]+", Whole), GPT2, Classes(r"[0-9][0-9][0-9]", Whole)];
const CHAMELEON: &[Step] = &[
    Classes(r"<sentinel:[0-9]+>", Whole),
    Classes(r"IMGIMG[A-I]{1,4}Z", Whole),
    Classes(r"[\t\n]|    |  ", Whole),
    EACH_NUMBER,
    Classes(r"[\p{P}!-/:-@\[-`{-~]", Whole),
    GPT2,
];
const DEEPSEEK_LLM: &[Step] = &[
    Classes(r"[\r\n]", Whole),
    Text(concat!(
        r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}",
        r"\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}",
        r"\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}",
        r"\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}",
        r"\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}",
        r"\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}",
        r"\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}",
        r"\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}",
        r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}",
        r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}",
        r"\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}",
        r"\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
        r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
        r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}",
        r"\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}",
        r"\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}",
        r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+",
    )),
    Text(r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"),
    Classes(r"\s+$", Whole),
    HANGUL_AND_IDEOGRAPHS,
    Classes(r"[\p{N}]+", Whole),
];
const DEEPSEEK_CODER: &[Step] = &[
    Classes(r"[\r\n]", Whole),
    Classes(r"\s?[\p{L}]+", Whole),
    Classes(r"\s?[\p{P}]+", Whole),
    HANGUL_AND_IDEOGRAPHS,
    EACH_NUMBER,
];
const SPARK: &[Step] =
    &[NUMBERS_TO_3, CJK, Classes(deepseek3!("", r"[\r\n]"), GiveBack), EACH_NUMBER];
const YOUTU: &[Step] = &[
    Text(concat!(
        r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}",
        r"\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[",
        r"\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
    )),
    Classes(marked_words!(r"[\p{N}]"), AfterLines),
];
const AFMOE: &[Step] = &[
    NumberGroups,
    Text(concat!(
        r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{309F}",
        r"\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}",
        r"\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}",
        r"\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+",
    )),
    DEEPSEEK3_WORDS,
];
const TEKKEN: &[Step] = &[Classes(cased_words!(r"\p{L}", "", r"[\p{N}]"), AfterLines)];
const GPT4O: &[Step] = &[Classes(
    cased_words!(r"\p{L}", concat!("(?:", contraction!(), ")?"), r"[\p{N}]{1,3}"),
    AfterLines,
)];
const GRANITE_EMBEDDING: &[Step] = &[Classes(
    cased_words!(r"\p{L}\p{M}", concat!("(?:", contraction!(), ")?"), r"[\p{N}]{1,3}"),
    AfterLines,
)];
const TINY_AYA: &[Step] = &[NumberGroups, Classes(marked_words!(r"[\p{N}]{1,3}"), AfterLines)];
/// The Han script by itself; other letters with an optional contraction.
const KIMI_K2: &[Step] = &[HanClasses(
    concat!(
        r"[\p{Han}]+|[^\r\n\xD6\p{L}\p{N}]?[\p{L}]+(?:",
        contraction!(),
        r")?|[\p{N}]{1,3}",
        r"| ?[^\s\xD6\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
    ),
    AfterLines,
)];

#[cfg(test)]
mod tests {
    use super::super::split::{Splitter, split};
    use super::*;

    #[track_caller]
    fn check(name: &str, text: &str, expected: &[&str]) {
        let steps = pre_type(name).expect("a known name").steps;
        let splitters: Vec<Splitter> = steps.iter().map(Splitter::new).collect();
        let mut pieces = Vec::new();
        split(&splitters, text, |piece| pieces.push(piece));
        assert_eq!(pieces, expected, "{name}");
    }

    #[test]
    fn white_space_before_words() {
        check("gpt-2", "a   b", &["a", "  ", " b"]);
        check("gpt-2", "a\n\nb", &["a", "\n", "\n", "b"]);
        check("llama-bpe", "a\n\nb", &["a", "\n\n", "b"]);
        check("llama-bpe", "a \n  b", &["a", " \n", " ", " b"]);
        check("llama-bpe", "a \u{3000}\u{3000}b", &["a", " \u{3000}", "\u{3000}b"]);
        check("jais-2", "a         b", &["a", "        ", " b"]);
        check("spark2_5", "a  \nb", &["a", "  ", "\n", "b"]);
    }

    #[test]
    fn numbers() {
        check("gpt-2", "x 12345", &["x", " 12345"]);
        check("llama-bpe", "x 12345", &["x", " ", "123", "45"]);
        check("qwen2", "x12", &["x", "1", "2"]);
        check("starcoder", "x 12", &["x", " ", "1", "2"]);
        check("tiny_aya", "1234567", &["1", "234", "567"]);
        check("superbpe", "1234567", &["1", "234", "567"]);
        check("falcon", "12345", &["123", "45"]);
    }

    #[test]
    fn words() {
        check("gpt-4o", "camelCase HTTPServer don't", &["camel", "Case", " HTTPServer", " don't"]);
        check("tekken", "don't", &["don", "'t"]);
        check("llama-bpe", "I'LL (x)", &["I", "'LL", " (", "x", ")"]);
        check("kimi-k2", "你好world's", &["你好", "world's"]);
        check("qwen35", "नमस्ते", &["नमस्ते"]);
        check("gemma4", "a b\n\nc", &["a b", "\n\n", "c"]);
        check("bloom", "one, two", &["one", ",", " two"]);
    }

    #[test]
    fn every_pattern_compiles_and_keeps_the_text() {
        let names = "default llama3 dbrx chatglm-bpe glm4 jais-2 minicpm5 qwen2 laguna qwen35 \
            ufakzeka bailingmoe seed-coder exaone-moe gpt-2 jina-v1-en starcoder falcon chameleon \
            deepseek-llm deepseek-coder deepseek-v3 spark2_5 youtu afmoe bloom viking tekken \
            gpt-4o granite-embed-multi-97m tiny_aya kimi-k2 superbpe gemma4 sarvam-moe whitespace";
        let text =
            "Ünïcode  \u{85}\u{a0} 日本語テキスト 한국어 123456 ½ don't\r\n\t\n  !?… \u{301}x";
        for name in names.split_whitespace() {
            let splitters: Vec<Splitter> =
                pre_type(name).expect(name).steps.iter().map(Splitter::new).collect();
            let mut joined = String::new();
            split(&splitters, text, |piece| {
                assert!(!piece.is_empty(), "{name}");
                joined.push_str(piece);
            });
            assert_eq!(joined, text, "{name}");
        }
        assert!(pre_type("no such name").is_none());
    }
}
