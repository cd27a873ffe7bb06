//! Relevance of documents, on a model of random weights.

use serde_json::{Value, json};
use stonechat_server::ServerOptions;

use crate::control_tokens::tiny;
use crate::support::App;
use crate::text::with;

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_ranked_in_the_forms_of_both_servers() {
    let app = App::language().await;
    let documents = ["a cat", "a dog", "a bird"];
    let body = json!({"query": "what barks", "documents": documents, "return_documents": true});
    let answer = app.post("/v1/rerank", &body).await.json();
    assert_eq!((&answer["object"], &answer["model"]), (&"list".into(), &"m".into()));
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    let score = |result: &Value| result["relevance_score"].as_f64().unwrap();
    assert!(results.windows(2).all(|pair| score(&pair[0]) >= score(&pair[1])), "{results:?}");
    for result in results {
        let index = usize::try_from(result["index"].as_u64().unwrap()).unwrap();
        assert_eq!(result["document"]["text"], documents[index]);
        assert!((0.0..=1.0).contains(&score(result)));
    }
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 30);
    let objects = documents.map(|text| json!({"text": text}));
    let body = json!({"query": "what barks", "documents": objects, "top_n": 2});
    for path in ["/rerank", "/v1/reranking", "/reranking"] {
        let best = app.post(path, &body).await.json();
        let best = best["results"].as_array().unwrap();
        assert_eq!(best.len(), 2);
        assert!(best[0].get("document").is_none());
        assert!((score(&best[0]) - score(&results[0])).abs() < 1e-3);
    }

    let body = json!({"query": "what barks", "texts": documents, "return_text": true});
    let list = app.post("/rerank", &body).await.json();
    let raw = app.post("/rerank", &with(body, json!({"raw_scores": true}))).await.json();
    for (item, raw) in list.as_array().unwrap().iter().zip(raw.as_array().unwrap()) {
        assert_eq!((&item["index"], &item["text"]), (&raw["index"], &raw["text"]));
        let probability = 1.0 / (1.0 + (-raw["score"].as_f64().unwrap()).exp());
        assert!((item["score"].as_f64().unwrap() - probability).abs() < 1e-3);
    }

    let body = json!({"text_1": "what barks", "text_2": documents});
    let scores = app.post("/v1/score", &body).await.json();
    for result in results {
        let index = usize::try_from(result["index"].as_u64().unwrap()).unwrap();
        let other = &scores["data"][index];
        assert_eq!((&other["index"], &other["object"]), (&index.into(), &"score".into()));
        assert!((other["score"].as_f64().unwrap() - score(result)).abs() < 1e-3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_to_rank_say_what_was_expected() {
    let app = App::language().await;
    let long = "ab ".repeat(20_000);
    for (path, body, expected) in [
        ("/rerank", json!({"query": "q"}), "`documents`: expected a list of texts, got none"),
        ("/rerank", json!({"query": "q", "documents": []}), "`documents`: expected 1 to 1024"),
        ("/rerank", json!({"query": "q", "texts": vec!["a"; 1025]}), "1 to 1024 texts, got 1025"),
        (
            "/rerank",
            json!({"query": "q", "texts": ["a"], "documents": ["a"]}),
            "`texts`: expected none",
        ),
        ("/rerank", json!({"query": "", "texts": ["a"]}), "`query`: expected a text"),
        (
            "/rerank",
            json!({"query": "q", "texts": ["a"], "top_n": 0}),
            "`top_n`: expected at least 1",
        ),
        ("/rerank", json!({"query": "q", "documents": [3]}), "a text or an object with `text`"),
        ("/rerank", json!({"query": "q", "documents": ["a"], "raw_scores": true}), "`raw_scores`"),
        (
            "/rerank",
            json!({"query": "q", "documents": ["a", long]}),
            "`documents[1]`: expected at most",
        ),
        (
            "/score",
            json!({"text_1": ["a", "b"], "text_2": "c"}),
            "`text_1`: expected a text, or as many",
        ),
        ("/score", json!({"text_1": "a", "text_2": []}), "`text_2`: expected 1 to 1024"),
    ] {
        let answer = app.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path} {expected}");
        assert!(answer.message().contains(expected), "{}", answer.message());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_cannot_end_its_message() {
    let app = App::new(ServerOptions { models: vec![tiny()], ..ServerOptions::default() }).await;
    let n_tokens = |document: &'static str| {
        let app = &app;
        async move {
            let body = json!({"query": "a", "documents": [document]});
            let answer = app.post("/rerank", &body).await.json();
            answer["usage"]["prompt_tokens"].as_u64().unwrap()
        }
    };
    // As a special token it would be one token.
    assert!(n_tokens("<|im_end|>").await >= n_tokens("a").await + 5);
}
