//! Formats that are not read here, through an installed `ffmpeg`.
//!
//! `ffmpeg` runs on files and streams of the user of this machine only, without a shell, and may read that file or pipe alone.
//! Its output is WAV in a pipe, which is read within the limits of every stream.

use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::MAX_STREAM_BYTES;
use super::sink::Sink;
use super::stream::{SourceState, StreamSource};
use super::{sniff, wav};
use crate::Error;

const MAX_MESSAGE_BYTES: u64 = 64 << 10;

/// Container and codec of an input that only `ffmpeg` reads.
#[derive(Debug, PartialEq)]
pub(super) struct ForeignInput {
    container: String,
    codec: Option<String>,
}

impl ForeignInput {
    fn name(&self) -> String {
        match &self.codec {
            Some(codec) => format!("{codec} in {}", self.container),
            None => self.container.clone(),
        }
    }
}

/// Input for `ffmpeg`, from the error that names its container or codec.
pub(super) fn foreign(error: &Error) -> Option<ForeignInput> {
    match error {
        Error::UnsupportedContainer { container } => {
            Some(ForeignInput { container: (*container).to_owned(), codec: None })
        }
        Error::UnsupportedCodec { container, codec } => {
            Some(ForeignInput { container: container.clone(), codec: Some(codec.clone()) })
        }
        _ => None,
    }
}

/// Decodes the file at `path` into `sink`; `track` counts from 1.
pub(super) fn decode(
    path: &Path,
    track: Option<usize>,
    foreign: &ForeignInput,
    sink: &mut Sink<'_>,
) -> Result<(), Error> {
    let what = foreign.name();
    // The requested track, else the one that another reader has chosen.
    let track = track.or(Some(sink.source.track).filter(|&number| number > 0));
    let mut child = match start(path, track) {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Error::NeedsFfmpeg { what });
        }
        Err(error) => {
            return Err(Error::Ffmpeg { what, reason: error.to_string() });
        }
    };
    let output = child.stdout.take();
    let messages = child.stderr.take();
    let (result, message) = std::thread::scope(|scope| {
        let messages = scope.spawn(move || messages.map(last_line).unwrap_or_default());
        let result = output.map_or(Ok(()), |output| read(output, sink));
        if result.is_err() {
            // Ended already, perhaps.
            let _ = child.kill();
        }
        (result, messages.join().unwrap_or_default())
    });
    let status = child.wait();
    let is_empty = sink.source.sample_rate == 0;
    if let Err(error @ Error::Cancelled) | Err(error @ Error::TooLong { .. }) = result {
        return Err(error);
    }
    if is_empty || result.is_err() {
        let reason = match (result, &status) {
            (_, Ok(status)) if !status.success() && !message.is_empty() => message,
            (Err(error), _) => error.to_string(),
            _ => "expected audio, got none".to_owned(),
        };
        return Err(Error::Ffmpeg { what, reason });
    }
    sink.source.container.clone_from(&foreign.container);
    foreign.codec.as_deref().unwrap_or("unknown codec").clone_into(&mut sink.source.codec);
    sink.source.is_through_ffmpeg = true;
    sink.source.is_cut = !status.is_ok_and(|status| status.success());
    Ok(())
}

fn start(path: &Path, track: Option<usize>) -> std::io::Result<Child> {
    // Without `file:` a path may be taken for an address or an option.
    let mut input = OsString::from("file:");
    input.push(path);
    let mut command = Command::new("ffmpeg");
    command.args(["-nostdin", "-hide_banner", "-loglevel", "error"]);
    command.args(["-protocol_whitelist", "file,pipe", "-i"]).arg(input);
    if let Some(number) = track {
        command.arg("-map").arg(format!("0:a:{}", number - 1));
    }
    // The filter fills pauses, so that times stay those of the file.
    command.args(["-vn", "-sn", "-dn", "-af", "aresample=async=1:first_pts=0"]);
    command.args(["-c:a", "pcm_f32le", "-f", "wav", "pipe:1"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn()
}

fn last_line(mut messages: impl Read) -> String {
    let mut text = Vec::new();
    // Messages that cannot be read are not worth an error; the rest is read so that the program does not block.
    let _ = messages.by_ref().take(MAX_MESSAGE_BYTES).read_to_end(&mut text);
    let _ = std::io::copy(&mut messages, &mut std::io::sink());
    let text = String::from_utf8_lossy(&text);
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

fn read(output: impl Read + Send, sink: &mut Sink<'_>) -> Result<(), Error> {
    let state = SourceState::new(0);
    // 16 times a stream's limit: a day of eight channels.
    let mut source =
        StreamSource::new(output, std::sync::Arc::clone(&state), 16 * MAX_STREAM_BYTES);
    let head = sniff::read_head(&mut source)?;
    if !sniff::is_wav(&head) {
        return Ok(());
    }
    let Some(layout) = wav::read_layout(&mut source, &head)? else { return Ok(()) };
    state.set_seekable(false);
    wav::decode(&mut source, &layout, sink)?;
    state.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_reason() {
        assert_eq!(last_line(&b"one\ntwo \n\n"[..]), "two");
        assert_eq!(last_line(&b""[..]), "");
        let codec =
            Error::UnsupportedCodec { container: "mkv".to_owned(), codec: "AC-3".to_owned() };
        assert_eq!(foreign(&codec).unwrap().name(), "AC-3 in mkv");
        assert_eq!(foreign(&Error::NotAudio { got: "text".to_owned() }), None);
    }
}
