//! A speech model on a thread of its own.

use std::path::Path;
use std::sync::Arc;

use stonechat_formats::ModelFile;
use stonechat_nn::{Backend, KvDType};
use stonechat_whisper::{Config, Options, Progress, Segment, Transcriber, Transcript};

use crate::device::Work;
use crate::engine::{Engine, Requests};
use crate::job::JobSender;
use crate::{Device, Error, Job, Models, Recording};

/// A running transcription: a stream of segments, with the [`Transcript`] at its end.
pub type Transcription = Job<Segment, Transcript>;

/// A Whisper model. Clones share it; recordings are transcribed one after the other, in the order in which they are
/// given.
///
/// ```no_run
/// let whisper = stonechat::Whisper::open("base")?;
/// println!("{}", whisper.transcribe("talk.mp3").wait()?.text);
/// # Ok::<(), stonechat::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Whisper {
    engine: Arc<Engine<Request>>,
    info: Arc<WhisperInfo>,
}

/// Properties of an open speech model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WhisperInfo {
    /// Sizes.
    pub config: Config,
    /// Whether it knows other languages than English.
    pub is_multilingual: bool,
    /// Device and kernels.
    pub device: String,
}

/// Builder of a [`Whisper`].
pub struct WhisperBuilder {
    device: Device,
    n_threads: usize,
    kv_dtype: KvDType,
    options: Options,
    on_progress: Option<Box<dyn FnMut(f32) + Send>>,
}

impl std::fmt::Debug for WhisperBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WhisperBuilder")
            .field("device", &self.device)
            .field("n_threads", &self.n_threads)
            .field("kv_dtype", &self.kv_dtype)
            .finish_non_exhaustive()
    }
}

impl Whisper {
    /// Opens a model file of any supported format, a folder or an installed model by its name, on [`Device::Auto`].
    ///
    /// # Errors
    /// If there is no such model, it is damaged, or the device is out of memory.
    pub fn open(model: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder().open(model)
    }

    /// As [`open`](Self::open), without blocking.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_async(model: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder().open_async(model).await
    }

    /// Starts a builder.
    #[must_use]
    pub fn builder() -> WhisperBuilder {
        WhisperBuilder {
            device: Device::Auto,
            n_threads: 0,
            kv_dtype: KvDType::F16,
            options: Options::default(),
            on_progress: None,
        }
    }

    /// Transcribes a recording: a path, samples, or a [`Recording`] with options.
    pub fn transcribe(&self, recording: impl Into<Recording>) -> Transcription {
        let (job, sender) = Job::new(self.engine.clone());
        self.engine.send(Request { recording: recording.into(), sender });
        job
    }

    /// Properties of the model.
    #[must_use]
    pub fn info(&self) -> &WhisperInfo {
        &self.info
    }
}

impl WhisperBuilder {
    /// Sets the device; default [`Device::Auto`].
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Sets the number of CPU threads; default 0 for one per physical core.
    #[must_use]
    pub fn threads(mut self, n: usize) -> Self {
        self.n_threads = n;
        self
    }

    /// Sets the type of cached keys and values; default f16.
    #[must_use]
    pub fn kv_dtype(mut self, dtype: KvDType) -> Self {
        self.kv_dtype = dtype;
        self
    }

    /// Sets the options to check against the model, and to allocate state for, when it is opened. Recordings have
    /// options of their own; larger state is allocated when it is needed.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets a callback that gets the fraction loaded, 0 to 1.
    #[must_use]
    pub fn on_progress(mut self, on_progress: impl FnMut(f32) + Send + 'static) -> Self {
        self.on_progress = Some(Box::new(on_progress));
        self
    }

    /// Opens a model; see [`Whisper::open`].
    ///
    /// # Errors
    /// As [`Whisper::open`]; also if an option is out of range or the device does not exist.
    pub fn open(self, model: impl AsRef<Path>) -> Result<Whisper, Error> {
        pollster::block_on(self.open_async(model))
    }

    /// As [`open`](Self::open), without blocking.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_async(self, model: impl AsRef<Path>) -> Result<Whisper, Error> {
        let path = Models::from_env().find_path(model.as_ref())?;
        let run = move |requests: &mut _| {
            let file = ModelFile::open(&path)?;
            let (n_threads, weight_bytes) = (self.n_threads, file.weight_bytes());
            let loader = Loader { builder: self, file, requests };
            loader.builder.device.open(n_threads, weight_bytes, false, loader)
        };
        let (engine, info) = Engine::start("stonechat-whisper", run).await?;
        Ok(Whisper { engine: Arc::new(engine), info: Arc::new(info) })
    }
}

#[derive(Debug)]
struct Request {
    recording: Recording,
    sender: JobSender<Segment, Transcript>,
}

/// Loads the model on its device, then serves requests.
struct Loader<'a> {
    builder: WhisperBuilder,
    file: ModelFile,
    requests: &'a mut Requests<WhisperInfo, Request>,
}

impl Work for Loader<'_> {
    type Output = ();

    fn run<B: Backend>(self, backend: B, _: bool) -> Result<(), Error> {
        let Self { builder, file, requests } = self;
        let WhisperBuilder { kv_dtype, options, on_progress, .. } = builder;
        let mut on_progress = on_progress.unwrap_or_else(|| Box::new(|_| {}));
        let loader = Transcriber::builder(backend).kv_dtype(kv_dtype).options(&options);
        let mut transcriber = loader.load(&file, &mut on_progress)?;
        // The mapped pages count as memory of this process.
        drop(file);
        let model = transcriber.model();
        requests.opened(WhisperInfo {
            config: *model.config(),
            is_multilingual: model.special().multilingual,
            device: model.backend().describe(),
        });
        while let Some(Request { recording, sender }) = requests.next() {
            let result = transcribe(&mut transcriber, recording, &sender);
            sender.end(result);
        }
        Ok(())
    }
}

fn transcribe<B: Backend>(
    transcriber: &mut Transcriber<B>,
    recording: Recording,
    sender: &JobSender<Segment, Transcript>,
) -> Result<Transcript, Error> {
    let (samples, options) = recording.decode()?;
    transcriber.cancelled_by(sender.cancel_token());
    let mut on_progress = |progress: Progress<'_>| {
        if let Progress::Segment(segment) = progress {
            sender.send(segment.clone());
        }
    };
    Ok(transcriber.transcribe(&samples, &options, &mut on_progress)?)
}
