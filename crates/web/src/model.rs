//! An open model.

use js_sys::Function;
use serde::Deserialize;
use serde_json::{Value, json};
use stonechat::formats::ModelFile;
use stonechat::nn::Cpu;
use stonechat::{Device, KvDType};
use stonechat_api::{ApiError, ApiResult};
use wasm_bindgen::prelude::*;

use crate::error::{exception, thrown};
use crate::files::{self, SourceFile};
use crate::host::HostObject;
use crate::job::Job;
use crate::listener::Listener;
use crate::speech::Speech;
use crate::{gpu, language};

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
            "gpu" => gpu::DEVICE
                .ok_or_else(|| ApiError::field("device", "cpu: this binary has no GPU", "`gpu`")),
            other => Err(ApiError::field("device", "cpu or gpu", format!("`{other}`"))),
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

    /// Options of a model of either kind.
    fn opening(self, on_progress: Function) -> Result<Opening, JsValue> {
        let checked = |error: ApiError| exception(&error);
        let progress = HostObject::new(on_progress);
        let on_progress = move |fraction: f32| {
            if let Some(callback) = progress.get() {
                let callback = callback.unchecked_ref::<Function>();
                // An exception of the callback does not end the loading.
                let _ = callback.call1(&JsValue::UNDEFINED, &fraction.into());
            }
        };
        let cpu = Cpu::new(self.threads).map_err(|error| thrown(stonechat::Error::from(error)))?;
        Ok(Opening {
            device: self.device().map_err(checked)?,
            cpu,
            kv_dtype: self.kv_dtype().map_err(checked)?,
            n_ctx: self.n_ctx,
            n_parallel: self.n_parallel,
            chat_template: self.chat_template,
            on_progress: Box::new(on_progress),
        })
    }
}

impl Opening {
    /// Refuses options of language models.
    pub(crate) fn check_speech(&self) -> ApiResult<()> {
        let given = [
            ("n_ctx", self.n_ctx.is_some()),
            ("n_parallel", self.n_parallel != 1),
            ("chat_template", self.chat_template.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((name, _)) => Err(ApiError::bad_request(format!(
                "`{name}`: expected options of a speech model, which has no such one"
            ))),
        }
    }
}

/// Checked options of a model.
pub(crate) struct Opening {
    pub(crate) device: Device,
    pub(crate) cpu: Cpu,
    pub(crate) kv_dtype: KvDType,
    pub(crate) n_ctx: Option<usize>,
    pub(crate) n_parallel: usize,
    pub(crate) chat_template: Option<String>,
    pub(crate) on_progress: Box<dyn FnMut(f32) + Send>,
}

/// A model of one kind.
pub(crate) trait OpenModel: std::fmt::Debug {
    /// Device and kernels.
    fn device(&self) -> &str;

    /// Properties of this kind, as JSON.
    fn info(&self) -> Value;

    /// Starts a request to the model called `name`.
    fn request(&self, name: &str, call: Call, on_event: Function) -> Job;

    /// Starts a live transcription.
    ///
    /// # Errors
    /// If the model is none of speech, or an option is invalid.
    fn listen(&self, options: &str, on_event: Function) -> ApiResult<Listener>;
}

/// Method, body and audio of a request.
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) body: String,
    pub(crate) audio: JsValue,
}

/// An open model. Requests run in its own loop, between the events of the worker.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Model {
    name: String,
    file: Value,
    open: Box<dyn OpenModel>,
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
        let name = options.name.clone();
        let opening = options.opening(on_progress)?;
        let open: Box<dyn OpenModel> = if is_speech(&file) {
            opening.check_speech().map_err(|error| exception(&error))?;
            Box::new(Speech::open(file, opening).await.map_err(thrown)?)
        } else {
            language::open(file, opening).await.map_err(|error| exception(&error))?
        };
        Ok(Self { name, file: facts, open })
    }

    /// Properties, as JSON.
    pub fn info(&self) -> String {
        let mut info = self.file.clone();
        info["name"] = self.name.as_str().into();
        info["device"] = self.open.device().into();
        if let (Value::Object(info), Value::Object(own)) = (&mut info, self.open.info()) {
            info.extend(own);
        }
        info.to_string()
    }

    /// Starts a request: `body` is the JSON of the method, `audio` the recording of `transcribe`: the bytes of a file, or
    /// samples of 16 kHz mono.
    pub fn request(&self, method: String, body: String, audio: JsValue, on_event: Function) -> Job {
        self.open.request(&self.name, Call { method, body, audio }, on_event)
    }

    /// Starts a live transcription.
    pub fn listen(&self, options: &str, on_event: Function) -> Result<Listener, JsValue> {
        self.open.listen(options, on_event).map_err(|error| exception(&error))
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
