//! Cases of [`Op::Moe`](stonechat_nn::op::Op::Moe).

use stonechat_compute::DType;
use stonechat_nn::GatedActivation;
use stonechat_nn::op::{MoeArgs, Routing};

use super::F32;
use super::recording::{Recording, Suite};
use crate::{Lcg, random_weights};

/// A small `MoE` layer.
#[derive(Debug, Clone, Copy)]
struct MoeCase {
    n_experts: usize,
    n_used: usize,
    rows: usize,
    dtype: DType,
    seed: u64,
}

/// Runs every shape.
pub(super) fn check(suite: &Suite<'_>) {
    for (i, dtype) in [DType::F32, DType::F16, DType::Q8_0, DType::Q4K].into_iter().enumerate() {
        // Few and many tokens per expert, below and above the switch between kernels.
        for rows in [1, 3, 60] {
            for (n_experts, n_used) in [(4, 2), (5, 1)] {
                let case = MoeCase { n_experts, n_used, rows, dtype, seed: i as u64 };
                case.check(suite);
            }
        }
    }
}

/// Variants on the same weights.
#[derive(Debug, Clone, Copy)]
struct Options {
    routing: Routing,
    has_bias: bool,
    activation: GatedActivation,
}

impl MoeCase {
    fn check(&self, suite: &Suite<'_>) {
        let tolerance = match self.dtype {
            DType::F16 => suite.tolerances.f16,
            dtype if dtype.is_quantized() => suite.tolerances.quantized,
            _ => F32,
        };
        let ((d, f), mut random) = (self.widths(), Lcg::new(self.seed));
        // Gate, up and down, shared by all variants: quantizing is slow.
        let weights = [(f, d), (f, d), (d, f)].map(|(n, k)| {
            let shape = (self.n_experts * n, k);
            random_weights(self.dtype, &mut random, shape, 1.0 / (k as f32).sqrt())
        });
        let plain = Options {
            routing: Routing::Softmax,
            has_bias: false,
            activation: GatedActivation::Silu,
        };
        for options in [
            plain,
            Options { routing: Routing::NormalizedTopK, ..plain },
            Options {
                routing: Routing::NormalizedTopK,
                has_bias: true,
                activation: GatedActivation::ClampedSwiglu { alpha: 1.702, limit: 2.0 },
            },
        ] {
            let name = format!("moe {self:?} {options:?}");
            suite.check(&name, tolerance, (self.rows, self.seed + 1), |r| {
                self.record(r, options, &weights);
            });
        }
    }

    /// `D` and `F`: multiples of the block length, or odd for types without blocks.
    fn widths(&self) -> (usize, usize) {
        match self.dtype.block_len() {
            1 => (33, 20),
            32 => (64, 96),
            _ => (256, 256),
        }
    }

    /// Onto a residual, and alone.
    fn record(&self, r: &mut Recording<'_>, options: Options, bytes: &[Vec<u8>; 3]) {
        let Self { n_experts, n_used, dtype, .. } = *self;
        let (d, f) = self.widths();
        let (x, logits) = (r.strided(d), r.strided(n_experts));
        let mut bias = |n| options.has_bias.then(|| r.values(n_experts * n, 1.0));
        let (gate_bias, up_bias, down_bias) = (bias(f), bias(f), bias(d));
        let stack = |i: usize, n, cols| r.matrix(dtype, [n_experts * n, cols], bytes[i].clone());
        let args = MoeArgs {
            gate: stack(0, f, d),
            up: stack(1, f, d),
            down: stack(2, d, f),
            gate_bias,
            up_bias,
            down_bias,
            n_experts,
            n_used,
            routing: options.routing,
            activation: options.activation,
        };
        let residual = r.packed(d);
        let y = r.ops.moe(x, logits, args.clone());
        let sum = r.ops.add(residual, y);
        r.output(sum);
        let y = r.ops.moe(x, logits, args);
        r.output(y);
    }
}
