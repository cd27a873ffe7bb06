//! Memory of a program's values: slots, by liveness.
//!
//! ```text
//! op            %1 = norm %0     %2 = matmul %1    %3 = matmul %2 onto %0
//! live          %0 %1            %0 %1 %2          %2 %3
//! slot          0: %0  1: %1     2: %2             0: %3           %3 takes the slot of %0, which dies
//! ```
//!
//! A slot is one allocation, as large as the largest value in it. Segments share no slots, so that a value that crosses
//! segments lives until its own segment runs again. Values that the host reads or writes live as long.

use stonechat_compute::op::TensorInfo;

use crate::device::Counts;
use crate::program::{Program, Segment};

/// Slots of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotPlan {
    /// Number of values of each slot.
    pub lens: Vec<usize>,
    /// Slot of each value of the program; `None` for values that fusion removed.
    pub slot_of: Vec<Option<usize>>,
}

/// Assigns slots to the values of `program` for steps of at most `max` rows.
#[must_use]
pub fn plan_slots(program: &Program, max: &Counts) -> SlotPlan {
    let is_pinned = pinned(program);
    let len_of = |id: usize| {
        let TensorInfo { rows, cols } = program.tensors[id];
        max.rows(rows) * cols
    };
    let mut plan = SlotPlan { lens: Vec::new(), slot_of: vec![None; program.tensors.len()] };
    for segment in &program.segments {
        let mut free = Vec::new();
        let last_read = last_reads(segment, program.tensors.len());
        for (i, node) in segment.nodes.iter().enumerate() {
            let dies = |id: usize| last_read[id].is_none_or(|last| last == i) && !is_pinned[id];
            let is_operand = |id| node.residual.is_some() && node.inputs.iter().any(|x| x.id == id);
            let reused = node
                .overwrites()
                .filter(|x| dies(x.id) && program.is_whole(*x) && !is_operand(x.id));
            let mut outputs = node.outputs.iter().copied();
            if let Some(x) = reused
                && let Some(first) = outputs.next()
            {
                plan.slot_of[first] = plan.slot_of[x.id];
            }
            outputs.for_each(|id| {
                plan.slot_of[id] = Some(take(&mut plan.lens, &mut free, len_of(id)));
            });
            // An operand may be read twice.
            let mut dead: Vec<usize> = node.reads().map(|x| x.id).filter(|&id| dies(id)).collect();
            dead.extend(node.outputs.iter().filter(|&&id| dies(id)));
            dead.retain(|&id| reused.is_none_or(|x| x.id != id));
            dead.sort_unstable();
            dead.dedup();
            free.extend(dead.into_iter().filter_map(|id| plan.slot_of[id]));
        }
    }
    plan
}

/// The smallest free slot that holds `len` values, else the largest one, which grows, else a new one.
fn take(lens: &mut Vec<usize>, free: &mut Vec<usize>, len: usize) -> usize {
    let fitting = (0..free.len()).filter(|&i| lens[free[i]] >= len).min_by_key(|&i| lens[free[i]]);
    let largest = (0..free.len()).max_by_key(|&i| lens[free[i]]);
    match fitting.or(largest) {
        Some(i) => {
            let slot = free.swap_remove(i);
            lens[slot] = lens[slot].max(len);
            slot
        }
        None => {
            lens.push(len);
            lens.len() - 1
        }
    }
}

/// Index of the last op of a segment that reads each value.
fn last_reads(segment: &Segment, n_values: usize) -> Vec<Option<usize>> {
    let mut last = vec![None; n_values];
    for (i, node) in segment.nodes.iter().enumerate() {
        node.reads().for_each(|x| last[x.id] = Some(i));
    }
    last
}

/// Whether each value outlives its segment: it is read by another one, or the host reads or writes it.
fn pinned(program: &Program) -> Vec<bool> {
    let mut is_pinned = vec![false; program.tensors.len()];
    program.outputs.iter().for_each(|(_, x)| is_pinned[x.id] = true);
    for segment in &program.segments {
        let mut is_own = vec![false; program.tensors.len()];
        for node in &segment.nodes {
            if matches!(node.op, stonechat_compute::op::Op::Import(_)) {
                node.outputs.iter().for_each(|&id| is_pinned[id] = true);
            }
            node.outputs.iter().for_each(|&id| is_own[id] = true);
        }
        let reads = segment.nodes.iter().flat_map(|node| node.reads());
        reads.filter(|x| !is_own[x.id]).for_each(|x| is_pinned[x.id] = true);
    }
    is_pinned
}

#[cfg(test)]
mod tests;
