//! Raw sockets: clients that break off, send invalid bytes, or read slowly.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// Time without a byte after which a client gives up.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Receive buffer of a slow reader: the smallest of Linux is a bit more.
const SMALL_BUFFER: usize = 2048;
/// Bytes that a slow reader reads at a time, and its pause.
const SLOW_BYTES: usize = 8;
const SLOW_PAUSE: Duration = Duration::from_secs(1);

/// Bytes of a `POST` request whose connection ends with the answer.
pub(super) fn post(path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let n = body.len();
    // HTTP/1.0: without chunks, the body is what follows the headers.
    let head = format!(
        "POST {path} HTTP/1.0\r\nContent-Type: {content_type}\r\nContent-Length: {n}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn address(text: &str) -> io::Result<SocketAddr> {
    text.parse().map_err(|_| io::Error::other(format!("expected an address, got `{text}`")))
}

/// Connects with limits of time.
pub(super) fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Sends bytes, waits, and closes the connection without reading.
pub(super) fn send_and_close(address: &str, bytes: &[u8], wait: Duration) -> io::Result<()> {
    let mut stream = connect(address)?;
    stream.write_all(bytes)?;
    sleep(wait);
    Ok(())
}

/// Sends bytes and reads until the server closes the connection; a response, if there is one, and whether the connection
/// was reset, so that bytes of the response may be missing.
pub(super) fn exchange(address: &str, bytes: &[u8]) -> io::Result<(Vec<u8>, bool)> {
    let mut stream = connect(address)?;
    // The server may answer and close before it has read all.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => Ok((answer, false)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok((answer, true)),
        Err(error) => Err(error),
    }
}

/// Body of a response that ends with its connection.
pub(super) fn body(answer: &[u8]) -> Option<&[u8]> {
    const HEAD_END: &[u8] = b"\r\n\r\n";
    let head = answer.windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END)?;
    Some(&answer[head + HEAD_END.len()..])
}

/// Status of a response.
pub(super) fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|&byte| byte == b'\r').next()?;
    str::from_utf8(line).ok()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()
}

/// Sends a request and reads a few bytes a second for `time`; then the rest, or nothing more.
pub(super) fn read_slowly(
    to: &str,
    request: &[u8],
    time: Duration,
    reads_rest: bool,
) -> io::Result<Vec<u8>> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_recv_buffer_size(SMALL_BUFFER)?;
    socket.connect(&address(to)?.into())?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request)?;
    let (start, mut answer) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let mut bytes = [0; SLOW_BYTES];
        let n = stream.read(&mut bytes)?;
        answer.extend_from_slice(&bytes[..n]);
        if n == 0 {
            return Ok(answer);
        }
        sleep(SLOW_PAUSE);
    }
    if reads_rest {
        stream.read_to_end(&mut answer)?;
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_from_the_first_line() {
        assert_eq!(status(b"HTTP/1.1 413 Payload Too Large\r\nA: b\r\n\r\n"), Some(413));
        assert_eq!(status(b"HTTP/1.0 200 OK\r\n"), Some(200));
        for other in [&b""[..], b"HTTP/1.1", b"HTTP/2 200 OK\r\n", b"\xff\r\n"] {
            assert_eq!(status(other), None);
        }
    }

    #[test]
    fn bodies_follow_the_headers() {
        assert_eq!(body(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\nx\r\n\r\ny"), Some(&b"x\r\n\r\ny"[..]));
        assert_eq!(body(b"HTTP/1.0 200 OK\r\n"), None);
    }

    #[test]
    fn requests_end_with_their_body() {
        let text = String::from_utf8(post("/a", "text/plain", b"xy")).unwrap();
        assert!(text.starts_with("POST /a HTTP/1.0\r\n") && text.ends_with("Length: 2\r\n\r\nxy"));
    }
}
