//! `pull` from a mock hub, and without a hub.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::run::{Folder, finish};

/// Files of the repository.
const FILES: [(&str, &str); 6] = [
    ("README.md", "not wanted"),
    ("config.json", "{}"),
    ("tokenizer.json", "{\"a\": 1}"),
    ("tokenizer_config.json", "{\"eos_token\": \"</s>\"}"),
    ("chat_template.jinja", "{{ messages }}"),
    ("model.safetensors", "the weights"),
];
/// SHA-256 of "the weights".
const WEIGHTS_SHA256: &str = "f38329d231164082b94f28edf29bff349b44403e09fc4057d65b31051f4ae6b5";

/// Serves `openai/whisper-base` until the test ends; returns the address.
fn serve(weights_sha256: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            // The client may close the connection early.
            let _ = answer(stream.unwrap(), weights_sha256);
        }
    });
    address
}

fn answer(mut stream: TcpStream, weights_sha256: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut range = None;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header == "\r\n" {
            break;
        }
        let header = header.trim().to_ascii_lowercase();
        range = header.strip_prefix("range: bytes=").map(str::to_owned).or(range);
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, headers, body) = if path.starts_with("/api/models/openai/whisper-base") {
        let siblings: Vec<_> =
            FILES.iter().map(|(name, _)| serde_json::json!({ "rfilename": name })).collect();
        let info = serde_json::json!({ "sha": "c0ffee", "siblings": siblings });
        ("200 OK", String::new(), info.to_string())
    } else if let Some(&(name, body)) = path
        .strip_prefix("/openai/whisper-base/resolve/main/")
        .and_then(|file| FILES.iter().find(|(name, _)| *name == file))
    {
        let etag = if name == "model.safetensors" { weights_sha256 } else { name };
        let range = range.unwrap_or_default();
        let (from, to) = range.split_once('-').unwrap_or_default();
        let from: usize = from.parse().unwrap_or(0);
        let to = to.parse().map_or(body.len() - 1, |to: usize| to.min(body.len() - 1));
        let headers = format!(
            "ETag: \"{etag}\"\r\nX-Repo-Commit: c0ffee\r\nContent-Range: bytes {from}-{to}/{}\r\n",
            body.len()
        );
        ("206 Partial Content", headers, body[from..=to].to_owned())
    } else {
        ("404 Not Found", String::new(), String::new())
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[test]
fn a_model_is_pulled_whole() {
    let folder = Folder::new("pull");
    let hub = serve(WEIGHTS_SHA256);
    let pull = |name: &str| {
        finish(folder.command(&["pull", name]).env("HF_ENDPOINT", &hub).spawn().unwrap())
    };
    let ran = pull("base");
    assert_eq!(ran.succeeds().trim(), folder.path("models/base").to_str().unwrap());
    assert_eq!(folder.names("models"), ["base"]);
    let companions = ["tokenizer.json", "tokenizer_config.json"];
    let expected = [&["chat_template.jinja", "config.json", "model.safetensors"][..], &companions];
    assert_eq!(folder.names("models/base"), expected.concat());
    assert_eq!(folder.read("models/base/chat_template.jinja"), "{{ messages }}");
    assert_eq!(folder.read("models/base/model.safetensors"), "the weights");
    // An installed model needs no hub.
    let ran = folder.run(&["pull", "base"]);
    ran.succeeds();
    let ran = pull("openai/whisper-base:config.json");
    ran.succeeds();
    assert_eq!(folder.read("models/openai--whisper-base/config.json"), "{}");
    pull("small").fails("no such repository or file");
}

#[test]
fn a_damaged_download_is_refused() {
    let folder = Folder::new("pull_damaged");
    let hub = serve("0000000000000000000000000000000000000000000000000000000000000000");
    let mut command = folder.command(&["pull", "base"]);
    let ran = finish(command.env("HF_ENDPOINT", &hub).spawn().unwrap());
    ran.fails("model.safetensors was damaged");
    assert!(!folder.path("models/base").exists());
}

#[test]
fn without_a_hub_one_line_says_so() {
    let folder = Folder::new("pull_offline");
    // Bound and dropped: no server listens on the port.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = folder.command(&["pull", "base"]);
    let ran = finish(command.env("HF_ENDPOINT", format!("http://{address}")).spawn().unwrap());
    ran.fails("it cannot be reached");
    folder.run(&["pull", "bsae"]).fails("expected one of base, tiny.en");
}
