//! The conformance suite: every op on a backend against [`Reference`], over odd shapes.
//!
//! A case builds its inputs from a seed, runs one op and returns what it wrote; the same case runs
//! on both backends. Inputs with a stride carry NaN in the gaps, and KV pages start as NaN in the
//! oracle, so reading what must not be read shows.

use pollster::block_on;
use stonechat_compute::DType;
use stonechat_nn::{
    Activation, Attention, Backend, Embed, Epilogue, KvDType, KvShape, MatrixSource, PAGE_LEN,
    QueryRow, Rows, View,
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

/// Runs every op on each of `backends`.
///
/// # Panics
/// At the first value outside its tolerance, with the backend, the op, the shape and the index.
pub fn run<B: Backend>(backends: &[B]) {
    let lengths = [1, 3, 7, 8, 15, 16, 17, 31, 33, 48, 64, 100, 129];
    for (i, &cols) in lengths.iter().enumerate() {
        let case = Case { rows: [1, 2, 3, 5, 17][i % 5], cols, seed: i as u64 };
        case.check("copy", F32, backends, Case::copy, &case.copy(&Reference));
        case.check("layer_norm", F32, backends, Case::layer_norm, &case.layer_norm(&Reference));
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let oracle = case.embed(&Reference, dtype);
            case.check("embed", F32, backends, |c, b| c.embed(b, dtype), &oracle);
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
            for dtype in [KvDType::F32, KvDType::F16] {
                let heads = Heads { n_heads, n_kv_heads, head_dim, dtype, seed: i as u64 };
                let case = Case { rows: n_heads, cols: head_dim, seed: i as u64 };
                let name = format!("attention {heads:?}");
                let oracle = heads.attention(&Reference);
                case.check(&name, F32, backends, |_, b| heads.attention(b), &oracle);
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

    fn layer_norm<B: Backend>(&self, backend: &B) -> Vec<f32> {
        let mut random = self.random();
        let (x, rows) = self.strided(backend, &mut random);
        let weight = upload(backend, &random.normals(self.cols, 1.0));
        let bias = upload(backend, &random.normals(self.cols, 1.0));
        let mut out = upload(backend, &vec![0.0; self.rows * self.cols]);
        backend.layer_norm(&mut out, View::new(&x, rows), &weight, Some(&bias), 1e-5);
        download(backend, &out, self.rows * self.cols)
    }

    fn embed<B: Backend>(&self, backend: &B, dtype: DType) -> Vec<f32> {
        let mut random = self.random();
        let table = weights(backend, &mut random, dtype, 11, self.cols);
        let positions = upload(backend, &random.normals(7 * self.cols, 1.0));
        let tokens: Vec<u32> = (0..self.rows).map(|_| random.next_u32() % 11).collect();
        let pos: Vec<u32> = (0..self.rows).map(|_| random.next_u32() % 7).collect();
        let mut out = upload(backend, &vec![0.0; self.rows * self.cols]);
        let args = Embed { tokens: &tokens, scale: 1.0, positions: Some((&positions, &pos)) };
        backend.embed(&mut out, &table, args);
        download(backend, &out, self.rows * self.cols)
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

impl Heads {
    fn attention<B: Backend>(&self, backend: &B) -> Vec<f32> {
        let Self { n_heads, n_kv_heads, head_dim, dtype, seed } = *self;
        let mut random = Lcg::new(seed);
        let shape = KvShape { n_layers: 2, n_pages: 8, n_kv_heads, head_dim, dtype };
        let mut kv = backend.kv(shape).expect("a small pool");
        let layer = 1;
        // Lengths around page edges; the second sequence decodes a single token.
        let lengths = [2 * PAGE_LEN + 3, PAGE_LEN];
        let page_table = [6u32, 1, 3, 5];
        let firsts = [0u32, 3];
        let width = n_kv_heads * head_dim;
        for (first, &len) in firsts.iter().zip(&lengths) {
            let rows: Vec<_> = (0..len)
                .map(|pos| stonechat_nn::KvRow {
                    page: page_table[*first as usize + pos / PAGE_LEN],
                    slot: (pos % PAGE_LEN) as u32,
                })
                .collect();
            let both = upload(backend, &random.normals(len * 2 * width, 1.0));
            let all = Rows::packed(len, 2 * width);
            let part = |i| View::new(&both, all.columns(i * width, width));
            backend.kv_write(&mut kv, layer, part(0), part(1), &rows);
        }
        backend.kv_copy_page(&mut kv, 6, 7);
        let page_table = [7u32, 1, 3, 5];
        let mut rows: Vec<QueryRow> = (lengths[0] - 70..lengths[0])
            .map(|pos| QueryRow { first_page: 0, n_pages: 3, kv_start: 0, kv_len: pos as u32 + 1 })
            .collect();
        rows.push(QueryRow { first_page: 3, n_pages: 1, kv_start: 0, kv_len: lengths[1] as u32 });
        rows.push(QueryRow { first_page: 0, n_pages: 3, kv_start: 0, kv_len: 1 });
        let case = Case { rows: rows.len(), cols: n_heads * head_dim, seed };
        let (q, q_rows) = case.strided(backend, &mut random);
        let len = rows.len() * n_heads * head_dim;
        let mut out = upload(backend, &vec![0.0; len]);
        let scale = 1.0 / (head_dim as f32).sqrt();
        let args = Attention {
            q: View::new(&q, q_rows),
            kv: &kv,
            layer,
            n_heads,
            scale,
            soft_cap: None,
            slopes: None,
            sinks: None,
            rows: &rows,
            page_table: &page_table,
        };
        backend.attention(&mut out, args);
        download(backend, &out, len)
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
