//! Conformance suite: every op of a device against [`Reference`], over odd shapes.
//!
//! A case records a program of one op, or of a layer's ops, with inputs from a seed. It runs on the oracle as recorded, on
//! the device fused and, where fusion changes it, as recorded, and each step runs twice. Gaps of strided inputs hold NaN,
//! and so do unwritten KV positions of the oracle: a read out of bounds fails the case.

mod attention;
mod layer;
mod logits;
mod moe;
pub mod quant;
mod recording;

use pollster::block_on;
use stonechat_compute::DType;
use stonechat_nn::op::{
    ConvArgs, ConvStateArgs, Count, EmbedArgs, MatmulArgs, NormArgs, Op, Port, RopeArgs, Rotation,
    Rows, States, Weight,
};
use stonechat_nn::{
    Activation, Counts, Device, GatedActivation, KvDType, PortRange, Recorder, RopePairs,
    SegmentName, StateRun, Step,
};

use self::attention::AttentionCase;
pub use self::recording::PendingSteps;
use self::recording::{Recording, Suite, compare};
use crate::{Lcg, Reference};

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
const F16_FACTORS: Tolerance = Tolerance { absolute: 1e-5, relative: 1e-3 };
/// q8 activations: a rounding error of `amax / 254` per value of a block, averaged over the sum.
const INT8: Tolerance = Tolerance { absolute: 1e-5, relative: 2e-2 };

/// Attention with bf16 factors: scores have a relative error of up to `2^-7`.
const BF16_FACTORS: Tolerance = Tolerance { absolute: 1e-5, relative: 1e-2 };

/// q8 keys and values: the oracle rounds them alike, but a device may round ties the other way.
const Q8_KV: Tolerance = Tolerance { absolute: 1e-5, relative: 5e-3 };

/// Equal values.
const EXACT: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

/// Tolerances that depend on the factors of a device.
#[derive(Debug, Clone, Copy)]
pub struct Tolerances {
    /// Matmuls with f16 and bf16 weights, attention over f16 pages.
    f16: Tolerance,
    /// Matmuls with quantized weights.
    quantized: Tolerance,
}

impl Tolerances {
    /// f32 factors, and q8 activations for quantized weights.
    pub const F32: Self = Self { f16: F32, quantized: INT8 };
    /// f16 factors, and q8 activations for quantized weights.
    pub const F16_OR_INT8: Self = Self { f16: F16_FACTORS, quantized: INT8 };
    /// f16 factors.
    pub const F16: Self = Self { f16: F16_FACTORS, quantized: F16_FACTORS };
}

/// A part of the suite, which a test can run alone.
#[derive(Debug, Clone, Copy)]
pub enum Part {
    /// Ops on rows, and exports.
    Rows,
    /// Products with up to 5 rows.
    ProductsOfFewRows,
    /// Products with 16 rows or more.
    ProductsOfManyRows,
    /// Largest logits, log-sum-exp and logit filters.
    Logits,
    /// Attention by heads, channels and types of keys.
    Attention,
    /// Ops of a layer.
    Layers,
    /// Mixtures of experts.
    Experts,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 7] = [
        Self::Rows,
        Self::ProductsOfFewRows,
        Self::ProductsOfManyRows,
        Self::Logits,
        Self::Attention,
        Self::Layers,
        Self::Experts,
    ];

    /// Runs the part on each of `devices`.
    ///
    /// # Panics
    /// Like [`run`].
    pub fn run(self, devices: &[Device], tolerances: Tolerances) {
        self.check(&Suite {
            devices,
            oracle: &Device::from(Reference),
            tolerances,
            deferred: None,
        });
    }

    /// Runs the part on each of `devices` without waiting for a result, for browsers.
    ///
    /// # Panics
    /// If a device refuses a program.
    #[must_use]
    pub fn start(self, devices: &[Device], tolerances: Tolerances) -> PendingSteps {
        let all = PendingSteps::default();
        let (oracle, deferred) = (&Device::from(Reference), Some(&all));
        self.check(&Suite { devices, oracle, tolerances, deferred });
        all
    }

    fn check(self, suite: &Suite<'_>) {
        match self {
            Self::Rows => check_rows(suite),
            Self::ProductsOfFewRows => check_products(suite, [1, 2, 5]),
            Self::ProductsOfManyRows => check_products(suite, [16, 17, 40]),
            Self::Logits => logits::check(suite),
            Self::Attention => attention::check(suite),
            Self::Layers => layer::check(suite),
            Self::Experts => moe::check(suite),
        }
    }
}

/// Runs every op on each of `devices`.
///
/// # Panics
/// At the first value out of tolerance, with the device, the op, the shape and the index.
pub fn run(devices: &[Device]) {
    run_with(devices, Tolerances::F32);
}

/// As [`run`], with other tolerances.
///
/// # Panics
/// Like [`run`].
pub fn run_with(devices: &[Device], tolerances: Tolerances) {
    for part in Part::ALL {
        part.run(devices, tolerances);
    }
}

/// Compares large matmuls with those of `oracle`, and attention of many heads: a device may select other kernels for them.
///
/// # Panics
/// Like [`run`].
pub fn run_large(devices: &[Device], oracle: &Device, tolerances: Tolerances) {
    let suite = Suite { devices, oracle, tolerances, deferred: None };
    for (dtype, cols) in [(DType::F16, 40), (DType::Q8_0, 96)] {
        let (case, n) = (Case { rows: 1300, cols, seed: 1 }, 1300);
        let name = format!("large matmul {dtype}");
        case.check(&name, tolerances.f16, &suite, |r| case.matmul(r, dtype, n));
    }
    let suite = Suite { oracle: &Device::from(Reference), ..suite };
    for head_dim in [8, 64, 80] {
        let case = AttentionCase {
            n_heads: 54,
            n_kv_heads: 2,
            head_dim,
            dtype: KvDType::F16,
            decode: false,
            seed: 3,
        };
        case.check(&suite);
    }
}

fn check_rows(suite: &Suite<'_>) {
    let lengths = [1, 3, 7, 8, 15, 16, 17, 31, 33, 48, 64, 100, 129];
    for (i, &cols) in lengths.iter().enumerate() {
        Case { rows: [1, 2, 3, 5, 17][i % 5], cols, seed: i as u64 }.check_rows(suite);
    }
    Case { rows: 80, cols: 520, seed: 13 }.check_conv_state(suite);
    export_windows(suite);
}

/// Row counts below and above every switch between kernels. wgpu compiles a kernel for most combinations, so it tests every
/// second one, of types with their own kernels.
fn check_products(suite: &Suite<'_>, n_rows: [usize; 3]) {
    let is_wgpu = suite.devices.iter().all(|device| device.name() == "wgpu");
    for rows in n_rows {
        for (j, (n, k)) in [(1, 1), (5, 3), (33, 65), (67, 96), (129, 256)].into_iter().enumerate()
        {
            let case = Case { rows, cols: k, seed: (rows * n + k) as u64 };
            let types = DType::ALL.iter().filter(|d| stored_as_weights(**d)).enumerate();
            for (m, &dtype) in types {
                let is_own = suite.devices.iter().any(|device| device.stored_dtype(dtype) == dtype);
                let is_chosen = !is_wgpu || (is_own && (rows + j + m) % 2 == 1);
                if is_chosen && k % dtype.block_len() == 0 {
                    let tolerance = match dtype {
                        _ if dtype.is_quantized() => suite.tolerances.quantized,
                        DType::F16 | DType::BF16 => suite.tolerances.f16,
                        _ => F32,
                    };
                    let name = format!("matmul {dtype} n={n}");
                    case.check(&name, tolerance, suite, |r| case.matmul(r, dtype, n));
                }
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

/// Exports windows of audio to their places, a later one first.
fn export_windows(suite: &Suite<'_>) {
    let (each, cols, places) = (2, 5, 3);
    let values = Lcg::new(4).normals(places * each * (cols + 3), 1.0);
    let window = each * (cols + 3);
    let expected: Vec<f32> =
        values.chunks(cols + 3).flat_map(|row| &row[2..2 + cols]).copied().collect();
    let [from, to] = [0, 1].map(Port::value);
    for device in suite.devices {
        let mut ops = Recorder::new();
        let rows = Rows { count: Count::Windows, each };
        ops.segment(SegmentName::Body, rows);
        let x = ops.import(from, rows, cols + 3);
        ops.export(to, x.columns(2, cols));
        let mut max = Counts::default();
        max[Count::Windows] = places;
        let mut executable = device.compile(&ops.finish(), &max).expect("a small program");
        for (first_window, n_windows) in [(2, 1), (0, 2)] {
            let mut counts = Counts::default();
            counts[Count::Windows] = n_windows;
            executable.import(from, &values[first_window * window..][..n_windows * window]);
            let segments = &[SegmentName::Body];
            executable.run(&Step { segments, counts, first_window, ..Step::default() });
        }
        let name = format!("{}: windows", device.describe());
        executable.fetch(&[PortRange::first(to, expected.len())], true);
        if let Some(deferred) = suite.deferred {
            deferred.add(name, executable, expected.clone());
            continue;
        }
        let mut got = Vec::new();
        block_on(executable.collect(&mut got)).expect("readable values");
        compare(&got, &expected, EXACT, || name.clone());
    }
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
    fn check(
        &self,
        name: &str,
        tolerance: Tolerance,
        suite: &Suite<'_>,
        record: impl Fn(&mut Recording<'_>),
    ) {
        let (name, seed) = (format!("{name} {self:?}"), self.seed * 1000 + self.cols as u64);
        suite.check(&name, tolerance, (self.rows, seed), record);
    }

    /// Ops on rows.
    fn check_rows(&self, suite: &Suite<'_>) {
        self.check("export", EXACT, suite, |r| self.export(r));
        self.check("constant", F32, suite, |r| self.constant(r));
        self.check("gather", F32, suite, |r| self.gather(r));
        for bias in [true, false] {
            self.check("layer_norm", F32, suite, |r| self.layer_norm(r, bias));
        }
        self.check("rms_norm", F32, suite, |r| self.rms_norm(r));
        self.check("add", F32, suite, |r| self.add(r));
        self.check("soft_cap", F32, suite, |r| self.soft_cap(r));
        self.check("gated", F32, suite, |r| self.gated(r));
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            self.check("embed", F32, suite, |r| self.embed(r, dtype));
        }
        for n_rot in [0, self.cols / 2 / 2 * 2, self.cols / 2 * 2] {
            let name = format!("rope of {n_rot} channels");
            self.check(&name, F32, suite, |r| self.rope(r, n_rot));
        }
        for stride in [1, 2] {
            self.check("conv1d", F32, suite, |r| self.conv1d(r, stride));
        }
        self.check_conv_state(suite);
    }

    fn check_conv_state(&self, suite: &Suite<'_>) {
        for (kernel, has_bias, silu) in
            [(2, true, true), (3, false, false), (4, true, false), (4, false, true)]
        {
            let name =
                format!("conv_state of {kernel} taps, bias: {has_bias}, SiLU: {silu}, {self:?}");
            let seed = self.seed * 1000 + self.cols as u64;
            suite.check_program(&name, F32, (self.rows, seed), |r| {
                self.conv_state(r, kernel, has_bias, silu);
            });
        }
    }

    fn export(&self, r: &mut Recording<'_>) {
        let x = r.strided(self.cols);
        r.export(x);
        let y = r.packed(self.cols);
        r.export(y);
    }

    /// A constant of several windows: read, and added to.
    fn constant(&self, r: &mut Recording<'_>) {
        r.tables().counts[Count::Windows] = 3;
        let values = r.values(2 * self.cols, 1.0);
        let x = r.ops.constant(&values, Count::Windows, self.cols);
        r.output(x);
        let y = r.random_rows(Rows { count: Count::Windows, each: 2 }, self.cols);
        let x = r.ops.constant(&values, Count::Windows, self.cols);
        let sum = r.ops.add(x, y);
        r.output(sum);
    }

    /// Rows of logits, rows of hidden states in descending order, and the first of the rows of logits.
    fn gather(&self, r: &mut Recording<'_>) {
        let (n_logits, n_hidden) = (self.rows.div_ceil(2), self.rows);
        let tables = r.tables();
        tables.counts[Count::Logits] = n_logits;
        tables.counts[Count::Hidden] = n_hidden;
        tables.counts[Count::TopK] = n_logits.div_ceil(2);
        let logits = (0..n_logits).map(|i| (2 * i + 1) % self.rows);
        tables.output_rows = logits.chain((0..n_hidden).rev()).collect();
        let x = r.strided(self.cols);
        for count in [Count::Logits, Count::Hidden] {
            let rows = r.ops.gather(x, count);
            r.output(rows);
        }
        let weight = r.values(self.cols, 1.0);
        let rows = r.ops.gather(x, Count::Logits);
        let args = NormArgs { weight, bias: None, eps: 1e-6 };
        let first = r.ops.op(Op::RmsNorm(args), &[rows.first(Count::TopK)]);
        r.output(first);
    }

    fn layer_norm(&self, r: &mut Recording<'_>, has_bias: bool) {
        let x = r.strided(self.cols);
        let weight = r.values(self.cols, 1.0);
        let bias = has_bias.then(|| r.values(self.cols, 1.0));
        let y = r.ops.op(Op::LayerNorm(NormArgs { weight, bias, eps: 1e-5 }), &[x]);
        r.output(y);
    }

    fn rms_norm(&self, r: &mut Recording<'_>) {
        let x = r.strided(self.cols);
        let weight = r.values(self.cols, 1.0);
        let residual = r.packed(self.cols);
        for onto in [None, Some(residual)] {
            let args = NormArgs { weight: weight.clone(), bias: None, eps: 1e-6 };
            let y = r.ops.op(Op::RmsNorm(args), &[x]);
            let y = onto.map_or(y, |residual| r.ops.add(residual, y));
            r.output(y);
        }
    }

    /// Packed and strided operands, and a value that is both.
    fn add(&self, r: &mut Recording<'_>) {
        let x = r.strided(self.cols);
        let y = r.packed(self.cols);
        for (x, y) in [(y, x), (x, y), (x, x)] {
            let sum = r.ops.add(x, y);
            r.export(sum);
            let twice = r.ops.add(sum, sum);
            r.output(twice);
        }
    }

    /// Soft cap of a part of a value, of a value that is read later, and of one that dies.
    fn soft_cap(&self, r: &mut Recording<'_>) {
        for x in [r.strided(self.cols), r.packed(self.cols)] {
            let y = r.ops.op(Op::SoftCap(0.7), &[x]);
            r.export(y);
            let z = r.ops.op(Op::SoftCap(30.0), &[y]);
            r.output(z);
        }
    }

    fn gated(&self, r: &mut Recording<'_>) {
        let (gate, up) = (r.strided(self.cols), r.strided(self.cols));
        for activation in [
            GatedActivation::Silu,
            GatedActivation::GeluTanh,
            GatedActivation::ClampedSwiglu { alpha: 1.702, limit: 0.75 },
        ] {
            let y = r.ops.gated(gate, up, activation);
            r.output(y);
        }
    }

    /// Three heads of `cols` channels: with and without QK norm; adjacent and half-split pairs, and no rotation.
    fn rope(&self, r: &mut Recording<'_>, n_rot: usize) {
        let weight = r.values(self.cols, 1.0);
        let table = rope_table(r, self.rows, n_rot);
        for norm in [None, Some((weight, 1e-6))] {
            for pairs in [None, Some(RopePairs::Adjacent), Some(RopePairs::Neox)] {
                let x = r.strided(3 * self.cols);
                let rotation = pairs.map(|pairs| Rotation { table: table.clone(), n_rot, pairs });
                let args = RopeArgs { head_dim: self.cols, norm: norm.clone(), rotation };
                let y = r.ops.rope(x, args);
                r.output(y);
            }
        }
    }

    fn embed(&self, r: &mut Recording<'_>, dtype: DType) {
        let table = r.weights(dtype, 11, self.cols);
        let positions = r.values(7 * self.cols, 1.0);
        let tokens = (0..self.rows).map(|_| r.random.next_u32() % 11).collect();
        let pos = (0..self.rows).map(|_| r.random.next_u32() % 7).collect();
        (r.tables().tokens, r.tables().positions) = (tokens, pos);
        for (scale, positions) in [(1.0, Some(positions)), (2.5, None)] {
            let y = r.ops.embed(EmbedArgs { table: table.clone(), positions, scale });
            r.output(y);
        }
    }

    /// Records two matmuls of one operand: by weights of `dtype`, and by dense weights.
    fn matmul(&self, r: &mut Recording<'_>, dtype: DType, n: usize) {
        let w = r.weights(dtype, n, self.cols);
        let dense = r.weights(DType::F32, 3, self.cols);
        let bias = &r.values(n, 1.0);
        for (bias, activation, accumulate) in [
            (None, Activation::None, false),
            (Some(bias), Activation::None, false),
            (Some(bias), Activation::Gelu, false),
            (Some(bias), Activation::GeluTanh, false),
            (Some(bias), Activation::None, true),
            (None, Activation::None, true),
        ] {
            let x = r.strided(self.cols);
            let y = r.matmul(x, &w, (bias, activation));
            let dense = r.product(x, &dense);
            let y = if accumulate {
                let residual = r.packed(n);
                r.ops.add(residual, y)
            } else {
                y
            };
            r.output(y);
            r.output(dense);
        }
    }

    fn conv1d(&self, r: &mut Recording<'_>, stride: usize) {
        let n = 5;
        let window = |each| Rows { count: Count::Windows, each };
        let x = r.random_rows(window(self.rows), self.cols);
        let weight = r.weights(DType::F32, n, 3 * self.cols);
        let bias = Some(r.values(n, 1.0));
        let residual = r.random_rows(window(self.rows.div_ceil(stride)), n);
        let matmul = MatmulArgs { weight, bias, activation: Activation::Gelu };
        let y = r.ops.op(Op::Conv1d(ConvArgs { matmul, stride }), &[x]);
        let sum = r.ops.add(residual, y);
        r.output(sum);
    }

    /// Prompts of new sequences, shorter and longer than the kernel. In the next step rows continue three of them, two in their
    /// slot and one forked to two others, and start a new one.
    fn conv_state(&self, r: &mut Recording<'_>, kernel: usize, has_bias: bool, silu: bool) {
        let run = |n_rows, from, to| StateRun { n_rows, from, to };
        let prompts = [1, 2, 3, 67, 4, 1, 2];
        let n_slots = prompts.len();
        let prompts = prompts.into_iter().zip(0..).map(|(n_rows, to)| run(n_rows, None, to));
        let mut n_left = self.rows as u32;
        let next = [
            (1, Some(3), 3),
            (1, Some(0), 4),
            (2, Some(0), 5),
            (3, None, 6),
            (u32::MAX, Some(1), 1),
        ];
        let next = next.into_iter().map_while(|(n_rows, from, to)| {
            let n_rows = n_left.min(n_rows);
            n_left -= n_rows;
            (n_rows > 0).then(|| run(n_rows, from, to))
        });
        r.tables().states = [prompts.collect(), next.collect()];
        let n_prompt_rows = r.tables().states[0].iter().map(|run| run.n_rows as usize).sum();
        let states = States { port: Port::new("State"), n_slots, len: (kernel - 1) * self.cols };
        let weight = r.values(self.cols * kernel, 1.0);
        let bias = has_bias.then(|| r.values(self.cols, 1.0));
        let op = Op::ConvState(ConvStateArgs { kernel, weight, bias, silu, states });
        let rows = Rows { count: Count::Windows, each: n_prompt_rows };
        r.ops.segment(SegmentName::CrossKv, rows);
        let x = r.random_rows(rows, self.cols);
        let y = r.ops.op(op.clone(), &[x]);
        r.output(y);
        r.ops.segment(SegmentName::Body, Rows::of(Count::Tokens));
        let x = r.strided(self.cols);
        let y = r.ops.op(op, &[x]);
        r.output(y);
        r.output_port(states.port, n_slots * states.len);
    }
}

/// Table of cosines and sines with more positions than rows. Gives each row a position: the last one first, neither
/// ascending nor descending.
fn rope_table(r: &mut Recording<'_>, rows: usize, n_rot: usize) -> Weight {
    let n_ctx = rows + 7;
    let angles = r.random.normals(n_ctx * n_rot / 2, 3.0);
    let table: Vec<f32> = angles
        .chunks((n_rot / 2).max(1))
        .flat_map(|row| row.iter().map(|a| a.cos()).chain(row.iter().map(|a| a.sin())))
        .collect();
    let positions = (0..rows).map(|row| ((3 * row + 1) * (n_ctx - 1) % n_ctx) as u32);
    r.tables().positions = positions.collect();
    r.load(&table)
}
