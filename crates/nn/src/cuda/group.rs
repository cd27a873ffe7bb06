//! Tensor parallelism over the NVIDIA GPUs of one host: a device whose programs are split among ranks.
//!
//! ```text
//! load     a reference to the file's bytes
//! compile  programs of the ranks, parts of the weights, an executable of each
//! run      inputs to every rank; launches or graphs of all ranks in turn, under one lock
//! fetch    outputs of rank 0: collective ops leave equal values on all
//! ```

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stonechat_compute::cuda::ops::all_reduce::connect;
use stonechat_compute::cuda::{CommandList, Communicator, CudaDevice, MAX_RANKS};
use stonechat_compute::op::{PoolId, Port, Weight};
use stonechat_compute::{DType, LogMelTables};
use web_time::Instant;

use super::device::{Cuda, SATURATING_BATCH};
use super::executable::CudaExecutable;
use super::weights::{NAME, allocation_error};
use crate::device::{Device, DeviceApi, Executable, HostTask, LogMelKernel, PortRange};
use crate::fuse::{Capabilities, fuse};
use crate::inputs::{CheckedStep, InputLimits, Step};
use crate::program::{Counts, Program};
use crate::shard::{shard, sharded_matrix, sharded_values};
use crate::{BoxFuture, Error, KvShape, MatrixSource, OpTime};

/// GPUs that compute each layer together. Clones share them.
#[derive(Debug, Clone)]
pub struct CudaGroup(Arc<Group>);

#[derive(Debug)]
struct Group {
    ranks: Vec<Cuda>,
    communicator: Arc<Communicator>,
    /// Held while a step is enqueued: all ranks run steps in one order.
    order: Mutex<()>,
    /// Parts of programs that every rank computes as a whole.
    replicated: Mutex<BTreeSet<String>>,
}

impl CudaGroup {
    /// Maximum GPUs of a group.
    pub const MAX_RANKS: usize = MAX_RANKS;

    /// Opens GPUs that access each other's memory. A GPU that is listed twice is two ranks.
    ///
    /// # Errors
    /// If a GPU cannot be opened, or cannot access the memory of another one.
    ///
    /// # Panics
    /// If there are more than [`MAX_RANKS`](Self::MAX_RANKS), or none.
    pub fn open(devices: &[CudaDevice]) -> Result<Self, Error> {
        Self::with_ranks(devices.iter().map(Cuda::open).collect::<Result<_, _>>()?)
    }

    /// Opens GPUs, with or without dependent launches.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Panics
    /// As [`open`](Self::open).
    pub fn open_with(devices: &[CudaDevice], dependent_launch: bool) -> Result<Self, Error> {
        let open = |device| Cuda::open_with(device, dependent_launch);
        Self::with_ranks(devices.iter().map(open).collect::<Result<_, _>>()?)
    }

    fn with_ranks(ranks: Vec<Cuda>) -> Result<Self, Error> {
        let gpus: Vec<_> = ranks.iter().map(|rank| rank.gpu.clone()).collect();
        let communicator = connect(&gpus).map_err(allocation_error)?;
        let (order, replicated) = (Mutex::default(), Mutex::default());
        Ok(Self(Arc::new(Group { ranks, communicator, order, replicated })))
    }

    /// The devices of the ranks.
    #[must_use]
    pub fn ranks(&self) -> &[Cuda] {
        &self.0.ranks
    }
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first error of `result` and of the ranks since the last call; all of them are forgotten.
    fn check(&self, mut result: Result<(), Error>) -> Result<(), Error> {
        for rank in &self.ranks {
            let fault = rank.gpu.check();
            result = result.and(fault.map_err(Error::from));
        }
        if result.is_ok() && !self.communicator.has_timed_out() {
            return Ok(());
        }
        let _order = self.lock();
        let timed_out = self.communicator.reset();
        result.and(timed_out.map_err(Error::from))
    }
}

impl DeviceApi for CudaGroup {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let ranks = self.ranks();
        let indexes = ranks.iter().map(|rank| rank.gpu.device().index.to_string());
        let indexes = indexes.collect::<Vec<_>>().join(",");
        let mut text = format!("{}, tensor parallelism over cuda:{indexes}", ranks[0].describe());
        let replicated = self.0.replicated.lock().unwrap_or_else(PoisonError::into_inner);
        replicated.iter().for_each(|part| text += &format!(", not split: {part}"));
        text
    }

    /// Memory of as many GPUs as there are, each as large as the smallest.
    fn total_memory_bytes(&self) -> Option<u64> {
        let devices = self.ranks().iter().map(|rank| rank.gpu.device());
        let n_gpus = devices.clone().map(|device| device.index).collect::<BTreeSet<_>>().len();
        devices.map(|device| device.total_memory_bytes).min().map(|bytes| bytes * n_gpus as u64)
    }

    /// Number of GPUs times the least free memory of any of them.
    fn free_memory_bytes(&self) -> Option<u64> {
        let indexes = self.ranks().iter().map(|rank| rank.gpu.device().index);
        let n_gpus = indexes.collect::<BTreeSet<_>>().len() as u64;
        let free = self.ranks().iter().map(|rank| rank.free_memory_bytes());
        free.collect::<Option<Vec<_>>>()?.into_iter().min().map(|bytes| bytes * n_gpus)
    }

    fn stored_dtype(&self, dtype: DType) -> DType {
        self.ranks()[0].stored_dtype(dtype)
    }

    fn saturating_batch(&self) -> usize {
        SATURATING_BATCH
    }

    fn run_on_host(&self, tasks: &mut [HostTask<'_>]) {
        self.ranks()[0].run_on_host(tasks);
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Weight, Error> {
        source.check(NAME)?;
        Ok(sharded_matrix(source))
    }

    fn load_values(&self, values: &[f32]) -> Result<Weight, Error> {
        Ok(sharded_values(values))
    }

    /// Rank 0 computes all of it: an hour of audio takes milliseconds.
    fn load_log_mel(
        &self,
        tables: &LogMelTables<'_>,
    ) -> Result<Option<Box<dyn LogMelKernel>>, Error> {
        self.ranks()[0].load_log_mel(tables)
    }

    /// Measures rank 0. The time of collective kernels includes that of waiting for others.
    fn start_profile(&self) -> bool {
        self.ranks()[0].start_profile()
    }

    fn take_profile(&self) -> Vec<OpTime> {
        self.ranks()[0].take_profile()
    }

    /// Programs are split before they are fused.
    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
    }

    fn compile_fused(&self, program: &Program, max: &Counts) -> Result<Box<dyn Executable>, Error> {
        let Group { ranks, communicator, replicated, .. } = &*self.0;
        let devices: Vec<Device> = ranks.iter().cloned().map(Device::from).collect();
        let shards = shard(program, &devices)?;
        replicated.lock().unwrap_or_else(PoisonError::into_inner).extend(shards.replicated);
        let executable = |(i, program): (usize, &Program)| {
            let fused = fuse(program, &ranks[i].capabilities);
            CudaExecutable::new(&ranks[i], &fused, max, Some(communicator.rank(i)))
        };
        let ranks = shards.programs.iter().enumerate().map(executable);
        Ok(Box::new(GroupExecutable {
            ranks: ranks.collect::<Result<_, _>>()?,
            group: Arc::clone(&self.0),
            limits: InputLimits::new(program),
            pools: program.pools.clone(),
            pool_parts: shards.pool_parts,
            warm_up_error: None,
        }))
    }
}

/// Executables of the ranks of a group.
#[derive(Debug)]
struct GroupExecutable {
    ranks: Vec<CudaExecutable>,
    group: Arc<Group>,
    /// Limits of the whole program.
    limits: InputLimits,
    /// Pools of the whole program.
    pools: Vec<KvShape>,
    /// Number of parts of each, see [`Shards`](crate::Shards).
    pool_parts: Vec<usize>,
    /// First error of a warmup, in which steps only record their lists; `None` outside of a warmup.
    warm_up_error: Option<Result<(), Error>>,
}

impl GroupExecutable {
    /// Enqueues a step on all ranks.
    fn run_step(&mut self, step: &Step<'_>) -> Result<(), Error> {
        let _order = self.group.lock();
        // Inputs and lists of all ranks, then launches: a rank that is launched alone waits until it times out.
        self.ranks.iter_mut().try_for_each(|rank| rank.prepare(step))?;
        let lists = self.ranks.iter_mut().filter_map(CudaExecutable::list_to_run);
        let mut lists: Vec<&mut CommandList> = lists.collect();
        Ok(CommandList::run_in_turn(&mut lists)?)
    }

    fn fault(&self, error: &Error) {
        self.group.ranks[0].gpu.fault(error.to_string());
    }
}

impl Executable for GroupExecutable {
    fn warm_up(&mut self, run: &mut dyn FnMut(&mut dyn Executable)) -> Result<(), Error> {
        self.ranks.iter_mut().for_each(|rank| rank.set_warming_up(true));
        self.warm_up_error = Some(Ok(()));
        run(self);
        self.ranks.iter_mut().for_each(|rank| rank.set_warming_up(false));
        let recorded = self.warm_up_error.take().unwrap_or(Ok(()));
        self.group.check(recorded)
    }

    fn import(&mut self, port: Port, values: &[f32]) {
        self.ranks.iter_mut().for_each(|rank| rank.import(port, values));
    }

    fn async_scheduling(&self) -> bool {
        true
    }

    fn limits(&self) -> &InputLimits {
        &self.limits
    }

    fn run_checked(&mut self, step: CheckedStep<'_>) {
        let started = Instant::now();
        if let Err(error) = self.run_step(&step) {
            match &mut self.warm_up_error {
                Some(first @ Ok(())) => *first = Err(error),
                Some(Err(_)) => {}
                None => self.fault(&error),
            }
        }
        self.group.ranks[0].gpu.count_host_time(started.elapsed());
    }

    fn fetch(&mut self, ranges: &[PortRange], is_last: bool) {
        self.ranks[0].fetch(ranges, is_last);
    }

    fn collect_now(&mut self, values: &mut Vec<f32>) -> Option<Result<(), Error>> {
        let result = self.ranks[0].collect_now(values)?;
        Some(self.group.check(result))
    }

    fn read_page<'a>(
        &'a mut self,
        pool: PoolId,
        page: u32,
        out: &'a mut Vec<u8>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let (n_ranks, n_parts) = (self.ranks.len(), self.pool_parts[pool.0]);
            let mut parts = vec![Vec::new(); n_parts];
            for (i, part) in parts.iter_mut().enumerate() {
                self.ranks[i * n_ranks / n_parts].read_page(pool, page, part).await?;
            }
            join_heads(&parts, self.pools[pool.0].n_layers, out);
            Ok(())
        })
    }

    fn write_checked_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let (n_layers, n_parts) = (self.pools[pool.0].n_layers, self.pool_parts[pool.0]);
        let n_ranks = self.ranks.len();
        for (i, rank) in self.ranks.iter_mut().enumerate() {
            let layers = bytes.chunks_exact(bytes.len() / n_layers);
            let part = heads_of_part(layers, (i * n_parts / n_ranks, n_parts));
            rank.write_checked_page(pool, page, &part)?;
        }
        Ok(())
    }
}

/// Appends the page of each layer with the heads of all parts. `parts`: pages of all layers. Heads of a page are
/// contiguous.
fn join_heads(parts: &[Vec<u8>], n_layers: usize, out: &mut Vec<u8>) {
    for layer in 0..n_layers {
        for part in parts {
            let len = part.len() / n_layers;
            out.extend_from_slice(&part[layer * len..][..len]);
        }
    }
}

/// The heads of a part in the page of each layer.
fn heads_of_part<'a>(
    layers: impl Iterator<Item = &'a [u8]>,
    (part, n_parts): (usize, usize),
) -> Vec<u8> {
    let heads = layers.flat_map(|page| {
        let len = page.len() / n_parts;
        &page[part * len..][..len]
    });
    heads.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::{heads_of_part, join_heads};

    #[test]
    fn pages_of_ranks_are_joined_by_layer() {
        // Two layers of four heads, on two ranks.
        let whole: Vec<u8> = (0..8).flat_map(|head| [head; 3]).collect();
        let part = |rank| heads_of_part(whole.chunks(12), (rank, 2));
        let parts = [part(0), part(1)];
        assert_eq!(parts[1], [2, 2, 2, 3, 3, 3, 6, 6, 6, 7, 7, 7]);
        let mut joined = vec![9];
        join_heads(&parts, 2, &mut joined);
        assert_eq!(joined, [&[9][..], &whole].concat());
    }
}
