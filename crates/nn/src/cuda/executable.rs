//! Programs on an NVIDIA GPU. Steps of equal shape run one list of launches, recorded when the first of them runs, and a graph
//! from the second one on:
//!
//! ```text
//! run     : shape of the step; copy of the inputs; its list, recorded if it is new, or its graph
//! fetch   : copies of the results
//! collect : wait for the oldest copies
//! ```

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};

use stonechat_compute::cuda::ops::attention::AttentionGrid;
use stonechat_compute::cuda::ops::kv::{PageCopies, Pool};
use stonechat_compute::cuda::{
    CommandList, CopyRange, Gpu, HostCopies, HostWrites, Rank, StepBuffer,
};
use stonechat_compute::op::{Op, PoolId, Port};
use web_time::Instant;

use super::device::Cuda;
use super::memory::{ProgramMemory, Scratch};
use super::record::RecordedStep;
use super::weights::{NAME, allocation_error};
use crate::device::{Executable, PortRange};
use crate::fuse::Capabilities;
use crate::inputs::{CheckedStep, InputLimits, Step};
use crate::program::{Counts, Node, Program, RowClass};
use crate::step_words::{StepShape, StepWords, impl_grid};
use crate::{BoxFuture, Error};

/// Maximum lists of an executable; one more drops all of them.
const MAX_LISTS: usize = 64;
/// Bytes of inputs that most steps fit: tokens of a short prompt with their pages.
const STEP_BYTES: usize = 1 << 16;
/// Bytes of results at first.
const RESULT_BYTES: usize = 1 << 12;

impl_grid!(AttentionGrid);

/// A compiled program.
#[derive(Debug)]
pub(super) struct CudaExecutable {
    // Lists are dropped before the memory that they use.
    lists: HashMap<StepShape<AttentionGrid>, CommandList>,
    gpu: Gpu,
    memory: ProgramMemory,
    scratch: Scratch,
    inputs: StepWords,
    limits: InputLimits,
    step: StepBuffer,
    imports: HostWrites,
    /// Shape of the last step.
    shape: StepShape<AttentionGrid>,
    /// Whether steps only record their list, and the first error of one.
    is_warming_up: bool,
    warm_up_error: Option<Error>,
    /// Groups of fetches, oldest first, and whether the last group is still open.
    fetches: VecDeque<HostCopies>,
    is_fetching: bool,
    /// Memory of groups that were collected.
    spare: Vec<HostCopies>,
    /// Staging memory for pages of each pool, allocated by the first copy.
    page_copies: HashMap<usize, PageCopies>,
}

impl CudaExecutable {
    /// Allocates memory for a fused program. `rank`: that of a program with collective ops.
    pub(super) fn new(
        Cuda { gpu, capabilities, .. }: &Cuda,
        program: &Program,
        max: &Counts,
        rank: Option<Rank>,
    ) -> Result<Self, Error> {
        program.nodes().try_for_each(|node| check_op(capabilities, program, node))?;
        Ok(Self {
            lists: HashMap::new(),
            gpu: gpu.clone(),
            memory: ProgramMemory::new(gpu, program, max, rank)?,
            scratch: Scratch::new(gpu),
            inputs: StepWords::new(program),
            limits: InputLimits::new(program),
            step: StepBuffer::new(gpu, STEP_BYTES).map_err(allocation_error)?,
            imports: HostWrites::new(gpu, STEP_BYTES).map_err(allocation_error)?,
            shape: StepShape::default(),
            is_warming_up: false,
            warm_up_error: None,
            fetches: VecDeque::new(),
            is_fetching: false,
            spare: Vec::new(),
            page_copies: HashMap::new(),
        })
    }

    /// Runs a step.
    fn run_step(&mut self, step: &Step<'_>) -> Result<(), Error> {
        self.prepare(step)?;
        if let Some(list) = self.list_to_run() {
            list.run()?;
        }
        Ok(())
    }

    /// Enqueues the inputs of a step and records its list if it is new.
    pub(super) fn prepare(&mut self, step: &Step<'_>) -> Result<(), Error> {
        self.inputs.set_shape(&mut self.shape, step, AttentionGrid::new);
        self.inputs.fill(step, &self.shape);
        if self.step.reserve(4 * self.inputs.words.len())? {
            self.lists.clear();
        }
        if !self.is_warming_up {
            self.step.write(&self.inputs.words)?;
        }
        if !self.lists.contains_key(&self.shape) {
            if self.lists.len() == MAX_LISTS {
                self.lists.clear();
            }
            let list = self.record()?;
            self.lists.insert(self.shape.clone(), list);
        }
        Ok(())
    }

    /// The list of the step that was prepared, unless it is only recorded.
    pub(super) fn list_to_run(&mut self) -> Option<&mut CommandList> {
        let list = self.lists.get_mut(&self.shape).expect("a step was prepared");
        (!self.is_warming_up).then_some(list)
    }

    /// Sets whether steps only record their list.
    pub(super) fn set_warming_up(&mut self, is_warming_up: bool) {
        self.is_warming_up = is_warming_up;
    }

    /// Records the list of the current shape.
    fn record(&mut self) -> Result<CommandList, Error> {
        loop {
            let step = RecordedStep {
                inputs: &self.inputs,
                shape: &self.shape,
                places: self.shape.places(),
                words: self.step.address(),
            };
            let mut list = CommandList::new(&self.gpu);
            self.memory.record(&mut list, &mut self.scratch, &step);
            let has_grown = self.scratch.finish();
            if matches!(has_grown, Ok(false)) {
                // A list with a launch that cannot run is not kept: the next step may find memory for it.
                list.check()?;
                return Ok(list);
            }
            // Memory that this and other lists use is gone.
            self.lists.clear();
            has_grown?;
        }
    }

    /// Memory for pages of a pool on their way to and from the host.
    fn page_copies(&mut self, pool: PoolId) -> Result<(&mut PageCopies, &[Pool]), Error> {
        let layers = &self.memory.pools[pool.0];
        let copies = match self.page_copies.entry(pool.0) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(PageCopies::new(&self.gpu, layers)?),
        };
        Ok((copies, layers))
    }

    fn read_page_now(&mut self, pool: PoolId, page: u32, out: &mut Vec<u8>) -> Result<(), Error> {
        let (copies, layers) = self.page_copies(pool)?;
        Ok(copies.read(layers, page, out)?)
    }

    fn enqueue_fetch(&mut self, ranges: &[PortRange], is_last: bool) -> Result<(), Error> {
        if !std::mem::replace(&mut self.is_fetching, !is_last) {
            let copies = match self.spare.pop() {
                Some(mut copies) => {
                    copies.clear();
                    copies
                }
                None => HostCopies::new(&self.gpu, RESULT_BYTES)?,
            };
            self.fetches.push_back(copies);
        }
        let copies = self.fetches.back_mut().expect("one was added");
        let memory = &self.memory;
        let ranges = ranges.iter().filter(|range| range.len > 0);
        let ranges: Vec<_> = ranges
            .map(|range| {
                let PortRange { port, offset, len } = *range;
                CopyRange { src: memory.port(port), offset: 4 * offset, len: 4 * len }
            })
            .collect();
        Ok(copies.enqueue(&self.gpu, &ranges)?)
    }
}

/// Checks that there is a kernel for an op, and that the op reads its operand in the type of its kernels.
fn check_op(capabilities: &Capabilities, program: &Program, node: &Node) -> Result<(), Error> {
    let reason = match &node.op {
        Op::Moe(_) | Op::Conv1d(_) | Op::ExpertMlp(_) => "no kernel, see `capabilities`".to_owned(),
        op @ (Op::Matmul(_) | Op::MatmulGroup(_) | Op::GatedProduct(_) | Op::ExpertMatmul(_)) => {
            let dtype = program.tensors[node.inputs[0].id].dtype;
            let expected = capabilities.operand(op, RowClass::ALL);
            if dtype == expected || node.norm.is_some() {
                return Ok(());
            }
            format!("operand: expected {}, got {}", expected.name(), dtype.name())
        }
        _ => return Ok(()),
    };
    Err(Error::Unsupported { backend: NAME, op: node.op.name(), reason })
}

impl Executable for CudaExecutable {
    fn warm_up(&mut self, run: &mut dyn FnMut(&mut dyn Executable)) -> Result<(), Error> {
        self.set_warming_up(true);
        run(self);
        self.set_warming_up(false);
        let recorded = self.warm_up_error.take().map_or(Ok(()), Err);
        recorded.and(self.gpu.check().map_err(Error::from))
    }

    fn import(&mut self, port: Port, values: &[f32]) {
        if !self.is_warming_up {
            let buffer = self.memory.buffer(self.memory.program.import(port));
            if let Err(error) = self.imports.write(buffer, bytemuck::cast_slice(values)) {
                self.gpu.fault(error.to_string());
            }
        }
    }

    fn async_scheduling(&self) -> bool {
        true
    }

    fn limits(&self) -> &InputLimits {
        &self.limits
    }

    fn run_checked(&mut self, step: CheckedStep<'_>) {
        let started = Instant::now();
        match self.run_step(&step) {
            Err(error) if self.is_warming_up => _ = self.warm_up_error.get_or_insert(error),
            Err(error) => self.gpu.fault(error.to_string()),
            Ok(()) => {}
        }
        self.gpu.count_host_time(started.elapsed());
    }

    fn fetch(&mut self, ranges: &[PortRange], is_last: bool) {
        if let Err(error) = self.enqueue_fetch(ranges, is_last) {
            self.gpu.fault(error.to_string());
        }
    }

    fn collect_now(&mut self, values: &mut Vec<f32>) -> Option<Result<(), Error>> {
        let copies = self.fetches.pop_front().expect("a group of fetches");
        let bytes = copies.wait(&self.gpu);
        let result = bytes.map(|bytes| {
            values.clear();
            values.extend_from_slice(bytemuck::cast_slice(bytes));
        });
        self.spare.push(copies);
        Some(result.map_err(Error::from))
    }

    fn read_page<'a>(
        &'a mut self,
        pool: PoolId,
        page: u32,
        out: &'a mut Vec<u8>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(std::future::ready(self.read_page_now(pool, page, out)))
    }

    fn write_checked_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let (copies, layers) = self.page_copies(pool)?;
        Ok(copies.write(layers, page, bytes)?)
    }
}
