//! Devices: what loads weights, compiles programs and runs their steps.
//!
//! ```text
//! device.load_matrix(..), load_values(..)    weights as handles
//! device.compile(program, max)               an executable: memory, kernels
//! executable.run(step)                       enqueues a step
//! executable.fetch(ranges, ..)               enqueues a copy of its outputs; more steps may follow
//! executable.collect(values)                 waits for the copy
//! ```

use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use stonechat_compute::op::{Count, PoolId, Port, RowTable, Rows, SlotTable, Tensor, Weight};
use stonechat_compute::{DType, LogMelTables, SharedBytes};

use crate::fuse::{Capabilities, fuse};
use crate::program::{Program, Segment, SegmentName};
use crate::{BoxFuture, Error, KvRow, LoadStats, LogitFilter, OpTime, PageCopy, QueryRow};

/// A device. Clones share it.
#[derive(Debug, Clone)]
pub struct Device(Arc<dyn DeviceApi>);

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
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
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
        let total = std::time::Duration::from_secs_f64(time.total_ms / 1e3);
        Self { name: time.name, runs: time.runs, total }
    }
}

/// Operations of a device, for any type of device.
pub trait DeviceApi: Debug + Send + Sync {
    /// Name for messages, for example `cpu`.
    fn name(&self) -> &'static str;

    /// Names of the kernels and device in use, for logs and benchmarks.
    fn describe(&self) -> String;

    /// Cost of loading so far; zeros if the device does not count it.
    fn load_stats(&self) -> LoadStats;

    /// Memory of the device in bytes, in use or not; `None` if it is unknown or shared with the host.
    fn total_memory_bytes(&self) -> Option<u64>;

    /// Memory of the device in bytes that no program uses; `None` if the device does not tell.
    fn free_memory_bytes(&self) -> Option<u64> {
        None
    }

    /// Type in which weights of `dtype` are stored: `dtype`, unless no kernel reads it.
    fn stored_dtype(&self, dtype: DType) -> DType;

    /// Rows of a pass that keep all of the device at work: with more of them, a row takes no less time.
    fn busy_rows(&self) -> usize {
        1
    }

    /// Splits the device into at most `n` that share its weights and run passes concurrently; one if the device runs
    /// passes one by one.
    ///
    /// # Errors
    /// If threads cannot be started.
    fn divide(&self, n: usize) -> Result<Vec<Device>, Error>;

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
    fn runs_ahead(&self) -> bool;

    /// Enqueues a step.
    ///
    /// # Panics
    /// If it has more rows than the executable.
    fn run(&mut self, step: &Step<'_>);

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

    /// Replaces page `page` of every layer by the bytes of [`read_page`](Self::read_page).
    ///
    /// # Errors
    /// [`Error::KvPage`] if `bytes` has not the length of a page in every layer.
    fn write_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error>;
}

/// Checks the length of the bytes of [`Executable::write_page`].
pub(crate) fn check_page(bytes: &[u8], n_layers: usize, page_bytes: usize) -> Result<(), Error> {
    let expected = n_layers * page_bytes;
    if bytes.len() != expected {
        return Err(Error::KvPage { expected, got: bytes.len() });
    }
    Ok(())
}

/// The bytes of [`Executable::write_page`] of each layer.
pub(crate) fn layers_of_page(
    bytes: &[u8],
    n_layers: usize,
    page_bytes: usize,
) -> Result<std::slice::ChunksExact<'_, u8>, Error> {
    check_page(bytes, n_layers, page_bytes)?;
    Ok(bytes.chunks_exact(page_bytes.max(1)))
}

impl dyn Executable + '_ {
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

/// Number of each [`Count`] in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counts([usize; Count::N]);

impl Counts {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self, rows: Rows) -> usize {
        self[rows.count] * rows.each
    }
}

impl Index<Count> for Counts {
    type Output = usize;

    fn index(&self, count: Count) -> &usize {
        &self.0[count as usize]
    }
}

impl IndexMut<Count> for Counts {
    fn index_mut(&mut self, count: Count) -> &mut usize {
        &mut self.0[count as usize]
    }
}

/// Index of the first value of an [`Op::Export`](stonechat_compute::op::Op::Export) of `x` in the memory of its port, in a step
/// with this first window.
#[must_use]
pub(crate) fn export_offset(x: Tensor, first_window: usize) -> usize {
    match x.rows.count {
        Count::Windows | Count::CapturedWindows => first_window * x.rows.each * x.cols,
        _ => 0,
    }
}

/// Pages and visible positions of query rows.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttentionRows<'a> {
    /// Pages and visible positions of each row; rows of one sequence are adjacent.
    pub rows: &'a [QueryRow],
    /// Page ids of all sequences, concatenated; [`QueryRow::first_page`] indexes it.
    pub page_table: &'a [u32],
}

/// Bit of a [`token_reference`].
const TOKEN_REFERENCE: u32 = 1 << 31;

/// In place of a token: the most probable token of row `row` of [`Port::TOP_K`] of the step before, which had `k` of each row.
///
/// # Panics
/// If the port is too large.
#[must_use]
pub fn token_reference(row: usize, k: usize) -> u32 {
    let index = 2 * row * k + k;
    assert!(index < TOKEN_REFERENCE as usize, "row {row} of {k} logits");
    TOKEN_REFERENCE | index as u32
}

/// The token that an element of [`Step::tokens`] stands for, with the values of [`Port::TOP_K`] of the step before.
///
/// # Panics
/// If it refers to a value that is not there.
#[must_use]
pub fn resolve_token(token: u32, top_k: impl Fn(usize) -> f32) -> u32 {
    if token & TOKEN_REFERENCE == 0 {
        token
    } else {
        top_k((token & !TOKEN_REFERENCE) as usize) as u32
    }
}

/// Inputs of a step: everything that changes between two steps.
#[derive(Debug, Clone, Copy, Default)]
pub struct Step<'a> {
    /// Segments to run.
    pub segments: &'a [SegmentName],
    /// Number of rows.
    pub counts: Counts,
    /// `[T]` token ids, or [references](token_reference) to tokens that the step before chose.
    pub tokens: &'a [u32],
    /// `[T]` positions.
    pub positions: &'a [u32],
    /// Rows of the batch whose logits are computed, then those whose hidden states are read.
    pub output_rows: &'a [usize],
    /// Filter of each row of an [`Op::LogitFilter`](stonechat_compute::op::Op::LogitFilter).
    pub logit_filters: &'a [LogitFilter],
    /// Lists of tokens, concatenated; [`LogitFilter::suppressed`] indexes it.
    pub suppressed: &'a [u32],
    /// `k` of [`Op::TopK`](stonechat_compute::op::Op::TopK).
    pub k: usize,
    /// Page copies in pool 0, done first.
    pub copies: &'a [PageCopy],
    /// By [`SlotTable`].
    pub slots: [&'a [KvRow]; SlotTable::N],
    /// By [`RowTable`].
    pub rows: [AttentionRows<'a>; RowTable::N],
    /// Place of the first window of audio in exported values.
    pub first_window: usize,
}

impl<'a> Step<'a> {
    /// Whether the step runs a variant of a segment.
    #[must_use]
    pub fn runs(&self, segment: &Segment) -> bool {
        let n_rows = self.counts.rows(segment.rows);
        self.segments.contains(&segment.name) && segment.class.contains(n_rows)
    }

    /// Index of the first value of an [`Op::Export`](stonechat_compute::op::Op::Export) of `x` in the memory of its port.
    #[must_use]
    pub fn export_offset(&self, x: Tensor) -> usize {
        export_offset(x, self.first_window)
    }

    /// Rows of the batch whose logits are computed, or whose hidden states are read.
    ///
    /// # Panics
    /// If `count` counts no such rows.
    #[must_use]
    pub fn output_rows(&self, count: Count) -> &'a [usize] {
        let (logits, rest) = self.output_rows.split_at(self.counts[Count::Logits]);
        match count {
            Count::Logits => logits,
            Count::Hidden => &rest[..self.counts[Count::Hidden]],
            _ => panic!("no outputs of {count:?}"),
        }
    }

    /// A list of pages and slots.
    #[must_use]
    pub fn slots(&self, table: SlotTable) -> &'a [KvRow] {
        self.slots[table.index()]
    }

    /// A list of pages and visible positions.
    #[must_use]
    pub fn rows(&self, table: RowTable) -> AttentionRows<'a> {
        self.rows[table.index()]
    }
}
