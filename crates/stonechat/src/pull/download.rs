//! Download of one file, which resumes.
//!
//! The headers of a file are read once: the names in them are checked, and then used. The client of
//! the hub would read them again, and a hostile hub could answer otherwise the second time.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiError, ApiRepo, Metadata};

use super::Progress;

/// Retries after a broken connection, each after twice the pause.
const RETRIES: u32 = 5;
/// Pause before the first retry.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Bytes that are written at once.
const CHUNK_BYTES: usize = 1 << 16;

/// Headers of a file.
pub(super) fn metadata(api: &Api, url: &str) -> Result<Metadata, ApiError> {
    retried(|| api.metadata(url))
}

/// Downloads a file of these headers to `blob`. What arrived of it before is kept.
pub(super) fn download(
    remote: &ApiRepo,
    (file, size): (&str, u64),
    blob: &Path,
    mut on_progress: impl FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<(), ApiError> {
    let mut name = blob.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    if let Some(folder) = blob.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut report = |done| match on_progress(Progress { file, done, total: size }) {
        ControlFlow::Continue(()) => Ok(()),
        // No error of the network: those are tried again.
        ControlFlow::Break(()) => Err(io::Error::new(io::ErrorKind::Interrupted, "it was ended")),
    };
    retried(|| receive(remote, (file, size), &part, &mut report))?;
    Ok(fs::rename(&part, blob)?)
}

/// Appends the rest of a file to `part`.
fn receive(
    remote: &ApiRepo,
    (file, size): (&str, u64),
    part: &Path,
    report: &mut dyn FnMut(u64) -> io::Result<()>,
) -> Result<(), ApiError> {
    let mut output = OpenOptions::new().append(true).create(true).open(part)?;
    let mut done = output.metadata()?.len();
    if done > size {
        output.set_len(0)?;
        done = 0;
    }
    report(done)?;
    if done == size {
        return Ok(());
    }
    let range = format!("bytes={done}-");
    // A request with the token and the name of this client; its address is another.
    let request = remote.info_request().uri(remote.url(file)).header("range", range);
    let response = request.call().map_err(Box::new)?;
    if response.status() != 206 && done > 0 {
        // The server ignored the range and sends the whole file.
        output.set_len(0)?;
        done = 0;
    }
    // A hub must not fill the disk beyond the size that it told.
    let mut body = response.into_body().into_reader().take(size - done + 1);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match body.read(&mut chunk)? {
            0 => break,
            n => {
                output.write_all(&chunk[..n])?;
                done += n as u64;
                report(done.min(size))?;
            }
        }
    }
    let message = format!("expected {size} bytes, got {done} or more");
    match done.cmp(&size) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => {
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, message).into())
        }
        std::cmp::Ordering::Greater => {
            output.set_len(0)?;
            Err(io::Error::new(io::ErrorKind::InvalidData, message).into())
        }
    }
}

/// Tries again after an error of the network.
fn retried<R>(mut attempt: impl FnMut() -> Result<R, ApiError>) -> Result<R, ApiError> {
    let mut pause = FIRST_PAUSE;
    for _ in 0..RETRIES {
        match attempt() {
            Err(error) if is_transient(&error) => sleep(pause),
            result => return result,
        }
        pause *= 2;
    }
    attempt()
}

/// Tells if the same request may succeed later.
fn is_transient(error: &ApiError) -> bool {
    match error {
        ApiError::IoError(error) => is_network(error),
        ApiError::RequestError(error) => match &**error {
            ureq::Error::StatusCode(code) => matches!(code, 408 | 429 | 500..),
            ureq::Error::Io(error) => is_network(error),
            ureq::Error::Timeout(_) => true,
            _ => false,
        },
        _ => false,
    }
}

/// Tells an error of a connection that was open from those of files and of a hub that is not there.
pub(super) fn is_network(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock,
    };
    let is_ureq = error.get_ref().is_some_and(|inner| inner.is::<ureq::Error>());
    is_ureq
        || matches!(
            error.kind(),
            BrokenPipe
                | ConnectionAborted
                | ConnectionReset
                | TimedOut
                | UnexpectedEof
                | WouldBlock
        )
}
