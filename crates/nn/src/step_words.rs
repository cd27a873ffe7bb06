//! Inputs of a step as the words that kernels of GPUs read, and the shape of the step.
//!
//! ```text
//! tokens | positions | slots of each table | rows of outputs | logit filters | page copies | rows of each attention |
//! page tables | suppressed tokens
//! ```
//!
//! The place of each follows from the [`StepShape`], so that steps of equal shape run the same list of dispatches. Page tables
//! and suppressed tokens come last: rows and filters have the places of theirs.

use std::fmt::Debug;
use std::hash::Hash;

use stonechat_compute::op::{
    AttentionArgs, Count, KvLayout, Op, RopeArgs, RopeAttentionArgs, RowTable, SlotTable,
};

use crate::device::{AttentionRows, Counts, Step, resolve_token};
use crate::program::{Program, Segment, SegmentName};
use crate::{KvRow, KvShape, LogitFilter, PAGE_LEN, PageCopy, QueryRow};

/// Division of the query rows of a step among the kernels of an attention.
pub(crate) trait Grid: Copy + Debug + Eq + Hash {
    /// Number of words that [`push_words`](Self::push_words) appends.
    fn n_words(&self) -> usize;

    /// Appends the inputs of the kernels. The page table of the rows starts at word `page_table`.
    fn push_words(&self, rows: &[QueryRow], page_table: usize, words: &mut Vec<u32>);
}

macro_rules! impl_grid {
    ($grid:ty) => {
        impl $crate::step_words::Grid for $grid {
            fn n_words(&self) -> usize {
                self.n_words()
            }

            fn push_words(
                &self,
                rows: &[$crate::QueryRow],
                page_table: usize,
                words: &mut Vec<u32>,
            ) {
                self.push_words(rows, page_table, words);
            }
        }
    };
}

pub(crate) use impl_grid;

/// Shape of a step. Steps of equal shape have equal dispatches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct StepShape<G> {
    /// Bit of each segment that runs.
    segments: u32,
    pub(crate) counts: Counts,
    pub(crate) k: usize,
    pub(crate) first_window: usize,
    pub(crate) n_tokens: usize,
    pub(crate) n_positions: usize,
    pub(crate) n_slots: [usize; SlotTable::N],
    n_outputs: usize,
    pub(crate) n_logit_filters: usize,
    /// Page copies, padded with copies of a page to itself.
    pub(crate) n_copies: usize,
    /// By number of the attention, see [`StepWords::attention`].
    pub(crate) grids: Vec<G>,
}

/// Words of a [`LogitFilter`].
const FILTER_WORDS: usize = 8;

/// Ranges of a filter, those of suppressed tokens as places of words; the step's list starts at word `suppressed`.
fn filter_words(filter: &LogitFilter, suppressed: u32) -> [u32; FILTER_WORDS] {
    let LogitFilter { kept: [first, second], suppressed: [a, b] } = filter;
    let [a, b] = [a, b].map(|list| suppressed + list.start..suppressed + list.end);
    [first.start, first.end, second.start, second.end, a.start, a.end, b.start, b.end]
}

/// Number of page copies in the list of a step with `n`. Beams fork a few sequences in one step and none in the next: steps
/// with few copies have one shape.
fn padded_copies(n: usize) -> usize {
    if n == 0 { 0 } else { n.next_power_of_two().max(4) }
}

fn bit(name: SegmentName) -> u32 {
    1 << name as u32
}

impl<G> Default for StepShape<G> {
    fn default() -> Self {
        Self {
            segments: 0,
            counts: Counts::default(),
            k: 0,
            first_window: 0,
            n_tokens: 0,
            n_positions: 0,
            n_slots: [0; SlotTable::N],
            n_outputs: 0,
            n_logit_filters: 0,
            n_copies: 0,
            grids: Vec::new(),
        }
    }
}

impl<G: Grid> StepShape<G> {
    /// Whether a step of this shape runs a variant of a segment.
    pub(crate) fn runs(&self, segment: &Segment) -> bool {
        let n_rows = self.counts.rows(segment.rows);
        self.segments & bit(segment.name) != 0 && segment.class.contains(n_rows)
    }

    /// First words of the inputs.
    pub(crate) fn places(&self) -> Places {
        let mut end = 0;
        let mut place = |len: usize| {
            end += len;
            end - len
        };
        Places {
            tokens: place(self.n_tokens),
            positions: place(self.n_positions),
            slots: self.n_slots.map(|n| place(2 * n)),
            outputs: place(self.n_outputs),
            logit_filters: place(FILTER_WORDS * self.n_logit_filters),
            copies: place(2 * self.n_copies),
            attention: place(self.grids.iter().map(Grid::n_words).sum()),
            end: place(0),
        }
    }
}

/// A list of rows, read by attention of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AttentionInput {
    table: RowTable,
    segment: SegmentName,
    n_heads: usize,
    layout: KvLayout,
}

impl AttentionInput {
    /// Rows in a step that runs `segments`.
    fn rows<'a>(&self, step: &Step<'a>, segments: u32) -> &'a [QueryRow] {
        if segments & bit(self.segment) != 0 { step.rows(self.table).rows } else { &[] }
    }
}

/// Sizes that inputs must stay below.
#[derive(Debug, Default)]
struct Limits {
    /// Rows of the smallest embedding table.
    n_tokens: Option<usize>,
    /// Rows of the smallest table of positions.
    n_positions: Option<usize>,
    /// Pages of the pool of each slot table.
    slot_pages: [Option<usize>; SlotTable::N],
    /// Pages of the pool of each row table.
    row_pages: [Option<usize>; RowTable::N],
    /// Pages of the pool that pages are copied in.
    copied_pages: Option<usize>,
    /// Columns of the logits that are filtered.
    n_logits: Option<usize>,
}

/// Inputs of a step as words.
#[derive(Debug)]
pub(crate) struct StepWords {
    pub(crate) words: Vec<u32>,
    attention: Vec<AttentionInput>,
    limits: Limits,
}

fn lower(limit: &mut Option<usize>, n: usize) {
    *limit = Some(limit.map_or(n, |limit| limit.min(n)));
}

impl StepWords {
    pub(crate) fn new(program: &Program) -> Self {
        let (mut limits, mut attention) = (Limits::default(), Vec::new());
        limits.copied_pages = program.pools.first().map(|pool| pool.n_pages);
        let n_pages = |pool: usize| program.pools[pool].n_pages;
        for segment in &program.segments {
            for node in &segment.nodes {
                match &node.op {
                    Op::LogitFilter => lower(&mut limits.n_logits, node.inputs[0].cols),
                    Op::Embed(args) => {
                        let table = args.table.info();
                        lower(&mut limits.n_tokens, table.rows);
                        args.positions.iter().for_each(|positions| {
                            let info = positions.info();
                            lower(&mut limits.n_positions, info.rows * info.cols / table.cols);
                        });
                    }
                    Op::Rope(args) => lower_positions(&mut limits, args),
                    Op::RopeKv(args) | Op::RopeAttention(RopeAttentionArgs { rope: args, .. }) => {
                        lower_positions(&mut limits, &args.q);
                        lower_positions(&mut limits, &args.k);
                        let write = args.write;
                        lower(&mut limits.slot_pages[write.slots.index()], n_pages(write.pool.0));
                    }
                    Op::KvWrite(write) => {
                        lower(&mut limits.slot_pages[write.slots.index()], n_pages(write.pool.0));
                    }
                    _ => {}
                }
                match &node.op {
                    Op::Attention(args)
                    | Op::RopeAttention(RopeAttentionArgs { attention: args, .. }) => {
                        lower(&mut limits.row_pages[args.rows.index()], n_pages(args.pool.0));
                        let (table, name) = (args.rows, segment.name);
                        let layout = program.pools[args.pool.0].layout();
                        let n_heads = args.n_heads;
                        let input = AttentionInput { table, segment: name, n_heads, layout };
                        if !attention.contains(&input) {
                            attention.push(input);
                        }
                    }
                    _ => {}
                }
            }
        }
        Self { words: Vec::new(), attention, limits }
    }

    /// Sets the shape of a step; `grid` divides rows for an attention of so many query heads.
    pub(crate) fn set_shape<G: Grid>(
        &self,
        shape: &mut StepShape<G>,
        step: &Step<'_>,
        grid: impl Fn(usize, KvLayout, &[QueryRow]) -> G,
    ) {
        let StepShape { grids, .. } = shape;
        grids.clear();
        let mut next = StepShape {
            segments: step.segments.iter().fold(0, |all, &name| all | bit(name)),
            counts: step.counts,
            k: step.k,
            first_window: step.first_window,
            n_tokens: step.tokens.len(),
            n_positions: step.positions.len(),
            n_slots: step.slots.map(<[KvRow]>::len),
            n_outputs: step.output_rows.len(),
            n_logit_filters: step.logit_filters.len(),
            n_copies: padded_copies(step.copies.len()),
            grids: std::mem::take(grids),
        };
        for input in &self.attention {
            let rows = input.rows(step, next.segments);
            next.grids.push(grid(input.n_heads, input.layout, rows));
        }
        *shape = next;
    }

    /// Number of the attention that an op is, in a segment.
    pub(crate) fn attention(
        &self,
        args: &AttentionArgs,
        pool: &KvShape,
        segment: SegmentName,
    ) -> usize {
        let (table, n_heads, layout) = (args.rows, args.n_heads, pool.layout());
        let input = AttentionInput { table, segment, n_heads, layout };
        self.attention.iter().position(|other| *other == input).expect("an op of the program")
    }

    /// Writes the inputs of a step.
    ///
    /// # Panics
    /// If an input is outside of what it indexes.
    pub(crate) fn fill<G: Grid>(&mut self, step: &Step<'_>, shape: &StepShape<G>) {
        self.check(step);
        let places = shape.places();
        let Self { words, attention, .. } = self;
        words.clear();
        words.extend_from_slice(step.tokens);
        words.extend_from_slice(step.positions);
        for slots in step.slots {
            words.extend(slots.iter().flat_map(|row| [row.page, row.slot]));
        }
        words.extend(step.output_rows.iter().map(|&row| row as u32));
        let page_tables_len: usize = step.rows.iter().map(|table| table.page_table.len()).sum();
        let suppressed = (places.end + page_tables_len) as u32;
        words.extend(step.logit_filters.iter().flat_map(|filter| filter_words(filter, suppressed)));
        words.extend(step.copies.iter().flat_map(|&PageCopy { from, to }| [from, to]));
        words.extend(std::iter::repeat_n(0, 2 * (shape.n_copies - step.copies.len())));
        let mut page_table = places.end;
        let page_tables = step.rows.map(|table| {
            let first = page_table;
            page_table += table.page_table.len();
            first
        });
        for (input, grid) in attention.iter().zip(&shape.grids) {
            let page_table = page_tables[input.table.index()];
            grid.push_words(input.rows(step, shape.segments), page_table, words);
        }
        assert_eq!(words.len(), places.end, "places of the inputs");
        step.rows.iter().for_each(|table| words.extend_from_slice(table.page_table));
        words.extend_from_slice(step.suppressed);
    }

    fn check(&self, step: &Step<'_>) {
        let Limits { n_tokens, n_positions, slot_pages, row_pages, copied_pages, n_logits } =
            &self.limits;
        let check = |what: &str, values: &[u32], limit: Option<usize>| {
            let limit = limit.unwrap_or(usize::MAX);
            let max = values.iter().max().map_or(0, |&value| value as usize);
            assert!(values.is_empty() || max < limit, "{what} {max} of {limit}");
        };
        // A reference is to a token of the table.
        step.tokens
            .iter()
            .for_each(|&token| check("token", &[resolve_token(token, |_| 0.0)], *n_tokens));
        check("position", step.positions, *n_positions);
        let n_rows = step.counts[Count::Tokens];
        let rows = step.output_rows;
        assert!(rows.iter().all(|&row| row < n_rows), "an output outside of {n_rows} rows");
        check("suppressed token", step.suppressed, *n_logits);
        let n_logits = n_logits.unwrap_or_default();
        let fits = |filter: &LogitFilter| filter.fits(n_logits, step.suppressed.len());
        assert!(step.logit_filters.iter().all(fits), "a filter of other than {n_logits} logits");
        step.copies.iter().for_each(|copy| check("page", &[copy.from, copy.to], *copied_pages));
        for (slots, limit) in step.slots.iter().zip(slot_pages) {
            let limit = limit.unwrap_or(usize::MAX);
            let is_inside =
                |row: &KvRow| (row.page as usize) < limit && (row.slot as usize) < PAGE_LEN;
            assert!(slots.iter().all(is_inside), "a page outside of {limit}");
        }
        for (&AttentionRows { rows, page_table }, limit) in step.rows.iter().zip(row_pages) {
            check("page", page_table, *limit);
            for row in rows {
                let n_pages = row.n_pages as usize;
                let end = row.first_page as usize + n_pages;
                let fits = row.kv_len as usize <= n_pages * PAGE_LEN;
                assert!(fits && end <= page_table.len(), "{row:?} of {} pages", page_table.len());
            }
        }
    }
}

fn lower_positions(limits: &mut Limits, args: &RopeArgs) {
    let rotation = args.rotation.as_ref().filter(|rotation| rotation.n_rot > 0);
    rotation.into_iter().for_each(|rotation| {
        let info = rotation.table.info();
        lower(&mut limits.n_positions, info.rows * info.cols / rotation.n_rot);
    });
}

/// First words of the inputs of a step.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) tokens: usize,
    pub(crate) positions: usize,
    pub(crate) slots: [usize; SlotTable::N],
    pub(crate) outputs: usize,
    pub(crate) logit_filters: usize,
    pub(crate) copies: usize,
    /// Of the first attention.
    pub(crate) attention: usize,
    /// Of the page tables.
    end: usize,
}
