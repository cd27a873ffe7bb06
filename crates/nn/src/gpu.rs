//! Checks of programs, errors of allocations and counts of conversions of the GPU backends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use stonechat_compute::DType;
use stonechat_compute::op::Op;

use crate::Error;
use crate::fuse::{Capabilities, Conv1dKernels, MoeKernels, OpKind};
use crate::program::{Node, Program, RowClass, Segment};

/// Error of an allocation by the device of this name.
pub(crate) fn allocation_error(error: stonechat_compute::Error, backend: &'static str) -> Error {
    match error {
        stonechat_compute::Error::OutOfMemory { bytes } => Error::OutOfMemory { bytes, backend },
        other => other.into(),
    }
}

/// Checks that a device has kernels for the ops of a program, and that products read their operands in the types of the kernels.
pub(crate) fn check_program(
    capabilities: &Capabilities,
    program: &Program,
    backend: &'static str,
) -> Result<(), Error> {
    for segment in &program.segments {
        for node in &segment.nodes {
            let op = node.op.name();
            let problem = if has_kernel(capabilities, &node.op) {
                operand_problem(capabilities, program, segment, node)
            } else {
                Some("no kernel, see `capabilities`".to_owned())
            };
            problem.map_or(Ok(()), |reason| Err(Error::Unsupported { backend, op, reason }))?;
        }
    }
    Ok(())
}

fn has_kernel(capabilities: &Capabilities, op: &Op) -> bool {
    let Capabilities { moe, conv1d, table, .. } = capabilities;
    match op {
        Op::Moe(_) => *moe == MoeKernels::Whole,
        Op::ExpertMlp(_) => *moe == MoeKernels::Mlp,
        Op::MoeSort(_) => *moe == MoeKernels::Products { sorted: true },
        Op::Conv1d(_) => *conv1d == Conv1dKernels::Whole,
        Op::RopeAttention(_) => table.iter().any(|row| row.ops.contains(&OpKind::RopeAttention)),
        _ => true,
    }
}

fn operand_problem(
    capabilities: &Capabilities,
    program: &Program,
    segment: &Segment,
    node: &Node,
) -> Option<String> {
    let is_product = matches!(node.op, Op::Matmul(_) | Op::MatmulGroup(_) | Op::GatedProduct(_));
    if !is_product && !matches!(node.op, Op::ExpertMatmul(_)) {
        return None;
    }
    let dtype = program.tensors[node.inputs[0].id].dtype;
    // Kernels of all rows read one type, or the segment has to be fused.
    let RowClass { min, max } = segment.class;
    let [expected, of_one_row] =
        [max, 1].map(|n| capabilities.operand(&node.op, RowClass { min: n, max: n }));
    let is_any = min <= 1 && max > 1 && expected != of_one_row;
    let fits = dtype == expected || node.norm.is_some();
    (!fits || is_any)
        .then(|| format!("operand: expected {}, got {}", expected.name(), dtype.name()))
}

/// Number of matrices of each type that a GPU stores as f16, for lack of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Conversions(Mutex<BTreeMap<&'static str, usize>>);

impl Conversions {
    /// Counts a matrix, if it is stored in another type.
    pub(crate) fn count(&self, dtype: DType, stored: DType) {
        if dtype != stored {
            let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *counts.entry(dtype.name()).or_default() += 1;
        }
    }
}

/// `, N matrices of TYPE as f16` for each type.
impl fmt::Display for Conversions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().try_for_each(|(dtype, n)| write!(f, ", {n} matrices of {dtype} as f16"))
    }
}
