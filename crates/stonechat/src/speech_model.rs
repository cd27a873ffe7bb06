//! A speech model on a thread of its own.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use stonechat_formats::ModelFile;
use stonechat_nn::{Cpu, KvDType};
use stonechat_whisper::{
    Config, Event, Model, Options, Segment, StateOptions, Transcript, WindowDecoder,
};

use crate::engine::{Engine, EngineOptions, Load, ModelSource, OnPanic, Opened, Server};
use crate::speech_engine::{OnStep, SpeechEngine};
use crate::speech_queue::{self, Client, QueuedRecording, RecordingCount};
use crate::{Device, Error, Job, Recording, SpeechStep};

/// A running transcription: a stream of segments, with the [`Transcript`] at its end.
/// [`whisper::Transcription`](crate::whisper::Transcription) is for programs with a loop of their own.
pub type TranscriptionJob = Job<Segment, Transcript>;

/// A Whisper model. Clones share it. Windows of all recordings are decoded in one batch of [`WhisperBuilder::parallel`]
/// windows, and each recording gives what it gives alone. Files are decoded on other threads meanwhile. Dropping the last
/// clone, jobs included, waits for the running step.
///
/// ```no_run
/// let whisper = stonechat::Whisper::open("base")?;
/// println!("{}", whisper.transcribe("talk.mp3").wait()?.text);
/// # Ok::<(), stonechat::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Whisper {
    engine: Arc<Engine<WhisperBuilder>>,
    info: Arc<WhisperInfo>,
    n_recordings: RecordingCount,
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
#[derive(Debug)]
pub struct WhisperBuilder {
    engine: EngineOptions,
    kv_dtype: KvDType,
    reserved: Options,
    n_windows: Option<usize>,
    n_recordings: RecordingCount,
    on_step: OnStep,
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
            engine: EngineOptions::default(),
            kv_dtype: KvDType::F16,
            reserved: Options::default(),
            n_windows: None,
            n_recordings: RecordingCount::default(),
            on_step: OnStep::default(),
        }
    }

    /// Transcribes a recording: a path, samples, or a [`Recording`] with options.
    pub fn transcribe(&self, recording: impl Into<Recording>) -> TranscriptionJob {
        self.transcribe_with(recording, |_| {})
    }

    /// As [`transcribe`](Self::transcribe); `on_event` gets the detected language, the segments and the position, on the thread
    /// of the model.
    pub fn transcribe_with(
        &self,
        recording: impl Into<Recording>,
        on_event: impl FnMut(Event) + Send + 'static,
    ) -> TranscriptionJob {
        let (recording, guard) = (recording.into(), self.n_recordings.guard());
        self.engine.submit(|sender| {
            let cancel = recording.cancel_token().clone();
            let client = Client { sender, cancel, guard, on_event: Box::new(on_event) };
            QueuedRecording { recording, client }
        })
    }

    /// Whether requests are served: false once a panic left the model without memory for a fresh state.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.engine.is_running()
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
        self.engine.device = device;
        self
    }

    /// Sets the number of CPU threads; default 0 for one per physical core.
    #[must_use]
    pub fn threads(mut self, n: usize) -> Self {
        self.engine.n_threads = n;
        self
    }

    /// Uses the threads of `cpu`, which other models may use: steps of all take turns.
    #[must_use]
    pub fn cpu(mut self, cpu: Cpu) -> Self {
        self.engine.cpu = Some(cpu);
        self
    }

    /// Lets other models go first: steps on the same [`cpu`](Self::cpu), and on Linux all threads where cores are busy
    /// (niceness 10); default false.
    #[must_use]
    pub fn background(mut self, is_background: bool) -> Self {
        self.engine.is_background = is_background;
        self
    }

    /// Sets the type of cached keys and values; default f16.
    #[must_use]
    pub fn kv_dtype(mut self, dtype: KvDType) -> Self {
        self.kv_dtype = dtype;
        self
    }

    /// Sets the number of windows of all recordings that are decoded in one batch, 1 to 64, whatever their batch sizes.
    /// By default it is the largest batch size of those that are transcribed: recordings without one take turns.
    ///
    /// A window takes memory: with 5 beams 45 MB for the model base, 600 MB for large-v3.
    #[must_use]
    pub fn parallel(mut self, n_windows: usize) -> Self {
        self.n_windows = Some(n_windows);
        self
    }

    /// Allocates the state of recordings with these options when the model is opened, instead of when the first of them
    /// is transcribed. Recordings have options of their own; one with more beams, or the first with word times, waits until
    /// no other is active, and grows the state, which shrinks again afterwards.
    #[must_use]
    pub fn reserve_for(mut self, options: Options) -> Self {
        self.reserved = options;
        self
    }

    /// Sets a callback that gets the counters after each step, on the thread of the engine.
    #[must_use]
    pub fn on_step(mut self, on_step: impl FnMut(&SpeechStep) + Send + 'static) -> Self {
        self.on_step = OnStep(Some(Box::new(on_step)));
        self
    }

    /// Sets a callback that gets the message of each panic on the thread of the model. Then the recordings of the batch end
    /// with [`Error::Panicked`], and the model gets a fresh state for later ones.
    #[must_use]
    pub fn on_panic(mut self, on_panic: impl FnMut(&str) + Send + 'static) -> Self {
        self.engine.on_panic = OnPanic(Some(Box::new(on_panic)));
        self
    }

    /// Sets a callback that gets the fraction loaded, 0 to 1.
    #[must_use]
    pub fn on_progress(mut self, on_progress: impl FnMut(f32) + Send + 'static) -> Self {
        self.engine.on_progress = Some(Box::new(on_progress));
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
        self.start(ModelSource::Path(model.as_ref().to_owned())).await
    }

    /// Opens the model in `file`, which may be made from a reader ([`ModelFile::from_reader`]).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_file(self, file: ModelFile) -> Result<Whisper, Error> {
        pollster::block_on(self.open_file_async(file))
    }

    /// As [`open_file`](Self::open_file), without blocking.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_file_async(self, file: ModelFile) -> Result<Whisper, Error> {
        self.start(ModelSource::File(Box::new(file))).await
    }

    /// Serves recordings with a loaded model, on its device.
    ///
    /// # Errors
    /// If an option is out of range, or the device is out of memory.
    pub fn open_model(self, model: Model) -> Result<Whisper, Error> {
        self.check()?;
        let n_recordings = self.n_recordings.clone();
        let is_background = self.engine.is_background;
        let serve = move |sender: &mut Opened<Self>, queue| {
            self.serve(&model, |info| {
                if let Some(sender) = sender.take() {
                    // The caller may have given up.
                    let _ = sender.send(Ok(info));
                }
                queue
            })
        };
        let (engine, info) = pollster::block_on(Engine::spawn(is_background, serve))?;
        Ok(Whisper { engine: Arc::new(engine), info: Arc::new(info), n_recordings })
    }

    async fn start(self, model: ModelSource) -> Result<Whisper, Error> {
        let n_recordings = self.n_recordings.clone();
        let (engine, info) = Engine::start(self, model).await?;
        Ok(Whisper { engine: Arc::new(engine), info: Arc::new(info), n_recordings })
    }

    /// Checks the options, before the weights are loaded.
    fn check(&self) -> Result<(), Error> {
        self.reserved.validate()?;
        if let Some(n) = self.n_windows {
            // The range and the message are those of batch sizes.
            Options { batch_size: Some(n), ..Options::default() }.validate()?;
        }
        Ok(())
    }

    /// Serves the queue that `open` returns for a model that is open.
    fn serve(
        self,
        model: &Model,
        open: impl FnOnce(WhisperInfo) -> Receiver<QueuedRecording>,
    ) -> Result<(), Error> {
        let Self { engine, kv_dtype, reserved, n_windows, n_recordings, on_step } = self;
        let n_decoded = n_windows.or(reserved.batch_size).unwrap_or(1);
        let sizes = StateOptions {
            n_windows: n_decoded,
            encoder_batch_size: model.encoder_batch_size(n_decoded),
            n_sequences: reserved.n_sequences(),
            kv_dtype,
            has_alignment: reserved.needs_alignment(),
        };
        let mut decoder = WindowDecoder::new(model, sizes)?;
        decoder.reserve(&reserved, sizes.n_windows)?;
        let info = WhisperInfo {
            config: *model.config(),
            is_multilingual: model.special().multilingual,
            device: model.describe(),
        };
        let prepared = speech_queue::start(open(info), model)?;
        SpeechEngine::new(decoder, n_windows, prepared, n_recordings, on_step).run(engine.on_panic)
    }
}

impl Load for WhisperBuilder {
    type Query = QueuedRecording;
    type Info = WhisperInfo;

    const THREAD: &'static str = "stonechat-whisper";
    const CAN_SPLIT: bool = false;

    fn engine(&self) -> &EngineOptions {
        &self.engine
    }

    fn run(mut self, server: Server<'_, Self>) -> Result<(), Error> {
        self.check()?;
        let model = self.engine.with_progress(|_, on_progress| {
            server.device.load_speech_model(&server.file, on_progress)
        })?;
        self.serve(&model, |info| server.open(info))
    }
}
