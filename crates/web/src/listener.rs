//! Live transcription.
//!
//! ```text
//! push ──► queue ──► stream, between the events of the worker ──► events
//! ```

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt;
use js_sys::{Float32Array, Function, Promise};
use serde::Deserialize;
use serde_json::{Value, json};
use stonechat::audio::Resampler;
use stonechat::whisper::{
    LiveEvent, LiveOptions, LiveStream, Options, Task, Transcriber, VadMode, Word,
};
use stonechat_api::speech::language as speech_language;
use stonechat_api::{ApiError, ApiResult};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;

use crate::error::exception;
use crate::job::Events;
use crate::speech::Speech;

/// Seconds of audio that may wait. A stream that is slower than its microphone loses no audio until then.
const MAX_WAITING_S: f64 = 60.0;

/// Sample rates, in Hz.
const MIN_RATE: u32 = 4000;
const MAX_RATE: u32 = 384_000;

/// Options of a stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ListenOptions {
    /// Code or English name; detected without it.
    language: Option<String>,
    /// `transcribe` or `translate`.
    task: Option<String>,
    prompt: Option<String>,
    /// Whether silence ends an utterance; true without it.
    vad: Option<bool>,
    /// Seconds of new audio before the buffer is decoded again.
    min_chunk_s: Option<f64>,
}

impl ListenOptions {
    fn parse(json: &str) -> ApiResult<LiveOptions> {
        let options: Self = serde_json::from_str(json)
            .map_err(|error| ApiError::bad_request(format!("options: {error}")))?;
        let mut live = LiveOptions::default();
        let Options { language, task, initial_prompt, vad, .. } = &mut live.decoding;
        if let Some(name) = options.language.filter(|name| name != "auto") {
            *language = Some(speech_language(&name, "language")?);
        }
        *task = match options.task.as_deref() {
            None | Some("transcribe") => Task::Transcribe,
            Some("translate") => Task::Translate,
            Some(other) => return Err(ApiError::field("task", "transcribe or translate", other)),
        };
        *initial_prompt = options.prompt;
        if options.vad == Some(false) {
            *vad = VadMode::Off;
        }
        live.min_chunk_s = options.min_chunk_s.unwrap_or(live.min_chunk_s);
        live.validate()?;
        Ok(live)
    }
}

/// Samples and their rate.
type Block = (Vec<f32>, u32);

/// State that the loop of a stream and its handle share.
#[derive(Debug, Default)]
struct Shared {
    /// Seconds of audio that wait.
    waiting: Cell<f64>,
    is_cancelled: Cell<bool>,
}

/// A running live transcription.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Listener {
    /// `None` after the end.
    audio: RefCell<Option<UnboundedSender<Block>>>,
    shared: Rc<Shared>,
    result: Promise,
}

#[wasm_bindgen]
impl Listener {
    /// Appends samples of one channel at `rate` Hz.
    pub fn push(&self, samples: Float32Array, rate: u32) -> Result<(), JsValue> {
        let refuse = |message: &str| Err(exception(&ApiError::bad_request(message)));
        let audio = self.audio.borrow();
        let Some(audio) = &*audio else { return refuse("expected a stream that has not ended") };
        if !(MIN_RATE..=MAX_RATE).contains(&rate) {
            return refuse(&format!("rate: expected {MIN_RATE} to {MAX_RATE} Hz, got {rate}"));
        }
        let seconds = f64::from(samples.length()) / f64::from(rate);
        let waiting = &self.shared.waiting;
        if waiting.get() + seconds > MAX_WAITING_S {
            let limit = format!(
                "expected at most {MAX_WAITING_S} s of audio that wait: the model is too slow here"
            );
            return refuse(&limit);
        }
        waiting.set(waiting.get() + seconds);
        // A loop that has failed takes no more; its error is that of the end.
        let _ = audio.unbounded_send((samples.to_vec(), rate));
        Ok(())
    }

    /// Ends the stream; the transcript as JSON once all audio is decoded.
    pub fn end(&self) -> Promise {
        self.audio.take();
        self.result.clone()
    }

    /// Ends the stream with the words that are committed.
    pub fn cancel(&self) {
        self.shared.is_cancelled.set(true);
        self.audio.take();
    }
}

impl Listener {
    /// Starts a stream with options as JSON.
    pub(crate) fn start(speech: &Speech, options: &str, on_event: Function) -> ApiResult<Self> {
        let options = ListenOptions::parse(options)?;
        let (model, kv_dtype) = speech.model();
        let state = Options { word_timestamps: true, ..options.decoding.clone() };
        let transcriber = Transcriber::new(model, &state, kv_dtype)?;
        let (audio, queue) = unbounded();
        let shared = Rc::<Shared>::default();
        let listening = Listening {
            stream: LiveStream::new(options)?,
            transcriber,
            events: Events::new(on_event),
            words: Vec::new(),
            language: None,
        };
        let of_loop = Rc::clone(&shared);
        let result = future_to_promise(async move {
            let result = listening.run(queue, &of_loop).await;
            result
                .map(|transcript| transcript.to_string().into())
                .map_err(|error| exception(&error))
        });
        Ok(Self { audio: RefCell::new(Some(audio)), shared, result })
    }
}

/// State of the loop of a stream.
struct Listening {
    stream: LiveStream,
    transcriber: Transcriber,
    events: Events,
    words: Vec<Word>,
    language: Option<&'static str>,
}

impl Listening {
    /// Decodes the audio of `queue` until its end.
    async fn run(
        mut self,
        mut queue: UnboundedReceiver<Block>,
        shared: &Shared,
    ) -> ApiResult<Value> {
        let mut resampler: Option<(u32, Resampler)> = None;
        let mut samples = Vec::new();
        while let Some((block, rate)) = queue.next().await {
            if shared.is_cancelled.get() {
                return Ok(self.transcript());
            }
            shared.waiting.set(shared.waiting.get() - block.len() as f64 / f64::from(rate));
            samples.clear();
            match &mut resampler {
                Some((of, resampler)) if *of == rate => resampler.push(&block, &mut samples),
                other => {
                    if let Some((_, last)) = other.take() {
                        last.finish(&mut samples);
                    }
                    let resampler = Resampler::new(rate).map_err(stonechat::Error::from)?;
                    let (_, resampler) = other.insert((rate, resampler));
                    resampler.push(&block, &mut samples);
                }
            }
            let events = self.stream.push_async(&mut self.transcriber, &samples).await?;
            self.report(events);
            // On the CPU nothing above awaits, and a cancellation must be seen.
            stonechat::yield_now().await;
        }
        if shared.is_cancelled.get() {
            return Ok(self.transcript());
        }
        if let Some((_, resampler)) = resampler {
            samples.clear();
            resampler.finish(&mut samples);
            let events = self.stream.push_async(&mut self.transcriber, &samples).await?;
            self.report(events);
        }
        let events = self.stream.finish_async(&mut self.transcriber).await?;
        self.report(events);
        Ok(self.transcript())
    }

    fn report(&mut self, events: Vec<LiveEvent>) {
        for event in events {
            match event {
                LiveEvent::Language { language } => {
                    self.language = Some(language);
                    self.events.send(&json!({"type": "language", "language": language}));
                }
                LiveEvent::Partial { text } => {
                    let start = self.words.last().map_or(0.0, |word| word.end);
                    let end = self.stream.seconds();
                    self.events.send(
                        &json!({"type": "partial", "text": text, "start": start, "end": end}),
                    );
                }
                LiveEvent::Committed { words } => {
                    let words: Vec<Word> = words.into_iter().map(|word| word.word).collect();
                    let (Some(first), Some(last)) = (words.first(), words.last()) else { continue };
                    let (start, end) = (first.start, last.end);
                    let text = text_of(&words);
                    let event = json!({"type": "committed", "text": text, "start": start, "end": end, "words": words});
                    self.events.send(&event);
                    self.words.extend(words);
                }
                LiveEvent::Revised { replaced, words } => {
                    self.words.truncate(self.words.len().saturating_sub(replaced.len()));
                    self.words.extend(words);
                }
                LiveEvent::End { time } => self.events.send(&json!({"type": "end", "time": time})),
                _ => {}
            }
        }
    }

    /// All committed words.
    fn transcript(&self) -> Value {
        json!({
            "text": text_of(&self.words).trim(),
            "language": self.language,
            "duration": self.stream.seconds(),
            "words": self.words,
        })
    }
}

fn text_of(words: &[Word]) -> String {
    words.iter().map(|word| word.word.as_str()).collect()
}
