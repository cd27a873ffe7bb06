//! `stonechat serve` as a service: SIGHUP, its log as JSON, readiness for systemd, sockets of systemd.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::run::Folder;
use super::serve::{Running, model};

/// Status of `/v1/models` with a key.
fn status(running: &Running, key: &str) -> String {
    let answer = running.get("/v1/models", &format!("X-Api-Key: {key}\r\n"));
    answer.get(9..12).unwrap_or_default().to_owned()
}

/// Reloads a server, and waits until it has.
fn hang_up(running: &mut Running) {
    running.signal("-HUP");
    while !running.line().starts_with("reloaded") {}
}

#[test]
fn a_hangup_reloads_keys_and_the_log() {
    let folder = Folder::new("serve-hangup");
    folder.write("keys", b"old\n");
    let log = ["--log-file", "log", "--log-format", "json"];
    let flags = ["-m", &model(), "--api-key-file", "keys"];
    let mut running = Running::new(&folder, &[&flags[..], &log].concat());
    assert_eq!(status(&running, "old"), "200");
    let body = "{\"content\":\"ab\"}";
    let length = format!("X-Api-Key: old\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert!(running.talk("POST /tokenize", &length).starts_with("HTTP/1.1 200 "));

    std::fs::rename(folder.path("log"), folder.path("log.1")).unwrap();
    folder.write("keys", b"new\n");
    hang_up(&mut running);
    assert_eq!([status(&running, "old"), status(&running, "new")], ["401", "200"]);
    // A file without a key changes nothing.
    folder.write("keys", b"# none\n");
    hang_up(&mut running);
    assert_eq!([status(&running, "old"), status(&running, "new")], ["401", "200"]);
    let (ended, rest) = running.stop("-TERM");
    assert_eq!(ended.code(), Some(0), "{rest}");

    let events = |name: &str| -> Vec<Value> {
        folder.read(name).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (before, after) = (events("log.1"), events("log"));
    let request = before.iter().find(|event| event["path"] == "/tokenize").unwrap();
    assert_eq!(request["message"], "request");
    assert_eq!((&request["level"], &request["status"]), (&"INFO".into(), &200.into()));
    assert_eq!((&request["model"], &request["method"]), (&"llama".into(), &"POST".into()));
    assert_eq!(request["target"], "stonechat_server::trace");
    assert!(request["timestamp"].as_str().unwrap().ends_with('Z'), "{request}");
    let refused = after.iter().find(|event| event["status"] == 401).unwrap();
    assert_eq!(refused["model"], Value::Null);
    let warning = after.iter().find(|event| event["level"] == "WARN").unwrap();
    let message = warning["message"].as_str().unwrap();
    assert!(
        message.starts_with("SIGHUP: `keys`: expected an API key a line, got none"),
        "{message}"
    );
}

#[test]
fn a_service_manager_learns_the_state() {
    let folder = Folder::new("serve-notify");
    let receiver = UnixDatagram::bind(folder.path("notify")).unwrap();
    let receive = || {
        let mut text = [0; 64];
        let n = receiver.recv(&mut text).unwrap();
        String::from_utf8(text[..n].to_vec()).unwrap()
    };
    let mut command = folder.command(&["serve", "--port", "0", "--device", "cpu", "-m", &model()]);
    command.env("NOTIFY_SOCKET", "notify");
    let mut running = Running::start(command);
    assert_eq!(receive(), "READY=1");
    hang_up(&mut running);
    assert_eq!([receive(), receive()], ["RELOADING=1", "READY=1"]);
    let (ended, rest) = running.stop("-TERM");
    assert_eq!(ended.code(), Some(0), "{rest}");
    assert_eq!(receive(), "STOPPING=1");
}

#[test]
fn open_sockets_take_the_place_of_addresses() {
    let folder = Folder::new("serve-sockets");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // As systemd does: the third descriptor is the socket, the variables name the process.
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_stonechat"), "serve", "--device", "cpu"]);
    command.args(["-m", &model(), "--host", "host.invalid"]).current_dir(folder.path("."));
    command.env("STONECHAT_MODELS", folder.path("models")).stdout(Stdio::null());
    command.stderr(Stdio::piped()).stdin(OwnedFd::from(listener));
    let running = Running::start(command);
    assert_eq!(running.address, address);
    let (ended, rest) = running.stop("-TERM");
    assert_eq!(ended.code(), Some(0), "{rest}");
}
