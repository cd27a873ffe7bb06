//! A speech model in a loop of its own.

use std::sync::Arc;

use futures_channel::mpsc::UnboundedReceiver;
use stonechat_nn::KvDType;
use stonechat_whisper::{
    Config, Event, LiveDecoder, Model, Options, Segment, Transcript, WindowDecoder,
};

use crate::engine::{CommonOptions, Engine, EngineStart, Load, ModelSource, Opened, open_models};
use crate::speech_engine::{OnStep, SpeechEngine};
use crate::speech_queue::{self, Client, RecordingCount, Run};
use crate::{Error, Job, Recording, SpeechStep};

/// A running transcription: a stream of segments, with the [`Transcript`] at its end.
/// [`whisper::Transcription`](crate::whisper::Transcription) is for programs with a loop of their own.
pub type TranscriptionJob = Job<Segment, Transcript>;

/// A Whisper model. Clones share it. Windows of all recordings are decoded in one batch of [`WhisperBuilder::parallel`]
/// windows, and each recording gives what it gives alone. Files are decoded on other threads meanwhile, in a browser between
/// steps. Dropping the last clone, jobs included, waits for the running step, but not in a browser.
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
    recordings: RecordingCount,
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
    model: Model,
}

/// Builder of a [`Whisper`].
#[derive(Debug)]
pub struct WhisperBuilder {
    common: CommonOptions,
    kv_dtype: KvDType,
    reserved: Options,
    n_windows: Option<usize>,
    recordings: RecordingCount,
    on_step: OnStep,
}

impl Whisper {
    /// Starts a builder.
    #[must_use]
    pub fn builder() -> WhisperBuilder {
        WhisperBuilder {
            common: CommonOptions::default(),
            kv_dtype: KvDType::F16,
            reserved: Options::default(),
            n_windows: None,
            recordings: RecordingCount::default(),
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
        let (audio, count) = (recording.into(), Arc::downgrade(&self.recordings));
        self.engine.submit(|sender| {
            let cancel = audio.cancel_token().clone();
            let client = Client { sender, cancel, count, on_event: Box::new(on_event) };
            Run { audio, client }
        })
    }

    /// Properties of the model.
    #[must_use]
    pub fn info(&self) -> &WhisperInfo {
        &self.info
    }

    /// Opens another engine of the same weights and device, whose steps go before those of engines in the background: for
    /// live streams, whose windows should not wait for those of long recordings. It has a state of its own.
    ///
    /// # Errors
    /// If an option is out of range, or the device is out of memory.
    pub async fn in_foreground(&self, builder: WhisperBuilder) -> Result<Self, Error> {
        builder.background(false).open_model_async(self.info.model.in_foreground()).await
    }
}

/// Each buffer is a recording of its own, which is cancelled if the future is dropped.
impl LiveDecoder for Whisper {
    type Error = Error;

    async fn decode(&mut self, samples: &[f32], options: &Options) -> Result<Transcript, Error> {
        self.transcribe(Recording::samples(samples).options(options.clone())).await
    }
}

impl WhisperBuilder {
    /// Lets other models go first: steps on the same [`cpu`](Self::cpu), and on Linux all threads where cores are busy
    /// (niceness 10); default false.
    #[must_use]
    pub fn background(mut self, is_background: bool) -> Self {
        self.common.is_background = is_background;
        self
    }

    /// Sets the type of cached keys and values; default f16.
    #[must_use]
    pub fn kv_dtype(mut self, dtype: KvDType) -> Self {
        self.kv_dtype = dtype;
        self
    }

    /// Sets the number of windows of all recordings that are decoded in one batch, 1 to 64, whatever their batch sizes.
    /// Default: the largest batch size of the running recordings, which take turns if none has a batch size.
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

    /// Serves recordings with a loaded model, on its device.
    ///
    /// # Errors
    /// If an option is out of range, or the device is out of memory.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open_model(self, model: Model) -> Result<Whisper, Error> {
        pollster::block_on(self.open_model_async(model))
    }

    /// As `open_model`, without blocking.
    ///
    /// # Errors
    /// As `open_model`.
    pub async fn open_model_async(self, model: Model) -> Result<Whisper, Error> {
        self.check()?;
        let recordings = Arc::clone(&self.recordings);
        let is_background = self.common.is_background;
        let serve = async move |sender: &mut Opened<Self>, queue| {
            let open = |info| {
                if let Some(sender) = sender.take() {
                    // The caller may have given up.
                    let _ = sender.send(Ok(info));
                }
                queue
            };
            self.serve(&model, open).await
        };
        let (engine, info) = Engine::spawn(is_background, serve).await?;
        Ok(Whisper { engine: Arc::new(engine), info: Arc::new(info), recordings })
    }

    async fn start(self, model: ModelSource) -> Result<Whisper, Error> {
        let recordings = Arc::clone(&self.recordings);
        let (engine, info) = Engine::start(self, model).await?;
        Ok(Whisper { engine: Arc::new(engine), info: Arc::new(info), recordings })
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

    /// Serves the queue that `open` returned, with the open model.
    async fn serve(
        self,
        model: &Model,
        open: impl FnOnce(WhisperInfo) -> UnboundedReceiver<Run<Recording>>,
    ) -> Result<(), Error> {
        let Self { common, kv_dtype, reserved, n_windows, recordings, on_step } = self;
        let reserved = Options { batch_size: n_windows.or(reserved.batch_size), ..reserved };
        let decoder = WindowDecoder::for_options(model, &reserved, kv_dtype)?;
        let info = WhisperInfo {
            config: *model.config(),
            is_multilingual: model.special().multilingual,
            device: model.describe(),
            model: model.clone(),
        };
        let prepared = speech_queue::start(open(info), model)?;
        let engine = SpeechEngine::new(decoder, n_windows, prepared, recordings, on_step);
        engine.run(common.on_panic).await
    }
}

open_models!(WhisperBuilder, Whisper);

impl Load for WhisperBuilder {
    type Message = Run<Recording>;
    type Info = WhisperInfo;

    const THREAD: &'static str = "stonechat-whisper";

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    async fn run(mut self, start: EngineStart<'_, Self>) -> Result<(), Error> {
        self.check()?;
        let model = self.common.with_progress(|_, on_progress| {
            start.device.load_speech_model(&start.file, on_progress)
        })?;
        start.device.check_allocations().await?;
        self.serve(&model, |info| start.open(info)).await
    }
}
