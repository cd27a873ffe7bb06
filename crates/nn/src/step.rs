//! Sequences of a state, and the plan of one step: a ragged batch of tokens that continue any of them.
//!
//! ```text
//! runs        slot 0: a b c | slot 2: d | slot 1: e f      tokens of one sequence, in order
//! pos        62 63 64          0          7 8              position in the sequence
//! kv_rows     4  4  9          2          7 7              page of the token's key and value, and the slot in it
//! page_table  4 9 | 2 | 7                                  pages of sequence 0, of 2, of 1
//! query_rows  a token's range of page_table, and the positions kv_start..kv_len that it attends to
//! outputs     rows whose results are wanted
//! copies      shared pages that a run is the first to write to: copied before anything is written
//! states      slot of a run's state before and after it, in models with states that are not pages
//! ```
//!
//! [`Sequences::plan`] starts a plan, [`StepPlan::add`] adds a run or leaves the plan as it was. Pages are taken and lengths
//! grow as runs are added; a plan that is dropped gives them back in reverse order, so that everything is as before.
//! [`StepPlan::commit`] keeps them. Nothing allocates after construction.

use std::ops::Range;

use crate::pages::{KvFull, PageCopy, PageRef, Pages, Sequence};
use crate::states::{StateRef, StateSlots};
use crate::{KvRow, PAGE_LEN, QueryRow, StateRun};

/// Index of a sequence of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    /// The sequence of this index.
    ///
    /// # Panics
    /// If `index` does not fit 32 bits.
    #[must_use]
    pub const fn new(index: usize) -> Self {
        assert!(index <= u32::MAX as usize, "slots have 32 bits");
        Self(index as u32)
    }

    /// Index of the sequence.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Reason why a run does not fit a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The sequence would be longer than the context.
    #[error("{tokens} tokens do not fit the context of {n_ctx}")]
    ContextFull {
        /// Tokens of the sequence after the run.
        tokens: usize,
        /// Context size.
        n_ctx: usize,
    },
    /// The pool has not enough free pages.
    #[error(transparent)]
    KvFull(#[from] KvFull),
}

/// Sizes of [`Sequences`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// Number of sequences.
    pub n_sequences: usize,
    /// Maximum positions of a sequence.
    pub n_ctx: usize,
    /// Pages shared by all sequences.
    pub n_pages: usize,
    /// Maximum tokens of a step.
    pub n_batch: usize,
    /// Maximum output rows of a step.
    pub n_outputs: usize,
    /// Checkpoints of states that are not pages, shared by all sequences; `None` for a model without such states.
    pub n_checkpoints: Option<usize>,
}

/// Pages and state of a part of a sequence, without a sequence. Given back with [`Sequences::release`].
#[derive(Debug)]
#[must_use = "pages stay in use until they are released"]
pub struct Prefix {
    pages: Vec<PageRef>,
    state: Option<StateRef>,
    len: usize,
}

impl Prefix {
    /// Number of positions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Tokens of one sequence in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The sequence.
    pub slot: Slot,
    /// Rows of the step.
    pub rows: Range<usize>,
}

/// Inputs of a step, drawn at the top of this file. `T` tokens.
#[derive(Debug, Default)]
pub struct StepInputs {
    /// `[T]` token ids.
    pub tokens: Vec<u32>,
    /// Runs in the order of their rows.
    pub runs: Vec<Run>,
    /// Rows whose results are wanted, ascending.
    pub outputs: Vec<usize>,
    /// `[T]` positions.
    pub pos: Vec<u32>,
    /// `[T]` places of keys and values.
    pub kv_rows: Vec<KvRow>,
    /// `[T]` pages and visible positions.
    pub query_rows: Vec<QueryRow>,
    /// Pages of the sequences of all runs.
    pub page_table: Vec<u32>,
    /// Copies to run, in order, before keys and values are written.
    pub copies: Vec<PageCopy>,
    /// Runs of tokens with the slots of their states; empty for a model without states that are not pages.
    pub states: Vec<StateRun>,
}

impl StepInputs {
    fn with_capacity(limits: StepLimits) -> Self {
        let StepLimits { n_sequences, n_ctx, n_batch, n_outputs, .. } = limits;
        Self {
            tokens: Vec::with_capacity(n_batch),
            runs: Vec::with_capacity(n_sequences),
            outputs: Vec::with_capacity(n_outputs),
            pos: Vec::with_capacity(n_batch),
            kv_rows: Vec::with_capacity(n_batch),
            query_rows: Vec::with_capacity(n_batch),
            page_table: Vec::with_capacity(n_sequences * n_ctx.div_ceil(PAGE_LEN)),
            copies: Vec::with_capacity(n_sequences),
            states: Vec::with_capacity(limits.n_checkpoints.map_or(0, |_| n_sequences)),
        }
    }

    /// Number of tokens.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.runs.clear();
        self.outputs.clear();
        self.pos.clear();
        self.kv_rows.clear();
        self.query_rows.clear();
        self.page_table.clear();
        self.copies.clear();
        self.states.clear();
    }
}

/// State of a sequence before a run was added to the plan.
#[derive(Debug)]
struct Undo {
    slot: Slot,
    len: usize,
    /// Whether the run replaced a shared page by a copy.
    has_copy: bool,
    /// Whether the run updated a state.
    has_update: bool,
}

/// Sequences of a state, their pages, and the inputs of the current step.
#[derive(Debug)]
pub struct Sequences {
    limits: StepLimits,
    pages: Pages,
    sequences: Vec<Sequence>,
    states: Option<StateSlots>,
    inputs: StepInputs,
    undo: Vec<Undo>,
}

impl Sequences {
    /// Empty sequences.
    #[must_use]
    pub fn new(limits: StepLimits) -> Self {
        let sequence = |_| Sequence::with_capacity(limits.n_ctx);
        let states = |n_checkpoints| StateSlots::new(limits.n_sequences, n_checkpoints);
        Self {
            limits,
            pages: Pages::new(limits.n_pages),
            sequences: (0..limits.n_sequences).map(sequence).collect(),
            states: limits.n_checkpoints.map(states),
            inputs: StepInputs::with_capacity(limits),
            undo: Vec::with_capacity(limits.n_sequences),
        }
    }

    /// The sizes.
    #[must_use]
    pub fn limits(&self) -> StepLimits {
        self.limits
    }

    /// A sequence.
    ///
    /// # Panics
    /// If there is no such sequence.
    #[must_use]
    pub fn get(&self, slot: Slot) -> &Sequence {
        &self.sequences[slot.index()]
    }

    /// The sequences by slot.
    #[must_use]
    pub fn all(&self) -> &[Sequence] {
        &self.sequences
    }

    /// Page accounting.
    #[must_use]
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Number of free pages that the next `n` positions of a sequence take.
    ///
    /// # Panics
    /// If there is no such sequence.
    #[must_use]
    pub fn pages_needed(&self, slot: Slot, n: usize) -> usize {
        self.pages.n_needed(self.get(slot), n)
    }

    /// Drops the positions of a sequence from `len` on. Returns the length that is left: that of the last
    /// [checkpoint](Self::checkpoint) before, if the model has states that are not pages.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn truncate(&mut self, slot: Slot, len: usize) -> usize {
        let sequence = &mut self.sequences[slot.index()];
        let len = match &mut self.states {
            Some(states) if len < sequence.len() => states.truncate(slot.index(), len),
            _ => len,
        };
        self.pages.truncate(sequence, len);
        sequence.len()
    }

    /// Keeps the state of a sequence at its length, for truncations and prefixes that reach it. Returns whether it is kept: not
    /// if all [checkpoints](StepLimits::n_checkpoints) are in use. Pages need no checkpoints.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn checkpoint(&mut self, slot: Slot) -> bool {
        let len = self.get(slot).len();
        self.states.as_mut().is_none_or(|states| states.checkpoint(slot.index(), len))
    }

    /// Makes sequence `to` a copy of `from`; they share pages until one of them writes.
    ///
    /// # Panics
    /// If `from` and `to` are the same, or `from` does not exist.
    pub fn fork(&mut self, from: Slot, to: Slot) {
        let slots = [from.index(), to.index()];
        if let Some(states) = &mut self.states {
            states.fork(slots[0], slots[1]);
        }
        let [from, to] = self.sequences.get_disjoint_mut(slots).expect("two sequences");
        self.pages.fork(from, to);
    }

    /// Appends `n` positions to an empty sequence. The caller writes their keys and values, or leaves them undefined. States that
    /// are not pages stay those of an empty sequence.
    ///
    /// # Errors
    /// If the context or the pool is too small; the sequence stays empty.
    ///
    /// # Panics
    /// If the sequence is not empty or there is no such sequence.
    pub fn fill(&mut self, slot: Slot, n: usize) -> Result<(), PlanError> {
        let sequence = &mut self.sequences[slot.index()];
        assert!(sequence.is_empty(), "an empty sequence");
        let n_ctx = self.limits.n_ctx;
        if n > n_ctx {
            return Err(PlanError::ContextFull { tokens: n, n_ctx });
        }
        let copy = self.pages.extend(sequence, n)?;
        assert!(copy.is_none(), "an empty sequence shares no page");
        Ok(())
    }

    /// References the pages of the first `len` positions of a sequence; of those up to the last [checkpoint](Self::checkpoint)
    /// before, if the model has states that are not pages.
    ///
    /// # Panics
    /// If the sequence is shorter or there is no such sequence.
    pub fn detach(&mut self, slot: Slot, len: usize) -> Prefix {
        assert!(len <= self.get(slot).len(), "{len} positions of {}", self.get(slot).len());
        let state = self.states.as_mut().map(|states| states.detach(slot.index(), len));
        let (state, len) = state.map_or((None, len), |(state, len)| (Some(state), len));
        let pages = (0..len.div_ceil(PAGE_LEN)).map(|index| self.detach_page(slot, index));
        Prefix { pages: pages.collect(), state, len }
    }

    /// References page `index` of a sequence.
    ///
    /// # Panics
    /// If the sequence has no such page or there is no such sequence.
    pub fn detach_page(&mut self, slot: Slot, index: usize) -> PageRef {
        self.pages.detach(&self.sequences[slot.index()], index)
    }

    /// Makes `prefix` the content of a sequence, which shares its pages.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn attach(&mut self, prefix: &Prefix, slot: Slot) {
        self.set_pages(&prefix.pages, prefix.len, slot);
        if let (Some(states), Some(state)) = (&mut self.states, &prefix.state) {
            states.attach(slot.index(), state, prefix.len);
        }
    }

    /// Makes the first `len` positions of `pages` the content of a sequence.
    ///
    /// # Panics
    /// If `pages` are not the pages of `len` positions, there is no such sequence, or the model has states that are not pages.
    pub fn attach_pages<'a>(
        &mut self,
        pages: impl IntoIterator<Item = &'a PageRef>,
        len: usize,
        slot: Slot,
    ) {
        assert!(self.states.is_none(), "pages are not all of a sequence with a state");
        self.set_pages(pages, len, slot);
    }

    fn set_pages<'a>(
        &mut self,
        pages: impl IntoIterator<Item = &'a PageRef>,
        len: usize,
        slot: Slot,
    ) {
        assert!(len <= self.limits.n_ctx, "{len} positions of {}", self.limits.n_ctx);
        self.pages.attach(pages, len, &mut self.sequences[slot.index()]);
    }

    /// Gives the pages of a prefix back.
    pub fn release(&mut self, prefix: Prefix) {
        prefix.pages.into_iter().for_each(|page| self.pages.release(page));
        if let (Some(states), Some(state)) = (&mut self.states, prefix.state) {
            states.release(state);
        }
    }

    /// Gives one page back.
    pub fn release_page(&mut self, page: PageRef) {
        self.pages.release(page);
    }

    /// Starts the plan of the next step. A kept plan that was not committed is rolled back first.
    pub fn plan(&mut self) -> StepPlan<'_> {
        self.roll_back();
        self.inputs.clear();
        StepPlan { sequences: self }
    }

    /// Inputs of the last plan that was kept or committed.
    #[must_use]
    pub fn inputs(&self) -> &StepInputs {
        &self.inputs
    }

    /// Makes the changes of the kept plan permanent.
    pub fn commit(&mut self) {
        self.undo.clear();
        self.pages.commit();
        self.states.iter_mut().for_each(StateSlots::commit);
    }

    /// Undoes the changes of the kept plan: pages and lengths are as before it.
    pub fn roll_back(&mut self) {
        while let Some(Undo { slot, len, has_copy, has_update }) = self.undo.pop() {
            self.pages.undo(&mut self.sequences[slot.index()], len, has_copy);
            if let Some(states) = self.states.as_mut().filter(|_| has_update) {
                states.undo(slot.index());
            }
        }
    }
}

/// Plan of a step. Dropping it gives back all that it took.
#[derive(Debug)]
pub struct StepPlan<'a> {
    sequences: &'a mut Sequences,
}

impl StepPlan<'_> {
    /// Adds tokens that continue a sequence. `outputs` are the indexes among them whose results are wanted, ascending.
    ///
    /// # Errors
    /// If the context or the pool is too small for them; the plan is as before.
    ///
    /// # Panics
    /// If the step would exceed its limits, an output is no index of `tokens`, there is no such sequence, or the plan has a
    /// run of it.
    pub fn add(
        &mut self,
        slot: Slot,
        tokens: &[u32],
        outputs: impl IntoIterator<Item = usize>,
    ) -> Result<(), PlanError> {
        let Sequences { limits, pages, sequences, states, inputs, undo } = &mut *self.sequences;
        let first = inputs.n_tokens();
        let rows = first..first + tokens.len();
        assert!(rows.end <= limits.n_batch, "{} tokens of {}", rows.end, limits.n_batch);
        assert!(inputs.runs.iter().all(|run| run.slot != slot), "one run of a sequence");
        let sequence = &mut sequences[slot.index()];
        let past = sequence.len();
        let end = past + tokens.len();
        if end > limits.n_ctx {
            return Err(PlanError::ContextFull { tokens: end, n_ctx: limits.n_ctx });
        }
        let copy = pages.extend(sequence, tokens.len())?;
        inputs.copies.extend(copy);
        let update = states.as_mut().and_then(|states| states.update(slot.index(), tokens.len()));
        inputs.states.extend(update);
        let (has_copy, has_update) = (copy.is_some(), update.is_some());
        undo.push(Undo { slot, len: past, has_copy, has_update });
        inputs.tokens.extend_from_slice(tokens);
        inputs.outputs.extend(outputs.into_iter().map(|index| {
            assert!(index < tokens.len(), "output {index} of {} tokens", tokens.len());
            first + index
        }));
        let n_outputs = inputs.outputs.len();
        assert!(n_outputs <= limits.n_outputs, "{n_outputs} outputs of {}", limits.n_outputs);
        let (first_page, n_pages) = (inputs.page_table.len() as u32, sequence.pages().len() as u32);
        inputs.page_table.extend_from_slice(sequence.pages());
        for pos in past..end {
            inputs.pos.push(pos as u32);
            inputs.kv_rows.push(sequence.slot(pos));
            let kv_len = pos as u32 + 1;
            inputs.query_rows.push(QueryRow { first_page, n_pages, kv_start: 0, kv_len });
        }
        inputs.runs.push(Run { slot, rows });
        Ok(())
    }

    /// Number of tokens added.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.sequences.inputs.n_tokens()
    }

    /// Number of output rows added.
    #[must_use]
    pub fn n_outputs(&self) -> usize {
        self.sequences.inputs.outputs.len()
    }

    /// Inputs so far.
    #[must_use]
    pub fn inputs(&self) -> &StepInputs {
        &self.sequences.inputs
    }

    /// The sequences.
    #[must_use]
    pub fn sequences_ref(&self) -> &Sequences {
        self.sequences
    }

    /// The sequences, to free pages of. Sequences of the plan must not change.
    pub fn sequences(&mut self) -> &mut Sequences {
        self.sequences
    }

    /// Makes the changes permanent: the step runs.
    pub fn commit(self) {
        self.sequences.commit();
    }

    /// Ends the plan with its changes, until [`Sequences::commit`] or [`Sequences::roll_back`] decide on them.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for StepPlan<'_> {
    fn drop(&mut self) {
        self.sequences.roll_back();
    }
}

#[cfg(test)]
mod tests;
