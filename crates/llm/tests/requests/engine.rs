//! Engine whose scheduler decides at random: which requests join, fork, are preempted and are batched, and how many tokens
//! each of them runs.

use std::ops::Range;

use pollster::block_on;
use stonechat_llm::{
    Accepted, Error, Finish, Generation, GenerationScratch, Model, OnFull, PrefixCache, Slot,
    State, StateOptions,
};
use stonechat_testkit::Lcg;

use crate::request::{Request, Start, Text};

/// Preemptions after which none is made at random.
const MAX_PREEMPTIONS: usize = 500;
/// Steps in which the largest case must end.
const MAX_STEPS: usize = 100_000;

/// Uniform choices.
pub(crate) struct Random(Lcg);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Lcg::new(seed))
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Uniform in `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.next()) * n as u64) >> 32) as usize
    }

    pub(crate) fn within(&mut self, range: Range<usize>) -> usize {
        range.start + self.below(range.len())
    }

    /// True once in `n` times.
    pub(crate) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }

    pub(crate) fn shuffle<T>(&mut self, values: &mut [T]) {
        for i in (1..values.len()).rev() {
            values.swap(i, self.below(i + 1));
        }
    }
}

/// Progress of a request.
#[derive(Debug, Default)]
struct Progress {
    generation: Option<Generation>,
    slot: Option<Slot>,
    /// Serial number of the first step; the request with the largest one is the youngest.
    joined: usize,
    text: Text,
}

/// Result of a request: text, and the number of generated tokens at its end.
pub(crate) type Outcome = Option<(Text, usize)>;

/// Counts of events, to show that the cases have them.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Events {
    pub(crate) steps: usize,
    pub(crate) dropped_plans: usize,
    pub(crate) preempted: usize,
    pub(crate) kv_full: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) shared_forks: usize,
    pub(crate) shifts: usize,
    pub(crate) draft_tokens: usize,
    pub(crate) accepted_drafts: usize,
    pub(crate) cancelled: usize,
    /// Truncations that reached less than they were to.
    pub(crate) short_truncations: usize,
}

impl Events {
    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.dropped_plans += other.dropped_plans;
        self.preempted += other.preempted;
        self.kv_full += other.kv_full;
        self.cached_tokens += other.cached_tokens;
        self.shared_forks += other.shared_forks;
        self.shifts += other.shifts;
        self.draft_tokens += other.draft_tokens;
        self.accepted_drafts += other.accepted_drafts;
        self.cancelled += other.cancelled;
        self.short_truncations += other.short_truncations;
    }

    /// Whether each event happened.
    pub(crate) fn are_all(&self) -> bool {
        let Self { steps, dropped_plans, preempted, kv_full, cached_tokens, .. } = *self;
        let Self { shared_forks, shifts, draft_tokens, accepted_drafts, cancelled, .. } = *self;
        ![steps, dropped_plans, preempted, kv_full, cached_tokens].contains(&0)
            && self.short_truncations > 0
            && ![shared_forks, shifts, draft_tokens, accepted_drafts, cancelled].contains(&0)
            && accepted_drafts < draft_tokens
    }
}

pub(crate) struct Engine<'a> {
    model: &'a Model,
    requests: &'a [Request],
    /// Tokens of each request alone, for drafts.
    drafts: &'a [Option<Text>],
    /// Whether the model is on two devices: a step that is not awaited has not happened.
    is_split: bool,
    random: Random,
    state: State,
    cache: PrefixCache,
    progress: Vec<Progress>,
    n_joined: usize,
    scratch: GenerationScratch,
    out: Accepted,
    pub(crate) events: Events,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(
        (model, is_split): (&'a Model, bool),
        options: StateOptions,
        (requests, drafts): (&'a [Request], &'a [Option<Text>]),
        random: Random,
    ) -> Self {
        Self {
            model,
            requests,
            drafts,
            is_split,
            random,
            state: model.state(options).unwrap(),
            cache: PrefixCache::new(),
            progress: requests.iter().map(|_| Progress::default()).collect(),
            n_joined: 0,
            scratch: GenerationScratch::new(model),
            out: Accepted::default(),
            events: Events::default(),
        }
    }

    /// Runs all requests to their end.
    pub(crate) fn run(&mut self) -> Result<Vec<Outcome>, String> {
        for step in 0..MAX_STEPS {
            let result = self.schedule();
            if !result.map_err(|error| format!("step {step}: {error}"))? {
                let n_pages = self.state.options().n_pages.unwrap();
                self.cache.clear(&mut self.state);
                if self.state.free_pages() != n_pages {
                    return Err(format!("{} of {n_pages} pages free", self.state.free_pages()));
                }
                let take = |progress: &mut Progress| {
                    let generation = progress.generation.take()?;
                    Some((std::mem::take(&mut progress.text), generation.n_generated()))
                };
                return Ok(self.progress.iter_mut().map(take).collect());
            }
        }
        let left = (0..self.requests.len()).filter(|&index| self.is_left(index));
        let describe = |index: usize| {
            let Progress { generation, slot, .. } = &self.progress[index];
            let lengths = generation.as_ref().map(|g| (g.cached().len(), g.context().len()));
            format!("request {index} {:?} {slot:?} {lengths:?}", self.requests[index].start)
        };
        let left: Vec<_> = left.map(describe).collect();
        Err(format!("no end after {MAX_STEPS} steps: {left:?} {:?}", self.state.options()))
    }

    /// Runs one step; returns whether a request is left.
    fn schedule(&mut self) -> Result<bool, String> {
        self.events.steps += 1;
        // A long prompt in small steps never ends if each run of it is preempted.
        if self.events.preempted < MAX_PREEMPTIONS && self.random.once_in(8) {
            let index = self.random.below(self.requests.len());
            self.preempt(index);
        }
        for index in 0..self.requests.len() {
            self.end(index);
            self.join(index);
        }
        for index in 0..self.requests.len() {
            self.fork(index);
        }
        if self.random.once_in(16) {
            let n = 1 + self.random.below(self.state.options().n_pages.unwrap());
            block_on(self.cache.evict(&mut self.state, n)).unwrap();
        }
        self.step()?;
        for (index, progress) in self.progress.iter().enumerate() {
            let Some((generation, slot)) = progress.generation.as_ref().zip(progress.slot) else {
                continue;
            };
            if generation.pending().is_empty() {
                return Err(format!("request {index} goes on without a token to run"));
            }
            let (len, cached) = (self.state.len(slot), generation.cached().len());
            if len != cached {
                return Err(format!("request {index}: {len} positions, {cached} cached tokens"));
            }
        }
        Ok((0..self.requests.len()).any(|index| self.is_left(index)))
    }

    /// Whether a request runs or can still start.
    fn is_left(&self, index: usize) -> bool {
        match (&self.progress[index].generation, &self.requests[index].start) {
            (Some(generation), _) => generation.finish().is_none(),
            (None, Start::Prompt(_)) => true,
            (None, Start::Fork { parent, .. }) => self.is_left(*parent),
        }
    }

    fn free_slot(&self) -> Option<Slot> {
        let slots = (0..self.state.options().n_sequences).map(Slot::new);
        let is_used = |slot| self.progress.iter().any(|progress| progress.slot == Some(slot));
        slots.into_iter().find(|&slot| !is_used(slot))
    }

    /// Starts a fork whose parent has as many tokens as it needs.
    fn fork(&mut self, index: usize) {
        let Start::Fork { parent, after, seed } = self.requests[index].start else { return };
        let free = self.free_slot();
        let Some(generation) = &self.progress[parent].generation else { return };
        let is_ready = generation.n_generated() == after && generation.finish().is_none();
        if self.progress[index].generation.is_some() || !is_ready {
            return;
        }
        let mut fork = generation.fork(seed);
        let slot = match (self.progress[parent].slot, free) {
            (Some(from), Some(to)) if !self.random.once_in(4) => {
                self.state.fork(from, to);
                assert_eq!(self.state.truncate(to, fork.cached().len()), fork.cached().len());
                self.events.shared_forks += 1;
                Some(to)
            }
            _ => {
                fork.preempt();
                None
            }
        };
        let joined = self.n_joined;
        self.n_joined += 1;
        let text = Text::default();
        self.progress[index] = Progress { generation: Some(fork), slot, joined, text };
    }

    /// Ends a request that is cancelled or whose context is full; shifts the context if its options say so.
    fn end(&mut self, index: usize) {
        let Request { cancel_after, options, .. } = &self.requests[index];
        let Progress { generation, slot, text, .. } = &mut self.progress[index];
        let Some(generation) = generation else { return };
        if generation.finish().is_some() {
            return;
        }
        let n_ctx = self.state.options().n_ctx;
        if cancel_after.is_some_and(|n| generation.n_generated() >= n) {
            generation.end(Finish::Cancelled, &mut self.out);
            self.events.cancelled += 1;
        } else if generation.exceeds(n_ctx) {
            if let OnFull::Shift { keep } = options.on_full {
                let [len, _] = generation.shift(keep, n_ctx);
                if let Some(slot) = *slot {
                    self.state.truncate(slot, len);
                }
                self.events.shifts += 1;
                return;
            }
            generation.end(Finish::ContextFull, &mut self.out);
        } else {
            return;
        }
        text.push(&self.out);
        self.leave(index);
    }

    /// Gives the slot of a request back, after its pages went to the prefix cache or not.
    fn leave(&mut self, index: usize) {
        let Progress { generation, slot, .. } = &mut self.progress[index];
        if let (Some(generation), Some(slot)) = (generation, slot.take()) {
            if let Some(salt) = self.requests[index].salt
                && !self.random.once_in(3)
            {
                self.cache.insert(&mut self.state, slot, generation.cached(), salt);
            }
            self.state.truncate(slot, 0);
        }
    }

    /// Gives a request that has none a slot.
    fn join(&mut self, index: usize) {
        let Some(free) = self.free_slot() else { return };
        let Request { start, options, salt, .. } = &self.requests[index];
        let progress = &mut self.progress[index];
        let is_ended = progress.generation.as_ref().is_some_and(|g| g.finish().is_some());
        if progress.slot.is_some() || is_ended || !self.random.once_in(3) {
            return;
        }
        if progress.generation.is_none() {
            let Start::Prompt(prompt) = start else { return };
            let new = Generation::new(self.model.info(), prompt.clone(), options.clone()).unwrap();
            progress.generation = Some(new);
            progress.joined = self.n_joined;
            self.n_joined += 1;
        }
        let Some(generation) = &mut progress.generation else { return };
        if let Some(salt) = *salt {
            let found = self.cache.cached_len(generation.pending(), salt);
            let n = self.cache.attach(&mut self.state, free, generation.pending(), salt);
            assert!(n <= found && n < generation.pending().len());
            generation.ran(n);
            self.events.cached_tokens += n;
        }
        progress.slot = Some(free);
    }

    fn preempt(&mut self, index: usize) {
        if self.progress[index].slot.is_some() {
            self.leave(index);
            if let Some(generation) = &mut self.progress[index].generation {
                generation.preempt();
                self.events.preempted += 1;
            }
        }
    }

    /// Plans random tokens of random requests, and runs them or not.
    fn step(&mut self) -> Result<(), String> {
        let StateOptions { n_batch, n_outputs, .. } = self.state.options();
        let n_free = self.state.free_pages();
        let has_slot = |&index: &usize| self.progress[index].slot.is_some();
        let mut order: Vec<usize> = (0..self.requests.len()).filter(has_slot).collect();
        if order.is_empty() {
            return Ok(());
        }
        self.random.shuffle(&mut order);
        order.truncate(1 + self.random.below(order.len()));
        // Request, tokens, output rows.
        let mut runs: Vec<(usize, usize, usize)> = Vec::new();
        let mut has_freed = false;
        let mut plan = self.state.plan();
        for index in order {
            // The request may have been preempted for an earlier one.
            let Progress { generation: Some(generation), slot: Some(slot), .. } =
                &mut self.progress[index]
            else {
                continue;
            };
            let slot = *slot;
            let n_left = n_batch - plan.n_tokens();
            let has_draft =
                generation.cached().len() + generation.pending().len() > generation.context().len();
            let n_pending = generation.pending().len();
            let n_rows_left = n_outputs - plan.n_outputs();
            if has_draft && (n_pending > n_left || n_pending > n_rows_left) {
                generation.propose(&[]);
            }
            let n_pending = generation.pending().len();
            let n = match n_pending.min(n_left) {
                n if has_draft || self.random.once_in(2) => n,
                n => n.min(1 + self.random.below(n.max(1))),
            };
            let (request, n_rows) = generation.output(n);
            if n == 0 || n_rows > n_rows_left {
                continue;
            }
            let tokens = generation.pending()[..n].to_vec();
            let is_added = loop {
                match plan.add(slot, &tokens, request, n_rows) {
                    Ok(()) => break true,
                    Err(Error::KvFull(full)) => {
                        self.events.kv_full += 1;
                        has_freed = true;
                        if self.cache.evict_for(&mut plan, full.needed) {
                            continue;
                        }
                        let is_planned = |other| runs.iter().any(|run| run.0 == other);
                        let candidates = (0..self.progress.len())
                            .filter(|&i| self.progress[i].slot.is_some() && !is_planned(i));
                        let youngest = candidates.max_by_key(|&i| self.progress[i].joined);
                        if let Some(youngest) = youngest.filter(|&youngest| youngest != index) {
                            let Progress { generation, slot, .. } = &mut self.progress[youngest];
                            if let (Some(generation), Some(slot)) = (generation, slot.take()) {
                                plan.clear(slot);
                                generation.preempt();
                                self.events.preempted += 1;
                            }
                            continue;
                        }
                        let n_slots =
                            self.progress.iter().filter(|progress| progress.slot.is_some()).count();
                        if n_slots > 1 {
                            break false;
                        }
                        // Alone, it lacks the page for a copy of one that it shares with the cache.
                        drop(plan);
                        if self.cache.n_pages() == 0 {
                            return Err(format!("request {index} alone does not fit: {full}"));
                        }
                        self.cache.clear(&mut self.state);
                        return Ok(());
                    }
                    Err(error) => return Err(error.to_string()),
                }
            };
            if is_added {
                runs.push((index, n, n_rows));
            }
        }
        if self.random.once_in(6) {
            drop(plan);
            self.events.dropped_plans += 1;
            let left = self.state.free_pages();
            if left != n_free && !has_freed {
                return Err(format!("{left} free pages after a dropped plan, {n_free} before"));
            }
            return Ok(());
        }
        let ticket = plan.run().map_err(|error| error.to_string())?;
        if self.is_split && self.random.once_in(8) {
            // The first device has run the step.
            drop(ticket);
            self.state.truncate(Slot::new(0), usize::MAX);
            return Ok(());
        }
        self.accept(&runs, ticket)
    }

    fn accept(
        &mut self,
        runs: &[(usize, usize, usize)],
        ticket: stonechat_llm::Ticket,
    ) -> Result<(), String> {
        let outputs = block_on(self.state.outputs(ticket)).map_err(|error| error.to_string())?;
        let (mut row, mut lengths) = (0, Vec::new());
        for &(index, n, n_rows) in runs {
            let Progress { generation, text, .. } = &mut self.progress[index];
            let Some(generation) = generation else { continue };
            generation.ran(n);
            if n_rows > 0 {
                let rows = outputs.rows(row..row + n_rows);
                let accepted = generation.accept(rows, &mut self.scratch, &mut self.out);
                accepted.map_err(|error| error.to_string())?;
                text.push(&self.out);
                lengths.push((index, self.out.kv_len));
                row += n_rows;
            }
        }
        if row != outputs.len() {
            return Err(format!("{} output rows, {row} expected", outputs.len()));
        }
        for (index, len) in lengths {
            let Progress { generation, slot, .. } = &mut self.progress[index];
            if let (Some(slot), Some(generation)) = (*slot, generation) {
                let is_short = self.random.once_in(24);
                self.events.short_truncations += usize::from(is_short);
                let len = if is_short { self.random.below(len) } else { len };
                generation.truncate(self.state.truncate(slot, len));
            }
            if self.progress[index].text.finish.is_some() {
                self.count_drafts(index);
                self.leave(index);
            } else {
                self.propose(index);
            }
        }
        Ok(())
    }

    fn count_drafts(&mut self, index: usize) {
        if let Some(generation) = &self.progress[index].generation {
            self.events.draft_tokens += generation.drafts().proposed;
            self.events.accepted_drafts += generation.drafts().accepted;
        }
    }

    /// Proposes the continuation of the text alone, with some tokens replaced.
    fn propose(&mut self, index: usize) {
        let request = &self.requests[index];
        // Forks must see their parent at a number of tokens, which a longer draft may leap over.
        let fork_at = |child: &Request| match child.start {
            Start::Fork { parent, after, .. } if parent == index => Some(after),
            _ => None,
        };
        let n_ctx = self.state.options().n_ctx;
        let (Some(generation), Some(text)) =
            (&mut self.progress[index].generation, &self.drafts[index])
        else {
            return;
        };
        let n = generation.n_generated();
        let forks = self.requests.iter().filter_map(fork_at).filter(|&after| after > n);
        let max = forks.map(|after| after - n - 1).min().unwrap_or(usize::MAX);
        let max = max.min(request.n_draft).min(n_ctx.saturating_sub(generation.context().len()));
        let len = self.random.below(max + 1);
        let draft = &text.tokens[(n - request.n_inherited()).min(text.tokens.len())..];
        let mut draft: Vec<u32> = draft.iter().copied().take(len).collect();
        for token in &mut draft {
            if self.random.once_in(8) {
                *token = self.random.below(self.model.config().vocab_size) as u32;
            }
        }
        generation.propose(&draft);
    }
}
