//! An open model.

use js_sys::Function;
use serde::Deserialize;
use serde_json::{Value, json};
#[cfg(feature = "language")]
use stonechat::Llm;
use stonechat::formats::ModelFile;
use stonechat::nn::Cpu;
use stonechat::{Device, KvDType};
use stonechat_api::{ApiError, ApiResult};
use wasm_bindgen::prelude::*;

use crate::error::{exception, thrown};
use crate::files::{self, SourceFile};
use crate::host::HostObject;
use crate::job::Job;
#[cfg(feature = "language")]
use crate::language;
use crate::listener::Listener;
use crate::speech::{self, Speech};

/// Maximum tokens of a step: a request is cancelled after the running one.
const N_BATCH: usize = 128;

/// Options of [`Model::open`].
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OpenOptions {
    /// `cpu` or `gpu`.
    device: String,
    /// Threads with the caller; 0 is all that wait.
    threads: usize,
    /// Name in answers.
    name: String,
    /// Context size in tokens; `None`: that of training, at most 16,384.
    n_ctx: Option<usize>,
    /// Requests in a batch.
    n_parallel: usize,
    /// Type of cached keys and values.
    cache_type: String,
    chat_template: Option<String>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            device: "cpu".to_owned(),
            threads: 0,
            name: "model".to_owned(),
            n_ctx: None,
            n_parallel: 1,
            cache_type: "f16".to_owned(),
            chat_template: None,
        }
    }
}

impl OpenOptions {
    fn parse(json: &str) -> ApiResult<Self> {
        serde_json::from_str(json)
            .map_err(|error| ApiError::bad_request(format!("options: {error}")))
    }

    fn device(&self) -> ApiResult<Device> {
        match self.device.as_str() {
            "cpu" => Ok(Device::Cpu),
            #[cfg(feature = "gpu")]
            // A browser has one adapter; a caller that asks for it takes it in software, too.
            "gpu" => Ok(Device::Wgpu(Some(0))),
            other => {
                let expected = if cfg!(feature = "gpu") {
                    "cpu or gpu"
                } else {
                    "cpu: this binary has no GPU"
                };
                Err(ApiError::field("device", expected, format!("`{other}`")))
            }
        }
    }

    fn kv_dtype(&self) -> ApiResult<KvDType> {
        match self.cache_type.as_str() {
            "f32" => Ok(KvDType::F32),
            "f16" => Ok(KvDType::F16),
            "q8_0" => Ok(KvDType::Q8_0),
            other => Err(ApiError::field("cache_type", "f32, f16 or q8_0", format!("`{other}`"))),
        }
    }

    fn cpu(&self) -> Result<Cpu, JsValue> {
        Cpu::new(self.threads).map_err(|error| thrown(stonechat::Error::from(error)))
    }
}

/// An open model. Requests run in its own loop, between the events of the worker.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Model {
    name: String,
    file: Value,
    open: Open,
}

#[derive(Debug)]
enum Open {
    Speech(Speech),
    #[cfg(feature = "language")]
    Language(Llm),
}

#[wasm_bindgen]
impl Model {
    /// Opens the model of `files` with options as JSON; `on_progress` gets the fraction loaded.
    pub async fn open(
        files: Vec<SourceFile>,
        options: String,
        on_progress: Function,
    ) -> Result<Self, JsValue> {
        let options = OpenOptions::parse(&options).map_err(|error| exception(&error))?;
        // A closed model may still hold threads of the pool.
        stonechat::wait_for_closed().await;
        let file = files::open(files).map_err(|error| thrown(stonechat::Error::from(error)))?;
        let facts = facts(&file);
        let progress = HostObject::new(on_progress);
        let on_progress = move |fraction: f32| {
            if let Some(callback) = progress.get() {
                // An exception of the callback does not end the loading.
                let _ = callback
                    .unchecked_ref::<Function>()
                    .call1(&JsValue::UNDEFINED, &fraction.into());
            }
        };
        let device = options.device().map_err(|error| exception(&error))?;
        let kv_dtype = options.kv_dtype().map_err(|error| exception(&error))?;
        let cpu = options.cpu()?;
        let open = if is_speech(&file) {
            Open::Speech(
                Speech::open(file, (device, cpu, kv_dtype), on_progress).await.map_err(thrown)?,
            )
        } else {
            #[cfg(not(feature = "language"))]
            return Err(exception(&ApiError::bad_request(
                "expected a speech model: this binary has no language models",
            )));
            #[cfg(feature = "language")]
            Open::Language({
                let mut builder = Llm::builder().device(device).cpu(cpu).kv_dtype(kv_dtype);
                builder =
                    builder.parallel(options.n_parallel).n_batch(N_BATCH).on_progress(on_progress);
                if let Some(n_ctx) = options.n_ctx {
                    builder = builder.n_ctx(n_ctx);
                }
                if let Some(template) = options.chat_template {
                    builder = builder.chat_template(template);
                }
                builder.open_file_async(file).await.map_err(thrown)?
            })
        };
        Ok(Self { name: options.name, file: facts, open })
    }

    /// Properties, as JSON.
    pub fn info(&self) -> String {
        let (own, device) = match &self.open {
            Open::Speech(speech) => (speech.info(), &speech.whisper().info().device),
            #[cfg(feature = "language")]
            Open::Language(llm) => (language::info(llm), &llm.info().device),
        };
        let mut info = self.file.clone();
        info["name"] = self.name.as_str().into();
        info["device"] = device.as_str().into();
        if let (Value::Object(info), Value::Object(own)) = (&mut info, own) {
            info.extend(own);
        }
        info.to_string()
    }

    /// Starts a request: `body` is the JSON of the method, `audio` the recording of `transcribe`: the bytes of a file, or
    /// samples of 16 kHz mono.
    pub fn request(&self, method: String, body: String, audio: JsValue, on_event: Function) -> Job {
        match &self.open {
            Open::Speech(speech) => {
                let speech = speech.clone();
                Job::start(on_event, move |events, cancel| async move {
                    speech::answer(&speech, (&method, &body), audio, events, cancel).await
                })
            }
            #[cfg(feature = "language")]
            Open::Language(llm) => {
                let (llm, name) = (llm.clone(), self.name.clone());
                Job::start(on_event, move |events, cancel| {
                    language::answer(llm, name, (method, body), events, cancel)
                })
            }
        }
    }

    /// Starts a live transcription.
    pub fn listen(&self, options: &str, on_event: Function) -> Result<Listener, JsValue> {
        match &self.open {
            Open::Speech(speech) => {
                Listener::start(speech, options, on_event).map_err(|error| exception(&error))
            }
            #[cfg(feature = "language")]
            Open::Language(_) => Err(exception(&ApiError::bad_request(
                "expected a speech model, got a language model",
            ))),
        }
    }
}

/// Facts about the model of `files`, as JSON, from their headers alone.
#[wasm_bindgen]
pub fn inspect(files: Vec<SourceFile>) -> Result<String, JsValue> {
    let file = files::open(files).map_err(|error| thrown(stonechat::Error::from(error)))?;
    Ok(facts(&file).to_string())
}

/// Whether the file is a Whisper model.
fn is_speech(file: &ModelFile) -> bool {
    stonechat::whisper::Config::from_file(file).is_ok()
}

/// Kind, weights and sizes of a file.
fn facts(file: &ModelFile) -> Value {
    let largest = file.tensors().map(|tensor| tensor.data.len()).max().unwrap_or(0) as u64;
    let dtype = file.dtypes().first().map_or_else(|| "none".to_owned(), ToString::to_string);
    json!({
        "kind": if is_speech(file) { "speech" } else { "language" },
        "format": file.format().to_string(),
        "weights": dtype,
        "bytes": file.file_bytes(),
        // Packed weights take the size of the file; one tensor at a time lies beside them.
        "memory_bytes": file.weight_bytes() + largest,
    })
}
