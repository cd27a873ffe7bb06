//! States of sequences: one slot of memory each, which ops with a state read and write.

use super::Port;

/// States of an op, `[slots, len]` in f32: the memory of a port, which keeps its values from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States {
    /// The port, which the host can read.
    pub port: Port,
    /// Number of slots.
    pub n_slots: usize,
    /// Values of a state.
    pub len: usize,
}

/// Consecutive rows of one sequence in a step, and the slots of its state. Runs follow each other without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateRun {
    /// Number of rows.
    pub n_rows: u32,
    /// Slot of the state before the first row; a new sequence has none, its state is all zeros.
    pub from: Option<u32>,
    /// Slot of the state after the last row: the same one, or another one where the state before is kept.
    pub to: u32,
}
