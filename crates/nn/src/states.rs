//! Accounting of states without positions: convolutions and linear attention summarize a sequence in a state of fixed size.
//!
//! Host memory only: the states are in pools of the devices, whose slots have the same numbers on every device of a model.
//!
//! ```text
//! sequence a   length 90, slot 5    checkpoints: length 64, slot 2; at length 0 there is no slot: its state is all zeros
//!
//! update(a)        a step reads slot 5 and writes a free one, which is a's slot from then on. Slot 5 keeps its reference until
//!                  commit(), so that undo() can put it back
//! checkpoint(a)    references slot 5 once more, as the state at length 90
//! fork(a, c)       c gets a's slot and checkpoints; no state is copied
//! truncate(a, 70)  a state cannot be cut: slot 2 is a's slot again, and the result is its length, 64
//! ```
//!
//! Kernels read and write different slots, which costs them nothing. There is always a free one: sequences take at most two
//! slots each in a step, and checkpoints have slots of their own.

use crate::StateRun;

/// State of a sequence at a length.
#[derive(Debug, Clone, Copy)]
struct Checkpoint {
    len: usize,
    slot: Option<u32>,
}

/// State of a sequence.
#[derive(Debug)]
struct SequenceState {
    /// Slot of the state after the last position; `None` before the first.
    slot: Option<u32>,
    /// Earlier states, by length.
    checkpoints: Vec<Checkpoint>,
}

/// A counted reference to the state at the end of a prefix.
#[derive(Debug)]
pub(crate) struct StateRef(Option<u32>);

/// Reference counts of the slots of states, and the slots of each sequence.
#[derive(Debug)]
pub(crate) struct StateSlots {
    /// Number of references to each slot.
    ref_counts: Vec<u32>,
    /// References of checkpoints and prefixes among them.
    kept_counts: Vec<u32>,
    /// Stack of the slots without a reference.
    free: Vec<u32>,
    /// Number of slots that checkpoints and prefixes may still take.
    n_left: usize,
    sequences: Vec<SequenceState>,
    /// Slots that were read since the last [`commit`](Self::commit).
    replaced: Vec<Option<u32>>,
}

impl StateSlots {
    /// Slots of sequences of length 0.
    pub(crate) fn new(n_sequences: usize, n_checkpoints: usize) -> Self {
        let n = 2 * n_sequences + n_checkpoints;
        let end = u32::try_from(n).expect("slot numbers have 32 bits");
        let sequence =
            |_| SequenceState { slot: None, checkpoints: Vec::with_capacity(n_checkpoints + 1) };
        Self {
            ref_counts: vec![0; n],
            kept_counts: vec![0; n],
            free: (0..end).rev().collect(),
            n_left: n_checkpoints,
            sequences: (0..n_sequences).map(sequence).collect(),
            replaced: Vec::with_capacity(n_sequences),
        }
    }

    /// Gives the state of a sequence after `n_rows` more positions a slot; `None` after 0.
    pub(crate) fn update(&mut self, sequence: usize, n_rows: usize) -> Option<StateRun> {
        if n_rows == 0 {
            return None;
        }
        let to = self.free.pop().expect("two slots for each sequence");
        self.ref_counts[to as usize] = 1;
        let from = self.sequences[sequence].slot.replace(to);
        self.replaced.push(from);
        let n_rows = u32::try_from(n_rows).expect("row numbers have 32 bits");
        Some(StateRun { n_rows, from, to })
    }

    /// Undoes the last [`update`](Self::update) that was neither undone nor committed, of this sequence.
    pub(crate) fn undo(&mut self, sequence: usize) {
        let from = self.replaced.pop().expect("an update");
        let to = std::mem::replace(&mut self.sequences[sequence].slot, from);
        self.unref(to);
    }

    /// Makes all updates permanent.
    pub(crate) fn commit(&mut self) {
        while let Some(slot) = self.replaced.pop() {
            self.unref(slot);
        }
    }

    /// Keeps the state of a sequence of `len` positions; false if there is no slot for it.
    pub(crate) fn checkpoint(&mut self, sequence: usize, len: usize) -> bool {
        let SequenceState { slot, checkpoints } = &self.sequences[sequence];
        let slot = *slot;
        if checkpoints.last().is_some_and(|last| last.len == len) {
            return true;
        }
        let is_kept = self.keep(slot);
        if is_kept {
            self.sequences[sequence].checkpoints.push(Checkpoint { len, slot });
        }
        is_kept
    }

    /// Makes the last checkpoint of at most `len` positions the state of a sequence; returns its length.
    pub(crate) fn truncate(&mut self, sequence: usize, len: usize) -> usize {
        while let Some(last) = self.sequences[sequence].checkpoints.pop_if(|last| last.len > len) {
            self.release(StateRef(last.slot));
        }
        let last = self.sequences[sequence].checkpoints.last();
        let Checkpoint { len, slot } = last.copied().unwrap_or(Checkpoint { len: 0, slot: None });
        self.set(sequence, slot);
        len
    }

    /// Gives sequence `to` the state and the checkpoints of `from`.
    pub(crate) fn fork(&mut self, from: usize, to: usize) {
        self.clear(to);
        self.set(to, self.sequences[from].slot);
        for index in 0..self.sequences[from].checkpoints.len() {
            let checkpoint = self.sequences[from].checkpoints[index];
            // A slot that is kept can be kept once more.
            self.keep(checkpoint.slot);
            self.sequences[to].checkpoints.push(checkpoint);
        }
    }

    /// References the state of a sequence at the last checkpoint of at most `len` positions; returns its length.
    pub(crate) fn detach(&mut self, sequence: usize, len: usize) -> (StateRef, usize) {
        let mut checkpoints = self.sequences[sequence].checkpoints.iter().rev();
        let last = checkpoints.find(|checkpoint| checkpoint.len <= len);
        let Checkpoint { len, slot } = last.copied().unwrap_or(Checkpoint { len: 0, slot: None });
        self.keep(slot);
        (StateRef(slot), len)
    }

    /// Makes a state of `len` positions the state of a sequence, and its only checkpoint.
    pub(crate) fn attach(&mut self, sequence: usize, state: &StateRef, len: usize) {
        self.clear(sequence);
        self.set(sequence, state.0);
        self.checkpoint(sequence, len);
    }

    /// Gives a reference of a checkpoint or a prefix back.
    pub(crate) fn release(&mut self, state: StateRef) {
        let StateRef(slot) = state;
        if let Some(index) = slot {
            self.kept_counts[index as usize] -= 1;
            self.n_left += usize::from(self.kept_counts[index as usize] == 0);
        }
        self.unref(slot);
    }

    /// Makes a sequence one of length 0.
    pub(crate) fn clear(&mut self, sequence: usize) {
        while let Some(checkpoint) = self.sequences[sequence].checkpoints.pop() {
            self.release(StateRef(checkpoint.slot));
        }
        self.set(sequence, None);
    }

    /// References a slot for a checkpoint or a prefix; false if these have taken all of theirs.
    fn keep(&mut self, slot: Option<u32>) -> bool {
        let Some(slot) = slot else { return true };
        let index = slot as usize;
        if self.kept_counts[index] == 0 {
            if self.n_left == 0 {
                return false;
            }
            self.n_left -= 1;
        }
        self.kept_counts[index] += 1;
        self.ref_counts[index] += 1;
        true
    }

    fn set(&mut self, sequence: usize, slot: Option<u32>) {
        if let Some(slot) = slot {
            self.ref_counts[slot as usize] += 1;
        }
        let old = std::mem::replace(&mut self.sequences[sequence].slot, slot);
        self.unref(old);
    }

    fn unref(&mut self, slot: Option<u32>) {
        if let Some(slot) = slot {
            let count = &mut self.ref_counts[slot as usize];
            *count -= 1;
            if *count == 0 {
                self.free.push(slot);
            }
        }
    }
}
