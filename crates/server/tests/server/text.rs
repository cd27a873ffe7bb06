//! Routes of generated text and embeddings, on a model of random weights.

use serde_json::{Value, json};
use stonechat_server::ServerOptions;

use crate::support::{Answer, App, language};

/// Data of the events of a stream, without the `[DONE]` at its end.
#[track_caller]
pub(crate) fn chunks(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), "text/event-stream");
    assert_eq!(answer.header("x-accel-buffering"), "no");
    let events: Vec<&str> = answer.text.split("\n\n").filter(|event| !event.is_empty()).collect();
    let data = events.iter().map(|event| event.strip_prefix("data: ").unwrap());
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[track_caller]
fn ends_with_done(answer: &Answer) {
    assert!(answer.text.ends_with("data: [DONE]\n\n"), "{answer:?}");
}

/// A chat that never ends by itself.
pub(crate) fn chat() -> Value {
    json!({
        "messages": [{"role": "user", "content": "ab"}],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": true,
    })
}

pub(crate) fn with(mut body: Value, fields: Value) -> Value {
    let (Some(body_fields), Value::Object(fields)) = (body.as_object_mut(), fields) else {
        panic!("objects")
    };
    body_fields.extend(fields);
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_answered_whole_or_as_a_stream() {
    let app = App::language().await;
    let whole = app.post("/v1/chat/completions", &chat()).await.json();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], "m");
    assert!(whole["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = &whole["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&0.into(), &"length".into()));
    assert_eq!(choice["message"]["role"], "assistant");
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(!text.is_empty());
    let usage = &whole["usage"];
    assert_eq!(usage["completion_tokens"], 8);
    let sum = usage["prompt_tokens"].as_u64().unwrap() + 8;
    assert_eq!(usage["total_tokens"], sum);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(whole["timings"]["predicted_n"], 8);

    let body = with(chat(), json!({"stream": true, "stream_options": {"include_usage": true}}));
    let answer = app.post("/v1/chat/completions", &body).await;
    ends_with_done(&answer);
    let chunks = chunks(&answer);
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
    let first = json!({"role": "assistant", "content": null});
    assert_eq!(chunks[0]["choices"][0]["delta"], first);
    let (usage, rest) = chunks.split_last().unwrap();
    let (last, deltas) = rest[1..].split_last().unwrap();
    let pieces = deltas.iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<Option<String>>().unwrap(), text);
    assert!(deltas.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 8);
    // The second request finds the prompt of the first.
    let cached = usage["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached, sum - 8 - 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_have_seeds_stop_strings_choices_and_limits() {
    let app = App::language().await;
    let sampled = |fields| with(chat(), with(json!({"temperature": 2.0, "seed": 7}), fields));
    let content = |answer: &Value, i: usize| {
        answer["choices"][i]["message"]["content"].as_str().unwrap().to_owned()
    };
    let one = app.post("/v1/chat/completions", &sampled(json!({}))).await.json();
    let again = app.post("/v1/chat/completions", &sampled(json!({}))).await.json();
    assert_eq!(content(&one, 0), content(&again, 0));
    let three = app.post("/v1/chat/completions", &sampled(json!({"n": 3}))).await.json();
    assert_eq!(three["choices"].as_array().unwrap().len(), 3);
    assert_eq!(content(&three, 0), content(&one, 0));
    let next = app.post("/v1/chat/completions", &sampled(json!({"seed": 8}))).await.json();
    assert_eq!(content(&three, 1), content(&next, 0));
    assert_eq!(three["usage"]["completion_tokens"], 24);

    let text = content(&one, 0);
    let stop: String = text.chars().skip(1).take(1).collect();
    let stopped = app.post("/v1/chat/completions", &sampled(json!({"stop": stop}))).await.json();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert!(!content(&stopped, 0).contains(&stop));
    let none = app.post("/v1/chat/completions", &sampled(json!({"max_tokens": 0}))).await.json();
    assert_eq!(content(&none, 0), "");
    // A forbidden token does not come.
    let native = with(json!({"prompt": "ab", "n_predict": 4, "return_tokens": true}), greedy());
    let free = app.post("/completion", &native).await.json();
    let token = free["tokens"][0].as_u64().unwrap();
    let biased = with(native, json!({"logit_bias": [[token, false]]}));
    let biased = app.post("/completion", &biased).await.json();
    assert_ne!(biased["tokens"][0], token);
}

pub(crate) fn greedy() -> Value {
    json!({"temperature": 0, "ignore_eos": true})
}

#[tokio::test(flavor = "multi_thread")]
async fn probabilities_have_the_shapes_of_their_routes() {
    let app = App::language().await;
    let body = with(chat(), json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 3}));
    let answer = app.post("/v1/chat/completions", &body).await.json();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 3);
    for token in content {
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        // Greedy: the token is the most probable one.
        assert_eq!(token["top_logprobs"][0]["id"], token["id"]);
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), token["token"].as_str().unwrap());
    }
    let streamed = app.post("/v1/chat/completions", &with(body, json!({"stream": true}))).await;
    let all: Vec<Value> = chunks(&streamed)
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(&all, content);

    let body = with(json!({"prompt": "ab", "max_tokens": 3, "logprobs": 2}), greedy());
    let answer = app.post("/v1/completions", &body).await.json();
    let choice = &answer["choices"][0];
    let logprobs = &choice["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset", "content"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 3, "{list}");
    }
    assert_eq!(logprobs["text_offset"][0], 0);
    let echo = with(body, json!({"echo": true, "logprobs": null}));
    let answer = app.post("/v1/completions", &echo).await.json();
    assert_eq!(answer["choices"][0]["text"], format!("ab{}", choice["text"].as_str().unwrap()));

    let body = with(json!({"prompt": "ab", "n_predict": 3, "n_probs": 2}), greedy());
    let answer = app.post("/completion", &body).await.json();
    let probabilities = answer["completion_probabilities"].as_array().unwrap();
    assert_eq!(probabilities.len(), 3);
    assert_eq!(probabilities[0]["top_logprobs"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_have_prompts_of_texts_and_tokens() {
    let app = App::language().await;
    let complete = |prompt: Value| {
        let app = &app;
        async move {
            let body = with(json!({"prompt": prompt, "max_tokens": 4}), greedy());
            app.post("/v1/completions", &body).await.json()
        }
    };
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap();
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let one = complete(json!("ab")).await;
    assert_eq!(one["object"], "text_completion");
    let both = complete(json!(["ab", "cd"])).await;
    assert_eq!(texts(&both)[0], texts(&one)[0]);
    assert_eq!(both["choices"][1]["index"], 1);
    let tokens = app.post("/tokenize", &json!({"content": "ab", "add_special": true})).await.json();
    let by_tokens = complete(tokens["tokens"].clone()).await;
    assert_eq!(texts(&by_tokens), texts(&one));
    let lists = complete(json!([tokens["tokens"], "cd"])).await;
    assert_eq!(texts(&lists), texts(&both));
    let body = with(
        json!({"prompt": ["ab", "cd"], "max_tokens": 4, "n": 2, "stream": true, "seed": 1,
            "stream_options": {"include_usage": true}}),
        greedy(),
    );
    let answer = app.post("/v1/completions", &body).await;
    ends_with_done(&answer);
    let chunks = chunks(&answer);
    let text = |index: usize| -> String {
        let choices = chunks.iter().map(|chunk| &chunk["choices"][0]);
        let own = choices.filter(|choice| choice["index"] == index);
        own.map(|choice| choice["text"].as_str().unwrap()).collect()
    };
    assert_eq!([text(0), text(1)], [texts(&one)[0].clone(), texts(&one)[0].clone()]);
    assert_eq!(text(2), texts(&both)[1]);
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_native_route_has_the_fields_of_llama_server() {
    let app = App::language().await;
    let body = with(
        json!({"prompt": "ab", "n_predict": 5, "return_tokens": true, "id_slot": 2}),
        greedy(),
    );
    let whole = app.post("/completion", &body).await.json();
    for field in [
        "index",
        "content",
        "tokens",
        "id_slot",
        "stop",
        "model",
        "tokens_predicted",
        "tokens_evaluated",
        "generation_settings",
        "prompt",
        "has_new_line",
        "truncated",
        "stop_type",
        "stopping_word",
        "tokens_cached",
        "timings",
    ] {
        assert!(whole.get(field).is_some(), "{field} of {whole}");
    }
    assert_eq!((&whole["stop_type"], &whole["tokens_predicted"]), (&"limit".into(), &5.into()));
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(whole["id_slot"], 2);
    let content = whole["content"].as_str().unwrap();
    let word: String = content.chars().skip(2).take(1).collect();
    let stopped =
        app.post("/completion", &with(body.clone(), json!({"stop": [word]}))).await.json();
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&"word".into(), &word.into()));

    let streamed = with(body.clone(), json!({"stream": true, "return_progress": true}));
    let answer = app.post("/completions", &streamed).await;
    let chunks = chunks(&answer);
    let (last, partial) = chunks.split_last().unwrap();
    let text: String = partial.iter().map(|chunk| chunk["content"].as_str().unwrap()).collect();
    assert_eq!(text, content);
    assert!(partial.iter().all(|chunk| chunk["stop"] == false));
    assert_eq!((&last["stop"], &last["content"]), (&true.into(), &"".into()));
    let fields = json!({"response_fields": ["content", "timings/predicted_n", "nothing"]});
    let selected = app.post("/completion", &with(body.clone(), fields)).await.json();
    assert_eq!(selected, json!({"content": content, "timings/predicted_n": 5}));
    let two = app.post("/completion", &with(body, json!({"prompt": ["ab", "cd"]}))).await.json();
    assert_eq!(two.as_array().unwrap().len(), 2);
    let infill = app.post("/infill", &json!({"input_prefix": "a", "input_suffix": "b"})).await;
    assert_eq!((infill.status, infill.kind().as_str()), (501, "not_supported_error"));
}

#[tokio::test(flavor = "multi_thread")]
async fn schemas_and_grammars_constrain_the_text() {
    let app = App::language().await;
    let grammar = json!({"grammar": "root ::= [a-c] [a-c] [a-c]", "ignore_eos": false});
    let answer = app.post("/v1/chat/completions", &with(chat(), grammar)).await.json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.len() == 3 && text.chars().all(|c| "abc".contains(c)), "{text}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let bad = app.post("/v1/chat/completions", &with(chat(), json!({"grammar": "root ::="}))).await;
    assert_eq!(bad.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_say_what_was_expected() {
    let options = ServerOptions { models: vec![language("m")], ..ServerOptions::default() };
    let app = App::new(options).await;
    let chat = |fields: Value| with(chat(), fields);
    for (body, expected) in [
        (json!({"temperature": "x"}), "`temperature`: invalid type: string"),
        (json!({"top_p": 2.0}), "top_p"),
        (json!({"n": 0}), "`n`: expected at least 1, got 0"),
        (json!({"n": 1000}), "`n`: expected 1 to 16, got 1000"),
        (json!({"messages": []}), "`messages`: expected at least one message"),
        (json!({"logit_bias": {"99999": 1}}), "a token id below"),
        (json!({"lora": [{"id": 0, "scale": 1.0}]}), "`lora`"),
        (json!({"samplers": ["magic"]}), "magic"),
        (json!({"response_format": {"type": "yaml"}}), "`yaml`"),
        (json!({"logprobs": true, "top_logprobs": 10000}), "0 to 1000"),
    ] {
        let answer = app.post("/v1/chat/completions", &chat(body)).await;
        assert_eq!((answer.status, answer.kind().as_str()), (400, "invalid_request_error"));
        assert!(answer.message().contains(expected), "{}", answer.message());
        // The error of a stream has its status, too.
    }
    let long = "ab ".repeat(20_000);
    for stream in [false, true] {
        let body = json!({"messages": [{"role": "user", "content": long}], "stream": stream});
        let answer = app.post("/v1/chat/completions", &body).await;
        assert_eq!((answer.status, answer.kind().as_str()), (400, "exceed_context_size_error"));
        let error = &answer.json()["error"];
        assert!(error["n_prompt_tokens"].as_u64() > error["n_ctx"].as_u64(), "{error}");
    }
    let answer = app.post("/v1/embeddings", &json!({"input": long})).await;
    assert_eq!(answer.kind(), "exceed_context_size_error");
    for (path, body, expected) in [
        ("/v1/completions", json!({}), "missing field `prompt`"),
        ("/v1/completions", json!({"prompt": []}), "an empty list"),
        ("/v1/completions", json!({"prompt": {"a": 1}}), "`prompt_string`"),
        ("/completion", json!({"prompt": [1, 99999]}), "`prompt[1]`: expected a token id below"),
        ("/v1/embeddings", json!({"input": ""}), "`input`: expected at least one token"),
        ("/v1/embeddings", json!({"input": [1.5]}), "token ids below"),
        ("/v1/embeddings", json!({"input": "a", "dimensions": 0}), "`dimensions`: expected 1 to"),
        ("/v1/embeddings", json!({"input": "a", "encoding_format": "x"}), "`base64`, got `x`"),
    ] {
        let answer = app.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path} {body}");
        assert!(answer.message().contains(expected), "{}", answer.message());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_are_normalized_vectors_in_two_encodings() {
    let app = App::language().await;
    let answer = app.post("/v1/embeddings", &json!({"input": ["ab", "cd"]})).await.json();
    assert_eq!((&answer["object"], &answer["model"]), (&"list".into(), &"m".into()));
    assert_eq!(answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]);
    let vector = |answer: &Value, i: usize| -> Vec<f32> {
        serde_json::from_value(answer["data"][i]["embedding"].clone()).unwrap()
    };
    let (first, second) = (vector(&answer, 0), vector(&answer, 1));
    let norm: f32 = first.iter().map(|x| x * x).sum();
    assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    assert_ne!(first, second);
    let alone = app.post("/v1/embeddings", &json!({"input": "cd"})).await.json();
    let distance: f32 = vector(&alone, 0).iter().zip(&second).map(|(a, b)| (a - b).abs()).sum();
    assert!(distance < 1e-4, "{distance}");
    let body = json!({"input": "ab", "encoding_format": "base64"});
    let answer = app.post("/v1/embeddings", &body).await.json();
    let text = answer["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(text.len(), (4 * first.len()).div_ceil(3) * 4);
    let short = app.post("/v1/embeddings", &json!({"input": "ab", "dimensions": 3})).await.json();
    let short = vector(&short, 0);
    assert_eq!(short.len(), 3);
    assert!((short.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
    let native = app.post("/embedding", &json!({"content": "ab"})).await.json();
    let row: Vec<f32> = serde_json::from_value(native[0]["embedding"][0].clone()).unwrap();
    assert_eq!(row.len(), first.len());
}
