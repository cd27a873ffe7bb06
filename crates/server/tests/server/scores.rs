//! Log-probabilities of prompts, on a model of random weights.

use serde_json::{Value, json};
use stonechat::formats::ModelFile;
use stonechat::llm::{Model, PerplexityOptions, perplexity};
use stonechat::nn::Cpu;

use crate::support::{App, test_data};
use crate::text::{chunks, with};

const PATH: &str = "/v1/completions";

/// Body that scores a prompt as lm-evaluation-harness does.
fn scored(prompt: &Value) -> Value {
    json!({"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true, "seed": 1234})
}

/// A list of the log-probabilities of a choice.
#[track_caller]
fn list<'a>(answer: &'a Value, choice: usize, name: &str) -> &'a Vec<Value> {
    answer["choices"][choice]["logprobs"][name].as_array().unwrap()
}

/// llama.cpp 27174 and lm-evaluation-harness 4158: without the four lists of the prompt, scores are those of chance.
#[tokio::test(flavor = "multi_thread")]
async fn prompts_are_scored_as_by_the_command_perplexity() {
    let app = App::language().await;
    let text = "the cat sat on a mat and the dog ate it all ".repeat(4);
    let file = ModelFile::open(test_data("golden/llm/llama.gguf")).unwrap();
    let model = Model::load(Cpu::new(1).unwrap(), &file, |_| ()).unwrap();
    let options = PerplexityOptions { n_ctx: 40, ..PerplexityOptions::default() };
    let expected = perplexity(&model, &text, &options, &mut |_| {}).await.unwrap();
    let tokenizer = model.tokenizer();
    let tokens = tokenizer.tokenize(&text, true, false);
    let (mut sum, mut n) = (0.0, 0);
    for window in tokens.chunks_exact(options.n_ctx) {
        let mut window = window.to_vec();
        if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos()) {
            window[0] = bos;
        }
        let body = with(scored(&json!(window)), json!({"max_tokens": 0}));
        let answer = app.post(PATH, &body).await.json();
        let logprobs = list(&answer, 0, "token_logprobs");
        assert_eq!(logprobs.len(), window.len());
        let measured = &logprobs[options.n_ctx / 2 + 1..];
        sum -= measured.iter().map(|logprob| logprob.as_f64().unwrap()).sum::<f64>();
        n += measured.len();
    }
    assert_eq!(n, expected.n_tokens);
    let value = (sum / n as f64).exp();
    assert!((value / expected.value - 1.0).abs() < 1e-5, "{value}, {}", expected.value);
}

#[tokio::test(flavor = "multi_thread")]
async fn echoed_prompts_have_four_lists_of_the_same_length() {
    let app = App::language().await;
    // lm-evaluation-harness drops the first and the last item.
    let prompt: Vec<u32> = (3..40).collect();
    let answer = app.post(PATH, &scored(&json!(prompt))).await.json();
    let n = prompt.len() + 1;
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(&answer, 0, name).len(), n, "{name}");
    }
    let logprobs = list(&answer, 0, "token_logprobs");
    assert!(logprobs[0].is_null() && list(&answer, 0, "top_logprobs")[0].is_null());
    assert!(logprobs[1..].iter().all(|logprob| logprob.as_f64().unwrap() <= 0.0));
    for (logprob, top) in logprobs.iter().zip(list(&answer, 0, "top_logprobs")).skip(1) {
        let top = top.as_object().unwrap().values().map(|value| value.as_f64().unwrap());
        assert!(logprob.as_f64().unwrap() <= top.fold(f64::NEG_INFINITY, f64::max));
    }
    let text = answer["choices"][0]["text"].as_str().unwrap();
    let offsets = list(&answer, 0, "text_offset");
    assert_eq!(offsets[0], 0);
    assert!(offsets.windows(2).all(|pair| pair[0].as_u64() <= pair[1].as_u64()), "{offsets:?}");
    assert!(offsets[n - 1].as_u64().unwrap() <= text.chars().count() as u64);

    // The prefix cache, which has the prompt by then, hides no row.
    let again = app.post(PATH, &scored(&json!(prompt))).await.json();
    assert_eq!(again["choices"], answer["choices"]);
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let body = with(scored(&json!(prompt)), json!({"stream": true}));
    let streamed = chunks(&app.post(PATH, &body).await);
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let parts = streamed
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["logprobs"][name].as_array().cloned());
        assert_eq!(&parts.flatten().collect::<Vec<_>>(), list(&answer, 0, name), "{name}");
    }
    let none = app.post(PATH, &with(scored(&json!(prompt)), json!({"max_tokens": 0}))).await.json();
    assert_eq!(list(&none, 0, "token_logprobs"), &logprobs[..n - 1]);
    assert_eq!(none["usage"]["completion_tokens"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_that_run_side_by_side_are_scored_as_alone() {
    let app = App::language().await;
    let prompts: Vec<Vec<u32>> = (0..20).map(|i| (3..8 + i).collect()).collect();
    let all = app.post(PATH, &scored(&json!(prompts))).await.json();
    assert_eq!(all["choices"].as_array().unwrap().len(), prompts.len());
    for (i, prompt) in prompts.iter().enumerate().step_by(7) {
        let alone = app.post(PATH, &scored(&json!(prompt))).await.json();
        assert_eq!(list(&all, i, "tokens"), list(&alone, 0, "tokens"));
        let pairs = list(&all, i, "token_logprobs").iter().zip(list(&alone, 0, "token_logprobs"));
        for (one, other) in pairs.skip(1) {
            let (one, other) = (one.as_f64().unwrap(), other.as_f64().unwrap());
            assert!((one - other).abs() < 1e-3, "{one}, {other}");
        }
    }
    // Texts and several choices have the lists as well.
    let body = with(scored(&json!(["ab", "cde"])), json!({"n": 2, "temperature": 1}));
    let answer = app.post(PATH, &body).await.json();
    for choice in 0..4 {
        let text = answer["choices"][choice]["text"].as_str().unwrap();
        assert!(text.starts_with(if choice < 2 { "ab" } else { "cde" }), "{text}");
        let n = list(&answer, choice, "tokens").len();
        assert_eq!(list(&answer, choice, "text_offset").len(), n);
        let first = choice / 2 * 2;
        let prompt = |choice| list(&answer, choice, "token_logprobs")[..n - 1].to_vec();
        assert_eq!(prompt(choice), prompt(first));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_of_prompts_have_limits() {
    let app = App::language().await;
    let long: Vec<u32> = vec![5; 600];
    for (fields, expected) in [
        (json!({"logprobs": 1000}), "`logprobs`: expected at most 524288 log-probabilities"),
        (json!({"post_sampling_probs": true}), "`post_sampling_probs`: expected false"),
    ] {
        let answer = app.post(PATH, &with(scored(&json!(long)), fields)).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.message().starts_with(expected), "{}", answer.message());
    }
}
