//! Inputs of a step as the words that kernels of GPUs read, and the shape of the step.
//!
//! ```text
//! tokens | positions | slots of each table | rows of outputs | logit filters | page copies | rows of states |
//! rows of each attention | page tables | suppressed tokens
//! ```
//!
//! The place of each follows from the [`StepShape`], so that steps of equal shape run the same list of dispatches. Page tables
//! and suppressed tokens come last: rows and filters have the places of theirs.

use std::fmt::Debug;
use std::hash::Hash;

use stonechat_compute::op::{AttentionArgs, KvLayout, Op, RopeAttentionArgs, RowTable, SlotTable};

use crate::inputs::Step;
use crate::program::{Counts, Program, Segment, SegmentName};
use crate::{KvShape, LogitFilter, PageCopy, QueryRow, StateRun};

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
    n_state_rows: usize,
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

/// Words of a row of a [`StateRun`].
const STATE_WORDS: usize = 4;

/// First row of each row's run, end of the run, slot before it (the largest number without one), slot after it.
fn state_words(runs: &[StateRun]) -> impl Iterator<Item = u32> {
    let mut end = 0;
    runs.iter().flat_map(move |&StateRun { n_rows, from, to }| {
        let first = end;
        end += n_rows;
        let words = [first, end, from.unwrap_or(u32::MAX), to];
        (0..n_rows).flat_map(move |_| words)
    })
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
            n_state_rows: 0,
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
            states: place(STATE_WORDS * self.n_state_rows),
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
    fn new(args: &AttentionArgs, pool: &KvShape, segment: SegmentName) -> Self {
        let (table, n_heads, layout) = (args.rows, args.n_heads, pool.layout());
        Self { table, segment, n_heads, layout }
    }

    /// Rows in a step that runs `segments`.
    fn rows<'a>(&self, step: &Step<'a>, segments: u32) -> &'a [QueryRow] {
        if segments & bit(self.segment) != 0 { step.rows(self.table).rows } else { &[] }
    }
}

/// Inputs of a step as words.
#[derive(Debug)]
pub(crate) struct StepWords {
    pub(crate) words: Vec<u32>,
    attention: Vec<AttentionInput>,
}

impl StepWords {
    pub(crate) fn new(program: &Program) -> Self {
        let mut attention = Vec::new();
        for segment in &program.segments {
            for node in &segment.nodes {
                let (Op::Attention(args)
                | Op::RopeAttention(RopeAttentionArgs { attention: args, .. })) = &node.op
                else {
                    continue;
                };
                let input = AttentionInput::new(args, &program.pools[args.pool.0], segment.name);
                if !attention.contains(&input) {
                    attention.push(input);
                }
            }
        }
        Self { words: Vec::new(), attention }
    }

    /// Sets the shape of a step; `grid` divides rows for an attention, by its number of query heads.
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
            n_slots: step.slots.map(<[_]>::len),
            n_outputs: step.output_rows.len(),
            n_logit_filters: step.logit_filters.len(),
            n_copies: padded_copies(step.copies.len()),
            n_state_rows: step.states.iter().map(|run| run.n_rows as usize).sum(),
            grids: std::mem::take(grids),
        };
        for input in &self.attention {
            let rows = input.rows(step, next.segments);
            next.grids.push(grid(input.n_heads, input.layout, rows));
        }
        *shape = next;
    }

    /// Index of an attention op among those of its segment.
    pub(crate) fn attention(
        &self,
        args: &AttentionArgs,
        pool: &KvShape,
        segment: SegmentName,
    ) -> usize {
        let input = AttentionInput::new(args, pool, segment);
        self.attention.iter().position(|other| *other == input).expect("an op of the program")
    }

    /// Writes the inputs of a step.
    pub(crate) fn fill<G: Grid>(&mut self, step: &Step<'_>, shape: &StepShape<G>) {
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
        words.extend(state_words(step.states));
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
    /// Words of [`state_words`].
    pub(crate) states: usize,
    /// First word of the first attention.
    pub(crate) attention: usize,
    /// First word of the page tables.
    end: usize,
}
