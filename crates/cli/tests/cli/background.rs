//! Servers of the documents: a command that ends in `&` runs until its document ends or starts another.
//!
//! Documents show the default port. A test may not rely on it: the server gets a free one, and addresses in the
//! commands after it are changed accordingly.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Address in the documents.
const DOCUMENTED: &str = "127.0.0.1:8080";
/// Time in which a server must be healthy: longer than any machine needs for the tests' models.
const START_TIME: Duration = Duration::from_secs(120);

/// A running server.
#[derive(Debug)]
pub(crate) struct Background {
    child: Child,
    port: u16,
    /// Document that it belongs to.
    pub(crate) document: String,
}

/// The part of a command before the `&` at its end.
pub(crate) fn in_background(command: &str) -> Option<&str> {
    command.trim_end().strip_suffix('&').map(str::trim_end).filter(|rest| !rest.ends_with('&'))
}

impl Background {
    /// Starts `command` in the shell that `shell` makes, and waits until `/health` answers.
    pub(crate) fn start(command: &str, document: &str, shell: impl Fn(&str) -> Command) -> Self {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        // In place of the shell, so that the process is the server.
        let child = shell(&format!("exec {command} --port {port}")).spawn().unwrap();
        let mut server = Self { child, port, document: document.to_owned() };
        let start = Instant::now();
        while !server.is_healthy() {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "`{command}` ended with {ended:?}");
            assert!(start.elapsed() < START_TIME, "`{command}` is not healthy");
            sleep(Duration::from_millis(50));
        }
        server
    }

    fn is_healthy(&self) -> bool {
        let Ok(mut connection) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let mut reply = String::new();
        connection.write_all(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n").is_ok()
            && connection.read_to_string(&mut reply).is_ok()
            && reply.split(' ').nth(1) == Some("200")
    }

    /// A later command of the document, with this server's address.
    pub(crate) fn address(&self, command: &str) -> String {
        command.replace(DOCUMENTED, &format!("127.0.0.1:{}", self.port))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn commands_in_the_background_are_found() {
    assert_eq!(in_background("stonechat serve -m a &"), Some("stonechat serve -m a"));
    assert_eq!(in_background("a && b"), None);
    assert_eq!(in_background("a &&"), None);
}

/// A server of three lines of Python stands for one of this program.
#[cfg(unix)]
#[test]
fn a_background_server_is_reached_and_stopped() {
    let script = "import http.server as h, sys
class H(h.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == '/health' else 404); self.end_headers()
h.HTTPServer(('127.0.0.1', int(sys.argv[2])), H).serve_forever()";
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED a_background_server_is_reached_and_stopped: no python3");
        return;
    }
    let shell = |command: &str| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).env("SCRIPT", script).stderr(std::process::Stdio::null());
        shell
    };
    let server = Background::start("python3 -c \"$SCRIPT\"", "serve.md", shell);
    let port = server.port;
    let command = server.address("curl http://127.0.0.1:8080/health");
    assert_eq!(command, format!("curl http://127.0.0.1:{port}/health"));
    drop(server);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}
