//! Cases of [`Op::Attention`](stonechat_nn::op::Op::Attention), [`Op::KvWrite`](stonechat_nn::op::Op::KvWrite) and copies
//! of pages.

use stonechat_nn::op::{
    AttentionArgs, Count, KvShape, KvWriteArgs, PoolId, RowTable, Rows, SlotTable,
};
use stonechat_nn::{KvDType, KvRow, PAGE_LEN, PageCopy, Precision, QueryRow, SegmentName};

use super::recording::{OTHER_SLOTS, Recording, Suite};
use super::{BF16_FACTORS, F32, Q8_KV};

/// A ragged batch of two sequences with non-contiguous pages.
#[derive(Debug)]
pub(super) struct AttentionCase {
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) dtype: KvDType,
    /// Decode (2 rows of a long sequence) or prefill (70 rows).
    pub(super) decode: bool,
    pub(super) seed: u64,
}

/// Options of scores and softmax.
#[derive(Debug, Clone, Copy, Default)]
struct Scoring {
    /// Sliding window, in positions.
    window: Option<u32>,
    soft_cap: Option<f32>,
    slopes: bool,
    sinks: bool,
    precision: Precision,
}

/// Layer of the pool.
const LAYER: usize = 1;

/// Runs every shape.
pub(super) fn check(suite: &Suite<'_>) {
    for (i, head_dim) in [1, 8, 20, 64, 80].into_iter().enumerate() {
        for (n_heads, n_kv_heads) in [(2, 2), (6, 2)] {
            for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
                for decode in [false, true] {
                    let seed = i as u64;
                    AttentionCase { n_heads, n_kv_heads, head_dim, dtype, decode, seed }
                        .check(suite);
                }
            }
        }
    }
}

impl AttentionCase {
    pub(super) fn check(&self, suite: &Suite<'_>) {
        let plain = Scoring::default();
        let tolerance = match self.dtype {
            KvDType::F32 => F32,
            KvDType::F16 => suite.tolerances.f16,
            KvDType::Q8_0 => Q8_KV,
        };
        for scoring in [
            plain,
            Scoring { window: Some(1), ..plain },
            Scoring { window: Some(70), ..plain },
            Scoring { soft_cap: Some(1.5), ..plain },
            Scoring { slopes: true, ..plain },
            Scoring { sinks: true, ..plain },
            Scoring { window: Some(9), soft_cap: Some(50.0), slopes: true, sinks: true, ..plain },
            Scoring { precision: Precision::AsProducts, ..plain },
            Scoring { precision: Precision::Bf16, ..plain },
            Scoring { window: Some(70), sinks: true, precision: Precision::Bf16, ..plain },
        ] {
            let name = format!("attention {self:?} {scoring:?}");
            let tolerance =
                if scoring.precision == Precision::F32 { tolerance } else { BF16_FACTORS };
            let n_tokens = self.rows(scoring).len();
            suite.check_program(&name, tolerance, (n_tokens, self.seed), |r| {
                let pool = self.write(r);
                self.attention(r, pool, scoring);
            });
        }
    }

    /// Pages of the first sequence, and the page of the second. Page 6 is read through its copy, page 7.
    fn pages(&self) -> (Vec<u32>, u32) {
        let rest = [1, 3].into_iter().chain(8..20);
        let n = self.lengths()[0].div_ceil(PAGE_LEN);
        ([6].into_iter().chain(rest).take(n).collect(), 5)
    }

    /// Lengths of the sequences, at page boundaries.
    fn lengths(&self) -> [usize; 2] {
        [if self.decode { 10 * PAGE_LEN + 1 } else { 2 * PAGE_LEN + 3 }, PAGE_LEN]
    }

    /// Rows of the batch.
    fn rows(&self, scoring: Scoring) -> Vec<QueryRow> {
        let n_pages = self.pages().0.len() as u32;
        let row = |first_page, n_pages, kv_len: usize| {
            let kv_len = kv_len as u32;
            let kv_start = scoring.window.map_or(0, |window| kv_len.saturating_sub(window));
            QueryRow { first_page, n_pages, kv_start, kv_len }
        };
        let [long, short] = self.lengths();
        let first = long - if self.decode { 2 } else { 70 };
        let mut rows: Vec<QueryRow> = (first..long).map(|pos| row(0, n_pages, pos + 1)).collect();
        rows.extend([row(n_pages, 1, short), row(0, n_pages, 1)]);
        rows
    }

    /// Writes both sequences to a pool, in a step before that of the attention.
    fn write(&self, r: &mut Recording<'_>) -> PoolId {
        let Self { n_kv_heads, head_dim, dtype, .. } = *self;
        let shape = KvShape { n_layers: 2, n_pages: 20, n_kv_heads, head_dim, dtype };
        let pool = r.ops.pool(shape);
        let (long, short) = self.pages();
        let width = n_kv_heads * head_dim;
        r.ops.segment(SegmentName::CrossKv, Rows::of(Count::Windows));
        let sequences = [(SlotTable::TOKENS, &long[..]), (OTHER_SLOTS, &[short])];
        for ((slots, pages), len) in sequences.into_iter().zip(self.lengths()) {
            r.tables().slots[slots.index()] = (0..len)
                .map(|pos| KvRow { page: pages[pos / PAGE_LEN], slot: (pos % PAGE_LEN) as u32 })
                .collect();
            let both = r.random_rows(Rows { count: Count::Windows, each: len }, 2 * width);
            let [k, v] = [0, width].map(|first| both.columns(first, width));
            r.ops.kv_write(KvWriteArgs { pool, layer: LAYER, slots }, k, v);
        }
        r.tables().copies = vec![PageCopy { from: 6, to: 7 }];
        pool
    }

    fn attention(&self, r: &mut Recording<'_>, pool: PoolId, scoring: Scoring) {
        let Self { n_heads, head_dim, .. } = *self;
        let (mut page_table, last) = self.pages();
        page_table[0] = 7;
        page_table.push(last);
        r.tables().page_table = page_table;
        r.tables().rows = self.rows(scoring);
        r.ops.segment(SegmentName::Body, Rows::of(Count::Tokens));
        let q = r.strided(n_heads * head_dim);
        let args = AttentionArgs {
            pool,
            layer: LAYER,
            n_heads,
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: scoring.soft_cap,
            slopes: scoring.slopes.then(|| r.values(n_heads, 0.1)),
            sinks: scoring.sinks.then(|| r.values(n_heads, 2.0)),
            rows: RowTable::FULL,
            precision: scoring.precision,
        };
        let attended = r.ops.attention(q, args);
        r.output(attended);
    }
}
