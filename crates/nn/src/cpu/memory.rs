//! Memory of a program: its values, pools and ports, and operands as places in it.

use std::collections::BTreeMap;

use stonechat_compute::AlignedVec;
use stonechat_compute::cpu::{KvPool, MatMut, MatRef};
use stonechat_compute::op::{Port, Tensor, TensorInfo, TensorType};
use stonechat_quant::ActivationBuffer;

use super::weights::MAX_INT_DOT_ROWS;
use crate::Error;
use crate::plan::{SlotInfo, plan_slots};
use crate::program::{Counts, Program};

/// A program and its memory.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) program: Program,
    /// Slot of each value; `None` for values that fusion removed.
    slot_of: Vec<Option<usize>>,
    /// By slot; empty for slots of operands. The slots of exports come last.
    pub(super) values: Vec<AlignedVec>,
    /// By slot; empty for slots of values.
    pub(super) operands: Vec<ActivationBuffer>,
    /// By pool and layer.
    pub(super) pools: Vec<Vec<KvPool>>,
    /// Slot of each port with memory of its own.
    exports: BTreeMap<Port, usize>,
}

/// A tensor in its slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) tensor: Tensor,
    pub(super) slot: usize,
    pub(super) dtype: TensorType,
    /// Values from one row to the next.
    pub(super) stride: usize,
}

impl View {
    /// The tensor in a step of `counts`.
    pub(super) fn read<'a>(&self, values: &'a [AlignedVec], counts: &Counts) -> MatRef<'a> {
        let Tensor { rows, first_col, cols, .. } = self.tensor;
        let rows = counts.rows(rows);
        let end = if rows == 0 { 0 } else { (rows - 1) * self.stride + cols };
        MatRef::new(&values[self.slot][first_col..first_col + end], rows, cols, self.stride)
    }

    /// The whole result `out` in a step of `counts`.
    pub(super) fn write<'a>(&self, out: &'a mut [f32], counts: &Counts) -> MatMut<'a> {
        let (rows, cols) = (counts.rows(self.tensor.rows), self.tensor.cols);
        MatMut::packed(&mut out[..rows * cols], rows, cols)
    }
}

fn alloc(len: usize) -> Result<AlignedVec, Error> {
    let out_of_memory = Error::OutOfMemory { bytes: len.saturating_mul(4), backend: "cpu" };
    AlignedVec::try_zeroed(len).ok_or(out_of_memory)
}

impl Memory {
    /// Allocates the memory of `program` for steps of at most `max` rows.
    pub(super) fn new(program: &Program, max: &Counts) -> Result<Self, Error> {
        let plan = plan_slots(program, max);
        let (mut values, mut operands) = (Vec::new(), Vec::new());
        for SlotInfo { dtype, rows, cols, len } in plan.slots {
            let mut operand = ActivationBuffer::new();
            let is_operand = dtype == TensorType::Operand;
            if is_operand {
                // A decode step must not allocate.
                operand.reserve(rows.min(MAX_INT_DOT_ROWS), cols);
            }
            values.push(alloc(if is_operand { 0 } else { len })?);
            operands.push(operand);
        }
        let mut exports = program.exports(max);
        for len in exports.values_mut() {
            values.push(alloc(std::mem::replace(len, values.len()))?);
        }
        let mut pools = Vec::new();
        for shape in &program.pools {
            let layers = (0..shape.n_layers).map(|_| KvPool::new(shape.layout(), shape.n_pages));
            pools.push(layers.collect::<Result<_, stonechat_compute::Error>>()?);
        }
        let (program, slot_of) = (program.clone(), plan.slot_of);
        Ok(Self { program, slot_of, values, operands, pools, exports })
    }

    /// Resolves a tensor.
    pub(super) fn view(&self, tensor: Tensor) -> View {
        let TensorInfo { dtype, cols: stride, .. } = self.program.tensors[tensor.id];
        let slot = self.slot_of[tensor.id].expect("a value of the program");
        View { tensor, slot, dtype, stride }
    }

    /// Resolves a whole value.
    pub(super) fn whole(&self, id: usize) -> View {
        let TensorInfo { rows, cols, .. } = self.program.tensors[id];
        self.view(Tensor { id, rows, first_col: 0, cols })
    }

    /// Slot of the values of a port that the host reads.
    pub(super) fn port(&self, port: Port) -> usize {
        let output = || self.view(self.program.output(port)).slot;
        self.exports.get(&port).copied().unwrap_or_else(output)
    }
}
