//! Conformance suite: every op of a backend against [`Reference`], over odd shapes.
//!
//! A case makes its inputs from a seed, runs one op and returns its outputs, on the backend and on the oracle. Gaps
//! of strided inputs hold NaN, and so do unwritten KV positions of the oracle: a read out of bounds fails the case.

mod attention;
mod layer;
mod moe;
mod top_k;

use pollster::block_on;
use stonechat_compute::{DType, SharedBytes};
use stonechat_nn::{
    Activation, Backend, Embed, Epilogue, GatedActivation, KvDType, MatmulOp, MatrixSource, Rope,
    RopePairs, Rotation, Rows, View,
};

use self::attention::AttentionCase;
use self::layer::Layer;
use self::moe::MoeCase;
use crate::{Lcg, Reference, random_weights};

/// Accepted error: `|got - expected| <= absolute + relative * max|expected|`.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// Absolute error.
    pub absolute: f32,
    /// Error relative to the largest expected magnitude.
    pub relative: f32,
}

/// f32 factors and sums.
const F32: Tolerance = Tolerance { absolute: 1e-6, relative: 2e-6 };
/// f16 factors, f32 sums.
pub const F16_FACTORS: Tolerance = Tolerance { absolute: 1e-5, relative: 1e-3 };
/// q8 activations: a rounding error of `amax / 254` per value of a block, averaged over the sum.
const INT8: Tolerance = Tolerance { absolute: 1e-5, relative: 2e-2 };

/// Attention with bf16 factors: scores have a relative error of up to `2^-7`.
const BF16_FACTORS: Tolerance = Tolerance { absolute: 1e-5, relative: 1e-2 };

/// q8 keys and values: the oracle rounds them alike, but a backend may round ties the other way.
const Q8_KV: Tolerance = Tolerance { absolute: 1e-5, relative: 5e-3 };

/// Runs every op on each of `backends`.
///
/// # Panics
/// At the first value out of tolerance, with the backend, the op, the shape and the index.
pub fn run<B: Backend>(backends: &[B]) {
    run_with(backends, F32);
}

/// As [`run`], with the tolerance of matmuls with f16 and bf16 weights and of attention over f16 pages.
///
/// # Panics
/// Like [`run`].
pub fn run_with<B: Backend>(backends: &[B], f16_tolerance: Tolerance) {
    let lengths = [1, 3, 7, 8, 15, 16, 17, 31, 33, 48, 64, 100, 129];
    for (i, &cols) in lengths.iter().enumerate() {
        let case = Case { rows: [1, 2, 3, 5, 17][i % 5], cols, seed: i as u64 };
        case.check("copy", F32, backends, Case::copy, &case.copy(&Reference));
        for bias in [true, false] {
            let oracle = case.layer_norm(&Reference, bias);
            case.check("layer_norm", F32, backends, |c, b| c.layer_norm(b, bias), &oracle);
        }
        case.check("rms_norm", F32, backends, Case::rms_norm, &case.rms_norm(&Reference));
        case.check("add", F32, backends, Case::add, &case.add(&Reference));
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
    // Row counts below and above every switch between kernels.
    for rows in [1, 2, 5, 16, 17, 40] {
        for (n, k) in [(1, 1), (5, 3), (33, 65), (67, 96), (129, 256)] {
            let case = Case { rows, cols: k, seed: (rows * n + k) as u64 };
            for &dtype in DType::ALL.iter().filter(|d| stored_as_weights(**d)) {
                if k % dtype.block_len() == 0 {
                    let tolerance = match dtype {
                        _ if dtype.is_quantized() => INT8,
                        DType::F16 | DType::BF16 => f16_tolerance,
                        _ => F32,
                    };
                    let name = format!("matmul {dtype} n={n}");
                    let oracle = case.matmul(&Reference, dtype, n);
                    case.check(&name, tolerance, backends, |c, b| c.matmul(b, dtype, n), &oracle);
                }
            }
        }
    }
    top_k::check(backends);
    for (i, head_dim) in [1, 8, 20, 64, 80].into_iter().enumerate() {
        for (n_heads, n_kv_heads) in [(2, 2), (6, 2)] {
            for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
                for decode in [false, true] {
                    let seed = i as u64;
                    AttentionCase { n_heads, n_kv_heads, head_dim, dtype, decode, seed }
                        .check(backends, f16_tolerance);
                }
            }
        }
    }
    for rows in [1, 3, 8, 9, 40] {
        for (dtype, d_ff) in [(DType::F32, 256), (DType::Q8_0, 512), (DType::Q4_1, 256)] {
            Layer { rows, d_ff, dtype, has_norms: rows == 3 }.check(backends);
        }
    }
    for (i, dtype) in [DType::F32, DType::F16, DType::Q8_0, DType::Q4K].into_iter().enumerate() {
        // Few and many tokens per expert, below and above the switch between kernels.
        for rows in [1, 3, 60] {
            for (n_experts, n_used) in [(4, 2), (5, 1)] {
                let case = MoeCase { n_experts, n_used, rows, dtype, seed: i as u64 };
                case.check(backends);
            }
        }
    }
}

/// Compares large matmuls and attention of many heads, for which a backend may select other kernels, with `oracle`.
///
/// # Panics
/// Like [`run`].
pub fn run_large<B: Backend>(backends: &[B], oracle: &impl Backend, f16_tolerance: Tolerance) {
    for (dtype, cols) in [(DType::F16, 40), (DType::Q8_0, 96)] {
        let (case, n) = (Case { rows: 1300, cols, seed: 1 }, 1300);
        let expected = case.matmul(oracle, dtype, n);
        let name = format!("large matmul {dtype}");
        case.check(&name, f16_tolerance, backends, |c, b| c.matmul(b, dtype, n), &expected);
    }
    for head_dim in [8, 64, 80] {
        let case = AttentionCase {
            n_heads: 54,
            n_kv_heads: 2,
            head_dim,
            dtype: KvDType::F16,
            decode: false,
            seed: 3,
        };
        case.check(backends, f16_tolerance);
    }
}

fn stored_as_weights(dtype: DType) -> bool {
    !matches!(
        dtype,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::F64 | DType::Q8_1 | DType::Q8K
    )
}

/// Shape and seed of random inputs.
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

    /// Random rows with NaN in the gaps between them.
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

    fn add<B: Backend>(&self, backend: &B) -> Vec<f32> {
        let mut random = self.random();
        let (x, rows) = self.strided(backend, &mut random);
        let len = self.rows * self.cols;
        let mut out = upload(backend, &random.normals(len, 1.0));
        backend.add(&mut out, View::new(&x, rows));
        download(backend, &out, len)
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

    /// Three heads of `cols` channels: with and without QK norm; adjacent and half-split pairs, and no rotation.
    fn rope<B: Backend>(&self, backend: &B, n_rot: usize) -> Vec<f32> {
        let mut random = self.random();
        let wide = Self { rows: self.rows, cols: 3 * self.cols, seed: self.seed };
        let weight = upload(backend, &random.normals(self.cols, 1.0));
        let (table, positions) = rope_angles(backend, &mut random, self.rows, n_rot);
        let mut results = Vec::new();
        for norm in [None, Some((&weight, 1e-6))] {
            for pairs in [None, Some(RopePairs::Adjacent), Some(RopePairs::Neox)] {
                let (mut x, rows) = wide.strided(backend, &mut random);
                let (table, positions) = (&table, &positions[..]);
                let rotation = pairs.map(|pairs| Rotation { table, positions, n_rot, pairs });
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
        let dense = weights(backend, &mut random, DType::F32, 3, self.cols);
        let bias = upload(backend, &random.normals(n, 1.0));
        let mut results = Vec::new();
        for (bias, activation, accumulate) in [
            (None, Activation::None, false),
            (Some(&bias), Activation::Gelu, false),
            (Some(&bias), Activation::GeluTanh, false),
            (Some(&bias), Activation::None, true),
            (None, Activation::None, true),
        ] {
            let mut out = upload(backend, &random.normals(self.rows * n, 1.0));
            let mut dense_out = upload(backend, &vec![f32::NAN; self.rows * 3]);
            let ops = [
                MatmulOp {
                    out: &mut out,
                    w: &w,
                    epilogue: Epilogue { bias, activation, accumulate },
                    consumer: None,
                },
                MatmulOp {
                    out: &mut dense_out,
                    w: &dense,
                    epilogue: Epilogue {
                        bias: None,
                        activation: Activation::None,
                        accumulate: false,
                    },
                    consumer: None,
                },
            ];
            backend.matmul(View::new(&x, rows), ops);
            results.extend(download(backend, &out, self.rows * n));
            results.extend(download(backend, &dense_out, self.rows * 3));
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

/// Table of cosines and sines with more positions than rows, and a position of each row: the last one first, neither
/// ascending nor descending.
fn rope_angles<B: Backend>(
    backend: &B,
    random: &mut Lcg,
    rows: usize,
    n_rot: usize,
) -> (B::Buffer, Vec<u32>) {
    let n_ctx = rows + 7;
    let angles = random.normals(n_ctx * n_rot / 2, 3.0);
    let table: Vec<f32> = angles
        .chunks((n_rot / 2).max(1))
        .flat_map(|row| row.iter().map(|a| a.cos()).chain(row.iter().map(|a| a.sin())))
        .collect();
    let positions = (0..rows).map(|row| ((3 * row + 1) * (n_ctx - 1) % n_ctx) as u32);
    (upload(backend, &table), positions.collect())
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
    // Any alignment, as in files.
    let mut bytes = vec![0; (random.next_u32() % 2) as usize];
    let start = bytes.len();
    bytes.extend(random_weights(dtype, random, (rows, cols), 1.0 / (cols as f32).sqrt()));
    let bytes = SharedBytes::from(bytes);
    let bytes = &bytes.slice(start..bytes.len());
    let source = MatrixSource { name: "test", rows, cols, dtype, bytes };
    backend.matrix(source).expect("a supported type")
}
