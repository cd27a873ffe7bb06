//! `stonechat serve`: start, stop and the errors of both.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use super::language_models::installed;
use super::run::{Folder, workspace};

/// A server that runs. Dropping it kills it.
pub(crate) struct Running {
    child: Child,
    pub(crate) address: String,
    /// Lines of standard error so far.
    lines: Vec<String>,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The server has ended in most tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Starts a server on a free port; returns once it is healthy.
    pub(crate) fn new(folder: &Folder, arguments: &[&str]) -> Self {
        let arguments = [&["serve", "--port", "0", "--device", "cpu"], arguments].concat();
        Self::start(folder.command(&arguments))
    }

    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut running = Self { child, address: String::new(), lines: Vec::new(), stderr };
        while running.address.is_empty() {
            let line = running.line();
            running.address = line.split("listening on http://").nth(1).unwrap_or("").to_owned();
        }
        let start = Instant::now();
        while !running.get("/health", "").starts_with("HTTP/1.1 200 OK") {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", running.lines);
            std::thread::sleep(Duration::from_millis(10));
        }
        running
    }

    /// The next line of standard error.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        let n = self.stderr.read_line(&mut line).unwrap();
        assert!(n > 0, "the server has ended: {:?}", self.lines);
        self.lines.push(line.trim_end().to_owned());
        line.trim_end().to_owned()
    }

    pub(crate) fn get(&self, path: &str, headers: &str) -> String {
        self.talk(&format!("GET {path}"), headers)
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        let length = format!("Content-Length: {}\r\n\r\n{body}", body.len());
        self.talk(&format!("POST {path}"), &length)
    }

    pub(crate) fn talk(&self, line: &str, rest: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{rest}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Sends a signal; returns the status of the process and what it still printed.
    pub(crate) fn stop(mut self, signal: &str) -> (ExitStatus, String) {
        self.signal(signal);
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap(), rest)
    }
}

pub(crate) fn model() -> String {
    let path = workspace().join("test-data/golden/llm/llama.gguf").canonicalize().unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_server_starts_answers_and_stops() {
    let folder = Folder::new("serve").with_tiny_model(51864);
    let model = model();
    for signal in ["-TERM", "-INT"] {
        let running =
            Running::new(&folder, &["-m", &model, "-m", "tiny.gguf", "-a", "gpt-4", "--metrics"]);
        let models = running.get("/v1/models", "");
        assert!(models.contains("\"id\":\"gpt-4\",\"aliases\":[\"gpt-4\"]"), "{models}");
        assert!(models.contains("\"id\":\"tiny\""), "{models}");
        let metrics = running.get("/metrics", "");
        assert!(metrics.contains("\nllamacpp:prompt_tokens_total 0\n"), "{metrics}");
        let (status, rest) = running.stop(signal);
        assert_eq!(status.code(), Some(0), "{rest}");
        assert!(rest.ends_with("stopping: running requests have 10 s\n"), "{rest}");
    }
}

#[test]
fn a_positional_model_is_served_whether_or_not_there_is_a_gpu() {
    let folder = Folder::new("serve_positional");
    let model = model();
    let running = Running::start(folder.command(&["serve", &model, "--port", "0", "-ngl", "99"]));
    let (status, rest) = running.stop("-TERM");
    // A warning where there is no GPU, and none where there is one.
    let is_known = |line: &str| {
        let is_state = line == "ready" || line.starts_with("stopping: ");
        is_state || line.contains("WARN") && line.contains(": all layers are on the CPU: ")
    };
    assert!(rest.lines().all(is_known), "{rest}");
    assert_eq!(status.code(), Some(0), "{rest}");
}

#[test]
fn keys_come_from_flags_and_files() {
    let folder = Folder::new("serve-keys");
    folder.write("keys", b"# mine\nsecond\n");
    let running = Running::new(
        &folder,
        &["-m", &model(), "--api-key", "first,other", "--api-key-file", "keys", "--offline"],
    );
    assert!(running.get("/props", "").starts_with("HTTP/1.1 401 "));
    for key in ["first", "other", "second"] {
        let answer = running.get("/props", &format!("Authorization: Bearer {key}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{key}: {answer}");
    }
}

#[test]
fn flags_come_from_the_configuration_and_from_variables_of_llama_server() {
    let folder = Folder::new("serve-settings");
    folder.write("config.toml", b"[serve]\nalias = [\"a\", \"b\"]\nmetrics = true\n");
    let mut command =
        folder.command(&["serve", "--config", "config.toml", "--device=cpu", "-fa", "on"]);
    command.env("LLAMA_ARG_PORT", "0").env("LLAMA_ARG_MODEL", model());
    let running = Running::start(command);
    assert!(running.lines.contains(&"-fa is ignored: attention is always fused".to_owned()));
    let models = running.get("/v1/models", "");
    assert!(models.contains("\"aliases\":[\"a\",\"b\"]"), "{models}");
    assert!(running.get("/metrics", "").starts_with("HTTP/1.1 200 "));
}

/// Takes requests of an exporter until one contains `last`; returns them all.
fn collect(listener: &TcpListener, last: &str) -> String {
    let mut all = String::new();
    while !all.contains(last) {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            let line = line.to_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            all += &line;
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        // Protocol buffers have strings as they are.
        all += &String::from_utf8_lossy(&body);
        let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        stream.get_mut().write_all(answer.as_bytes()).unwrap();
    }
    all
}

#[test]
fn traces_go_to_the_collector_of_the_flag_or_the_variables() {
    let folder = Folder::new("serve-traces");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let model = model();
    let serve = ["serve", "--port", "0", "--device", "cpu", "-m", &model];
    let mut by_variables = folder.command(&serve);
    by_variables
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("{url}/base"))
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=one%20two")
        .env("OTEL_SERVICE_NAME", "front desk");
    let flag = ["--otlp-traces-endpoint", &url];
    let by_flag = folder.command(&[&serve[..], &flag].concat());
    for (command, expected) in [
        (by_variables, &["post /base/v1/traces ", "x-key: one two\r\n", "front desk"][..]),
        (by_flag, &["post /v1/traces ", "\x09stonechat"]),
    ] {
        let running = Running::start(command);
        let answer = running.post("/completion", "{\"prompt\": \"a\", \"n_predict\": 1}");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        std::thread::scope(|scope| {
            let collected = scope.spawn(|| collect(&listener, "POST /completion"));
            // A stop sends the spans that are left.
            let (status, rest) = running.stop("-TERM");
            assert_eq!(status.code(), Some(0), "{rest}");
            let collected = collected.join().unwrap();
            for part in expected.iter().chain(&["llm_request", "prefill", "decode"]) {
                assert!(collected.contains(part), "expected {part:?} in {collected:?}");
            }
        });
    }
}

/// Checks that a draft model changes no text.
fn assert_drafts_change_no_text(folder: &Folder, model: &str, draft: &[&str]) {
    let prompt =
        "fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n\nfn sub(a: i32, b: i32) -> i32 {\n";
    let body = serde_json::json!({
        "prompt": prompt, "n_predict": 32, "temperature": 0, "ignore_eos": true,
    });
    let answer = |flags: &[&str]| -> serde_json::Value {
        let running = Running::new(folder, &[&["-m", model, "-c", "256"], flags].concat());
        let answer = running.post("/completion", &body.to_string());
        serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
    };
    let (plain, drafted) = (answer(&[]), answer(draft));
    assert_eq!(drafted["content"], plain["content"]);
    assert!(plain["timings"]["draft_n"].is_null(), "{plain}");
    let count = |name: &str| drafted["timings"][name].as_u64().unwrap();
    assert!(count("draft_n") > 0 && count("draft_n_accepted") > 0, "{drafted}");
}

#[test]
fn a_draft_model_changes_no_text() {
    let folder = Folder::new("serve-draft").with_tiny_model(51864);
    let model = model();
    assert_drafts_change_no_text(&folder, &model, &["-md", &model, "--draft-max", "4"]);
    folder.run(&["serve", "-m", &model, "-md", "tiny.gguf"]).fails("cannot open `tiny.gguf`: ");
    folder.run(&["serve", "-m", &model, "-md", "missing"]).fails("no model `missing`");
    folder
        .run(&["serve", "-m", &model, "--spec-type", "draft-simple"])
        .misused("expected --model-draft");
}

#[test]
fn a_real_draft_model_changes_no_text() {
    let test = "a_real_draft_model_changes_no_text";
    let Some(model) = installed(test, "qwen2.5-coder-1.5b") else { return };
    let Some(draft) = installed(test, "qwen2.5-coder-0.5b") else { return };
    let folder = Folder::new("serve-draft-real");
    assert_drafts_change_no_text(&folder, &model, &["--model-draft", &draft]);
}

#[test]
fn errors_of_the_start_are_one_line() {
    let folder = Folder::new("serve-errors");
    folder.write("empty", b"\n# none\n");
    folder.write("text.gguf", b"no model");
    let model = model();
    folder.run(&["serve", "-m", "no-such-model"]).fails("no model `no-such-model`");
    folder.run(&["serve", "-m", "text.gguf"]).fails("cannot open `text`: ");
    let missing = ["serve", "-m", &model, "--api-key-file", "missing"];
    folder.run(&missing).fails("cannot read `missing`");
    let empty = ["serve", "-m", &model, "--api-key-file", "empty"];
    folder.run(&empty).fails("`empty`: expected an API key a line, got none");
    for keys in ["", " ", ",", "key,"] {
        let unset = ["serve", "-m", &model, "--api-key", keys];
        folder.run(&unset).misused("--api-key: expected keys, got an empty one");
    }
    let variable = super::run::finish(
        folder.command(&["serve", "-m", &model]).env("STONECHAT_API_KEY", "").spawn().unwrap(),
    );
    variable.misused("--api-key: expected keys, got an empty one");
    folder.write("none.toml", b"[serve]\napi-key = []\n");
    let none = ["serve", "-m", &model, "--config", "none.toml"];
    folder.run(&none).fails("`none.toml`: api-key: expected keys, got none");
    let tls = ["serve", "-m", &model, "--ssl-key-file", "empty", "--ssl-cert-file", "empty"];
    folder.run(&tls).fails("cannot use `empty` for TLS: ");
    folder
        .run(&["serve", "-m", &model, "--otlp-endpoint", "localhost:4317"])
        .fails("OTLP endpoint: expected a URL such as http://localhost:4318, got `localhost:4317");
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = busy.local_addr().unwrap().port().to_string();
    let expected = format!("cannot listen on 127.0.0.1:{port}: ");
    folder.run(&["serve", "-m", &model, "--port", &port]).fails(&expected);
    folder.run(&["serve", "--ssl-key-file", "empty"]).misused("required arguments");
    folder
        .run(&["serve", "-m", &model, "--max-queue", "0"])
        .misused("--max-queue: expected at least 1");
}

#[test]
fn flags_of_llama_server_are_accepted_or_refused_by_name() {
    let folder = Folder::new("serve-flags");
    for (flags, expected) in [
        (&["--tools", "all"][..], "--tools is not supported: this server runs no tools"),
        (&["--lora", "a.gguf"], "--lora is not supported: adapters are not supported yet"),
        (&["--models-preset", "a.ini"], "--models-preset is not supported: name the models"),
        (&["--override-kv", "a=int:1"], "--override-kv is not supported: the metadata"),
    ] {
        folder.run(&[&["serve"], flags].concat()).misused(expected);
    }
    // The others go on to the model.
    let flags = [
        "--temp",
        "0",
        "--seed",
        "7",
        "--offline",
        "--batch-size",
        "256",
        "--ubatch-size",
        "64",
        "--threads",
        "1",
        "--n-gpu-layers",
        "0",
        "--cont-batching",
        "--embedding",
        "--kv-unified",
        "--swa-full",
        "--slots",
        "--no-slots",
        "--alias",
        "a,b",
        "--tags",
        "c",
        "--ctx-size",
        "256",
        "--parallel",
        "2",
        "-ctk",
        "f16",
        "-ctv",
        "f16",
        "-fa",
        "on",
        "--n-predict",
        "8",
        "--slot-save-path",
        ".",
        "--jinja",
        "--no-ui",
        "--no-mmproj",
        "--sleep-idle-seconds",
        "60",
        "--request-timeout",
        "60",
        "--load-timeout",
        "0",
        "--timeout",
        "3600",
        "--cache-ram",
        "100",
        "--no-cache-idle-slots",
        "--models-max",
        "4",
        "--metrics",
        "--cors-origins",
        "*",
        "--api-key",
        "k",
        "--hf-repo",
        "no-such-model",
    ];
    let ran = folder.run(&[&["serve"], &flags[..]].concat());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let last = ran.stderr.lines().last().unwrap();
    assert!(last.starts_with("error: no model `no-such-model`"), "{ran:?}");
    assert!(ran.stderr.contains("--models-max is ignored: "), "{ran:?}");
}
