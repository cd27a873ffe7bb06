//! Bodies to answers, with a language model of random weights.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Value, json};
use stonechat::sampling::SamplingOptions;
use stonechat::{Completion, Device, Llm};
use stonechat_api::chat::ChatCompletions;
use stonechat_api::completion::PromptFields;
use stonechat_api::completions::CompletionFields;
use stonechat_api::embeddings::{EmbeddingsBody, PreparedEmbeddings};
use stonechat_api::generation::Run;
use stonechat_api::json::from_bytes;
use stonechat_api::template::PromptBody;
use stonechat_api::text::{Answer, Body, Dialect, Frame, Framing, Model, Prepared};
use stonechat_api::tokenize::{DetokenizeBody, TokenizeBody};
use stonechat_api::{ApiResult, Defaults, ParseBody};

fn llm() -> &'static Llm {
    static LLM: OnceLock<Llm> = OnceLock::new();
    LLM.get_or_init(|| {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/golden/llm/llama.gguf");
        // A text that is not cancelled takes seconds in such a context.
        let builder = Llm::builder().device(Device::Cpu).n_ctx(1 << 16);
        builder.chat_template("chatml").open(path).unwrap()
    })
}

fn prepare<T: Dialect>(body: &Value) -> ApiResult<Prepared> {
    let sampling = SamplingOptions::default();
    let defaults = Defaults { max_choices: 4, ..Defaults::new(&sampling) };
    let body = Body::<T>::parse(body.to_string().as_bytes(), &defaults)?;
    let model = Model { llm: llm(), id: "alias", name: "tiny" };
    body.prepare(model, &defaults)
}

/// Objects of the stream, the texts of each prompt, and the answer.
fn run<T: Dialect>(body: &Value) -> (Vec<Value>, Vec<Vec<Completion>>, Box<dyn Answer>) {
    let Prepared { requests, mut answer, .. } = prepare::<T>(body).unwrap();
    let (mut objects, mut texts) = (Vec::new(), Vec::new());
    for request in requests {
        let mut run = Run::start(llm(), request);
        while let Some(event) = pollster::block_on(run.next()).unwrap() {
            objects.extend(answer.event(run.stats(), event).iter().map(object));
        }
        let frames = answer.end(run.stats(), run.completions());
        objects.extend(frames.iter().map(object));
        texts.push(run.completions().to_vec());
    }
    (objects, texts, answer)
}

/// JSON of an object.
fn object(frame: &Frame) -> Value {
    serde_json::from_str(&frame.data).unwrap()
}

/// Text of a choice in the chunks of a stream.
fn streamed(objects: &[Value], index: usize, text: &str) -> String {
    let choices = objects.iter().filter_map(|object| object["choices"].get(0));
    let choices = choices.filter(|choice| choice["index"] == index);
    choices.filter_map(|choice| choice.pointer(text)?.as_str()).collect()
}

#[test]
fn the_chunks_of_a_chat_are_its_answer() {
    let (chunks, texts, answer) = run::<ChatCompletions>(&json!({
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 6, "n": 2, "seed": 7, "logprobs": true, "top_logprobs": 2, "return_progress": true,
        "stream": true, "stream_options": {"include_usage": true},
    }));
    let whole = object(&answer.whole(&texts));
    assert_eq!(answer.framing(), Framing::Events { ends_with_done: true });
    assert_eq!((&whole["object"], &whole["model"]), (&"chat.completion".into(), &"tiny".into()));
    for index in 0..2 {
        let choice = &whole["choices"][index];
        assert_eq!(choice["message"]["content"], streamed(&chunks, index, "/delta/content"));
        assert_eq!(
            choice["logprobs"]["content"].as_array().unwrap().len(),
            texts[0][index].tokens.len()
        );
    }
    assert_ne!(texts[0][0].tokens, texts[0][1].tokens, "two seeds");
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage, &whole["usage"]);
    assert_eq!(usage["completion_tokens"], 12);
    let mut progress = chunks.iter().filter_map(|chunk| chunk.get("prompt_progress"));
    let last = progress.next_back().unwrap();
    assert_eq!(
        (&last["processed"], &last["total"]),
        (&usage["prompt_tokens"], &usage["prompt_tokens"])
    );
    let ids: Vec<&Value> = chunks.iter().map(|chunk| &chunk["id"]).collect();
    assert!(ids.iter().all(|id| **id == whole["id"]));
}

#[test]
fn prompts_come_one_after_the_other() {
    let body = json!({"prompt": ["a", "b"], "max_tokens": 4, "temperature": 0, "ignore_eos": true, "echo": true, "stream": true});
    let (chunks, texts, answer) = run::<CompletionFields>(&body);
    let whole = object(&answer.whole(&texts));
    for (index, prompt) in ["a", "b"].iter().enumerate() {
        let text = whole["choices"][index]["text"].as_str().unwrap();
        assert!(text.starts_with(prompt));
        assert_eq!(text, streamed(&chunks, index, "/text"));
    }
    assert_eq!(whole["usage"]["completion_tokens"], 8);
    let body = json!({"prompt": ["a", "b"], "n_predict": 4, "temperature": 0, "response_fields": ["content", "index"]});
    let (objects, texts, answer) = run::<PromptFields>(&body);
    assert_eq!(answer.framing(), Framing::Events { ends_with_done: false });
    let last = objects.last().unwrap();
    assert_eq!(
        (&last["index"], &last["stop"], &last["model"]),
        (&1.into(), &true.into(), &"alias".into())
    );
    let expected: Value =
        (0..2).map(|i| json!({"content": texts[i][0].text, "index": i})).collect();
    assert_eq!(object(&answer.whole(&texts)), expected);
}

#[test]
fn a_cancelled_text_has_an_answer() {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": true, "stream": true});
    let Prepared { mut requests, mut answer, .. } = prepare::<ChatCompletions>(&body).unwrap();
    let request = requests.next().unwrap();
    let mut run = Run::start(llm(), request);
    let mut chunks = Vec::new();
    while let Some(event) = pollster::block_on(run.next()).unwrap() {
        chunks.extend(answer.event(run.stats(), event));
        if run.stats().generated_tokens > 2 {
            run.cancel_token().cancel();
        }
    }
    chunks.extend(answer.end(run.stats(), run.completions()));
    let chunks: Vec<Value> = chunks.iter().map(object).collect();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(streamed(&chunks, 0, "/delta/content"), run.completions()[0].text);
    assert!(run.completions()[0].tokens.len() < llm().info().n_ctx / 2);
}

#[test]
fn fields_are_refused_before_a_request_is_made() {
    for (body, expected) in [
        (json!({"messages": [], "n": 5}), "`n`: expected 1 to 4, got 5"),
        (json!({"messages": []}), "`messages`: expected at least one message, got none"),
        (
            json!({"messages": [], "max_tokns": 5}),
            "`max_tokns`: no such field; did you mean `max_tokens`?",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a"}], "logit_bias": [[1e9, 1]]}),
            "`logit_bias[0]`: expected a token id below",
        ),
    ] {
        let error = prepare::<ChatCompletions>(&body).unwrap_err();
        assert!(error.status() == 400 && error.message().starts_with(expected), "{error}");
    }
    let sampled = json!({"prompt": "a", "echo": true, "logprobs": 1, "post_sampling_probs": true});
    let error = prepare::<CompletionFields>(&sampled).unwrap_err();
    assert_eq!(error.param(), Some("post_sampling_probs"));
}

#[test]
fn embeddings_have_two_shapes() {
    let sampling = SamplingOptions::default();
    let defaults = Defaults::new(&sampling);
    let parse = || EmbeddingsBody::parse(br#"{"input": ["ab", "c"], "dimensions": 4}"#, &defaults);
    let embed = |prepared: PreparedEmbeddings| {
        let job = llm().embed(prepared.inputs, prepared.pooling);
        object(&prepared.answer.whole(&job.wait().unwrap()))
    };
    let request = parse().unwrap().openai(&defaults).unwrap();
    let openai = embed(request.prepare(llm().info(), "tiny", &defaults).unwrap());
    let request = parse().unwrap().native().unwrap();
    let native = embed(request.prepare(llm().info(), "tiny", &defaults).unwrap());
    for index in 0..2 {
        let vector: Vec<f64> =
            serde_json::from_value(openai["data"][index]["embedding"].clone()).unwrap();
        let norm: f64 = vector.iter().map(|value| value * value).sum();
        assert!(vector.len() == 4 && (norm - 1.0).abs() < 1e-5, "{vector:?}");
        assert_eq!(native[index]["embedding"][0], openai["data"][index]["embedding"]);
    }
}

#[test]
fn tokens_and_prompts_go_both_ways() {
    let info = llm().info();
    let body: TokenizeBody = from_bytes(br#"{"content": "ab c"}"#).unwrap();
    let tokens = json!(body.answer(&info.model).unwrap());
    let body: DetokenizeBody = from_bytes(tokens.to_string().as_bytes()).unwrap();
    assert_eq!(json!(body.answer(&info.model).unwrap()), json!({"content": "ab c"}));
    let chat = || {
        from_bytes::<PromptBody>(br#"{"messages": [{"role": "user", "content": "Hi"}]}"#).unwrap()
    };
    let sampling = SamplingOptions::default();
    let defaults = Defaults::new(&sampling);
    let prompt = json!(chat().prompt(info, &defaults).unwrap());
    assert_eq!(prompt["prompt"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    let counted = json!(chat().input_tokens(info, &defaults).unwrap());
    let request =
        prepare::<ChatCompletions>(&json!({"messages": [{"role": "user", "content": "Hi"}]}));
    assert_eq!(counted["input_tokens"], request.unwrap().requests.next().unwrap().prompt.len());
}

/// The order that clients rely on (ollama 17485, `LocalAI` 9815): Zed parses every line, Cline hides a text after a `usage`.
#[test]
fn a_stream_of_a_chat_has_openais_order() {
    let (chunks, ..) = run::<ChatCompletions>(&json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": true,
        "stream": true, "stream_options": {"include_usage": true},
    }));
    let roles = chunks.iter().filter(|chunk| chunk.pointer("/choices/0/delta/role").is_some());
    assert_eq!(roles.count(), 1);
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
    let [.., finish, usage] = &chunks[..] else { panic!("{chunks:?}") };
    assert_eq!(finish["choices"][0]["delta"], json!({}));
    assert_eq!(finish["choices"][0]["finish_reason"], "length");
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &4.into()));
    for chunk in &chunks {
        assert_eq!((&chunk["id"], &chunk["created"]), (&chunks[0]["id"], &chunks[0]["created"]));
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert!(chunk == usage || chunk.get("usage").is_none(), "{chunk}");
        let is_end = chunk == finish || chunk == usage;
        assert!(is_end || chunk["choices"][0]["finish_reason"].is_null(), "{chunk}");
    }
}
