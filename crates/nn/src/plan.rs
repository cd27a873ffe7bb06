//! Memory of a program's values: slots, by liveness.
//!
//! ```text
//! op            %1 = norm %0     %2 = matmul %1    %3 = matmul %2 onto %0
//! live          %0 %1            %0 %1 %2          %2 %3
//! slot          0: %0  1: %1     2: %2             0: %3           %3 takes the slot of %0, which dies
//! ```
//!
//! A slot is one allocation, as large as the largest value in it, of one type. Segments share no slots, so that a value that
//! crosses segments lives until its own segment runs again; variants of a segment do. Values that the host reads or
//! writes live as long.

use stonechat_compute::op::{TensorInfo, TensorType};

use crate::program::{Counts, Program, Segment, SegmentName};

/// Memory of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotInfo {
    /// Type of its values.
    pub dtype: TensorType,
    /// Largest number of rows.
    pub rows: usize,
    /// Largest number of columns.
    pub cols: usize,
    /// Largest number of values.
    pub len: usize,
}

/// Slots of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotPlan {
    /// Slots.
    pub slots: Vec<SlotInfo>,
    /// Slot of each value of the program; `None` for values that fusion removed.
    pub slot_of: Vec<Option<usize>>,
}

/// Assigns slots to the values of `program` for steps of at most `max` rows.
#[must_use]
pub fn plan_slots(program: &Program, max: &Counts) -> SlotPlan {
    let n_values = program.tensors.len();
    let mut planner = Planner {
        program,
        max,
        is_pinned: program.pinned(),
        plan: SlotPlan { slots: Vec::new(), slot_of: vec![None; n_values] },
    };
    let mut names: Vec<SegmentName> = Vec::new();
    for segment in &program.segments {
        if names.contains(&segment.name) {
            continue;
        }
        names.push(segment.name);
        let mut slots = Vec::new();
        for variant in program.segments.iter().filter(|other| other.name == segment.name) {
            planner.plan_segment(variant, &mut slots);
        }
    }
    planner.plan
}

struct Planner<'a> {
    program: &'a Program,
    max: &'a Counts,
    is_pinned: Vec<bool>,
    plan: SlotPlan,
}

impl Planner<'_> {
    /// Assigns slots to the values of one variant of a segment. `slots` are those that its variants share.
    fn plan_segment(&mut self, segment: &Segment, slots: &mut Vec<usize>) {
        let n_values = self.program.tensors.len();
        let chain_of = chains(self.program, segment, &self.is_pinned);
        let mut is_pinned = vec![false; n_values];
        let mut last_use = vec![0; n_values];
        let mut slot_of_chain: Vec<Option<usize>> = vec![None; n_values];
        let mut size_of_chain = vec![None; n_values];
        for (i, node) in segment.nodes.iter().enumerate() {
            for &id in &node.outputs {
                let chain = chain_of[id];
                is_pinned[chain] |= self.is_pinned[id];
                last_use[chain] = last_use[chain].max(i);
                slot_of_chain[chain] = slot_of_chain[chain].or(self.plan.slot_of[id]);
                size_of_chain[chain] = Some(join(size_of_chain[chain], self.size(id)));
            }
            node.reads().for_each(|x| last_use[chain_of[x.id]] = last_use[chain_of[x.id]].max(i));
        }
        let mut free = slots.clone();
        for (i, node) in segment.nodes.iter().enumerate() {
            for &id in &node.outputs {
                let chain = chain_of[id];
                let Some(size) = size_of_chain[chain] else { continue };
                let slot = slot_of_chain[chain].unwrap_or_else(|| {
                    let free = if is_pinned[chain] { &mut Vec::new() } else { &mut free };
                    take(&mut self.plan.slots, free, size)
                });
                self.plan.slots[slot] = join(Some(self.plan.slots[slot]), size);
                slot_of_chain[chain] = Some(slot);
                self.plan.slot_of[id] = Some(slot);
            }
            let mut dead: Vec<usize> = node.reads().map(|x| x.id).collect();
            dead.extend(&node.outputs);
            dead.iter_mut().for_each(|id| *id = chain_of[*id]);
            dead.sort_unstable();
            dead.dedup();
            for chain in dead {
                if last_use[chain] == i && !is_pinned[chain] && size_of_chain[chain].is_some() {
                    free.extend(slot_of_chain[chain]);
                }
            }
        }
        *slots = free;
    }

    fn size(&self, id: usize) -> SlotInfo {
        let TensorInfo { rows, cols, dtype } = self.program.tensors[id];
        let rows = self.max.rows(rows);
        SlotInfo { dtype, rows, cols, len: rows * cols }
    }
}

fn join(a: Option<SlotInfo>, b: SlotInfo) -> SlotInfo {
    let Some(a) = a else { return b };
    let (rows, cols, len) = (a.rows.max(b.rows), a.cols.max(b.cols), a.len.max(b.len));
    SlotInfo { dtype: b.dtype, rows, cols, len }
}

/// Chain of each value: the first of the values that use one memory in turn. A result takes the memory of a value that it
/// may overwrite, if nothing reads that value later and no other segment has it.
fn chains(program: &Program, segment: &Segment, is_pinned: &[bool]) -> Vec<usize> {
    let mut chain_of: Vec<usize> = (0..program.tensors.len()).collect();
    let last_read = last_reads(segment, program.tensors.len());
    for (i, node) in segment.nodes.iter().enumerate() {
        // An op must not read a value whose memory it writes, unless it works in place.
        let n_reads = |id| node.reads().filter(|x| x.id == id).count();
        let dies = |id: usize| last_read[id] == Some(i) && !is_pinned[id] && n_reads(id) == 1;
        for (x, result) in node.overwrites() {
            if dies(x.id) && program.is_whole(x) {
                chain_of[result] = chain_of[x.id];
            }
        }
    }
    chain_of
}

/// The smallest free slot of the type that is long enough, else the longest one, which grows, else a new one.
fn take(slots: &mut Vec<SlotInfo>, free: &mut Vec<usize>, size: SlotInfo) -> usize {
    let of_type = |&i: &usize| slots[free[i]].dtype == size.dtype;
    let len = |i: usize| slots[free[i]].len;
    let fitting = (0..free.len()).filter(of_type).filter(|&i| len(i) >= size.len);
    let fitting = fitting.min_by_key(|&i| len(i));
    match fitting.or_else(|| (0..free.len()).filter(of_type).max_by_key(|&i| len(i))) {
        Some(i) => free.swap_remove(i),
        None => {
            slots.push(size);
            slots.len() - 1
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

#[cfg(test)]
mod tests;
