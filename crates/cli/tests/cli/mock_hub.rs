//! A Hugging Face hub on the loopback interface.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use sha2::{Digest, Sha256};

/// A repository: its name, and the paths and contents of its files.
pub(crate) struct Repository {
    pub(crate) name: &'static str,
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

impl Repository {
    pub(crate) fn new(name: &'static str, files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.to_vec()));
        Self { name, files: files.collect() }
    }
}

/// Faults of a hub.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Number of responses with files that end after half of what is left.
    pub(crate) cut_responses: usize,
    /// The SHA-256 of weights is another.
    pub(crate) wrong_checksum: bool,
    /// Status of every file instead of its content.
    pub(crate) status: Option<&'static str>,
    /// Entity tags of the answers about files, one after the other; the last one stays.
    pub(crate) etags: &'static [&'static str],
}

/// A hub that serves until the test ends.
pub(crate) struct Hub {
    /// Value of `HF_ENDPOINT`.
    pub(crate) address: String,
    /// Path and first byte of each request for a file that was answered with content.
    requests: Arc<Mutex<Vec<(String, usize)>>>,
}

impl Hub {
    pub(crate) fn serve(repositories: Vec<Repository>, faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::default();
        let log: Arc<Mutex<Vec<(String, usize)>>> = Arc::clone(&requests);
        thread::spawn(move || {
            let mut counts = (faults.cut_responses, 0);
            for stream in listener.incoming() {
                // The client may close the connection early.
                let _ = answer(stream.unwrap(), &repositories, faults, &mut counts, &log);
            }
        });
        Self { address, requests }
    }

    /// First bytes of the requests for the content of a file.
    pub(crate) fn starts(&self, path: &str) -> Vec<usize> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|(name, _)| name == path).map(|&(_, start)| start).collect()
    }
}

fn answer(
    mut stream: TcpStream,
    repositories: &[Repository],
    faults: Faults,
    (cuts, n_answers): &mut (usize, usize),
    log: &Mutex<Vec<(String, usize)>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut range = String::new();
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header == "\r\n" {
            break;
        }
        let header = header.trim().to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("range: bytes=") {
            value.clone_into(&mut range);
        }
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let head = |stream: &mut TcpStream, status: &str, headers: &str, length: usize| {
        write!(
            stream,
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        )
    };
    let info = repositories.iter().find(|r| {
        let rest = path.strip_prefix("/api/models/").and_then(|rest| rest.strip_prefix(r.name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    if let Some(repository) = info {
        let siblings =
            repository.files.iter().map(|(name, _)| serde_json::json!({ "rfilename": name }));
        let siblings: Vec<_> = siblings.collect();
        let body = serde_json::json!({ "sha": "c0ffee", "siblings": siblings }).to_string();
        head(&mut stream, "200 OK", "", body.len())?;
        return stream.write_all(body.as_bytes());
    }
    let file = repositories.iter().find_map(|repository| {
        let name = path.strip_prefix(&format!("/{}/resolve/main/", repository.name))?;
        repository.files.iter().find(|(path, _)| path == name)
    });
    let (Some((name, bytes)), None) = (file, faults.status) else {
        return head(&mut stream, faults.status.unwrap_or("404 Not Found"), "", 0);
    };
    let is_weights = [".gguf", ".safetensors", ".bin"].iter().any(|end| name.ends_with(end));
    let told = faults.etags.get(*n_answers).or(faults.etags.last());
    *n_answers += 1;
    let etag = match is_weights {
        _ if told.is_some() => told.copied().unwrap_or_default().to_owned(),
        true if faults.wrong_checksum => "0".repeat(64),
        true => Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect(),
        false => name.replace('/', "-"),
    };
    let (from, to) = range.split_once('-').unwrap_or_default();
    let from: usize = from.parse().unwrap_or(0);
    let to = to.parse().map_or(bytes.len() - 1, |to: usize| to.min(bytes.len() - 1));
    let headers = format!(
        "ETag: \"{etag}\"\r\nX-Repo-Commit: c0ffee\r\nContent-Range: bytes {from}-{to}/{}\r\n",
        bytes.len()
    );
    let body = &bytes[from..=to];
    head(&mut stream, "206 Partial Content", &headers, body.len())?;
    let is_content = range.ends_with('-');
    if is_content {
        log.lock().unwrap().push((name.clone(), from));
    }
    if is_content && is_weights && *cuts > 0 {
        *cuts -= 1;
        return stream.write_all(&body[..body.len() / 2]);
    }
    stream.write_all(body)
}
