//! The conformance suite: every op on a backend against [`Reference`], over odd shapes.
//!
//! A case builds its inputs from a seed, runs one op and returns what it wrote; the same case runs
//! on both backends. Inputs with a stride carry NaN in the gaps, and KV pages start as NaN in the
//! oracle, so reading what must not be read shows.

use pollster::block_on;
use stonechat_compute::DType;
use stonechat_nn::{
    Activation, Attention, Backend, Embed, Epilogue, Experts, GatedActivation, KvDType, KvShape,
    MatrixSource, PAGE_LEN, QueryRow, Rope, RopePairs, Rotation, Routing, Rows, View,
};

use crate::{Lcg, Reference, random_weights};

/// Largest accepted error: `|got - expected| <= absolute + relative * max|expected|`.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// Absolute part.
    pub absolute: f32,
    /// Part of the largest expected magnitude.
    pub relative: f32,
}

/// What f32 sums of well-scaled values keep.
pub const F32: Tolerance = Tolerance { absolute: 1e-6, relative: 2e-6 };
/// What 8-bit activations keep: half a step of 1/127 of the largest value in a block, averaged
/// over the sum.
pub const INT8: Tolerance = Tolerance { absolute: 1e-5, relative: 2e-2 };

/// What 8-bit keys and values keep: the oracle rounds them alike, but a backend may round one
/// that lies between two steps of 1/127 the other way.
pub const Q8_KV: Tolerance = Tolerance { absolute: 1e-5, relative: 5e-3 };

/// Runs every op on each of `backends`.
///
/// # Panics
/// At the first value outside its tolerance, with the backend, the op, the shape and the index.
pub fn run<B: Backend>(backends: &[B]) {
    let lengths = [1, 3, 7, 8, 15, 16, 17, 31, 33, 48, 64, 100, 129];
    for (i, &cols) in lengths.iter().enumerate() {
        let case = Case { rows: [1, 2, 3, 5, 17][i % 5], cols, seed: i as u64 };
        case.check("copy", F32, backends, Case::copy, &case.copy(&Reference));
        for bias in [true, false] {
            let oracle = case.layer_norm(&Reference, bias);
            case.check("layer_norm", F32, backends, |c, b| c.layer_norm(b, bias), &oracle);
        }
        case.check("rms_norm", F32, backends, Case::rms_norm, &case.rms_norm(&Reference));
        case.check("gated", F32, backends, Case::gated, &case.gated(&Reference));
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let oracle = case.embed(&Reference, dtype);
            case.check("embed", F32, backends, |c, b| c.embed(b, dtype), &oracle);
        }
        for n_rot in [0, case.cols / 2 / 2 * 2, case.cols / 2 * 2] {
            let oracle = case.rope(&Reference, n_rot);
            let name = format!("rope of {n_rot} channels");
            case.check(&name, F32, backends, |c, b| c.rope(b, n_rot), &oracle);
        }
        for stride in [1, 2] {
            let oracle = case.conv1d(&Reference, stride);
            case.check("conv1d", F32, backends, |c, b| c.conv1d(b, stride), &oracle);
        }
    }
    // Rows on both sides of every switch between kernels.
    for rows in [1, 2, 5, 16, 17, 40] {
        for (n, k) in [(1, 1), (5, 3), (33, 65), (67, 96), (129, 256)] {
            let case = Case { rows, cols: k, seed: (rows * n + k) as u64 };
            for &dtype in DType::ALL.iter().filter(|d| stored_as_weights(**d)) {
                if k % dtype.block_len() == 0 {
                    let tolerance = if dtype.is_quantized() { INT8 } else { F32 };
                    let name = format!("matmul {dtype} n={n}");
                    let oracle = case.matmul(&Reference, dtype, n);
                    case.check(&name, tolerance, backends, |c, b| c.matmul(b, dtype, n), &oracle);
                }
            }
        }
    }
    for (i, head_dim) in [1, 8, 20, 64, 80].into_iter().enumerate() {
        for (n_heads, n_kv_heads) in [(2, 2), (6, 2)] {
            for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
                let heads = Heads { n_heads, n_kv_heads, head_dim, dtype, seed: i as u64 };
                heads.check(backends);
            }
        }
    }
    for (i, dtype) in [DType::F32, DType::F16, DType::Q8_0, DType::Q4K].into_iter().enumerate() {
        // Few and many tokens of an expert, on both sides of the switch between kernels.
        for rows in [1, 3, 60] {
            for (n_experts, n_used) in [(4, 2), (5, 1)] {
                let mixture = Mixture { n_experts, n_used, rows, dtype, seed: i as u64 };
                mixture.check(backends);
            }
        }
    }
}

fn stored_as_weights(dtype: DType) -> bool {
    !matches!(
        dtype,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::F64 | DType::Q8_1 | DType::Q8K
    )
}

/// Random inputs of a shape.
#[derive(Debug)]
struct Case {
    rows: usize,
    cols: usize,
    seed: u64,
}

impl Case {
    #[track_caller]
    fn check<B: Backend>(
        &self,
        name: &str,
        tolerance: Tolerance,
        backends: &[B],
        run: impl Fn(&Self, &B) -> Vec<f32>,
        expected: &[f32],
    ) {
        let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let limit = tolerance.absolute + tolerance.relative * largest;
        for backend in backends {
            let got = run(self, backend);
            assert_eq!(got.len(), expected.len());
            for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
                assert!(
                    (got - expected).abs() <= limit,
                    "{}: {name} {self:?}: value {i} is {got}, expected {expected} within {limit}",
                    backend.describe()
                );
            }
        }
    }

    fn random(&self) -> Lcg {
        Lcg::new(self.seed * 1000 + self.cols as u64)
    }

    /// Rows with a stride larger than their width and NaN between them.
    fn strided<B: Backend>(&self, backend: &B, random: &mut Lcg) -> (B::Buffer, Rows) {
        let rows = Rows { offset: 2, rows: self.rows, cols: self.cols, stride: self.cols + 3 };
        let mut values = vec![f32::NAN; rows.end() + 1];
        for r in 0..self.rows {
            let start = rows.offset + r * rows.stride;
            values[start..start + self.cols].copy_from_slice(&random.normals(self.cols, 1.0));
        }
        (upload(backend, &values), rows)
    }

    fn copy<B: Backend>(&self, backend: &B) -> Vec<f32> {
        let (x, rows) = self.strided(backend, &mut self.random());
        let mut out = upload(backend, &vec![9.0; self.rows * self.cols + 2]);
        backend.copy(&mut out, 1, View::new(&x, rows));
        download(backend, &out, self.rows * self.cols + 2)
    }

    fn layer_norm<B: Backend>(&self, backend: &B, has_bias: bool) -> Vec<f32> {
        let mut random = self.random();
        let (x, rows) = self.strided(backend, &mut random);
        let weight = upload(backend, &random.normals(self.cols, 1.0));
        let bias = has_bias.then(|| upload(backend, &random.normals(self.cols, 1.0)));
        let mut out = upload(backend, &vec![0.0; self.rows * self.cols]);
        backend.layer_norm(&mut out, View::new(&x, rows), &weight, bias.as_ref(), 1e-5);
        download(backend, &out, self.rows * self.cols)
    }

    fn rms_norm<B: Backend>(&self, backend: &B) -> Vec<f32> {
        let mut random = self.random();
        let (x, rows) = self.strided(backend, &mut random);
        let weight = upload(backend, &random.normals(self.cols, 1.0));
        let len = self.rows * self.cols;
        let mut results = Vec::new();
        for accumulate in [false, true] {
            let mut out = upload(backend, &random.normals(len, 1.0));
            backend.rms_norm(&mut out, View::new(&x, rows), &weight, 1e-6, accumulate);
            results.extend(download(backend, &out, len));
        }
        results
    }

    fn gated<B: Backend>(&self, backend: &B) -> Vec<f32> {
        let mut random = self.random();
        let (gate, gate_rows) = self.strided(backend, &mut random);
        let (up, up_rows) = self.strided(backend, &mut random);
        let len = self.rows * self.cols;
        let mut results = Vec::new();
        for activation in [
            GatedActivation::Silu,
            GatedActivation::GeluTanh,
            GatedActivation::ClampedSwiglu { alpha: 1.702, limit: 0.75 },
        ] {
            let mut out = upload(backend, &vec![f32::NAN; len]);
            let (gate, up) = (View::new(&gate, gate_rows), View::new(&up, up_rows));
            backend.gated(&mut out, gate, up, activation);
            results.extend(download(backend, &out, len));
        }
        results
    }

    /// Three heads as wide as the case, with and without norm, in both pairings and unrotated.
    fn rope<B: Backend>(&self, backend: &B, n_rot: usize) -> Vec<f32> {
        let mut random = self.random();
        let wide = Self { rows: self.rows, cols: 3 * self.cols, seed: self.seed };
        let weight = upload(backend, &random.normals(self.cols, 1.0));
        let angles = random.normals(self.rows * n_rot / 2, 3.0);
        let mut cos_sin = Vec::with_capacity(2 * angles.len());
        for row in angles.chunks(n_rot / 2 + usize::from(n_rot == 0)) {
            cos_sin.extend(row.iter().map(|a| a.cos()));
            cos_sin.extend(row.iter().map(|a| a.sin()));
        }
        let cos_sin = upload(backend, &cos_sin);
        let mut results = Vec::new();
        for norm in [None, Some((&weight, 1e-6))] {
            for pairs in [None, Some(RopePairs::Adjacent), Some(RopePairs::Halves)] {
                let (mut x, rows) = wide.strided(backend, &mut random);
                let rotation = pairs.map(|pairs| Rotation { cos_sin: &cos_sin, n_rot, pairs });
                backend.rope(&mut x, rows, Rope { head_dim: self.cols, norm, rotation });
                let mut packed = upload(backend, &vec![0.0; wide.rows * wide.cols]);
                backend.copy(&mut packed, 0, View::new(&x, rows));
                results.extend(download(backend, &packed, wide.rows * wide.cols));
            }
        }
        results
    }

    fn embed<B: Backend>(&self, backend: &B, dtype: DType) -> Vec<f32> {
        let mut random = self.random();
        let table = weights(backend, &mut random, dtype, 11, self.cols);
        let positions = upload(backend, &random.normals(7 * self.cols, 1.0));
        let tokens: Vec<u32> = (0..self.rows).map(|_| random.next_u32() % 11).collect();
        let pos: Vec<u32> = (0..self.rows).map(|_| random.next_u32() % 7).collect();
        let mut results = Vec::new();
        for (scale, positions) in [(1.0, Some((&positions, &pos[..]))), (2.5, None)] {
            let mut out = upload(backend, &vec![0.0; self.rows * self.cols]);
            backend.embed(&mut out, &table, Embed { tokens: &tokens, scale, positions });
            results.extend(download(backend, &out, self.rows * self.cols));
        }
        results
    }

    fn matmul<B: Backend>(&self, backend: &B, dtype: DType, n: usize) -> Vec<f32> {
        let mut random = self.random();
        let (x, rows) = self.strided(backend, &mut random);
        let w = weights(backend, &mut random, dtype, n, self.cols);
        let bias = upload(backend, &random.normals(n, 1.0));
        let mut results = Vec::new();
        for (bias, activation, accumulate) in [
            (None, Activation::None, false),
            (Some(&bias), Activation::Gelu, false),
            (Some(&bias), Activation::GeluTanh, false),
            (Some(&bias), Activation::None, true),
        ] {
            let mut out = upload(backend, &random.normals(self.rows * n, 1.0));
            let epilogue = Epilogue { bias, activation, accumulate };
            backend.matmul(&mut out, View::new(&x, rows), &w, epilogue);
            results.extend(download(backend, &out, self.rows * n));
        }
        results
    }

    fn conv1d<B: Backend>(&self, backend: &B, stride: usize) -> Vec<f32> {
        let mut random = self.random();
        let n = 5;
        let x = upload(backend, &random.normals(self.rows * self.cols, 1.0));
        let w = weights(backend, &mut random, DType::F32, n, 3 * self.cols);
        let bias = upload(backend, &random.normals(n, 1.0));
        let len = self.rows.div_ceil(stride) * n;
        let mut out = upload(backend, &random.normals(len, 1.0));
        let epilogue =
            Epilogue { bias: Some(&bias), activation: Activation::Gelu, accumulate: true };
        backend.conv1d(&mut out, View::packed(&x, self.rows, self.cols), &w, stride, epilogue);
        download(backend, &out, len)
    }
}

/// A ragged batch over two sequences with pages out of order.
#[derive(Debug)]
struct Heads {
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    dtype: KvDType,
    seed: u64,
}

/// What scores and softmax are given beside keys and queries.
#[derive(Debug, Clone, Copy, Default)]
struct Scoring {
    /// Positions that a row sees at most.
    window: Option<u32>,
    soft_cap: Option<f32>,
    slopes: bool,
    sinks: bool,
}

impl Heads {
    fn check<B: Backend>(&self, backends: &[B]) {
        let plain = Scoring::default();
        let case = Case { rows: self.n_heads, cols: self.head_dim, seed: self.seed };
        let tolerance = if self.dtype == KvDType::Q8_0 { Q8_KV } else { F32 };
        for scoring in [
            plain,
            Scoring { window: Some(1), ..plain },
            Scoring { window: Some(70), ..plain },
            Scoring { soft_cap: Some(1.5), ..plain },
            Scoring { slopes: true, ..plain },
            Scoring { sinks: true, ..plain },
            Scoring { window: Some(9), soft_cap: Some(50.0), slopes: true, sinks: true },
        ] {
            let name = format!("attention {self:?} {scoring:?}");
            let oracle = self.attention(&Reference, scoring);
            case.check(&name, tolerance, backends, |_, b| self.attention(b, scoring), &oracle);
        }
    }

    /// A pool of two sequences, the first over pages 7, 1 and 3, the second on page 5.
    fn pool<B: Backend>(&self, backend: &B, random: &mut Lcg, layer: usize) -> B::Kv {
        let Self { n_kv_heads, head_dim, dtype, .. } = *self;
        let shape = KvShape { n_layers: 2, n_pages: 8, n_kv_heads, head_dim, dtype };
        let mut kv = backend.kv(shape).expect("a small pool");
        let page_table = [6u32, 1, 3, 5];
        let width = n_kv_heads * head_dim;
        for (first, len) in [0, 3].into_iter().zip(Self::LENGTHS) {
            let rows: Vec<_> = (0..len)
                .map(|pos| stonechat_nn::KvRow {
                    page: page_table[first + pos / PAGE_LEN],
                    slot: (pos % PAGE_LEN) as u32,
                })
                .collect();
            let both = upload(backend, &random.normals(len * 2 * width, 1.0));
            let all = Rows::packed(len, 2 * width);
            let part = |i| View::new(&both, all.columns(i * width, width));
            backend.kv_write(&mut kv, layer, part(0), part(1), &rows);
        }
        backend.kv_copy_page(&mut kv, 6, 7);
        kv
    }

    /// Lengths around page edges; the second sequence decodes a single token.
    const LENGTHS: [usize; 2] = [2 * PAGE_LEN + 3, PAGE_LEN];

    fn attention<B: Backend>(&self, backend: &B, scoring: Scoring) -> Vec<f32> {
        let Self { n_heads, head_dim, seed, .. } = *self;
        let mut random = Lcg::new(seed);
        let layer = 1;
        let kv = self.pool(backend, &mut random, layer);
        let page_table = [7u32, 1, 3, 5];
        let row = |first_page, n_pages, kv_len: usize| {
            let kv_len = kv_len as u32;
            let kv_start = scoring.window.map_or(0, |window| kv_len.saturating_sub(window));
            QueryRow { first_page, n_pages, kv_start, kv_len }
        };
        let [long, short] = Self::LENGTHS;
        let mut rows: Vec<QueryRow> = (long - 70..long).map(|pos| row(0, 3, pos + 1)).collect();
        rows.extend([row(3, 1, short), row(0, 3, 1)]);
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
        };
        backend.attention(&mut out, args);
        download(backend, &out, len)
    }
}

/// A small mixture of experts.
#[derive(Debug)]
struct Mixture {
    n_experts: usize,
    n_used: usize,
    rows: usize,
    dtype: DType,
    seed: u64,
}

impl Mixture {
    fn check<B: Backend>(&self, backends: &[B]) {
        let tolerance = if self.dtype.is_quantized() { INT8 } else { F32 };
        let case = Case { rows: self.rows, cols: self.n_experts, seed: self.seed };
        for routing in [Routing::Softmax, Routing::SoftmaxOfChosen] {
            for has_bias in [false, true] {
                let name = format!("moe {self:?} {routing:?} bias {has_bias}");
                let oracle = self.moe(&Reference, routing, has_bias);
                let run = |_: &Case, b: &B| self.moe(b, routing, has_bias);
                case.check(&name, tolerance, backends, run, &oracle);
            }
        }
    }

    fn moe<B: Backend>(&self, backend: &B, routing: Routing, has_bias: bool) -> Vec<f32> {
        let Self { n_experts, n_used, rows, dtype, seed } = *self;
        let mut random = Lcg::new(seed);
        // Whole blocks in both directions; an odd width where the type has no blocks.
        let (d, f) = if dtype.is_quantized() { (256, 512) } else { (33, 20) };
        let tokens = Case { rows, cols: d, seed };
        let (x, x_rows) = tokens.strided(backend, &mut random);
        let (logits, logit_rows) = Case { cols: n_experts, ..tokens }.strided(backend, &mut random);
        let mut bias = |len| has_bias.then(|| upload(backend, &random.normals(len, 1.0)));
        let (gate_bias, up_bias, down_bias) =
            (bias(n_experts * f), bias(n_experts * f), bias(n_experts * d));
        let mut stack = |n, k| weights(backend, &mut random, dtype, n_experts * n, k);
        let experts = Experts {
            gate: stack(f, d),
            up: stack(f, d),
            down: stack(d, f),
            gate_bias,
            up_bias,
            down_bias,
            n_experts,
            n_used,
            routing,
            activation: if has_bias {
                GatedActivation::ClampedSwiglu { alpha: 1.702, limit: 7.0 }
            } else {
                GatedActivation::Silu
            },
        };
        let mut out = upload(backend, &random.normals(rows * d, 1.0));
        let (x, logits) = (View::new(&x, x_rows), View::new(&logits, logit_rows));
        backend.moe(&mut out, x, logits, &experts);
        download(backend, &out, rows * d)
    }
}

fn upload<B: Backend>(backend: &B, values: &[f32]) -> B::Buffer {
    let mut buffer = backend.alloc(values.len()).expect("a small buffer");
    backend.write(&mut buffer, 0, values);
    buffer
}

fn download<B: Backend>(backend: &B, buffer: &B::Buffer, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    block_on(backend.read(buffer, 0, &mut values)).expect("a readable buffer");
    values
}

fn weights<B: Backend>(
    backend: &B,
    random: &mut Lcg,
    dtype: DType,
    rows: usize,
    cols: usize,
) -> B::Matrix {
    let bytes = random_weights(dtype, random, (rows, cols), 1.0 / (cols as f32).sqrt());
    let source = MatrixSource { name: "test", rows, cols, dtype, bytes: &bytes };
    backend.matrix(source).expect("a supported type")
}
