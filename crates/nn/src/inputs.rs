//! Inputs of a step, and their checks before any device sees the step.

use stonechat_compute::op::{
    Count, EmbedArgs, KvShape, Op, PAGE_LEN, PoolId, RopeArgs, RopeAttentionArgs, RowTable, Rows,
    SlotTable, Tensor,
};

use crate::pages::PageCopy;
use crate::program::{Counts, Node, Program, Segment, SegmentName};
use crate::{KvRow, LogitFilter, QueryRow, StateRun};

/// Index of the first value of an [`Op::Export`] of `x` in the memory of its port, in a step
/// with this first window.
#[must_use]
pub(crate) fn export_offset(x: Tensor, first_window: usize) -> usize {
    match x.rows.count {
        Count::Windows | Count::CapturedWindows => first_window * x.rows.each * x.cols,
        _ => 0,
    }
}

/// Pages and visible positions of query rows.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttentionRows<'a> {
    /// Pages and visible positions of each row; rows of one sequence are adjacent.
    pub rows: &'a [QueryRow],
    /// Page ids of all sequences, concatenated; [`QueryRow::first_page`] indexes it.
    pub page_table: &'a [u32],
}

/// Bit of a [`token_reference`].
const TOKEN_REFERENCE: u32 = 1 << 31;

/// Element of [`Step::tokens`] that stands for the most probable token of row `row` of `Port::TOP_K` of the step before, which had `k` of each row.
///
/// # Panics
/// If the port is too large.
#[must_use]
pub fn token_reference(row: usize, k: usize) -> u32 {
    let index = 2 * row * k + k;
    assert!(index < TOKEN_REFERENCE as usize, "row {row} of {k} logits");
    TOKEN_REFERENCE | index as u32
}

/// The token that an element of [`Step::tokens`] stands for, with the values of `Port::TOP_K` of the step before.
///
/// # Panics
/// If `token` refers to a value out of range.
#[must_use]
pub fn resolve_token(token: u32, top_k: impl Fn(usize) -> f32) -> u32 {
    if token & TOKEN_REFERENCE == 0 {
        token
    } else {
        top_k((token & !TOKEN_REFERENCE) as usize) as u32
    }
}

/// Inputs of a step: everything that changes between two steps.
#[derive(Debug, Clone, Copy, Default)]
pub struct Step<'a> {
    /// Segments to run.
    pub segments: &'a [SegmentName],
    /// Number of rows.
    pub counts: Counts,
    /// `[T]` token ids, or [references](token_reference) to tokens that the step before chose.
    pub tokens: &'a [u32],
    /// `[T]` positions.
    pub positions: &'a [u32],
    /// Rows of the batch whose logits are computed, then those whose hidden states are read.
    pub output_rows: &'a [usize],
    /// Filter of each row of an [`Op::LogitFilter`](stonechat_compute::op::Op::LogitFilter).
    pub logit_filters: &'a [LogitFilter],
    /// Lists of tokens, concatenated; [`LogitFilter::suppressed`] indexes it.
    pub suppressed: &'a [u32],
    /// `k` of [`Op::TopK`](stonechat_compute::op::Op::TopK).
    pub k: usize,
    /// Page copies in the pools of the sequences, see [`Program::sequence_pools`], done first.
    pub copies: &'a [PageCopy],
    /// KV slots to write, by [`SlotTable`].
    pub slots: [&'a [KvRow]; SlotTable::N],
    /// Pages and visible positions of the query rows, by [`RowTable`].
    pub rows: [AttentionRows<'a>; RowTable::N],
    /// Runs of the rows of ops with [states](Op::states).
    pub states: &'a [StateRun],
    /// Place of the first window of audio in exported values.
    pub first_window: usize,
}

impl<'a> Step<'a> {
    /// Whether the step runs a variant of a segment.
    #[must_use]
    pub fn runs(&self, segment: &Segment) -> bool {
        let n_rows = self.counts.rows(segment.rows);
        self.segments.contains(&segment.name) && segment.class.contains(n_rows)
    }

    /// Index of the first value of an [`Op::Export`] of `x` in the memory of its port.
    #[must_use]
    pub fn export_offset(&self, x: Tensor) -> usize {
        export_offset(x, self.first_window)
    }

    /// Rows of the batch whose logits are computed, or whose hidden states are read.
    ///
    /// # Panics
    /// If `count` counts no such rows.
    #[must_use]
    pub fn output_rows(&self, count: Count) -> &'a [usize] {
        let (logits, rest) = self.output_rows.split_at(self.counts[Count::Logits]);
        match count {
            Count::Logits => logits,
            Count::Hidden => &rest[..self.counts[Count::Hidden]],
            _ => panic!("no outputs of {count:?}"),
        }
    }

    /// A list of pages and slots.
    #[must_use]
    pub fn slots(&self, table: SlotTable) -> &'a [KvRow] {
        self.slots[table.index()]
    }

    /// A list of pages and visible positions.
    #[must_use]
    pub fn rows(&self, table: RowTable) -> AttentionRows<'a> {
        self.rows[table.index()]
    }
}

/// A step whose inputs fit the program.
#[derive(Debug, Clone, Copy)]
pub struct CheckedStep<'a>(&'a Step<'a>);

impl<'a> std::ops::Deref for CheckedStep<'a> {
    type Target = Step<'a>;

    fn deref(&self) -> &Step<'a> {
        self.0
    }
}

/// Input with one element for each row of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Tokens,
    Positions,
    LogitFilters,
    Slots(SlotTable),
    Rows(RowTable),
    States,
}

/// Ops of a segment that read a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reader {
    list: List,
    segment: SegmentName,
    rows: Rows,
}

/// Limits of the inputs of a program's steps.
#[derive(Debug, Default)]
pub struct InputLimits {
    pools: Vec<KvShape>,
    readers: Vec<Reader>,
    /// Rows of the smallest embedding table.
    n_tokens: Option<usize>,
    /// Rows of the smallest table of positions.
    n_positions: Option<usize>,
    /// Pages of the pool of each slot table.
    slot_pages: [Option<usize>; SlotTable::N],
    /// Pages of the pool of each row table.
    row_pages: [Option<usize>; RowTable::N],
    /// Fewest slots of an op's states.
    n_state_slots: Option<usize>,
    /// Columns of the logits that are filtered.
    n_logits: Option<usize>,
}

fn lower(limit: &mut Option<usize>, n: usize) {
    *limit = Some(limit.map_or(n, |limit| limit.min(n)));
}

#[track_caller]
fn check_below(what: &str, values: impl IntoIterator<Item = u32>, limit: Option<usize>) {
    let (Some(limit), Some(max)) = (limit, values.into_iter().max()) else { return };
    assert!((max as usize) < limit, "step: expected {what} below {limit}, got {max}");
}

/// Checks that slots exist, and that no other run reads or writes a slot that a run writes.
#[track_caller]
fn check_states(runs: &[StateRun], n_slots: Option<usize>) {
    check_below(
        "slots of states",
        runs.iter().flat_map(|run| run.from.into_iter().chain([run.to])),
        n_slots,
    );
    for (i, run) in runs.iter().enumerate() {
        let (before, rest) = runs.split_at(i);
        let mut others = before.iter().chain(&rest[1..]);
        let other = others.find(|other| other.to == run.to || other.from == Some(run.to));
        assert!(
            run.n_rows > 0 && other.is_none(),
            "step: expected rows and a slot of its own of each run, got {run:?} and {other:?}"
        );
    }
}

impl InputLimits {
    /// Limits of the steps of a program.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        let mut limits = Self { pools: program.pools.clone(), ..Self::default() };
        for segment in &program.segments {
            for node in &segment.nodes {
                let Some(rows) = program.rows_of(node) else { continue };
                limits.add(node, |list| Reader { list, segment: segment.name, rows });
            }
        }
        limits
    }

    fn add(&mut self, node: &Node, reader: impl Fn(List) -> Reader) {
        if let Op::RopeKv(rope) | Op::RopeAttention(RopeAttentionArgs { rope, .. }) = &node.op {
            self.add_rope(&rope.q, &reader);
            self.add_rope(&rope.k, &reader);
        }
        if let Some(write) = node.op.kv_write() {
            lower(&mut self.slot_pages[write.slots.index()], self.pools[write.pool.0].n_pages);
            self.add_reader(reader(List::Slots(write.slots)));
        }
        if let Some(states) = node.op.states() {
            lower(&mut self.n_state_slots, states.n_slots);
            self.add_reader(reader(List::States));
        }
        match &node.op {
            Op::Embed(EmbedArgs { table, positions, .. }) => {
                let table = table.info();
                lower(&mut self.n_tokens, table.rows);
                self.add_reader(reader(List::Tokens));
                if let Some(positions) = positions.as_ref().map(|positions| positions.info()) {
                    lower(&mut self.n_positions, positions.rows * positions.cols / table.cols);
                    self.add_reader(reader(List::Positions));
                }
            }
            Op::Rope(args) => self.add_rope(args, reader),
            Op::Attention(args) | Op::RopeAttention(RopeAttentionArgs { attention: args, .. }) => {
                lower(&mut self.row_pages[args.rows.index()], self.pools[args.pool.0].n_pages);
                self.add_reader(reader(List::Rows(args.rows)));
            }
            Op::LogitFilter => {
                lower(&mut self.n_logits, node.inputs[0].cols);
                self.add_reader(reader(List::LogitFilters));
            }
            _ => {}
        }
    }

    fn add_rope(&mut self, args: &RopeArgs, reader: impl Fn(List) -> Reader) {
        let rotation = args.rotation.as_ref().filter(|rotation| rotation.n_rot > 0);
        if let Some(rotation) = rotation {
            let info = rotation.table.info();
            lower(&mut self.n_positions, info.rows * info.cols / rotation.n_rot);
            self.add_reader(reader(List::Positions));
        }
    }

    fn add_reader(&mut self, reader: Reader) {
        if !self.readers.contains(&reader) {
            self.readers.push(reader);
        }
    }

    /// Bytes of a page in every layer of a pool.
    #[must_use]
    pub fn page_bytes(&self, pool: PoolId) -> usize {
        let shape = &self.pools[pool.0];
        shape.n_layers * shape.layout().page_bytes()
    }

    /// Checks the inputs of a step.
    ///
    /// # Panics
    /// If a list has another length than the rows that it is for, or an input is outside of what it indexes.
    #[track_caller]
    pub(crate) fn check<'a>(&self, step: &'a Step<'a>) -> CheckedStep<'a> {
        self.readers.iter().for_each(|reader| reader.check(step));
        // Token references count as token 0 here.
        let tokens = step.tokens.iter().map(|&token| resolve_token(token, |_| 0.0));
        check_below("tokens", tokens, self.n_tokens);
        check_below("positions", step.positions.iter().copied(), self.n_positions);
        let n_tokens = step.counts[Count::Tokens];
        let output_rows = step.output_rows.iter().map(|&row| row as u32);
        check_below("output rows", output_rows, Some(n_tokens));
        check_below("suppressed tokens", step.suppressed.iter().copied(), self.n_logits);
        let (n_logits, n_suppressed) = (self.n_logits.unwrap_or_default(), step.suppressed.len());
        for filter in step.logit_filters {
            let fits = filter.fits(n_logits, n_suppressed);
            assert!(fits, "step: expected a filter of {n_logits} logits, got {filter:?}");
        }
        let copied = step.copies.iter().flat_map(|copy| [copy.from, copy.to]);
        check_below("copied pages", copied, self.slot_pages[SlotTable::TOKENS.index()]);
        for (slots, &n_pages) in step.slots.iter().zip(&self.slot_pages) {
            check_below("pages of slots", slots.iter().map(|row| row.page), n_pages);
            check_below("slots", slots.iter().map(|row: &KvRow| row.slot), Some(PAGE_LEN));
        }
        check_states(step.states, self.n_state_slots);
        for (&AttentionRows { rows, page_table }, &n_pages) in step.rows.iter().zip(&self.row_pages)
        {
            check_below("pages", page_table.iter().copied(), n_pages);
            for row in rows {
                let (first, n_pages) = (row.first_page as usize, row.n_pages as usize);
                let fits = row.kv_len as usize <= n_pages * PAGE_LEN;
                let len = page_table.len();
                assert!(
                    fits && first + n_pages <= len,
                    "step: expected a row within its pages and a table of {len} pages, got {row:?}"
                );
            }
        }
        CheckedStep(step)
    }
}

impl Reader {
    #[track_caller]
    fn check(self, step: &Step<'_>) {
        let (what, len) = match self.list {
            List::Tokens => ("tokens", step.tokens.len()),
            List::Positions => ("positions", step.positions.len()),
            List::LogitFilters => ("logit filters", step.logit_filters.len()),
            List::Slots(table) => ("slots", step.slots(table).len()),
            List::Rows(table) => ("rows of attention", step.rows(table).rows.len()),
            List::States => {
                ("rows of states", step.states.iter().map(|run| run.n_rows as usize).sum())
            }
        };
        let n_rows = step.counts.rows(self.rows);
        let runs = n_rows > 0 && step.segments.contains(&self.segment);
        assert!(!runs || len == n_rows, "step: expected {n_rows} {what}, got {len}");
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use stonechat_compute::op::{Count, SlotTable};

    use super::{AttentionRows, InputLimits, Step};
    use crate::program::{Counts, SegmentName};
    use crate::testing::{D, Ops};
    use crate::{KvRow, PAGE_LEN, QueryRow, StateRun};

    /// Message of the check of a step of one token that `change` makes wrong; empty if it passes.
    fn message(change: impl FnOnce(&mut Step<'_>)) -> String {
        let mut ops = Ops::new();
        let x = ops.embed();
        ops.kv_write((0, 0), x, x);
        let y = ops.attention((0, 0), x);
        ops.output(y);
        let program = ops.r.finish();
        assert_eq!(y.cols, D);
        let mut step = Step { segments: &[SegmentName::Body], tokens: &[0], ..Step::default() };
        step.counts = Counts::default();
        step.counts[Count::Tokens] = 1;
        step.slots[SlotTable::TOKENS.index()] = &[KvRow { page: 0, slot: 0 }];
        let row = [QueryRow { first_page: 0, n_pages: 1, kv_start: 0, kv_len: 1 }];
        step.rows[0] = AttentionRows { rows: &row, page_table: &[0] };
        change(&mut step);
        let check = || _ = InputLimits::new(&program).check(&step);
        let Err(panic) = catch_unwind(AssertUnwindSafe(check)) else { return String::new() };
        panic.downcast::<String>().map(|text| *text).unwrap_or_default()
    }

    #[test]
    fn messages_tell_what_is_expected() {
        assert_eq!(message(|_| ()), "");
        assert_eq!(message(|step| step.tokens = &[0; 2]), "step: expected 1 tokens, got 2");
        let message_of_token = message(|step| step.tokens = &[70_000]);
        assert!(message_of_token.starts_with("step: expected tokens below "), "{message_of_token}");
        assert!(message_of_token.ends_with(", got 70000"), "{message_of_token}");
        assert_eq!(
            message(|step| step.output_rows = &[1]),
            "step: expected output rows below 1, got 1"
        );
        const SLOT: [KvRow; 1] = [KvRow { page: 0, slot: PAGE_LEN as u32 }];
        assert_eq!(
            message(|step| step.slots[0] = &SLOT),
            format!("step: expected slots below {PAGE_LEN}, got {PAGE_LEN}")
        );
        let far = message(|step| step.rows[0].page_table = &[1 << 20]);
        assert!(far.starts_with("step: expected pages below "), "{far}");
        let none = message(|step| step.rows[0].page_table = &[]);
        assert!(none.starts_with("step: expected a row within its pages"), "{none}");
    }

    /// Whether runs with these rows and slots pass the check of 4 slots.
    fn fits(runs: &[(u32, Option<u32>, u32)]) -> bool {
        let run = |&(n_rows, from, to)| StateRun { n_rows, from, to };
        let runs: Vec<_> = runs.iter().map(run).collect();
        let limits = InputLimits { n_state_slots: Some(4), ..InputLimits::default() };
        let step = Step { states: &runs, ..Step::default() };
        catch_unwind(AssertUnwindSafe(|| _ = limits.check(&step))).is_ok()
    }

    #[test]
    fn a_slot_that_a_run_writes_is_its_own() {
        assert!(fits(&[]) && fits(&[(1, None, 0), (2, Some(1), 1), (3, Some(2), 3)]));
        // A fork: two runs read a slot.
        assert!(fits(&[(1, Some(0), 1), (1, Some(0), 2)]));
        assert!(!fits(&[(1, Some(0), 0), (1, Some(0), 2)]));
        assert!(!fits(&[(1, Some(1), 0), (1, Some(0), 1)]));
        assert!(!fits(&[(1, None, 2), (1, None, 2)]));
        assert!(!fits(&[(0, None, 2)]));
        assert!(!fits(&[(1, None, 4)]) && !fits(&[(1, Some(4), 3)]));
    }
}
