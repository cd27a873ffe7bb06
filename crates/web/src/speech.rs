//! Requests to a speech model.

use js_sys::{Float32Array, Uint8Array};
use serde_json::{Value, json};
use stonechat::device::DeviceNeeds;
use stonechat::formats::ModelFile;
use stonechat::nn::Cpu;
use stonechat::whisper::{Event, LANGUAGES};
use stonechat::{Device, KvDType, Recording, Segment, Whisper};
use stonechat_api::speech::{Fields, SpeechAnswer};
use stonechat_api::{ApiError, ApiResult};
use wasm_bindgen::prelude::*;

use crate::host::HostObject;
use crate::job::{Cancel, Events};

/// An open speech model: its loop, and the model for live streams, whose states are their own.
#[derive(Debug, Clone)]
pub(crate) struct Speech {
    whisper: Whisper,
    model: stonechat::whisper::Model,
    kv_dtype: KvDType,
}

impl Speech {
    /// Loads the model of `file`.
    pub(crate) async fn open(
        file: ModelFile,
        (device, cpu, kv_dtype): (Device, Cpu, KvDType),
        on_progress: impl FnMut(f32),
    ) -> Result<Self, stonechat::Error> {
        let chosen = device.choose_async(DeviceNeeds::whole(file.weight_bytes())).await?;
        let device = chosen.open_async(|| Ok(cpu), |_| {}).await?;
        let model = device.load_speech_model(&file, on_progress)?;
        drop(file);
        let builder = Whisper::builder().kv_dtype(kv_dtype);
        let whisper = builder.open_model_async(model.clone()).await?;
        Ok(Self { whisper, model, kv_dtype })
    }

    /// The loop.
    pub(crate) fn whisper(&self) -> &Whisper {
        &self.whisper
    }

    /// The model, and the type of the keys and values of its states.
    pub(crate) fn model(&self) -> (&stonechat::whisper::Model, KvDType) {
        (&self.model, self.kv_dtype)
    }

    /// Properties, as JSON.
    pub(crate) fn info(&self) -> Value {
        let is_multilingual = self.whisper.info().is_multilingual;
        // English-only models have the first language alone.
        let n_languages = if is_multilingual { LANGUAGES.len() } else { 1 };
        let languages: Vec<&str> = LANGUAGES.iter().take(n_languages).map(|one| one.code).collect();
        json!({"is_multilingual": is_multilingual, "languages": languages})
    }
}

/// Answers a request by the name of its method.
pub(crate) async fn answer(
    speech: &Speech,
    (method, body): (&str, &str),
    audio: JsValue,
    events: Events,
    cancel: Cancel,
) -> ApiResult<String> {
    if method != "transcribe" {
        return Err(ApiError::field(
            "method",
            "transcribe: this is a speech model",
            format!("`{method}`"),
        ));
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
        SpeechAnswer::Json(answer) => answer.to_string(),
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
