//! Live sessions: the realtime WebSocket, and Wyoming. Clients send audio faster than it is spoken, and read the transcript or
//! go away meanwhile.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fastrand::Rng;
use serde_json::{Value, json};
use tungstenite::Message;

use super::ledger::Work;
use super::raw;
use super::traffic::Traffic;
use super::uploads::{Clip, SAMPLE_RATE};

/// Bytes of a piece of audio, 100 ms, and the pause after it.
const PIECE: usize = 3200;
const PIECE_PAUSE: Duration = Duration::from_millis(20);
/// One of as many sessions is given up before its end; as many connections to Wyoming send no audio.
const ABORT_SHARE: usize = 4;
/// Code of the error of a commit without speech, which is none here.
const COMMIT_EMPTY: &str = "input_audio_buffer_commit_empty";

/// Audio of a session.
#[derive(Debug)]
struct Speech<'a> {
    clip: &'a Clip,
    /// Pieces after which the client goes away.
    abort_after: Option<usize>,
    /// Whether the client ends its utterance, instead of the detection of speech.
    is_manual: bool,
}

impl Speech<'_> {
    /// Pieces to send, in time.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let n = self.abort_after.unwrap_or(usize::MAX);
        self.clip.pcm.chunks(PIECE).take(n).inspect(|_| sleep(PIECE_PAUSE))
    }
}

impl Traffic {
    /// A session of OpenAI's realtime transcription.
    pub(super) fn realtime(&self, random: &mut Rng) {
        self.session("realtime", random, |speech| realtime(self.target.address(), speech));
    }

    /// A transcript of a voice assistant, or a connection with an error.
    pub(super) fn wyoming(&self, random: &mut Rng) {
        const NAME: &str = "wyoming";
        if random.usize(..ABORT_SHARE) > 0 {
            return self.session(NAME, random, |speech| wyoming(&self.wyoming, speech));
        }
        match wyoming_error(&self.wyoming) {
            Ok(()) => self.ledger.not_posted(NAME, Some(400)),
            Err(error) => self.ledger.problem(NAME, &format!("{error:#}")),
        }
        self.pause_after_abort();
    }

    fn session(
        &self,
        kind: &'static str,
        random: &mut Rng,
        run: impl FnOnce(&Speech<'_>) -> Result<()>,
    ) {
        let Some(clip) = random.choice(&self.clips) else { return };
        let is_aborted = random.usize(..ABORT_SHARE) == 0;
        let n_pieces = clip.pcm.len().div_ceil(PIECE);
        let abort_after = is_aborted.then(|| random.usize(..=n_pieces));
        let speech = Speech { clip, abort_after, is_manual: random.bool() };
        match run(&speech) {
            Ok(()) => {
                let low = if is_aborted { Work::default() } else { clip.work() };
                self.ledger.not_posted(kind, (!is_aborted).then_some(200));
                self.ledger.worked(low, clip.work());
            }
            Err(error) => {
                self.ledger.problem(kind, &format!("{error:#}"));
                self.pause_before_retry();
            }
        }
        if is_aborted {
            self.pause_after_abort();
        }
    }
}

fn realtime(address: &str, speech: &Speech<'_>) -> Result<()> {
    let url = format!("ws://{address}/v1/realtime?intent=transcription");
    let opened = tungstenite::client(url, raw::connect(address)?);
    let (mut socket, _) = opened.map_err(|error| anyhow!("no WebSocket: {error}"))?;
    let turn_detection = (!speech.is_manual).then(|| json!({"type": "server_vad"}));
    let format = json!({"type": "audio/pcm", "rate": SAMPLE_RATE});
    let input = json!({"format": format, "turn_detection": turn_detection});
    let session = json!({"type": "transcription", "audio": {"input": input}});
    let mut send = |event: Value| socket.send(Message::text(event.to_string()));
    send(json!({"type": "session.update", "session": session}))?;
    send(json!({"type": "unknown"}))?;
    for piece in speech.pieces() {
        send(json!({"type": "input_audio_buffer.append", "audio": STANDARD.encode(piece)}))?;
    }
    if speech.abort_after.is_some() {
        return Ok(());
    }
    send(json!({"type": "input_audio_buffer.commit"}))?;
    // The answer comes after all others.
    send(json!({"type": "input_audio_buffer.clear"}))?;
    let mut events: Vec<Value> = Vec::new();
    while events.last().is_none_or(|last| last["type"] != "input_audio_buffer.cleared") {
        if let Message::Text(text) = socket.read()? {
            events.push(serde_json::from_str(&text)?);
        }
    }
    check_realtime(&events, speech.is_manual)?;
    // The server may be the first to close.
    let _ = socket.close(None);
    Ok(())
}

/// Checks the events of a session: each utterance has its transcript, and the unknown event its error.
fn check_realtime(events: &[Value], is_manual: bool) -> Result<()> {
    const TRANSCRIPTION: &str = "conversation.item.input_audio_transcription";
    let of = |kind: String| events.iter().filter(move |event| event["type"] == *kind);
    ensure!(events.first().is_some_and(|first| first["type"] == "session.created"), "{events:?}");
    ensure!(of("session.updated".to_owned()).count() == 1, "expected an update: {events:?}");
    let errors = of("error".to_owned()).map(|event| &event["error"]);
    let errors: Vec<&Value> = errors.filter(|error| error["code"] != COMMIT_EMPTY).collect();
    let has_form = |error: &Value| error["message"].is_string() && error["param"] == "type";
    ensure!(matches!(errors[..], [error] if has_form(error)), "expected an error: {errors:?}");
    let n_committed = of("input_audio_buffer.committed".to_owned()).count();
    let completed = of(format!("{TRANSCRIPTION}.completed"));
    let n_completed = completed.filter(|event| event["transcript"].is_string()).count();
    let is_right = n_completed == n_committed && (n_committed == 1 || !is_manual);
    ensure!(is_right, "{n_completed} transcripts of {n_committed} utterances: {events:?}");
    Ok(())
}

/// Sends an event of Wyoming.
fn send(stream: &mut TcpStream, kind: &str, data: &Value, payload: &[u8]) -> Result<()> {
    let data = data.to_string();
    let header = json!({"type": kind, "data_length": data.len(), "payload_length": payload.len()});
    let bytes = [header.to_string().as_bytes(), b"\n", data.as_bytes(), payload].concat();
    Ok(stream.write_all(&bytes)?)
}

/// Events of Wyoming to the end of the connection: their types and data.
fn events(mut reader: impl BufRead) -> Result<Vec<(String, Value)>> {
    let mut events = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(events);
        }
        let header: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        let kind = header["type"].as_str().with_context(|| format!("expected a type: {line}"))?;
        let mut data = Vec::new();
        let n = header["data_length"].as_u64().unwrap_or(0);
        reader.by_ref().take(n).read_to_end(&mut data)?;
        let data = if n == 0 { Value::Null } else { serde_json::from_slice(&data)? };
        events.push((kind.to_owned(), data));
    }
}

fn format(rate: u32) -> Value {
    json!({"rate": rate, "width": 2, "channels": 1})
}

fn wyoming(address: &str, speech: &Speech<'_>) -> Result<()> {
    let mut stream = raw::connect(address)?;
    send(&mut stream, "ping", &json!({"text": "a"}), &[])?;
    send(&mut stream, "describe", &json!({}), &[])?;
    send(&mut stream, "transcribe", &json!({"language": "en"}), &[])?;
    let format = format(SAMPLE_RATE);
    send(&mut stream, "audio-start", &format, &[])?;
    for piece in speech.pieces() {
        send(&mut stream, "audio-chunk", &format, piece)?;
    }
    if speech.abort_after.is_some() {
        return Ok(());
    }
    send(&mut stream, "audio-stop", &json!({}), &[])?;
    check_wyoming(&events(BufReader::new(stream))?)
}

/// Checks the answers to `ping`, `describe` and a transcript.
fn check_wyoming(events: &[(String, Value)]) -> Result<()> {
    let data = |kind: &str| {
        let event = events.iter().find(|(got, _)| got == kind);
        event.map(|(_, data)| data).with_context(|| format!("expected {kind}: {events:?}"))
    };
    ensure!(data("pong")?["text"] == "a", "expected the text of the ping: {events:?}");
    ensure!(data("info")?["asr"][0]["models"][0]["name"].is_string(), "no model: {events:?}");
    ensure!(data("transcript")?["text"].is_string(), "expected a text: {events:?}");
    let last = events.last().map(|(kind, _)| kind.as_str());
    ensure!(last == Some("transcript-stop"), "expected the end of the transcript: {events:?}");
    Ok(())
}

/// A connection whose audio cannot be read: its only answer is an error.
fn wyoming_error(address: &str) -> Result<()> {
    let mut stream = raw::connect(address)?;
    send(&mut stream, "audio-start", &format(5), &[])?;
    let events = events(BufReader::new(stream))?;
    let is_error = |(kind, data): &(String, Value)| {
        kind == "error" && data["text"].is_string() && data["code"].is_string()
    };
    ensure!(matches!(&events[..], [event] if is_error(event)), "expected an error: {events:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_the_transcripts_of_its_utterances() {
        let event = |kind: &str| json!({"type": kind});
        let error = |code: Value, param: Value| json!({"type": "error", "error": {"message": "a", "code": code, "param": param}});
        let completed = json!({"type": "conversation.item.input_audio_transcription.completed", "transcript": ""});
        let whole = [
            event("session.created"),
            event("session.updated"),
            error(Value::Null, "type".into()),
            event("input_audio_buffer.committed"),
            completed,
            error(COMMIT_EMPTY.into(), Value::Null),
        ];
        assert!(check_realtime(&whole, true).is_ok() && check_realtime(&whole, false).is_ok());
        for missing in 0..5 {
            let mut broken = whole.to_vec();
            broken.remove(missing);
            assert!(check_realtime(&broken, true).is_err(), "without {}", whole[missing]);
        }
        // A clip without speech has no utterance, unless its client says so.
        let silent = [&whole[..3], &whole[5..]].concat();
        assert!(check_realtime(&silent, false).is_ok() && check_realtime(&silent, true).is_err());
        let twice = [&whole[..], &whole[2..3]].concat();
        assert!(check_realtime(&twice, true).is_err());
    }

    #[test]
    fn events_of_wyoming_have_data_after_their_header() {
        let event = |kind: &str, data: &str| {
            format!("{{\"type\": \"{kind}\", \"data_length\": {}}}\n{data}", data.len())
        };
        let whole = [
            event("pong", "{\"text\": \"a\"}"),
            event("info", "{\"asr\": [{\"models\": [{\"name\": \"base\"}]}]}"),
            event("transcript", "{\"text\": \"\"}"),
            "{\"type\": \"transcript-stop\"}\n".to_owned(),
        ];
        let read = |events: &[String]| super::events(events.concat().as_bytes()).unwrap();
        assert_eq!(read(&whole)[2], ("transcript".to_owned(), json!({"text": ""})));
        assert!(check_wyoming(&read(&whole)).is_ok());
        for missing in 0..whole.len() {
            let mut broken = whole.to_vec();
            broken.remove(missing);
            assert!(check_wyoming(&read(&broken)).is_err(), "without {}", whole[missing]);
        }
        assert!(events(&b"{\"data_length\": 0}\n"[..]).is_err());
        // The connection breaks off.
        assert!(events(&b"{\"type\": \"a\", \"data_length\": 9}\n{\"b\":"[..]).is_err());
    }
}
