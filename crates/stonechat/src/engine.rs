//! Thread that owns a model and its device, with a queue of requests.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use futures_channel::oneshot;
use stonechat_formats::ModelFile;
use stonechat_nn::Cpu;

use crate::device::{DeviceNeeds, OpenDevice};
use crate::error::panic_reason;
use crate::job::JobSender;
use crate::{Device, Error, Job, Models};

/// Options that the builders of all models have.
#[derive(Default)]
pub(crate) struct CommonOptions {
    pub(crate) device: Device,
    /// CPU threads; 0 is one per physical core.
    pub(crate) n_threads: usize,
    /// CPU whose threads it uses, in place of its own.
    pub(crate) cpu: Option<Cpu>,
    /// Whether threads of other engines go first.
    pub(crate) is_background: bool,
    /// Gets the fraction loaded, 0 to 1.
    pub(crate) on_progress: Option<Box<dyn FnMut(f32) + Send>>,
    /// Gets the message of each panic in the loop.
    pub(crate) on_panic: OnPanic,
}

/// Called with the message of a panic.
type PanicCallback = Box<dyn FnMut(&str) + Send>;

/// Callback of [`LlmBuilder::on_panic`](crate::LlmBuilder::on_panic).
#[derive(Default)]
pub(crate) struct OnPanic(pub(crate) Option<PanicCallback>);

impl OnPanic {
    /// Reports a panic in the loop of an engine; returns its message.
    pub(crate) fn caught(&mut self, payload: &(dyn Any + Send)) -> String {
        let reason = panic_reason(payload);
        tracing::error!("a panic on the thread of a model, which gets a fresh state: {reason}");
        if let Some(on_panic) = &mut self.0 {
            // The callback must not end the engine either.
            let _ = catch_unwind(AssertUnwindSafe(|| on_panic(&reason)));
        }
        reason
    }
}

/// Calls `reopen`, with a panic as an error.
pub(crate) fn catch<R>(reopen: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    let result = catch_unwind(AssertUnwindSafe(reopen));
    result.unwrap_or_else(|payload| Err(Error::panicked(&*payload)))
}

impl CommonOptions {
    /// The CPU of the model.
    pub(crate) fn open_cpu(&self) -> Result<Cpu, stonechat_nn::Error> {
        match &self.cpu {
            Some(cpu) => Ok(cpu.for_another_model(self.is_background)),
            None => Cpu::new(self.n_threads),
        }
    }

    /// Runs `load` with the callback of the progress, and drops the callback, which may hold a channel open.
    pub(crate) fn with_progress<R>(
        &mut self,
        load: impl FnOnce(&Self, &mut dyn FnMut(f32)) -> R,
    ) -> R {
        match self.on_progress.take() {
            Some(mut on_progress) => load(self, &mut *on_progress),
            None => load(self, &mut |_| {}),
        }
    }
}

impl fmt::Debug for CommonOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommonOptions")
            .field("device", &self.device)
            .field("n_threads", &self.n_threads)
            .field("cpu", &self.cpu)
            .field("is_background", &self.is_background)
            .field("has_progress", &self.on_progress.is_some())
            .finish()
    }
}

/// Builder of a model that serves requests on a thread of its own.
pub(crate) trait Load: Sized + Send + 'static {
    /// Message to the thread, such as a request with the sender of its results.
    type Message: Send + 'static;
    /// Description of the open model.
    type Info: Send + 'static;

    /// Name of the thread.
    const THREAD: &'static str;
    /// Options that all builders have.
    fn common(&self) -> &CommonOptions;

    /// Memory for `weight_bytes` bytes of weights; by default they must fit one device.
    fn needs(&self, weight_bytes: u64) -> DeviceNeeds {
        DeviceNeeds::whole(weight_bytes)
    }

    /// Loads the model, on a GPU only in part if the layers can be split, and serves requests.
    fn run(self, thread: EngineThread<'_, Self>) -> Result<(), Error>;
}

/// Methods that the builders of all models have, and those of a model that open it. A builder has a field `common` and a
/// method `start`.
macro_rules! open_models {
    ($builder:ident, $model:ident) => {
        impl $builder {
            /// Sets the device; default [`Device::Auto`](crate::Device::Auto).
            #[must_use]
            pub fn device(mut self, device: crate::Device) -> Self {
                self.common.device = device;
                self
            }

            /// Sets the number of CPU threads; default 0 for one per physical core.
            #[must_use]
            pub fn threads(mut self, n: usize) -> Self {
                self.common.n_threads = n;
                self
            }

            /// Uses the threads of `cpu`, which other models may use: steps of all take turns.
            #[must_use]
            pub fn cpu(mut self, cpu: stonechat_nn::Cpu) -> Self {
                self.common.cpu = Some(cpu);
                self
            }

            /// Sets a callback that gets the message of each panic on the thread of the model. Then the requests of the
            /// batch end with [`Error::Panicked`](crate::Error::Panicked), and the model gets a fresh state for later ones.
            #[must_use]
            pub fn on_panic(mut self, on_panic: impl FnMut(&str) + Send + 'static) -> Self {
                self.common.on_panic = crate::engine::OnPanic(Some(Box::new(on_panic)));
                self
            }

            /// Sets a callback that gets the fraction loaded, 0 to 1.
            #[must_use]
            pub fn on_progress(mut self, on_progress: impl FnMut(f32) + Send + 'static) -> Self {
                self.common.on_progress = Some(Box::new(on_progress));
                self
            }

            /// Opens a model file of any supported format, a folder or an installed model by its name.
            ///
            /// # Errors
            /// If there is no such model, it is damaged or of an unknown architecture, an option is out of range, or the
            /// device does not exist or is out of memory.
            pub fn open(self, model: impl AsRef<std::path::Path>) -> Result<$model, crate::Error> {
                pollster::block_on(self.open_async(model))
            }

            /// As [`open`](Self::open), without blocking.
            ///
            /// # Errors
            /// As [`open`](Self::open).
            pub async fn open_async(
                self,
                model: impl AsRef<std::path::Path>,
            ) -> Result<$model, crate::Error> {
                self.start(crate::engine::ModelSource::Path(model.as_ref().to_owned())).await
            }

            /// Opens the model in `file`, which may be made from a reader
            /// ([`ModelFile::from_reader`](stonechat_formats::ModelFile::from_reader)).
            ///
            /// # Errors
            /// As [`open`](Self::open).
            pub fn open_file(
                self,
                file: stonechat_formats::ModelFile,
            ) -> Result<$model, crate::Error> {
                pollster::block_on(self.open_file_async(file))
            }

            /// As [`open_file`](Self::open_file), without blocking.
            ///
            /// # Errors
            /// As [`open`](Self::open).
            pub async fn open_file_async(
                self,
                file: stonechat_formats::ModelFile,
            ) -> Result<$model, crate::Error> {
                self.start(crate::engine::ModelSource::File(Box::new(file))).await
            }
        }

        impl $model {
            /// Opens a model on [`Device::Auto`](crate::Device::Auto): a file of any supported format, a folder or an
            /// installed model by its name.
            ///
            /// # Errors
            /// If there is no such model, it is damaged or of an unknown architecture, or the device is out of memory.
            pub fn open(model: impl AsRef<std::path::Path>) -> Result<Self, crate::Error> {
                Self::builder().open(model)
            }

            /// As [`open`](Self::open), without blocking.
            ///
            /// # Errors
            /// As [`open`](Self::open).
            pub async fn open_async(
                model: impl AsRef<std::path::Path>,
            ) -> Result<Self, crate::Error> {
                Self::builder().open_async(model).await
            }

            /// Whether requests are served: false once a panic left the model without memory for a fresh state.
            #[must_use]
            pub fn is_running(&self) -> bool {
                self.engine.is_running()
            }
        }
    };
}
pub(crate) use open_models;

/// Model to open on the thread.
#[derive(Debug)]
pub(crate) enum ModelSource {
    /// Path or installed name.
    Path(PathBuf),
    /// Open file.
    File(Box<ModelFile>),
}

impl ModelSource {
    fn open(self) -> Result<ModelFile, Error> {
        match self {
            Self::Path(model) => Ok(ModelFile::open(Models::from_env().find_path(&model)?)?),
            Self::File(file) => Ok(*file),
        }
    }
}

/// Sender of the result of opening a model; `None` once it was sent.
pub(crate) type Opened<L> = Option<oneshot::Sender<Result<<L as Load>::Info, Error>>>;

/// Handle of an engine thread. Dropping it waits for the end of the thread.
pub(crate) struct Engine<L: Load> {
    /// `None` once the handle is dropped.
    messages: Option<mpsc::Sender<L::Message>>,
    thread: Option<JoinHandle<()>>,
}

impl<L: Load> fmt::Debug for Engine<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl<L: Load> Engine<L> {
    /// Starts a thread that opens a model; returns once the model is open.
    ///
    /// # Errors
    /// If the model cannot be opened.
    pub(crate) async fn start(loader: L, model: ModelSource) -> Result<(Self, L::Info), Error> {
        let is_background = loader.common().is_background;
        let serve = move |sender: &mut _, queue| run(loader, model, sender, queue);
        Self::spawn(is_background, serve).await
    }

    /// Starts a thread that opens a model and serves its requests; returns once the model is open.
    ///
    /// # Errors
    /// If the model cannot be opened.
    pub(crate) async fn spawn(
        is_background: bool,
        serve: impl FnOnce(&mut Opened<L>, mpsc::Receiver<L::Message>) -> Result<(), Error>
        + Send
        + 'static,
    ) -> Result<(Self, L::Info), Error> {
        let (messages, queue) = mpsc::channel();
        let (sender, opened) = oneshot::channel();
        let body = move || {
            if is_background {
                lower_priority();
            }
            let mut sender = Some(sender);
            match (catch(|| serve(&mut sender, queue)), sender) {
                (Ok(()), _) => {}
                // The caller may have given up.
                (Err(error), Some(sender)) => _ = sender.send(Err(error)),
                (Err(error), None) => tracing::error!("an engine has stopped: {error}"),
            }
        };
        let thread = std::thread::Builder::new().name(L::THREAD.to_owned()).spawn(body);
        let thread = thread.map_err(|source| Error::Thread { source })?;
        // A caller that gives up before the end does not wait for the thread.
        let info = opened.await.map_err(|_| Error::EngineStopped)??;
        Ok((Self { messages: Some(messages), thread: Some(thread) }, info))
    }

    /// Whether the thread serves requests: false once a panic left the model without a state.
    pub(crate) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Appends a request with the sender of a new job to the queue. With an engine that has stopped the job ends with
    /// [`Error::EngineStopped`].
    pub(crate) fn submit<I, O>(
        self: &Arc<Self>,
        message: impl FnOnce(JobSender<I, O>) -> L::Message,
    ) -> Job<I, O>
    where
        Self: Send + Sync,
    {
        let (job, sender) = Job::new(self.clone());
        let sent = self.messages.as_ref().map(|messages| messages.send(message(sender)));
        if !matches!(sent, Some(Ok(()))) {
            // The sender of the job was dropped with the request, which ends the job.
            tracing::error!("a request came to an engine that has stopped");
        }
        job
    }
}

impl<L: Load> Drop for Engine<L> {
    fn drop(&mut self) {
        self.messages = None;
        // The last handle may be dropped on the thread itself, by code that a result wakes.
        let is_other =
            |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(is_other) {
            // A panic was reported by the thread.
            let _ = thread.join();
        }
    }
}

/// Lowers the priority of this thread, and so of those that it starts.
#[cfg(target_os = "linux")]
fn lower_priority() {
    /// A tenth of the time of a busy core: the share of a thread of another engine is 9.3 times as large.
    const NICENESS: i32 = 10;
    // Linux applies the priority of "this process" to the calling thread alone.
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::warn!("the priority of the thread is unchanged: {error}");
    }
}

/// Priorities of single threads exist on Linux alone.
#[cfg(not(target_os = "linux"))]
fn lower_priority() {}

/// Body of the thread.
fn run<L: Load>(
    loader: L,
    model: ModelSource,
    opened: &mut Opened<L>,
    queue: mpsc::Receiver<L::Message>,
) -> Result<(), Error> {
    let file = model.open()?;
    let path = file.path().map(ToOwned::to_owned);
    let needs = loader.needs(file.weight_bytes());
    let warn = |reason: &str| tracing::warn!("{reason}");
    let common = loader.common();
    let device = common.device.choose(needs)?.open(|| common.open_cpu(), warn)?;
    loader.run(EngineThread { file, device, opened, queue }).map_err(|error| match &path {
        Some(path) => error.of_model(path),
        None => error,
    })
}

/// Thread of an engine: the file to load, then the queue to serve.
pub(crate) struct EngineThread<'a, L: Load> {
    /// File of the model.
    pub(crate) file: ModelFile,
    /// Device of the model.
    pub(crate) device: OpenDevice,
    opened: &'a mut Opened<L>,
    queue: mpsc::Receiver<L::Message>,
}

impl<L: Load> EngineThread<'_, L> {
    /// Closes the file of the loaded model and reports that the model is open. Returns the queue, which is disconnected once
    /// every handle is dropped.
    pub(crate) fn open(self, info: L::Info) -> mpsc::Receiver<L::Message> {
        let Self { file, device, opened, queue } = self;
        // The mapped pages count as memory of this process.
        drop(file);
        if let Some(opened) = opened.take() {
            let _ = opened.send(Ok(info));
        }
        device.save_kernels();
        queue
    }
}
