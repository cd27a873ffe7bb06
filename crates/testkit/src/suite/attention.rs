//! Cases of [`Backend::attention`], [`Backend::kv_write`] and [`Backend::kv_copy_page`].

use stonechat_nn::{
    Attention, Backend, KvDType, KvRow, KvShape, PAGE_LEN, Precision, QueryRow, Rows, View,
};

use super::{BF16_FACTORS, Case, F32, Q8_KV, Tolerance, download, upload};
use crate::{Lcg, Reference};

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

impl AttentionCase {
    pub(super) fn check<B: Backend>(&self, backends: &[B], f16_tolerance: Tolerance) {
        let plain = Scoring::default();
        let case = Case { rows: self.n_heads, cols: self.head_dim, seed: self.seed };
        let tolerance = match self.dtype {
            KvDType::F32 => F32,
            KvDType::F16 => f16_tolerance,
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
            let oracle = self.attention(&Reference, scoring);
            let tolerance =
                if scoring.precision == Precision::F32 { tolerance } else { BF16_FACTORS };
            case.check(&name, tolerance, backends, |_, b| self.attention(b, scoring), &oracle);
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

    /// Writes both sequences to a new pool.
    fn pool<B: Backend>(&self, backend: &B, random: &mut Lcg, layer: usize) -> B::Kv {
        let Self { n_kv_heads, head_dim, dtype, .. } = *self;
        let shape = KvShape { n_layers: 2, n_pages: 20, n_kv_heads, head_dim, dtype };
        let mut kv = backend.kv(shape).expect("a small pool");
        let (long, short) = self.pages();
        let width = n_kv_heads * head_dim;
        for (pages, len) in [&long[..], &[short]].into_iter().zip(self.lengths()) {
            let rows: Vec<_> = (0..len)
                .map(|pos| KvRow { page: pages[pos / PAGE_LEN], slot: (pos % PAGE_LEN) as u32 })
                .collect();
            let both = upload(backend, &random.normals(len * 2 * width, 1.0));
            let all = Rows::packed(len, 2 * width);
            let part = |i| View::new(&both, all.columns(i * width, width));
            backend.kv_write(&mut kv, layer, part(0), part(1), &rows);
        }
        backend.kv_copy_page(&mut kv, 6, 7);
        kv
    }

    fn attention<B: Backend>(&self, backend: &B, scoring: Scoring) -> Vec<f32> {
        let Self { n_heads, head_dim, seed, .. } = *self;
        let mut random = Lcg::new(seed);
        let layer = 1;
        let kv = self.pool(backend, &mut random, layer);
        let (mut page_table, last) = self.pages();
        page_table[0] = 7;
        let n_pages = page_table.len() as u32;
        page_table.push(last);
        let row = |first_page, n_pages, kv_len: usize| {
            let kv_len = kv_len as u32;
            let kv_start = scoring.window.map_or(0, |window| kv_len.saturating_sub(window));
            QueryRow { first_page, n_pages, kv_start, kv_len }
        };
        let [long, short] = self.lengths();
        let first = long - if self.decode { 2 } else { 70 };
        let mut rows: Vec<QueryRow> = (first..long).map(|pos| row(0, n_pages, pos + 1)).collect();
        rows.extend([row(n_pages, 1, short), row(0, n_pages, 1)]);
        let case = Case { rows: rows.len(), cols: n_heads * head_dim, seed };
        let (q, q_rows) = case.strided(backend, &mut random);
        let slopes = scoring.slopes.then(|| upload(backend, &random.normals(n_heads, 0.1)));
        let sinks = scoring.sinks.then(|| upload(backend, &random.normals(n_heads, 2.0)));
        let len = rows.len() * n_heads * head_dim;
        let mut out = upload(backend, &vec![0.0; len]);
        let args = Attention {
            q: View::new(&q, q_rows),
            kv: &kv,
            layer,
            n_heads,
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: scoring.soft_cap,
            slopes: slopes.as_ref(),
            sinks: sinks.as_ref(),
            rows: &rows,
            page_table: &page_table,
            precision: scoring.precision,
        };
        backend.attention(&mut out, args);
        download(backend, &out, len)
    }
}
