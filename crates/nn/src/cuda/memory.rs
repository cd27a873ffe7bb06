//! Memory of a program's values, and scratch memory of its kernels.

use std::collections::{BTreeMap, HashMap};

use stonechat_compute::cuda::ops::attention::MAX_HEAD_DIM;
use stonechat_compute::cuda::ops::kv::Pool;
use stonechat_compute::cuda::ops::{OPERAND_COLUMNS, Output, Rows};
use stonechat_compute::cuda::{Buffer, Gpu, Rank};
use stonechat_compute::op::{PoolId, Port, Tensor, TensorType};
use stonechat_quant::cuda::Operand;

use super::weights::{NAME, allocation_error};
use crate::plan::{SlotInfo, plan_slots};
use crate::program::{Counts, Program};
use crate::{Error, KvShape};

/// A program and the memory of its values.
#[derive(Debug)]
pub(super) struct ProgramMemory {
    pub(super) program: Program,
    slot_of: Vec<Option<usize>>,
    slots: Vec<Buffer>,
    /// KV pool of each layer, by pool.
    pub(super) pools: Vec<Vec<Pool>>,
    exports: BTreeMap<Port, Buffer>,
    /// Rank of a program with collective ops.
    rank: Option<Rank>,
}

fn bytes(slot: &SlotInfo) -> usize {
    match slot.dtype {
        TensorType::F16 => {
            slot.rows.saturating_mul(slot.cols.next_multiple_of(OPERAND_COLUMNS) * 2)
        }
        _ => slot.len.saturating_mul(4),
    }
}

fn pool(gpu: &Gpu, shape: &KvShape) -> Result<Vec<Pool>, Error> {
    let KvShape { n_layers, n_pages, head_dim, .. } = *shape;
    if head_dim > MAX_HEAD_DIM {
        let reason = format!("heads: expected at most {MAX_HEAD_DIM} channels, got {head_dim}");
        return Err(Error::Unsupported { backend: NAME, op: "attention", reason });
    }
    let layer = |_| Pool::new(gpu, shape.layout(), n_pages).map_err(allocation_error);
    (0..n_layers).map(layer).collect()
}

impl ProgramMemory {
    pub(super) fn new(
        gpu: &Gpu,
        program: &Program,
        max: &Counts,
        rank: Option<Rank>,
    ) -> Result<Self, Error> {
        let plan = plan_slots(program, max);
        let alloc = |bytes| Buffer::new(gpu, bytes).map_err(allocation_error);
        let slots = plan.slots.iter().map(|slot| alloc(bytes(slot))).collect::<Result<_, _>>()?;
        let export = |(port, n): (Port, usize)| Ok((port, alloc(n.saturating_mul(4))?));
        let exports = program.exports(max).into_iter().map(export).collect::<Result<_, Error>>()?;
        let pools = program.pools.iter().map(|shape| pool(gpu, shape));
        Ok(Self {
            slot_of: plan.slot_of,
            slots,
            pools: pools.collect::<Result<_, _>>()?,
            exports,
            rank,
            program: program.clone(),
        })
    }

    pub(super) fn slot(&self, id: usize) -> usize {
        self.slot_of[id].expect("a value of the program")
    }

    pub(super) fn buffer(&self, id: usize) -> &Buffer {
        &self.slots[self.slot(id)]
    }

    pub(super) fn dtype(&self, id: usize) -> TensorType {
        self.program.tensors[id].dtype
    }

    /// `x`, in f32, in a step of `counts`.
    pub(super) fn rows(&self, x: Tensor, counts: &Counts) -> Rows {
        let stride = self.program.tensors[x.id].cols;
        let address = self.buffer(x.id).address() + 4 * x.first_col as u64;
        Rows { address, rows: counts.rows(x.rows), cols: x.cols, stride }
    }

    /// A result, in f32, in a step of `counts`.
    pub(super) fn result(&self, id: usize, counts: &Counts) -> Rows {
        let info = self.program.tensors[id];
        let address = self.buffer(id).address();
        Rows { address, rows: counts.rows(info.rows), cols: info.cols, stride: info.cols }
    }

    /// Operand `x` of products.
    pub(super) fn operand(&self, x: Tensor, counts: &Counts) -> Operand {
        let Rows { address, rows, stride, .. } = self.rows(x, counts);
        Operand { address, rows, stride, norm: None }
    }

    /// Memory of a result, in f32 or as an operand, in a step of `counts`.
    pub(super) fn output(&self, id: usize, counts: &Counts) -> Output {
        let Rows { address, .. } = self.result(id, counts);
        match self.dtype(id) {
            TensorType::F16 => Output::default().with_operand(address),
            _ => Output::at(address),
        }
    }

    /// The rank whose collective ops the program has.
    pub(super) fn rank(&self) -> &Rank {
        self.rank.as_ref().expect("collective ops are those of a group")
    }

    pub(super) fn layer(&self, pool: PoolId, layer: usize) -> &Pool {
        &self.pools[pool.0][layer]
    }

    pub(super) fn export(&self, port: Port) -> u64 {
        self.exports[&port].address()
    }

    /// Buffer of a port.
    pub(super) fn port(&self, port: Port) -> &Buffer {
        self.exports.get(&port).unwrap_or_else(|| self.buffer(self.program.output(port).id))
    }
}

/// Memory that kernels of an op share, by name. It grows; lists with the former addresses are invalid then.
#[derive(Debug)]
pub(super) struct Scratch {
    gpu: Gpu,
    buffers: HashMap<&'static str, Buffer>,
    has_grown: bool,
    error: Option<Error>,
}

impl Scratch {
    pub(super) fn new(gpu: &Gpu) -> Self {
        let (buffers, has_grown, error) = (HashMap::new(), false, None);
        Self { gpu: gpu.clone(), buffers, has_grown, error }
    }

    /// Whether memory has grown since the last call.
    pub(super) fn finish(&mut self) -> Result<bool, Error> {
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut self.has_grown)),
        }
    }
}

impl stonechat_quant::cuda::Scratch for Scratch {
    /// 0 also if there is no memory, which [`finish`](Self::finish) reports.
    fn get(&mut self, name: &'static str, bytes: usize) -> u64 {
        if bytes == 0 {
            return 0;
        }
        if self.buffers.get(name).is_none_or(|buffer| buffer.bytes() < bytes) {
            self.has_grown |= self.buffers.remove(name).is_some();
            match Buffer::new(&self.gpu, bytes.next_power_of_two()) {
                Ok(buffer) => {
                    self.buffers.insert(name, buffer);
                }
                Err(error) => {
                    self.error.get_or_insert(allocation_error(error));
                    return 0;
                }
            }
        }
        self.buffers[name].address()
    }
}
