//! Parsing of answers while they stream: time of a token of four bytes, with tools in the request, for text, reasoning and a
//! call with long arguments. `cargo xtask load` measures the steps that this time is beside.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::json;
use stonechat_formats::ModelFile;
use stonechat_llm::chat::{AnswerOptions, AnswerParser, Tool, ToolChoice};
use stonechat_llm::{ChatFormat, Model};
use stonechat_nn::Cpu;
use stonechat_text::Conversation;

/// Bytes of a token.
const TOKEN_LEN: usize = 4;
/// Template whose calls are JSON between markers.
const HERMES: &str = "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function|tojson }}\n</tool_call>{% endfor %}{% endfor %}\
    {% if add_generation_prompt %}[assistant]{% endif %}{# <think> </think> #}";

fn parser() -> AnswerParser {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../test-data/golden/llm/llama.gguf");
    let file = ModelFile::open(path).expect("a model of the tests");
    let cpu = Cpu::new(1).expect("STONECHAT_ISA names a tier");
    let model = Model::load(cpu, &file, |_| ()).expect("a model of the tests");
    let format = ChatFormat::new(&model, Some(HERMES)).expect("the template is valid");
    let conversation = Conversation {
        messages: vec![json!({"role": "user", "content": "Hi"})],
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let prompt = format.prompt(conversation).expect("the template renders");
    let parameters = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    let tools = [Tool { name: "write".to_owned(), parameters, is_strict: false }];
    let options = AnswerOptions {
        tools: &tools,
        choice: &ToolChoice::Auto,
        parallel: true,
        splits_reasoning: true,
        content: None,
    };
    format.answer_format(&model, &prompt, &options).expect("the options are valid").parser
}

fn bench_answers(c: &mut Criterion) {
    let words = "the quick brown fox jumps over the lazy dog, and then it sleeps. ".repeat(64);
    let answers = [
        ("text", words.clone()),
        ("reasoning", format!("<think>{words}</think>Yes.")),
        (
            "call",
            format!(
                "<tool_call>\n{{\"name\": \"write\", \"arguments\": {{\"text\": \"{words}\"}}}}\n</tool_call>"
            ),
        ),
    ];
    let parser = parser();
    let mut group = c.benchmark_group("answer");
    for (name, answer) in answers {
        // The answers are ASCII: any cut is between characters.
        let tokens: Vec<&str> = (0..answer.len())
            .step_by(TOKEN_LEN)
            .map(|at| &answer[at..answer.len().min(at + TOKEN_LEN)])
            .collect();
        group.throughput(Throughput::Elements(tokens.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                let mut parser = parser.clone();
                for token in &tokens {
                    black_box(parser.push(token));
                }
                black_box(parser.finish(true));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench_answers);
criterion_main!(benches);
