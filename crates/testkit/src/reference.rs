//! The oracle: a device that computes every op of a program in f64, with naive loops. A fused op runs as the ops that it
//! stands for.

mod executable;
mod log_mel;
mod ranks;

use std::sync::Arc;

use stonechat_compute::DType;
use stonechat_nn::op::{Weight, WeightInfo, WeightLayout};
use stonechat_nn::{
    Activation, Capabilities, Capability, CapabilityKind, Conv1dKernels, Counts, DeviceApi, Error,
    Executable, GatedActivation, KvDType, KvRow, KvShape, Limit, MatrixSource, MoeKernels, OpKind,
    PAGE_LEN, Program, Routing, RowClass,
};

use self::executable::ReferenceExecutable;
pub use self::log_mel::ReferenceLogMel;
pub use self::ranks::ReferenceGroup;

/// The f64 oracle.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl DeviceApi for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn describe(&self) -> String {
        "f64 loops".to_owned()
    }

    fn total_memory_bytes(&self) -> Option<u64> {
        None
    }

    fn stored_dtype(&self, dtype: DType) -> DType {
        dtype
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Weight, Error> {
        let MatrixSource { name, rows, cols, dtype, bytes } = source;
        let mut values = vec![0.0; rows * cols];
        stonechat_quant::dequantize_row(dtype, bytes, &mut values).map_err(|_| {
            Error::UnsupportedWeight { name: name.to_owned(), dtype, backend: "reference" }
        })?;
        let values = Values(values.into_iter().map(f64::from).collect());
        let info = WeightInfo { dtype, rows, cols, layout: WeightLayout::Rows };
        Ok(Weight::new(info, Arc::new(values)))
    }

    fn load_values(&self, values: &[f32]) -> Result<Weight, Error> {
        let info = WeightInfo::values(values.len());
        Ok(Weight::new(info, Arc::new(Values(values.iter().map(|&v| f64::from(v)).collect()))))
    }

    /// Everything that any device lowers and fuses on one rank, but the kernels of one row.
    fn capabilities(&self) -> Capabilities {
        let any = RowClass::ALL;
        Capabilities {
            moe: MoeKernels::Products { sorted: true },
            conv1d: Conv1dKernels::Im2col { col_multiple: 1 },
            residuals: true,
            table: vec![
                Capability::new(
                    &[OpKind::GatedProduct, OpKind::RopeKv],
                    CapabilityKind::Run,
                    any,
                    [],
                ),
                Capability::new(
                    &[OpKind::MatmulGroup],
                    CapabilityKind::Run,
                    any,
                    [Limit::Matrices(3)],
                ),
                Capability::new(OpKind::PRODUCTS, CapabilityKind::Norm, any, []),
            ],
            ..Capabilities::none()
        }
    }

    fn compile_fused(&self, program: &Program, max: &Counts) -> Result<Box<dyn Executable>, Error> {
        Ok(Box::new(ReferenceExecutable::new(program, max)))
    }
}

/// Weights in f64; a matrix is dequantized.
#[derive(Debug)]
struct Values(Vec<f64>);

fn values(weight: &Weight) -> &[f64] {
    &weight.data::<Values>().expect("weights of the oracle").0
}

/// Keys and values, `[n_layers, n_pages, PAGE_LEN, G, C]` each.
#[derive(Debug)]
struct ReferenceKv {
    shape: KvShape,
    keys: Vec<f64>,
    values: Vec<f64>,
}

impl ReferenceKv {
    /// Range of page `page` in `keys` and `values`, for each layer.
    fn page_ranges(&self, page: u32) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..self.shape.n_layers).map(move |layer| {
            let start = self.row(layer, KvRow { page, slot: 0 });
            start..start + PAGE_LEN * self.width()
        })
    }

    /// `G * C`.
    fn width(&self) -> usize {
        self.shape.n_kv_heads * self.shape.head_dim
    }

    /// Index of channel 0 of head 0 of a position.
    fn row(&self, layer: usize, at: KvRow) -> usize {
        ((layer * self.shape.n_pages + at.page as usize) * PAGE_LEN + at.slot as usize)
            * self.width()
    }
}

/// Error function; absolute error below 1e-13.
fn erf(x: f64) -> f64 {
    // Maclaurin series below 3, where it does not cancel; continued fraction of erfc above.
    let z = x.abs();
    let value = if z < 3.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..200 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let fraction = (1..=60).rev().fold(0.0, |tail, n| f64::from(n) / 2.0 / (z + tail));
        1.0 - (-z * z).exp() / ((z + fraction) * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

fn activated(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Gelu => x / 2.0 * (1.0 + erf(x / 2f64.sqrt())),
        Activation::GeluTanh => gelu_tanh(x),
    }
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    x / 2.0 * (1.0 + inner.tanh())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gated(gate: f64, up: f64, activation: GatedActivation) -> f64 {
    match activation {
        GatedActivation::Silu => gate * sigmoid(gate) * up,
        GatedActivation::GeluTanh => gelu_tanh(gate) * up,
        GatedActivation::ClampedSwiglu { alpha, limit } => {
            let limit = f64::from(limit);
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate * sigmoid(f64::from(alpha) * gate) * (up + 1.0)
        }
    }
}

fn inverse_rms(row: &[f64], eps: f32) -> f64 {
    let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
    1.0 / (mean + f64::from(eps)).sqrt()
}

/// Top-k experts of a token with their routing weights.
fn route(logits: &[f64], n_used: usize, routing: Routing) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let max = logits[order[0]];
    let top_k = &order[..n_used];
    let total: f64 = match routing {
        Routing::Softmax => logits.iter().map(|l| (l - max).exp()).sum(),
        Routing::NormalizedTopK => top_k.iter().map(|&e| (logits[e] - max).exp()).sum(),
    };
    top_k.iter().map(|&e| (e, (logits[e] - max).exp() / total)).collect()
}

/// Keys or values of one position, rounded to the pool's element type.
fn round_kv(row: &[f64], shape: &KvShape) -> Vec<f64> {
    match shape.dtype {
        KvDType::F32 => row.to_vec(),
        // By way of f32: without an instruction for f64, `half` cuts it off below f32's precision before it rounds.
        KvDType::F16 => {
            row.iter().map(|&v| f64::from(half::f16::from_f32(v as f32).to_f32())).collect()
        }
        KvDType::Q8_0 => {
            row.chunks(shape.head_dim).flat_map(|head| head.chunks(32)).flat_map(round_q8).collect()
        }
    }
}

/// Rounds a block to `d * i8`, `d` an f16 scale. In f32, as backends compute it, so that ties are rounded alike.
fn round_q8(block: &[f64]) -> Vec<f64> {
    let block: Vec<f32> = block.iter().map(|&v| v as f32).collect();
    let max = block.iter().fold(0.0f32, |max, v| max.max(v.abs()));
    let scale = half::f16::from_f32(max / 127.0).to_f32();
    let integer = |v: f32| (v / scale).round_ties_even().clamp(-127.0, 127.0);
    block
        .into_iter()
        .map(|v| if scale == 0.0 { 0.0 } else { f64::from(integer(v)) * f64::from(scale) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn erf_matches_published_digits() {
        // Abramowitz & Stegun, table 7.1.
        for (x, expected) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (2.0, 0.995_322_265_0),
            (-3.5, -0.999_999_257),
            (6.0, 1.0),
        ] {
            assert!((erf(x) - expected).abs() < 1e-9, "erf({x}) = {}", erf(x));
        }
    }
}
