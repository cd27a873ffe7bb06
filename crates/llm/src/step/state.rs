//! State of a model: sequences, KV pages and activations, allocated once. A step allocates nothing on the CPU.
//!
//! ```text
//! let mut plan = state.plan();
//! plan.add(slot, tokens, OutputRequest::Logits, 1)?      for each sequence of the step: ragged, in any order
//! let ticket = plan.run()?;                              enqueues the step; a dropped plan changes nothing
//! let outputs = state.outputs(ticket).await?;            rows in the order of the plan
//! ```
//!
//! Keys and values are in pools of pages, one pool for each [`KvGroup`](crate::KvGroup) of layers. A page id stands for the same
//! positions in all pools. States that are not pages (convolution, linear attention) have slots in [`Sequences`], which keeps
//! some as checkpoints: a [truncation](State::truncate) reaches the last one before, and a fork shares the slots.
//!
//! With [asynchronous scheduling](State::async_scheduling), the next step can be planned before the outputs are read:
//! [`BatchPlan::add_next`] continues a sequence by the most probable token of the step before.

use std::collections::VecDeque;
use std::sync::Arc;

use stonechat_nn::{PageRef, Prefix, Sequence, Sequences, Slot, StepPlan, token_reference};

use crate::model::info::ModelInfo;
use crate::step::options::StateOptions;
use crate::step::outputs::{OutputData, OutputLayout};
use crate::step::stage::{Runner, Stage};
use crate::{Error, OutputRequest, Outputs};

/// Sequences of a model, their KV cache and the activations of a step.
#[derive(Debug)]
pub struct State {
    info: Arc<ModelInfo>,
    options: StateOptions,
    sequences: Sequences,
    steps: Steps,
    data: OutputData,
    runner: Runner,
}

/// Step in flight, for [`State::outputs`], which skips steps whose ticket was dropped.
#[derive(Debug)]
#[must_use = "a step on two devices ends in `State::outputs`"]
pub struct Ticket(u64);

/// Output layouts of steps: the planned one, those in flight, the last one that was read.
#[derive(Debug)]
struct Steps {
    planned: OutputLayout,
    in_flight: VecDeque<OutputLayout>,
    read: OutputLayout,
    spare: Vec<OutputLayout>,
    n_outputs: usize,
    /// Number of steps that ran.
    n_run: u64,
}

impl Steps {
    fn new(n_outputs: usize) -> Self {
        let layout = || OutputLayout::with_capacity(n_outputs);
        let (planned, read, spare) = (layout(), layout(), vec![layout(), layout()]);
        Self { planned, in_flight: VecDeque::new(), read, spare, n_outputs, n_run: 0 }
    }

    /// The step before the planned one.
    fn last(&self) -> &OutputLayout {
        self.in_flight.back().unwrap_or(&self.read)
    }

    /// The planned step is in flight.
    fn run(&mut self) -> Ticket {
        let new = self.spare.pop();
        let new = new.unwrap_or_else(|| OutputLayout::with_capacity(self.n_outputs));
        self.in_flight.push_back(std::mem::replace(&mut self.planned, new));
        self.n_run += 1;
        Ticket(self.n_run)
    }

    fn drop_in_flight(&mut self) {
        self.spare.extend(self.in_flight.drain(..));
    }

    /// The oldest step in flight is read; returns its number.
    fn next(&mut self) -> u64 {
        let number = self.n_run + 1 - self.in_flight.len() as u64;
        let next = self.in_flight.pop_front().expect("a step in flight");
        self.spare.push(std::mem::replace(&mut self.read, next));
        number
    }
}

impl State {
    /// Allocates a state and warms up its devices.
    pub(crate) fn new(
        info: &Arc<ModelInfo>,
        stages: &[Stage],
        options: StateOptions,
    ) -> Result<Self, Error> {
        options.check()?;
        let mut sequences = Sequences::new(options.limits());
        let mut steps = Steps::new(options.n_outputs + options.n_hidden);
        let mut runner = Runner::new(stages, info, options)?;
        runner.warm_up(info, options, (&mut sequences, &mut steps.planned))?;
        Ok(Self {
            info: Arc::clone(info),
            options,
            sequences,
            steps,
            data: OutputData::default(),
            runner,
        })
    }

    /// Sizes of the state.
    #[must_use]
    pub fn options(&self) -> StateOptions {
        self.options
    }

    /// Number of cached positions of a sequence.
    ///
    /// # Panics
    /// If there is no such sequence.
    #[must_use]
    pub fn len(&self, slot: Slot) -> usize {
        self.sequences.get(slot).len()
    }

    /// Whether every sequence is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sequences.all().iter().all(Sequence::is_empty)
    }

    /// Number of free pages of 64 positions.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.sequences.pages().n_free()
    }

    /// Number of pages of the pool.
    #[must_use]
    pub fn n_pages(&self) -> usize {
        self.sequences.pages().n_pages()
    }

    pub(crate) fn page_ref_count(&self, page: &PageRef) -> u32 {
        self.sequences.pages().ref_count(page.id())
    }

    /// Number of free pages that the next `n` tokens of a sequence take.
    ///
    /// # Panics
    /// If there is no such sequence.
    #[must_use]
    pub fn pages_needed(&self, slot: Slot, n: usize) -> usize {
        self.sequences.pages_needed(slot, n)
    }

    /// Drops the positions of a sequence from `len` on. Returns the length that it reached: at most `len`, and less if a layer
    /// has no state of that position. The caller runs the rest again.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn truncate(&mut self, slot: Slot, len: usize) -> usize {
        self.rolled_back().truncate(slot, len)
    }

    /// Makes sequence `to` a copy of `from`; they share pages until one of them writes.
    ///
    /// # Panics
    /// If they are the same or there is no such sequence.
    pub fn fork(&mut self, from: Slot, to: Slot) {
        self.rolled_back().fork(from, to);
    }

    /// References the pages of the first `len` positions of a sequence, which may end before them.
    ///
    /// # Panics
    /// If the sequence is shorter or there is no such sequence.
    pub fn detach(&mut self, slot: Slot, len: usize) -> Prefix {
        self.rolled_back().detach(slot, len)
    }

    /// Makes `prefix` the content of a sequence, which shares its pages.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn attach(&mut self, prefix: &Prefix, slot: Slot) {
        self.rolled_back().attach(prefix, slot);
    }

    /// Gives the pages of a prefix back.
    pub fn release(&mut self, prefix: Prefix) {
        self.rolled_back().release(prefix);
    }

    /// The sequences, without a step that was not finished.
    pub(crate) fn rolled_back(&mut self) -> &mut Sequences {
        self.sequences.roll_back();
        &mut self.sequences
    }

    /// Starts the plan of the next step.
    pub fn plan(&mut self) -> BatchPlan<'_> {
        if !self.runner.is_whole() {
            // A step on several devices that was not completed has not happened.
            self.steps.drop_in_flight();
        }
        self.steps.planned.clear();
        BatchPlan {
            info: &self.info,
            options: &self.options,
            plan: self.sequences.plan(),
            steps: &mut self.steps,
            runner: &mut self.runner,
        }
    }

    /// Whether a step runs while the host plans the next one, so that steps planned ahead of the outputs are worthwhile.
    #[must_use]
    pub fn async_scheduling(&self) -> bool {
        self.runner.async_scheduling()
    }

    /// Runs a step of one sequence; returns `output` of its last `n_outputs` tokens.
    ///
    /// # Errors
    /// As [`BatchPlan::add`], and if a device fails.
    ///
    /// # Panics
    /// As [`BatchPlan::add`].
    pub async fn run(
        &mut self,
        slot: Slot,
        tokens: &[u32],
        output: OutputRequest,
        n_outputs: usize,
    ) -> Result<Outputs<'_>, Error> {
        let mut plan = self.plan();
        plan.add(slot, tokens, output, n_outputs)?;
        let ticket = plan.run()?;
        self.outputs(ticket).await
    }

    /// Reads the outputs of a step, in one round trip to the device. If this fails or is dropped, a step on two devices has
    /// not happened.
    ///
    /// # Errors
    /// If a device fails.
    ///
    /// # Panics
    /// If the outputs of a later step were read.
    pub async fn outputs(&mut self, ticket: Ticket) -> Result<Outputs<'_>, Error> {
        let Self { sequences, steps, data, runner, .. } = self;
        let step = RollBackOnDrop(sequences);
        loop {
            let number = steps.next();
            runner.complete(step.0.inputs(), &steps.read).await?;
            runner.read(&steps.read, data).await?;
            if number == ticket.0 {
                break;
            }
        }
        step.0.commit();
        drop(step);
        Ok(Outputs { layout: &self.steps.read, data: &self.data })
    }

    /// Appends page `index` of a sequence, all layers in order, to `out`; the bytes do not depend on the devices' split.
    pub(crate) async fn read_page(
        &mut self,
        slot: Slot,
        index: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let page = self.sequences.get(slot).pages()[index];
        self.runner.read_page(page, out).await
    }

    /// Appends a page, all layers in order, to `out`.
    pub(crate) async fn read_page_ref(
        &mut self,
        page: &PageRef,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.runner.read_page(page.id(), out).await
    }

    /// Loads `n` positions into an empty sequence from pages of [`read_page`](Self::read_page). It stays empty on an
    /// error.
    pub(crate) fn restore(&mut self, slot: Slot, n: usize, pages: &[&[u8]]) -> Result<(), Error> {
        self.rolled_back().fill(slot, n)?;
        let ids = self.sequences.get(slot).pages();
        let mut pages = ids.iter().zip(pages);
        let restored = pages.try_for_each(|(&page, bytes)| self.runner.write_page(page, bytes));
        if restored.is_err() {
            self.sequences.truncate(slot, 0);
        }
        restored
    }
}

/// Sequences of a step in flight, whose changes are undone unless they are committed.
struct RollBackOnDrop<'a>(&'a mut Sequences);

impl Drop for RollBackOnDrop<'_> {
    fn drop(&mut self) {
        self.0.roll_back();
    }
}

/// Plan of a step. Dropped without [`run`](Self::run), it leaves the state as before.
#[derive(Debug)]
pub struct BatchPlan<'a> {
    info: &'a ModelInfo,
    options: &'a StateOptions,
    plan: StepPlan<'a>,
    steps: &'a mut Steps,
    runner: &'a mut Runner,
}

impl BatchPlan<'_> {
    /// Adds tokens that continue a sequence, with `output` of the last `n_outputs` of them.
    ///
    /// Sequences that attend to the same keys are best added one after the other: each key is then read once for all.
    ///
    /// # Errors
    /// [`Error::UnknownToken`], [`Error::ContextFull`] and [`Error::KvFull`]; the plan is as before.
    ///
    /// # Panics
    /// If the step would exceed the sizes of the state, `output` has a `k` of 0 or above
    /// [`max_top_k`](ModelInfo::max_top_k), the sequence has been added, or there is no such sequence.
    pub fn add(
        &mut self,
        slot: Slot,
        tokens: &[u32],
        output: OutputRequest,
        n_outputs: usize,
    ) -> Result<(), Error> {
        let vocab_size = self.info.config.vocab_size;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(Error::UnknownToken { token, vocab_size });
        }
        self.add_tokens(slot, tokens, output, n_outputs)
    }

    /// Continues a sequence by the most probable token of row `row` of the outputs of the step before, which need not have
    /// been read, with `output` of this token.
    ///
    /// # Errors
    /// [`Error::ContextFull`] and [`Error::KvFull`]; the plan is as before.
    ///
    /// # Panics
    /// As [`add`](Self::add), and if that row has no top-k logits.
    pub fn add_next(&mut self, slot: Slot, row: usize, output: OutputRequest) -> Result<(), Error> {
        let (place, k) = self.steps.last().most_probable(row);
        self.add_tokens(slot, &[token_reference(place, k)], output, 1)
    }

    fn add_tokens(
        &mut self,
        slot: Slot,
        tokens: &[u32],
        output: OutputRequest,
        n_outputs: usize,
    ) -> Result<(), Error> {
        if let OutputRequest::TopK(k) | OutputRequest::LogProbs(k) = output {
            let max = self.info.max_top_k();
            assert!((1..=max).contains(&k), "{k} logits of {max}");
        }
        let layout = &mut self.steps.planned;
        let (n, StateOptions { n_outputs: max_outputs, n_hidden, .. }) = (n_outputs, *self.options);
        let (kind, used, max) = match output {
            OutputRequest::Hidden => ("hidden states", layout.n_hidden, n_hidden),
            _ => ("outputs", layout.n_projected(), max_outputs),
        };
        assert!(used + n <= max, "{kind}: {} of {max}", used + n);
        self.plan.add(slot, tokens, tokens.len() - n..tokens.len())?;
        layout.push(output, n);
        Ok(())
    }

    /// Number of tokens added.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.plan.n_tokens()
    }

    /// Number of output rows added.
    #[must_use]
    pub fn n_outputs(&self) -> usize {
        self.plan.n_outputs()
    }

    /// Number of free pages that the plan leaves.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.plan.sequences_ref().pages().n_free()
    }

    /// Empties a sequence that is not in the plan, to free its pages.
    ///
    /// # Panics
    /// If the sequence is in the plan or there is no such sequence.
    pub fn clear(&mut self, slot: Slot) {
        let mut runs = self.plan.inputs().runs.iter();
        assert!(runs.all(|run| run.slot != slot), "a sequence outside the plan");
        self.plan.sequences().truncate(slot, 0);
    }

    /// Gives the pages of a prefix back.
    pub fn release(&mut self, prefix: Prefix) {
        self.plan.sequences().release(prefix);
    }

    /// Accounting of pages, to free some.
    pub(crate) fn sequences(&mut self) -> &mut Sequences {
        self.plan.sequences()
    }

    /// Enqueues the step.
    ///
    /// # Errors
    /// If a device fails; the state is as before.
    pub fn run(self) -> Result<Ticket, Error> {
        self.enqueue(true)
    }

    /// [`run`](Self::run) of a step whose outputs are read together with those of the next step, which must have some.
    ///
    /// # Errors
    /// If a device fails; the state is as before.
    pub fn run_with_next(self) -> Result<Ticket, Error> {
        self.enqueue(false)
    }

    fn enqueue(self, reads_now: bool) -> Result<Ticket, Error> {
        let Self { plan, steps, runner, .. } = self;
        assert!(runner.is_whole() || steps.in_flight.is_empty(), "one step on several devices");
        steps.planned.arrange(&plan.inputs().outputs);
        if plan.n_tokens() > 0 {
            runner.run(plan.inputs(), &steps.planned, reads_now);
        }
        if runner.is_whole() {
            plan.commit();
        } else {
            plan.keep();
        }
        Ok(steps.run())
    }
}
