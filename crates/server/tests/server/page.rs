//! The page at `/` and the npm package at `/web/`.

use axum::body::Body;
use axum::http::{Method, Request};
use stonechat_server::{ServerOptions, WebPackage};

use crate::support::{Answer, App, language};

async fn get_with(app: &App, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::get(path).header("accept", "text/html");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    app.send(request.body(Body::empty()).unwrap()).await
}

/// References to files in the page.
fn references(html: &str) -> Vec<String> {
    let parts = html.split(['"']).filter(|part| part.contains("?v="));
    parts.map(|part| format!("/{part}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_served_with_its_policy() {
    let app = App::language().await;
    let page = get_with(&app, "/", &[]).await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert_eq!(page.header("cache-control"), "no-cache");
    let policy = page.header("content-security-policy").to_owned();
    for part in ["default-src 'none'", "script-src 'self';", "frame-ancestors 'none'"] {
        assert!(policy.contains(part), "{part} of {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert!(!page.text.contains("<style") && !page.text.contains("<script>"), "{}", page.text);
    let references = references(&page.text);
    assert!(references.len() >= 4, "{references:?}");
    for path in references.iter().map(String::as_str).chain(["/", "/sw.js"]) {
        let answer = get_with(&app, path, &[("accept-encoding", "identity")]).await;
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("cross-origin-opener-policy"), "same-origin", "{path}");
        assert_eq!(answer.header("cross-origin-embedder-policy"), "require-corp", "{path}");
        assert_eq!(answer.header("content-security-policy"), policy, "{path}");
        let is_named = path.contains("?v=");
        assert_eq!(answer.header("cache-control").contains("immutable"), is_named, "{path}");
        // A client that has the file gets no other one.
        let known = [("if-none-match", answer.header("etag"))];
        let again = get_with(&app, path, &known).await;
        assert_eq!((again.status, again.text.as_str()), (304, ""), "{path}");
    }
    // A reference of another version is not kept for ever.
    let other = app.get("/app.js?v=0000000000000000").await;
    assert_eq!((other.status, other.header("cache-control")), (200, "no-cache"));
    assert_eq!(app.get("/props").await.json()["ui"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_only_read() {
    let app = App::new(ServerOptions::default()).await;
    for path in ["/", "/app.js"] {
        let request = Request::builder().method(Method::HEAD).uri(path).body(Body::empty());
        let answer = app.send(request.unwrap()).await;
        assert_eq!((answer.status, answer.text.as_str()), (200, ""), "{path}");
        let answer = app.post(path, &serde_json::json!({})).await;
        assert_eq!(answer.status, 405, "{path}");
    }
    for path in ["/web/index.js", "/page/app.js", "/app.ts", "/app.js/", "//app.js"] {
        assert_eq!(app.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_can_be_turned_off() {
    let options =
        ServerOptions { page: false, models: vec![language("m")], ..ServerOptions::default() };
    let app = App::new(options).await;
    assert_eq!(app.get("/props").await.json()["ui"], false);
    for path in ["/", "/app.js", "/index.html", "/sw.js"] {
        let answer = get_with(&app, path, &[]).await;
        assert_eq!((answer.status, answer.kind().as_str()), (404, "not_found_error"), "{path}");
    }
    assert_eq!(app.get("/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_needs_no_key_but_the_api_does() {
    let api_keys = vec!["secret".to_owned()];
    let options = ServerOptions { api_keys, ..ServerOptions::default() };
    let app = App::new(options.clone()).await;
    for path in ["/", "/app.js", "/app.css", "/sw.js", "/icon.svg", "/manifest.webmanifest"] {
        assert_eq!(app.get(path).await.status, 200, "{path}");
    }
    for path in ["/v1/models", "/props", "/web/index.js", "/app.js/v1", "/other"] {
        assert_eq!(app.get(path).await.status, 401, "{path}");
    }
    let app = App::new(ServerOptions { page: false, ..options }).await;
    assert_eq!(get_with(&app, "/", &[]).await.status, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_is_served_without_paths() {
    let folder = tempfile::tempdir().unwrap();
    let dist = folder.path().join("dist");
    std::fs::create_dir_all(dist.join("nested")).unwrap();
    std::fs::write(folder.path().join("outside.js"), "outside").unwrap();
    for (name, text) in [
        ("index.js", "export {};"),
        ("stonechat-base.wasm", "wasm"),
        ("key.pem", "secret"),
        (".env.js", "secret"),
        ("nested/inner.js", "inner"),
    ] {
        std::fs::write(dist.join(name), text).unwrap();
    }
    let web_package = Some(WebPackage::read(&dist).unwrap());
    let api_keys = vec!["secret".to_owned()];
    let app = App::new(ServerOptions { web_package, api_keys, ..ServerOptions::default() }).await;
    for (name, content_type) in [
        ("index.js", "text/javascript; charset=utf-8"),
        ("stonechat-base.wasm", "application/wasm"),
    ] {
        let answer = app.get(&format!("/web/{name}")).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, content_type));
        assert_eq!(answer.header("cross-origin-embedder-policy"), "require-corp");
    }
    for path in [
        "/web/key.pem",
        "/web/.env.js",
        "/web/none.js",
        "/web/nested/inner.js",
        "/web/nested%2Finner.js",
        "/web/../outside.js",
        "/web/..%2Foutside.js",
        "/web/%2e%2e%2foutside.js",
        "/web/..%5Coutside.js",
        "/web/%00index.js",
        "/web/",
    ] {
        let answer = app.get(path).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.text);
        assert!(!answer.text.contains("secret") && !answer.text.contains("inner\""), "{path}");
    }
    let page = get_with(&app, "/", &[]).await;
    let policy = page.header("content-security-policy");
    for part in ["script-src 'self' 'wasm-unsafe-eval';", "worker-src 'self' blob:;"] {
        assert!(policy.contains(part), "{part} of {policy}");
    }
}
