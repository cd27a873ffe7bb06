//! Cases of [`Backend::moe`].

use stonechat_compute::{DType, SharedBytes};
use stonechat_nn::{Backend, Experts, GatedActivation, MatrixSource, Routing, View};

use super::{Case, F32, INT8, download, upload};
use crate::{Lcg, Reference, random_weights};

/// A small `MoE` layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct MoeCase {
    pub(super) n_experts: usize,
    pub(super) n_used: usize,
    pub(super) rows: usize,
    pub(super) dtype: DType,
    pub(super) seed: u64,
}

/// Variants on the same weights.
#[derive(Debug, Clone, Copy)]
struct Options {
    routing: Routing,
    has_bias: bool,
    activation: GatedActivation,
}

impl MoeCase {
    pub(super) fn check<B: Backend>(&self, backends: &[B]) {
        let tolerance = if self.dtype.is_quantized() { INT8 } else { F32 };
        let case = Case { rows: self.rows, cols: self.n_experts, seed: self.seed };
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
            let oracle = self.moe(&Reference, options, &weights);
            let run = |_: &Case, b: &B| self.moe(b, options, &weights);
            case.check(&name, tolerance, backends, run, &oracle);
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

    fn moe<B: Backend>(&self, backend: &B, options: Options, bytes: &[Vec<u8>; 3]) -> Vec<f32> {
        let Self { n_experts, n_used, rows, dtype, seed } = *self;
        let mut random = Lcg::new(seed + 1);
        let (d, f) = self.widths();
        let tokens = Case { rows, cols: d, seed };
        let (x, x_rows) = tokens.strided(backend, &mut random);
        let (logits, logit_rows) = Case { cols: n_experts, ..tokens }.strided(backend, &mut random);
        let mut bias =
            |n| options.has_bias.then(|| upload(backend, &random.normals(n_experts * n, 1.0)));
        let (gate_bias, up_bias, down_bias) = (bias(f), bias(f), bias(d));
        let stack = |i: usize, n, cols| {
            let bytes = &SharedBytes::from(bytes[i].clone());
            let source = MatrixSource { name: "test", rows: n_experts * n, cols, dtype, bytes };
            backend.matrix(source).expect("a supported type")
        };
        let (gate, up, down) = (stack(0, f, d), stack(1, f, d), stack(2, d, f));
        let experts = Experts {
            gate: &gate,
            up: &up,
            down: &down,
            gate_bias: gate_bias.as_ref(),
            up_bias: up_bias.as_ref(),
            down_bias: down_bias.as_ref(),
            n_experts,
            n_used,
            routing: options.routing,
            activation: options.activation,
        };
        let mut out = upload(backend, &random.normals(rows * d, 1.0));
        let (x, logits) = (View::new(&x, x_rows), View::new(&logits, logit_rows));
        backend.moe(&mut out, x, logits, &experts);
        download(backend, &out, rows * d)
    }
}
