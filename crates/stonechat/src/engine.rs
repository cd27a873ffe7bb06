//! Loop that owns a model and its device, with a queue of requests: on a thread of its own, in a browser a task.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_channel::oneshot;
use futures_util::FutureExt;
use stonechat_formats::ModelFile;
use stonechat_nn::Cpu;

use crate::device::{DeviceNeeds, OpenDevice};
use crate::error::panic_reason;
use crate::job::JobSender;
use crate::runtime::{Task, wait_for_closed};
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

/// Builder of a model that serves requests in a loop of its own.
pub(crate) trait Load: Sized + Send + 'static {
    /// Message to the loop, such as a request with the sender of its results.
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
    fn run(self, start: EngineStart<'_, Self>) -> impl Future<Output = Result<(), Error>>;
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
            #[cfg(not(target_arch = "wasm32"))]
            pub fn open(self, model: impl AsRef<std::path::Path>) -> Result<$model, crate::Error> {
                pollster::block_on(self.open_async(model))
            }

            /// As `open`, without blocking. A browser has no files: there the path is refused.
            ///
            /// # Errors
            /// As `open`.
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
            #[cfg(not(target_arch = "wasm32"))]
            pub fn open_file(
                self,
                file: stonechat_formats::ModelFile,
            ) -> Result<$model, crate::Error> {
                pollster::block_on(self.open_file_async(file))
            }

            /// Opens the model in `file` without blocking. In a browser its requests run between the events of the thread.
            ///
            /// # Errors
            /// As `open`.
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
            #[cfg(not(target_arch = "wasm32"))]
            pub fn open(model: impl AsRef<std::path::Path>) -> Result<Self, crate::Error> {
                Self::builder().open(model)
            }

            /// As `open`, without blocking. A browser has no files: there the path is refused.
            ///
            /// # Errors
            /// As `open`.
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

/// Model to open.
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

/// Handle of an engine. Dropping it waits for the end of its thread; in a browser the loop ends by itself.
pub(crate) struct Engine<L: Load> {
    /// `None` once the handle is dropped.
    messages: Option<UnboundedSender<L::Message>>,
    task: Option<Task>,
}

impl<L: Load> fmt::Debug for Engine<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("task", &self.task).finish_non_exhaustive()
    }
}

impl<L: Load> Engine<L> {
    /// Starts a loop that opens a model; returns once the model is open.
    ///
    /// # Errors
    /// If the model cannot be opened.
    pub(crate) async fn start(loader: L, model: ModelSource) -> Result<(Self, L::Info), Error> {
        let is_background = loader.common().is_background;
        let serve = async move |sender: &mut _, queue| run(loader, model, sender, queue).await;
        Self::spawn(is_background, serve).await
    }

    /// Starts a loop that opens a model and serves its requests; returns once the model is open.
    ///
    /// # Errors
    /// If the model cannot be opened.
    pub(crate) async fn spawn(
        is_background: bool,
        serve: impl AsyncFnOnce(&mut Opened<L>, UnboundedReceiver<L::Message>) -> Result<(), Error>
        + Send
        + 'static,
    ) -> Result<(Self, L::Info), Error> {
        let (messages, queue) = unbounded();
        let (sender, opened) = oneshot::channel();
        let body = async move || {
            wait_for_closed().await;
            let mut sender = Some(sender);
            let served = AssertUnwindSafe(serve(&mut sender, queue)).catch_unwind().await;
            match (served.unwrap_or_else(|payload| Err(Error::panicked(&*payload))), sender) {
                (Ok(()), _) => {}
                // The caller may have given up.
                (Err(error), Some(sender)) => _ = sender.send(Err(error)),
                (Err(error), None) => tracing::error!("an engine has stopped: {error}"),
            }
        };
        let task = Task::spawn(L::THREAD, is_background, body)?;
        // A caller that gives up before the end does not wait for the loop.
        let info = opened.await.map_err(|_| Error::EngineStopped)??;
        Ok((Self { messages: Some(messages), task: Some(task) }, info))
    }

    /// Whether the loop serves requests: false once a panic left the model without a state.
    pub(crate) fn is_running(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_finished())
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
        let sent = self.messages.as_ref().map(|messages| messages.unbounded_send(message(sender)));
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
        // The last handle may be dropped by the loop itself, in code that a result wakes.
        if let Some(task) = self.task.take() {
            task.join();
        }
    }
}

/// Body of the loop.
async fn run<L: Load>(
    loader: L,
    model: ModelSource,
    opened: &mut Opened<L>,
    queue: UnboundedReceiver<L::Message>,
) -> Result<(), Error> {
    let file = model.open()?;
    let path = file.path().map(ToOwned::to_owned);
    let needs = loader.needs(file.weight_bytes());
    let warn = |reason: &str| tracing::warn!("{reason}");
    let common = loader.common();
    let chosen = common.device.choose_async(needs).await?;
    let device = chosen.open_async(|| common.open_cpu(), warn).await?;
    let served = loader.run(EngineStart { file, device, opened, queue }).await;
    served.map_err(|error| match &path {
        Some(path) => error.of_model(path),
        None => error,
    })
}

/// Start of an engine: the file to load, then the queue to serve.
pub(crate) struct EngineStart<'a, L: Load> {
    /// File of the model.
    pub(crate) file: ModelFile,
    /// Device of the model.
    pub(crate) device: OpenDevice,
    opened: &'a mut Opened<L>,
    queue: UnboundedReceiver<L::Message>,
}

impl<L: Load> EngineStart<'_, L> {
    /// Closes the file of the loaded model and reports that the model is open. Returns the queue, which is closed once every
    /// handle is dropped.
    pub(crate) fn open(self, info: L::Info) -> UnboundedReceiver<L::Message> {
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
