//! Events of the client to commands of a live stream.

use serde::Deserialize;
use serde_json::Value;
use stonechat::audio::{PcmFormat, PcmStream, SAMPLE_RATE};
use stonechat::whisper::LiveOptions;

use super::event::Answer;
use super::frame::Frame;
use crate::realtime::MAX_PENDING_S;
use crate::speech::language;
use crate::{ApiError, ApiResult};

/// Maximum bytes of the names and terms to expect.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// Effect of an event of the client.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Send the speech models.
    Describe,
    /// Send an event.
    Send(Answer),
    /// Start a live stream with the model of this name.
    Start {
        /// Name of the model; `None`: the only one.
        model: Option<String>,
        /// Options.
        options: Box<LiveOptions>,
    },
    /// Append 16 kHz mono samples.
    Audio(Vec<f32>),
    /// End the stream; its transcript is the answer.
    Stop,
}

/// Format of audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct AudioFormat {
    rate: u32,
    width: u32,
    channels: usize,
}

impl AudioFormat {
    fn stream(self) -> ApiResult<PcmStream> {
        let format = match self.width {
            1 => PcmFormat::U8,
            2 => PcmFormat::S16,
            3 => PcmFormat::S24,
            4 => PcmFormat::S32,
            got => return Err(ApiError::field("width", "1 to 4 bytes", got)),
        };
        let stream = PcmStream::new(format, self.rate, self.channels);
        stream.map_err(|error| stonechat::Error::from(error).into())
    }
}

/// Fields of `transcribe`. Others have no effect.
#[derive(Debug, Clone, Default, Deserialize)]
struct Transcribe {
    name: Option<String>,
    language: Option<String>,
    transcript_names: Option<Vec<String>>,
    transcript_terms: Option<Vec<String>>,
}

/// Events of a connection so far: one transcript.
#[derive(Debug, Default)]
pub struct Conversation {
    transcribe: Transcribe,
    /// Converter of the audio, and its format, once the stream has started.
    pcm: Option<(AudioFormat, PcmStream)>,
    is_started: bool,
}

impl Conversation {
    /// Takes an event of the client. `n_pending` samples wait for their transcription.
    ///
    /// # Errors
    /// 400 with the field: the transcript cannot be made.
    pub fn receive(&mut self, frame: Frame, n_pending: u64) -> ApiResult<Vec<Action>> {
        let Frame { kind, data, payload } = frame;
        let data = Value::Object(data);
        Ok(match kind.as_str() {
            "describe" => vec![Action::Describe],
            "ping" => {
                let text = data.get("text").and_then(Value::as_str).map(str::to_owned);
                vec![Action::Send(Answer::Pong(text))]
            }
            "transcribe" => {
                self.transcribe = fields(&kind, data)?;
                Vec::new()
            }
            "audio-start" => {
                let format = fields(&kind, data)?;
                self.start(format)?
            }
            "audio-chunk" => {
                let format = fields(&kind, data)?;
                let mut actions = self.start(format)?;
                actions.extend(self.convert(format, &payload, n_pending)?);
                actions
            }
            "audio-stop" => self.stop()?,
            // Other services' events, and those of later versions, are no error in this protocol.
            _ => Vec::new(),
        })
    }

    /// Starts the stream, unless it has started.
    fn start(&mut self, format: AudioFormat) -> ApiResult<Vec<Action>> {
        if self.is_started {
            return Ok(Vec::new());
        }
        self.pcm = Some((format, format.stream()?));
        self.start_stream()
    }

    fn start_stream(&mut self) -> ApiResult<Vec<Action>> {
        self.is_started = true;
        let options = Box::new(self.options()?);
        Ok(vec![Action::Start { model: self.transcribe.name.clone(), options }])
    }

    fn options(&self) -> ApiResult<LiveOptions> {
        let Transcribe { language: name, transcript_names, transcript_terms, .. } =
            &self.transcribe;
        let mut options = LiveOptions::default();
        let name = name.as_deref().filter(|name| !name.is_empty() && *name != "auto");
        options.decoding.language = name.map(|name| language(name, "language")).transpose()?;
        let words = [transcript_names, transcript_terms].into_iter().flatten().flatten();
        let words = words.map(String::as_str).collect::<Vec<_>>().join(", ");
        if words.len() > MAX_TEXT_BYTES {
            let expected = format!("at most {MAX_TEXT_BYTES} bytes");
            return Err(ApiError::field("transcript_names", &expected, words.len()));
        }
        options.decoding.hotwords = Some(words).filter(|words| !words.is_empty());
        Ok(options)
    }

    /// Samples of a chunk. Audio of another format follows what the last converter still holds.
    fn convert(
        &mut self,
        format: AudioFormat,
        payload: &[u8],
        n_pending: u64,
    ) -> ApiResult<Option<Action>> {
        let mut samples = Vec::new();
        if let Some((_, pcm)) = self.pcm.take_if(|(of, _)| *of != format) {
            pcm.finish(&mut samples);
        }
        let (_, pcm) = match &mut self.pcm {
            Some(pcm) => pcm,
            none => none.insert((format, format.stream()?)),
        };
        let max = MAX_PENDING_S * u64::from(SAMPLE_RATE);
        if n_pending.saturating_add(pcm.n_samples(payload.len())) > max {
            let expected = format!("at most {MAX_PENDING_S} s that wait for their transcription");
            return Err(ApiError::field("audio-chunk", &expected, "more"));
        }
        pcm.push(payload, &mut samples).map_err(stonechat::Error::from)?;
        Ok(Some(Action::Audio(samples)).filter(|_| !payload.is_empty()))
    }

    fn stop(&mut self) -> ApiResult<Vec<Action>> {
        // A client without audio gets an empty transcript.
        let mut actions = if self.is_started { Vec::new() } else { self.start_stream()? };
        if let Some((_, pcm)) = self.pcm.take() {
            let mut samples = Vec::new();
            pcm.finish(&mut samples);
            actions.extend(
                Some(Action::Audio(samples)).filter(
                    |action| !matches!(action, Action::Audio(samples) if samples.is_empty()),
                ),
            );
        }
        actions.push(Action::Stop);
        Ok(actions)
    }
}

/// Fields of an event.
fn fields<T: for<'de> Deserialize<'de>>(kind: &str, data: Value) -> ApiResult<T> {
    serde_path_to_error::deserialize(data).map_err(|error| {
        ApiError::bad_request(format!("{kind}: `{}`: {}", error.path(), error.inner()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Action, Conversation};
    use crate::wyoming::{Answer, Frame};

    fn frame(kind: &str, data: Value, payload: &[u8]) -> Frame {
        let Value::Object(data) = data else { panic!("expected an object") };
        Frame { kind: kind.to_owned(), data, payload: payload.to_vec() }
    }

    fn format(rate: u32, width: u32, channels: usize) -> Value {
        json!({"rate": rate, "width": width, "channels": channels, "timestamp": 0})
    }

    fn n_samples(actions: &[Action]) -> usize {
        let n =
            |action: &Action| if let Action::Audio(samples) = action { samples.len() } else { 0 };
        actions.iter().map(n).sum()
    }

    #[test]
    fn a_command_is_a_stream() {
        let mut conversation = Conversation::default();
        let mut receive = |kind: &str, data, payload: &[u8]| {
            conversation.receive(frame(kind, data, payload), 0).unwrap()
        };
        let transcribe = json!({"name": "base", "language": "de-DE", "vad_sensitivity": "default",
            "transcript_names": ["Küche"], "transcript_terms": ["Licht"]});
        assert_eq!(receive("transcribe", transcribe, &[]), []);
        let mut started = receive("audio-start", format(48_000, 2, 2), &[]);
        let Some(Action::Start { model, options }) = started.pop() else { panic!("no start") };
        assert_eq!(model.as_deref(), Some("base"));
        assert_eq!(options.decoding.language.unwrap().code, "de");
        assert_eq!(options.decoding.hotwords.as_deref(), Some("Küche, Licht"));
        let mut n = n_samples(&receive("audio-chunk", format(48_000, 2, 2), &[0; 192_000]));
        let stopped = receive("audio-stop", json!({}), &[]);
        n += n_samples(&stopped);
        assert_eq!((n, stopped.last()), (16_000, Some(&Action::Stop)));
    }

    #[test]
    fn any_format_becomes_16_khz_mono() {
        for (rate, width, channels) in
            [(16_000, 2, 1), (8000, 1, 1), (22_050, 4, 2), (44_100, 3, 1)]
        {
            let mut conversation = Conversation::default();
            let payload = vec![0; rate as usize * width as usize * channels];
            let chunk = frame("audio-chunk", format(rate, width, channels), &payload);
            let first = conversation.receive(chunk, 0).unwrap();
            assert!(matches!(first[0], Action::Start { .. }));
            let stop = conversation.receive(frame("audio-stop", json!({}), &[]), 0).unwrap();
            assert_eq!(n_samples(&first) + n_samples(&stop), 16_000, "{rate} {width} {channels}");
        }
    }

    #[test]
    fn no_audio_is_an_empty_transcript() {
        let mut conversation = Conversation::default();
        let stop = conversation.receive(frame("audio-stop", json!({}), &[]), 0).unwrap();
        assert!(matches!(stop[..], [Action::Start { .. }, Action::Stop]));
    }

    #[test]
    fn wrong_fields_are_named() {
        let chunk = |data| Conversation::default().receive(frame("audio-chunk", data, &[0; 4]), 0);
        for (data, expected) in [
            (json!({}), "missing field `rate`"),
            (json!({"rate": "x", "width": 2, "channels": 1}), "`rate`"),
            (format(0, 2, 1), "sample rate"),
            (format(16_000, 5, 1), "`width`: expected 1 to 4 bytes, got 5"),
            (format(16_000, 2, 0), "1 to 64 channels"),
            (format(16_000, 2, 65), "1 to 64 channels"),
        ] {
            let error = chunk(data).unwrap_err();
            assert!(error.message().contains(expected), "{error}");
        }
        let mut conversation = Conversation::default();
        let transcribe = frame("transcribe", json!({"language": "klingon"}), &[]);
        conversation.receive(transcribe, 0).unwrap();
        let start = frame("audio-start", format(16_000, 2, 1), &[]);
        assert_eq!(conversation.receive(start, 0).unwrap_err().param(), Some("language"));
        let full = frame("audio-chunk", format(16_000, 2, 1), &[0; 2]);
        let error = Conversation::default().receive(full, 600 * 16_000).unwrap_err();
        assert!(error.message().contains("at most 600 s"), "{error}");
    }

    #[test]
    fn pings_are_answered_and_unknown_events_skipped() {
        let mut conversation = Conversation::default();
        let ping = conversation.receive(frame("ping", json!({"text": "x"}), &[]), 0).unwrap();
        assert_eq!(ping, [Action::Send(Answer::Pong(Some("x".to_owned())))]);
        assert_eq!(
            conversation.receive(frame("select-program", json!({"name": "a"}), &[]), 0),
            Ok(Vec::new())
        );
        assert_eq!(
            conversation.receive(frame("describe", json!({}), &[]), 0),
            Ok(vec![Action::Describe])
        );
    }
}
