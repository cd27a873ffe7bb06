//! HTTP client of the exporter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::http::Uri;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use ureq::Agent;

/// Maximum time of a request, the default of OpenTelemetry.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of an answer, which counts refused spans.
const MAX_ANSWER: u64 = 1 << 20;

/// Client that logs the first failure of a series.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    /// Host and port.
    collector: String,
    is_failing: AtomicBool,
}

impl Client {
    /// Client for a collector.
    pub(super) fn new(url: &Uri) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .build();
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        Self {
            agent: config.new_agent(),
            // The address in messages has no user and password.
            collector: format!("{}{port}", url.host().unwrap_or_default()),
            is_failing: AtomicBool::new(false),
        }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (parts, body) = request.into_parts();
        let response = self.agent.run(Request::from_parts(parts, &body[..]))?;
        let (parts, mut body) = response.into_parts();
        let bytes = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(parts, bytes.into()))
    }

    /// Logs the first failure after a success, and the first success after it.
    fn log(&self, result: &Result<Response<Bytes>, ureq::Error>) {
        let failure = match result {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(response.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        let was_failing = self.is_failing.swap(failure.is_some(), Ordering::Relaxed);
        let collector = &self.collector;
        match failure {
            Some(failure) if was_failing => tracing::debug!("no traces to {collector}: {failure}"),
            Some(failure) => {
                tracing::warn!("cannot send traces to {collector}, spans are dropped: {failure}");
            }
            None if was_failing => tracing::info!("traces are sent to {collector} again"),
            None => {}
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    /// Blocks: the exporter has a thread of its own.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let result = self.send(request);
        self.log(&result);
        Ok(result?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    use opentelemetry_http::{Bytes, HttpClient, Request};
    use tracing::Level;

    use super::Client;

    /// Log in memory.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_outage_is_one_warning() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let url = format!("http://name:secret@{address}/v1/traces");
        let client = Client::new(&url.parse().unwrap());
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::INFO)
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let request = || Request::post(&url).body(Bytes::from_static(b"spans")).unwrap();
        for _ in 0..3 {
            client.send_bytes(request()).await.unwrap_err();
        }
        let collector = std::thread::spawn(move || {
            let listener = TcpListener::bind(address).unwrap();
            for status in ["503 Service Unavailable", "200 OK"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut bytes = Vec::new();
                while !bytes.ends_with(b"spans") {
                    let mut block = [0; 1024];
                    let n = stream.read(&mut block).unwrap();
                    bytes.extend(&block[..n]);
                }
                let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
                stream.write_all(format!("{head}Content-Length: 2\r\n\r\nok").as_bytes()).unwrap();
            }
        });
        let mut statuses = Vec::new();
        while statuses.len() < 2 {
            // The collector may not listen yet.
            if let Ok(response) = client.send_bytes(request()).await {
                assert_eq!(response.body(), "ok");
                statuses.push(response.status().as_u16());
            }
        }
        collector.join().unwrap();
        assert_eq!(statuses, [503, 200]);
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("stonechat")).collect();
        assert_eq!(lines.len(), 2, "{log}");
        assert!(lines[0].contains("WARN") && lines[0].contains("cannot send traces"), "{log}");
        assert!(lines[1].contains("INFO") && lines[1].contains(" again"), "{log}");
        assert!(!log.contains("secret"), "{log}");
    }
}
