//! Requests to a speech model.

use js_sys::{Float32Array, Function, Uint8Array};
use serde_json::{Value, json};
use stonechat::device::DeviceNeeds;
use stonechat::formats::ModelFile;
use stonechat::whisper::{Event, LANGUAGES};
use stonechat::{KvDType, Recording, Segment, Whisper};
use stonechat_api::speech::{Fields, SpeechAnswer};
use stonechat_api::{ApiError, ApiResult};
use wasm_bindgen::prelude::*;

use crate::host::HostObject;
use crate::job::{Cancel, Events, Job};
use crate::listener::Listener;
use crate::model::{Call, OpenModel, Opening};

/// An open speech model: its loop, and the model for live streams, whose states are their own.
#[derive(Debug, Clone)]
pub(crate) struct Speech {
    whisper: Whisper,
    model: stonechat::whisper::Model,
    kv_dtype: KvDType,
}

impl Speech {
    /// Loads the model of `file`.
    pub(crate) async fn open(file: ModelFile, opening: Opening) -> Result<Self, stonechat::Error> {
        let Opening { device, cpu, kv_dtype, on_progress, .. } = opening;
        let chosen = device.choose_async(DeviceNeeds::whole(file.weight_bytes())).await?;
        let device = chosen.open_async(|| Ok(cpu), |_| {}).await?;
        let model = device.load_speech_model(&file, on_progress)?;
        drop(file);
        let builder = Whisper::builder().kv_dtype(kv_dtype);
        let whisper = builder.open_model_async(model.clone()).await?;
        Ok(Self { whisper, model, kv_dtype })
    }

    /// The model, and the type of the keys and values of its states.
    pub(crate) fn model(&self) -> (&stonechat::whisper::Model, KvDType) {
        (&self.model, self.kv_dtype)
    }
}

impl OpenModel for Speech {
    fn device(&self) -> &str {
        &self.whisper.info().device
    }

    fn info(&self) -> Value {
        let is_multilingual = self.whisper.info().is_multilingual;
        // English-only models have the first language alone.
        let n_languages = if is_multilingual { LANGUAGES.len() } else { 1 };
        let languages: Vec<&str> = LANGUAGES.iter().take(n_languages).map(|one| one.code).collect();
        json!({"is_multilingual": is_multilingual, "languages": languages})
    }

    fn request(&self, _name: &str, call: Call, on_event: Function) -> Job {
        let speech = self.clone();
        Job::start(on_event, move |events, cancel| answer(speech, call, events, cancel))
    }

    fn listen(&self, options: &str, on_event: Function) -> ApiResult<Listener> {
        Listener::start(self, options, on_event)
    }
}

/// Answers a request by the name of its method.
async fn answer(speech: Speech, call: Call, events: Events, cancel: Cancel) -> ApiResult<String> {
    let Call { method, body, audio } = call;
    if method != "transcribe" {
        let expected = "transcribe: this is a speech model";
        return Err(ApiError::field("method", expected, format!("`{method}`")));
    }
    let (fields, task) = Fields::parse(body.as_bytes())?;
    let recording = recording(&audio)?.options(fields.options(task)?);
    drop(audio);
    let receiver = HostObject::new(events.receiver());
    let on_event = move |event: Event| {
        if let (Some(receiver), Some(event)) = (receiver.get(), as_json(&event)) {
            Events::new(receiver.unchecked_into()).send(&event);
        }
    };
    let mut job = speech.whisper.transcribe_with(recording, on_event);
    cancel.add(job.cancel_token());
    while let Some(segment) = job.next_async().await {
        segment?;
    }
    let transcript = job.await?;
    Ok(match SpeechAnswer::new(&transcript, &fields, task)? {
        SpeechAnswer::Json(answer) => answer.data,
        SpeechAnswer::Text { text, .. } => Value::from(text).to_string(),
    })
}

/// Recording of the bytes of a file, or of samples of 16 kHz mono.
fn recording(audio: &JsValue) -> ApiResult<Recording> {
    if let Some(samples) = audio.dyn_ref::<Float32Array>() {
        return Ok(Recording::samples(samples.to_vec()));
    }
    if let Some(bytes) = audio.dyn_ref::<Uint8Array>() {
        return Ok(Recording::bytes(bytes.to_vec()));
    }
    Err(ApiError::field("audio", "a Uint8Array or a Float32Array", format!("{audio:?}")))
}

/// Event of a transcription, for JavaScript.
fn as_json(event: &Event) -> Option<Value> {
    match event {
        Event::Language(language, probability) => {
            Some(json!({"type": "language", "language": language.code, "probability": probability}))
        }
        Event::Segment(segment) => Some(segment_event(segment)),
        Event::Position(done, total) => {
            Some(json!({"type": "progress", "done": done, "total": total}))
        }
        _ => None,
    }
}

fn segment_event(segment: &Segment) -> Value {
    let mut event = json!(segment);
    event["type"] = "segment".into();
    event
}
