//! `stonechat serve` in operation: stops under load, kills, full disks, damaged files.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::run::{Folder, finish};
use super::serve::{Running, model};

/// Pages that have waited so long outlive a kill.
const SYNC_TIME: Duration = Duration::from_secs(3);

fn post(running: &Running, body: &Value) -> BufReader<TcpStream> {
    let (mut stream, body) = (TcpStream::connect(&running.address).unwrap(), body.to_string());
    // The body of HTTP/1.0 has no chunks and ends with the connection.
    let n = body.len();
    write!(stream, "POST /v1/completions HTTP/1.0\r\nContent-Length: {n}\r\n\r\n{body}").unwrap();
    BufReader::new(stream)
}

/// The answer to a request that is no stream.
fn complete(running: &Running, body: &Value) -> Value {
    let mut text = String::new();
    post(running, body).read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn completion(prompt: &str, max_tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

/// A prompt of several KV pages, another one for each `seed`.
fn long_prompt(seed: usize) -> String {
    let word = |i: usize| if seed >> (i % 16) & 1 == 0 { "the in" } else { "re a" };
    (0..40).map(word).collect::<Vec<_>>().join(" ")
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

#[test]
fn a_stop_loses_no_token_of_running_streams() {
    const N_TOKENS: usize = 3000;
    let folder = Folder::new("serve-drain");
    let running = Running::new(
        &folder,
        &["-m", &model(), "--context-shift", "--stop-timeout", "300", "--parallel", "4"],
    );
    let prompts = ["ab", "the ", "in a", "re"];
    let bodies = prompts.map(|prompt| completion(prompt, N_TOKENS));
    let expected = bodies.each_ref().map(|body| complete(&running, body));
    let mut streams = bodies.map(|mut body| {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        post(&running, &body)
    });
    // All of them run.
    let mut starts = [const { String::new() }; 4];
    for (stream, start) in streams.iter_mut().zip(&mut starts) {
        while !start.contains("data: ") {
            assert!(stream.read_line(start).unwrap() > 0, "{start}");
        }
    }
    let readers = streams.into_iter().zip(starts).map(|(mut stream, mut text)| {
        std::thread::spawn(move || {
            stream.read_to_string(&mut text).unwrap();
            text
        })
    });
    let readers: Vec<_> = readers.collect();
    let (status, rest) = running.stop("-TERM");
    assert_eq!(status.code(), Some(0), "{rest}");
    for (reader, expected) in readers.into_iter().zip(expected) {
        let answer = reader.join().unwrap();
        let events = answer.split_once("\r\n\r\n").unwrap().1;
        let events = events.strip_suffix("data: [DONE]\n\n").unwrap();
        let data = events.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        let chunks: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
        let usage = &chunks.last().unwrap()["usage"];
        assert_eq!(usage["completion_tokens"], N_TOKENS);
        let texts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str());
        assert_eq!(texts.collect::<String>(), text(&expected));
    }
}

#[test]
fn a_killed_server_starts_again_with_its_cached_prompts() {
    let folder = Folder::new("serve-kill");
    let start = |port: &str| {
        let flags = ["serve", "-m", &model(), "--device", "cpu", "--cache-disk", "cache", "10MB"];
        Running::start(folder.command(&[&flags[..], &["--port", port]].concat()))
    };
    let body = completion(&long_prompt(0), 8);
    let mut running = start("0");
    let first = complete(&running, &body);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    // Some kills come while pages are written; all of them while a text is.
    for time in [0, 1, 20, 200].map(Duration::from_millis).into_iter().chain([SYNC_TIME]) {
        let other = completion(&long_prompt(time.subsec_millis() as usize + 1), 8);
        complete(&running, &other);
        let mut streamed = completion("ab", 200);
        streamed["stream"] = true.into();
        let mut stream = post(&running, &streamed);
        stream.read_line(&mut String::new()).unwrap();
        sleep(time);
        let port = running.address.rsplit(':').next().unwrap().to_owned();
        let (status, _) = running.stop("-KILL");
        assert_eq!(status.code(), None);
        running = start(&port);
        assert_eq!(text(&complete(&running, &body)), text(&first));
    }
    let port = running.address.rsplit(':').next().unwrap().to_owned();
    // The prompt ran before the last kill, at the latest.
    sleep(SYNC_TIME);
    running.stop("-KILL");
    let running = start(&port);
    let again = complete(&running, &body);
    assert_eq!(text(&again), text(&first));
    let cached = &again["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64().is_some_and(|n| n > 0), "{again}");
    // A stop writes what waits.
    let other = completion(&long_prompt(999), 8);
    complete(&running, &other);
    running.stop("-TERM");
    let again = complete(&start(&port), &other);
    let cached = &again["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64().is_some_and(|n| n > 0), "{again}");
}

/// The command, whose files may have at most `blocks` of 512 bytes, as on a full disk. (Some shells count 1024 bytes.)
fn limited(command: &Command, blocks: u64) -> Command {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
    let mut limited = Command::new("sh");
    limited.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    limited
}

#[test]
fn a_full_disk_costs_the_cache_and_no_answer() {
    let folder = Folder::new("serve-full");
    let flags = ["serve", "-m", &model(), "--device", "cpu", "--port", "0"];
    let command = folder.command(&[&flags[..], &["--cache-disk", "cache", "1GB"]].concat());
    let ran = finish(limited(&command, 0).spawn().unwrap());
    ran.fails("stonechat-kv.redb` for KV pages: ");

    let running = Running::start(limited(&command, 6000));
    let expected = complete(&running, &completion("ab", 8));
    for seed in 0..600 {
        complete(&running, &completion(&long_prompt(seed), 1));
    }
    assert_eq!(text(&complete(&running, &completion("ab", 8))), text(&expected));
    let (status, rest) = running.stop("-TERM");
    assert_eq!(status.code(), Some(0), "{rest}");
    let warnings: Vec<&str> = rest.lines().filter(|line| line.contains(" WARN ")).collect();
    assert_eq!(warnings.len(), 1, "{rest}");
    let expected = "stonechat-kv.redb` is no longer used for KV pages: ";
    assert!(warnings[0].contains(expected), "{rest}");
}

#[test]
fn damaged_and_wrong_files_are_one_line() {
    let folder = Folder::new("serve-damaged");
    let model = model();
    let bytes = std::fs::read(&model).unwrap();
    folder.write("half.gguf", &bytes[..bytes.len() / 2]);
    folder.run(&["serve", "-m", "half.gguf"]).fails("cannot open `half`: ");
    folder.run(&["serve", "-m", &model, "--api-key-file", "."]).fails("cannot read `.`: ");
    folder.write("binary", &[0xff, 0xfe, 0]);
    folder
        .run(&["serve", "-m", &model, "--api-key-file", "binary"])
        .fails("cannot read `binary`: ");
    let file = ["serve", "-m", &model, "--cache-disk", "binary", "1GB"];
    folder.run(&file).fails("cannot use `binary/stonechat-kv.redb` for KV pages: ");
    std::fs::create_dir(folder.path("cache")).unwrap();
    folder.write("cache/stonechat-kv.redb", &bytes);
    let damaged = ["serve", "-m", &model, "--cache-disk", "cache", "1GB"];
    folder.run(&damaged).fails("cannot use `cache/stonechat-kv.redb` for KV pages: ");
}

#[test]
fn folders_of_models_exist() {
    let folder = Folder::new("serve-folders");
    let expected = "STONECHAT_MODELS: expected a folder of models, got `";
    folder.run(&["serve"]).fails(expected);
    folder.run(&["serve", "--models-dir", "none"]).fails("--models-dir: expected a folder");
    folder.write("file", b"");
    folder.run(&["serve", "--models-dir", "file"]).fails("--models-dir: expected a folder");
    std::fs::create_dir(folder.path("models")).unwrap();
    let running = Running::new(&folder, &[]);
    let (status, _) = running.stop("-TERM");
    assert_eq!(status.code(), Some(0));
    // However the folder is named, it is served if no model is, or with --all-models.
    std::fs::copy(model(), folder.path("models/own.gguf")).unwrap();
    let other = model();
    for (more, is_served) in [
        (&[][..], true),
        (&["-m", &other][..], false),
        (&["-m", &other, "--models-dir", "models"], false),
        (&["-m", &other, "--all-models"], true),
        (&["-m", &other, "--all-models", "--models-dir", "models"], true),
    ] {
        let running = Running::new(&folder, more);
        let models = running.get("/v1/models", "");
        assert_eq!(models.contains("\"id\":\"own\""), is_served, "{more:?}: {models}");
        running.stop("-TERM");
    }
    std::fs::remove_file(folder.path("models/own.gguf")).unwrap();
    // The files of TLS end the run.
    let ran = folder.run(&["serve", "--ssl-key-file", "file", "--ssl-cert-file", "file"]);
    assert!(ran.stderr.starts_with("warning: no models are installed"), "{ran:?}");
}

#[test]
fn clients_that_send_slowly_or_too_much_are_refused() {
    let folder = Folder::new("serve-limits");
    let running = Running::new(&folder, &["-m", &model(), "--body-idle-timeout", "1"]);
    let mut stream = TcpStream::connect(&running.address).unwrap();
    write!(stream, "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{{").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    folder
        .run(&["serve", "-m", &model(), "--max-audio-memory", "0"])
        .misused("--max-audio-memory: expected at least 1, got 0");
}

#[test]
fn flags_of_reasoning_are_defaults_of_requests() {
    let folder = Folder::new("serve-reasoning");
    let model = model();
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}\
        {% if not enable_thinking %} quietly{% endif %} in a {{ tone }} tone";
    let kwargs = "{\"tone\": \"dry\"}";
    let flags = ["-m", &model, "--chat-template", template, "--reasoning", "off"];
    let running =
        Running::new(&folder, &[&flags[..], &["--chat-template-kwargs", kwargs]].concat());
    for (fields, expected) in [
        (json!({}), "ab quietly in a dry tone"),
        (json!({"enable_thinking": true}), "ab in a dry tone"),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "ab"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = running.post("/apply-template", &body.to_string());
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(answer["prompt"], expected);
    }
    for (flag, value, expected) in [
        ("--reasoning", "maybe", "invalid value 'maybe' for '--reasoning <HOW>'"),
        ("--reasoning-format", "xml", "expected `auto`, `deepseek`, `deepseek-legacy` or `none`"),
        ("--chat-template-kwargs", "7", "expected a JSON object"),
    ] {
        folder.run(&["serve", "-m", &model, flag, value]).misused(expected);
    }
}
