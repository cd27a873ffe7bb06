//! Responses that are kept: conversations that go on, references to items, owners.

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};
use stonechat_server::ServerOptions;

use crate::responses::{options, saying};
use crate::support::{Answer, App};
use crate::text::with;

/// Tokens of the prompt of an input, which follows `previous` if it is a string.
async fn n_tokens(app: &App, previous: &Value, input: &Value) -> Value {
    let body = json!({
        "previous_response_id": previous, "input": input, "reasoning": {"effort": "none"},
    });
    let answer = app.post("/v1/responses/input_tokens", &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["input_tokens"].clone()
}

/// An error of an identifier, with its message.
#[track_caller]
fn assert_not_found(answer: &Answer, code: &str) {
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["code"]), (404, &json!(code)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on() {
    let app = App::new(options()).await;
    let user = |text: &str| json!({"role": "user", "content": text});
    let first = app.post("/v1/responses", &saying("hello")).await.json();
    let id = first["id"].as_str().unwrap();
    let path = format!("/v1/responses/{id}");
    assert_eq!(app.get(&path).await.json(), first);

    let items = [user("ab"), first["output"][0].clone(), user("cd")];
    let expected = n_tokens(&app, &Value::Null, &json!(items)).await;
    assert_eq!(n_tokens(&app, &json!(id), &json!("cd")).await, expected);
    let fields = json!({"previous_response_id": id, "input": "cd", "instructions": "be brief"});
    let second = app.post("/v1/responses", &with(saying("again"), fields)).await.json();
    assert_eq!(second["previous_response_id"], id);
    assert!(second["usage"]["input_tokens"].as_u64() > expected.as_u64(), "{second}");

    // A third one continues both, without the instructions of the second.
    let second_id = &second["id"];
    let mut all = items.to_vec();
    all.extend([second["output"][0].clone(), user("ef")]);
    let expected = n_tokens(&app, &Value::Null, &json!(all)).await;
    assert_eq!(n_tokens(&app, second_id, &json!("ef")).await, expected);

    let deleted = app.send(Request::delete(&path).body(Body::empty()).unwrap()).await;
    assert_eq!(deleted.json(), json!({"id": id, "object": "response", "deleted": true}));
    assert_not_found(&app.get(&path).await, "not_found");
    let fields = json!({"previous_response_id": id});
    let answer = app.post("/v1/responses", &with(saying("a"), fields)).await;
    assert_not_found(&answer, "previous_response_not_found");
    assert_eq!(n_tokens(&app, second_id, &json!("ef")).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn results_follow_the_calls_of_a_kept_response() {
    let app = App::new(options()).await;
    let call =
        json!({"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"});
    let result = json!({"type": "function_call_output", "call_id": "c", "output": "sun"});
    let user = json!({"role": "user", "content": "ab"});
    let with_call = json!({"input": [user, call]});
    let first = app.post("/v1/responses", &with(saying("hello"), with_call)).await.json();
    let message = &first["output"][0];
    let whole = json!([user, call, message, result]);
    let expected = n_tokens(&app, &Value::Null, &whole).await;
    assert_eq!(n_tokens(&app, &first["id"], &json!([result])).await, expected);
    let shorter = n_tokens(&app, &Value::Null, &json!([user, message, result])).await;
    assert!(shorter.as_u64() < expected.as_u64(), "the call is in the prompt");
}

/// The AI SDK replaces all that it has received by references, unless `store` is false.
#[tokio::test(flavor = "multi_thread")]
async fn references_stand_for_items() {
    let app = App::new(options()).await;
    let first = app.post("/v1/responses", &saying("hello")).await.json();
    let item = &first["output"][0];
    let user = json!({"role": "user", "content": "ab"});
    let reference = |id: &Value| json!({"type": "item_reference", "id": id});
    let expected = n_tokens(&app, &Value::Null, &json!([user, item, user])).await;
    let input = json!([user, reference(&item["id"]), user]);
    assert_eq!(n_tokens(&app, &Value::Null, &input).await, expected);
    // A second reference to one item adds nothing.
    let twice = json!([user, reference(&item["id"]), reference(&item["id"]), user]);
    assert_eq!(n_tokens(&app, &Value::Null, &twice).await, expected);
    let unknown = json!({"input": [reference(&json!("msg_no"))]});
    assert_not_found(&app.post("/v1/responses", &unknown).await, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_not_stored_is_not_found() {
    let app = App::new(options()).await;
    let body = with(saying("hello"), json!({"store": false}));
    let whole = app.post("/v1/responses", &body).await.json();
    assert_eq!((&whole["store"], &whole["status"]), (&json!(false), &json!("completed")));
    let id = whole["id"].as_str().unwrap();
    assert_not_found(&app.get(&format!("/v1/responses/{id}")).await, "not_found");
    let fields = json!({"previous_response_id": id});
    let answer = app.post("/v1/responses", &with(saying("a"), fields)).await;
    assert_not_found(&answer, "previous_response_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_finds_its_own_responses() {
    let api_keys = vec!["one".to_owned(), "two".to_owned()];
    let app = App::new(ServerOptions { api_keys, ..options() }).await;
    let send = async |method: Method, path: &str, key: &str, body: Value| {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {key}"));
        app.send(request.body(Body::from(body.to_string())).unwrap()).await
    };
    let first = send(Method::POST, "/v1/responses", "one", saying("hello")).await.json();
    let id = first["id"].as_str().unwrap();
    let path = format!("/v1/responses/{id}");
    let reference = json!([{"type": "item_reference", "id": first["output"][0]["id"]}]);
    for (key, is_own) in [("two", false), ("one", true)] {
        let status = if is_own { 200 } else { 404 };
        for body in [json!({"previous_response_id": id}), json!({"input": reference})] {
            let body = with(saying("again"), body);
            let answer = send(Method::POST, "/v1/responses", key, body).await;
            assert_eq!(answer.status, status, "{key}: {answer:?}");
        }
        for method in [Method::GET, Method::DELETE] {
            let answer = send(method, &path, key, Value::Null).await;
            assert_eq!(answer.status, status, "{key}: {answer:?}");
        }
    }
}
