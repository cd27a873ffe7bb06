//! Devices: what loads weights, compiles programs and runs their steps.
//!
//! ```text
//! device.load_matrix(..), load_values(..)    weights as handles
//! device.compile(program, max)               an executable: memory, kernels
//! executable.run(step)                       checks and enqueues a step
//! executable.fetch(ranges, ..)               enqueues a copy of its outputs; more steps may follow
//! executable.collect(values)                 waits for the copy
//! ```

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use stonechat_compute::op::{PoolId, Port, Weight};
use stonechat_compute::{DType, LogMelTables, SharedBytes};

use crate::fuse::{Capabilities, fuse};
use crate::inputs::{CheckedStep, InputLimits, Step};
use crate::program::{Counts, Program};
use crate::{BoxFuture, Error, LoadStats};

/// A device. Clones share it.
#[derive(Debug, Clone)]
pub struct Device(Arc<dyn DeviceApi>);

impl<D: DeviceApi + 'static> From<D> for Device {
    fn from(api: D) -> Self {
        Self::new(api)
    }
}

impl std::ops::Deref for Device {
    type Target = dyn DeviceApi;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// Work of one host thread.
pub type HostTask<'a> = &'a mut (dyn FnMut() + Send);

impl Device {
    /// A device.
    #[must_use]
    pub fn new(api: impl DeviceApi + 'static) -> Self {
        Self(Arc::new(api))
    }

    /// Fuses a program and allocates its pools and values for steps of at most `max` rows.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or [`Error::Unsupported`] if an op has no kernel.
    pub fn compile(&self, program: &Program, max: &Counts) -> Result<Box<dyn Executable>, Error> {
        self.compile_fused(&fuse(program, &self.capabilities()), max)
    }

    /// At most `n` devices that share its weights and run passes concurrently; one if it runs passes one by one.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn divide(&self, n: usize) -> Result<Vec<Self>, Error> {
        Ok(self.parts(n)?.unwrap_or_else(|| vec![self.clone()]))
    }

    /// This device for a model whose steps go before those in the background.
    #[must_use]
    pub fn in_foreground(&self) -> Self {
        self.foreground().unwrap_or_else(|| self.clone())
    }

    /// Calls `task` for each item, on the device's host threads if it has any.
    pub fn for_each<T: Send>(&self, items: &mut [T], task: impl Fn(&mut T) + Sync) {
        let task = &task;
        let mut tasks: Vec<_> = items.iter_mut().map(|item| move || task(item)).collect();
        let mut tasks: Vec<HostTask<'_>> = tasks.iter_mut().map(|task| task as _).collect();
        self.run_on_host(&mut tasks);
    }
}

/// A weight matrix `[N, K]` in a file's format.
#[derive(Debug, Clone, Copy)]
pub struct MatrixSource<'a> {
    /// Name for error messages.
    pub name: &'a str,
    /// Output features `N`.
    pub rows: usize,
    /// Input features `K`.
    pub cols: usize,
    /// Type of the stored values.
    pub dtype: DType,
    /// `rows` consecutive rows; any alignment. A device keeps a reference, or copies them and releases the source in
    /// chunks of a few MB ([`SharedBytes::release`]).
    pub bytes: &'a SharedBytes,
}

impl MatrixSource<'_> {
    /// Checks that the bytes are those of the shape and that the type has weights.
    ///
    /// # Errors
    /// [`Error::WeightSize`] or [`Error::UnsupportedWeight`].
    pub(crate) fn check(&self, backend: &'static str) -> Result<(), Error> {
        let &Self { name, rows, cols, dtype, bytes } = self;
        let expected =
            rows.checked_mul(cols).and_then(|n| dtype.bytes_for(n)).unwrap_or(usize::MAX);
        if bytes.len() != expected || !cols.is_multiple_of(dtype.block_len()) {
            let (name, shape) = (name.to_owned(), [rows, cols]);
            return Err(Error::WeightSize { name, dtype, shape, expected, got: bytes.len() });
        }
        if !stonechat_quant::is_float(dtype) || matches!(dtype, DType::Q8_1 | DType::Q8K) {
            return Err(Error::UnsupportedWeight { name: name.to_owned(), dtype, backend });
        }
        Ok(())
    }
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl From<stonechat_compute::KernelTime> for OpTime {
    fn from(time: stonechat_compute::KernelTime) -> Self {
        let total = Duration::from_secs_f64(time.total_ms / 1e3);
        Self { name: time.name, runs: time.runs, total }
    }
}

/// Time of all runs of an op.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpTime {
    /// Op, types and shapes of its weights, rows rounded up to a power of two.
    pub name: String,
    /// Number of runs.
    pub runs: u64,
    /// Time of all runs.
    pub total: Duration,
}

/// Operations of a device, for any type of device.
pub trait DeviceApi: Debug + Send + Sync {
    /// Name for messages, for example `cpu`.
    fn name(&self) -> &'static str;

    /// Names of the kernels and device in use, for logs and benchmarks.
    fn describe(&self) -> String;

    /// Cost of loading so far; zeros if the device does not count it.
    fn load_stats(&self) -> LoadStats {
        LoadStats::default()
    }

    /// Memory of the device in bytes, in use or not; `None` if it is unknown or shared with the host.
    fn total_memory_bytes(&self) -> Option<u64>;

    /// Memory of the device in bytes that no program uses; `None` if the device does not tell.
    fn free_memory_bytes(&self) -> Option<u64> {
        None
    }

    /// Type in which weights of `dtype` are stored: `dtype`, unless no kernel reads it.
    fn stored_dtype(&self, dtype: DType) -> DType;

    /// Rows of a pass that saturate the device: more rows take proportionally longer.
    fn saturating_batch(&self) -> usize {
        1
    }

    /// Splits the device into at most `n` that share its weights and run passes concurrently; `None` if the device runs
    /// passes one by one.
    ///
    /// # Errors
    /// If threads cannot be started.
    fn parts(&self, _n: usize) -> Result<Option<Vec<Device>>, Error> {
        Ok(None)
    }

    /// This device for steps that go before those in the background; `None` if there is no such order.
    fn foreground(&self) -> Option<Device> {
        None
    }

    /// Runs `tasks` on the device's host threads, without them on the calling thread.
    fn run_on_host(&self, tasks: &mut [HostTask<'_>]) {
        tasks.iter_mut().for_each(|task| task());
    }

    /// Loads a weight matrix, repacked for the kernels if that pays.
    ///
    /// # Errors
    /// [`Error::UnsupportedWeight`] if the type has no kernel, [`Error::WeightSize`] if the bytes do not fit the shape,
    /// [`Error::OutOfMemory`].
    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Weight, Error>;

    /// Loads f32 values.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn load_values(&self, values: &[f32]) -> Result<Weight, Error>;

    /// Loads the tables of a log-mel spectrogram and allocates memory for it; `None` if the device has no kernel.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or if the device failed.
    fn load_log_mel(
        &self,
        _tables: &LogMelTables<'_>,
    ) -> Result<Option<Box<dyn LogMelKernel>>, Error> {
        Ok(None)
    }

    /// Waits for the errors of what was loaded and allocated, if the device tells them later.
    fn check_allocations(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Starts to measure the time of kernels; whether the device can.
    fn start_profile(&self) -> bool {
        false
    }

    /// Takes the times since the last call, longest first; none if they are not measured.
    fn take_profile(&self) -> Vec<OpTime> {
        Vec::new()
    }

    /// Kernels that fusion depends on.
    fn capabilities(&self) -> Capabilities;

    /// Allocates the pools and values of a fused program for steps of at most `max` rows, see [`Device::compile`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or [`Error::Unsupported`] if an op has no kernel.
    fn compile_fused(&self, program: &Program, max: &Counts) -> Result<Box<dyn Executable>, Error>;
}

/// Log-mel kernel of a device, with its tables and memory. It runs beside the steps of executables; calls of several threads run
/// one by one.
pub trait LogMelKernel: Debug + Send + Sync {
    /// Writes `log10(max(power, 1e-10))` of the mels of consecutive windows of `samples`, `[n_frames, n_mels]`. Waits for the device
    /// and returns the largest value.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Panics
    /// If `samples` ends before the window of the last frame.
    fn log_powers(&self, samples: &[f32], out: &mut [f32]) -> Result<f32, Error>;
}

/// A compiled program with its memory.
pub trait Executable: Debug + Send + Sync {
    /// Compiles kernels and allocates what the steps of `run` need, which are dropped instead of run. A device without
    /// kernels to compile does not call `run`.
    ///
    /// # Errors
    /// If the device fails.
    fn warm_up(&mut self, run: &mut dyn FnMut(&mut dyn Executable)) -> Result<(), Error>;

    /// Writes the first values of an [`Op::Import`](stonechat_compute::op::Op::Import), for the next step.
    ///
    /// # Panics
    /// If the program has no such port or there are too many values.
    fn import(&mut self, port: Port, values: &[f32]);

    /// Whether steps run while the host goes on.
    fn async_scheduling(&self) -> bool;

    /// Limits of the inputs of steps.
    fn limits(&self) -> &InputLimits;

    /// Enqueues a step that `dyn Executable::run` checked.
    ///
    /// # Panics
    /// If the step has more rows than the executable.
    fn run_checked(&mut self, step: CheckedStep<'_>);

    /// Enqueues a copy of outputs of the last step. Fetches are read in groups; `is_last` ends a group.
    ///
    /// # Panics
    /// If the program has no such port or not as many values.
    fn fetch(&mut self, ranges: &[PortRange], is_last: bool);

    /// [`collect`](Self::collect), if no device has to be awaited.
    fn collect_now(&mut self, values: &mut Vec<f32>) -> Option<Result<(), Error>>;

    /// Waits for the oldest group of fetches, in one round trip to the device, and replaces `values` by its values. Resolves
    /// to an error if the device failed in a step since the last one.
    ///
    /// # Panics
    /// If there is no group, or [`collect_now`](Self::collect_now) has no result and this method is the default.
    fn collect<'a>(&'a mut self, values: &'a mut Vec<f32>) -> BoxFuture<'a, Result<(), Error>> {
        let result = self.collect_now(values).expect("a device that is not awaited");
        Box::pin(std::future::ready(result))
    }

    /// Appends the bytes of page `page` of every layer of a pool to `out`, after all earlier steps.
    fn read_page<'a>(
        &'a mut self,
        pool: PoolId,
        page: u32,
        out: &'a mut Vec<u8>,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Bytes of a page in every layer of a pool, of [`read_page`](Self::read_page).
    fn page_bytes(&self, pool: PoolId) -> usize {
        self.limits().page_bytes(pool)
    }

    /// Replaces page `page` of every layer by `bytes`, whose length `dyn Executable::write_page` checked.
    ///
    /// # Errors
    /// If the device failed.
    fn write_checked_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error>;
}

impl dyn Executable + '_ {
    /// Checks and enqueues a step.
    ///
    /// # Panics
    /// If an input does not fit the program, or the step has more rows than the executable.
    #[track_caller]
    pub fn run(&mut self, step: &Step<'_>) {
        let step = self.limits().check(step);
        self.run_checked(step);
    }

    /// Replaces page `page` of every layer by the bytes of [`read_page`](Executable::read_page).
    ///
    /// # Errors
    /// [`Error::KvPage`] if `bytes` has not the length of a page in every layer, or if the device failed.
    pub fn write_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let (expected, got) = (self.page_bytes(pool), bytes.len());
        if got != expected {
            return Err(Error::KvPage { expected, got });
        }
        if bytes.is_empty() {
            // A pipeline stage without layers.
            return Ok(());
        }
        self.write_checked_page(pool, page, bytes)
    }

    /// Waits for the oldest group of fetches, without a future on the heap where no device has to be awaited.
    ///
    /// # Errors
    /// If the device failed.
    pub async fn wait(&mut self, values: &mut Vec<f32>) -> Result<(), Error> {
        match self.collect_now(values) {
            Some(result) => result,
            None => self.collect(values).await,
        }
    }

    /// Reads outputs of the last step into `values`.
    ///
    /// # Errors
    /// If the device failed.
    pub async fn read(&mut self, ranges: &[PortRange], values: &mut Vec<f32>) -> Result<(), Error> {
        self.fetch(ranges, true);
        self.wait(values).await
    }
}

/// Values of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// The port.
    pub port: Port,
    /// Index of the first value.
    pub offset: usize,
    /// Number of values.
    pub len: usize,
}

impl PortRange {
    /// The first values of a port.
    #[must_use]
    pub fn first(port: Port, len: usize) -> Self {
        Self { port, offset: 0, len }
    }
}

/// Groups of fetched values on the host, of devices that run steps at once.
#[derive(Debug, Default)]
pub struct HostFetches {
    /// Memory of each group, oldest first, and the number of its values.
    groups: VecDeque<(Vec<f32>, usize)>,
    is_open: bool,
    /// Memory of groups that were collected.
    spare: Vec<Vec<f32>>,
}

impl HostFetches {
    /// Memory for `len` values, undefined ones, of a fetch; `is_last` ends its group.
    pub fn fetch(&mut self, len: usize, is_last: bool) -> &mut [f32] {
        if self.groups.is_empty() || !self.is_open {
            self.groups.push_back((self.spare.pop().unwrap_or_default(), 0));
        }
        self.is_open = !is_last;
        let last = self.groups.len() - 1;
        let (values, end) = &mut self.groups[last];
        let first = *end;
        *end += len;
        if values.len() < *end {
            values.resize(*end, 0.0);
        }
        &mut values[first..*end]
    }

    /// Replaces `values` by those of the oldest group.
    ///
    /// # Panics
    /// If there is none.
    pub fn collect(&mut self, values: &mut Vec<f32>) {
        let (mut group, len) = self.groups.pop_front().expect("a group of fetches");
        group.truncate(len);
        self.spare.push(std::mem::replace(values, group));
    }
}

/// Batch sizes for [`Executable::warm_up`]: the powers of two below `max_rows`, by which devices select kernels, and
/// `max_rows`.
pub fn warmup_batch_sizes(max_rows: usize) -> impl Iterator<Item = usize> {
    (0..usize::BITS).map(|power| 1 << power).take_while(move |&n| n < max_rows).chain([max_rows])
}
