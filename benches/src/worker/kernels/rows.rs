//! Ops on rows of activations: norms, rotation, gates, quantization. Rates count the f32 values that are
//! read and written; they stay in caches, so that memory is no limit.

use stonechat_benches::protocol::Unit;
use stonechat_compute::cpu::MatRef;
use stonechat_nn::{Backend, GatedActivation, Rope, RopePairs, Rotation, Rows, View};
use stonechat_quant::ActivationBuffer;

use super::{Case, Repeated, filled, made_up};

pub(super) fn cases() -> Vec<Case> {
    vec![
        layer_norm(1500, 512),
        rms_norm(512, 1536),
        rms_norm(1, 1536),
        rope(512, 12, 128),
        gated(512, 8960),
        quantize(512, 1536),
        quantize(1, 8960),
    ]
}

/// Bytes of `n` f32 values.
fn bytes(n: usize) -> (f64, Unit) {
    (4.0 * n as f64, Unit::Bytes)
}

fn layer_norm(t: usize, d: usize) -> Case {
    Case {
        name: format!("layer norm {t}x{d}"),
        quick: true,
        open: Box::new(move |backend| {
            let (x, weight) = (filled(backend, t * d)?, filled(backend, d)?);
            let mut out = backend.alloc(t * d)?;
            let device = backend.clone();
            let run = move || {
                let x = View::packed(&x, t, d);
                device.layer_norm(&mut out, x, &weight, Some(&weight), 1e-5);
            };
            Ok(Repeated::new(bytes(2 * t * d), run))
        }),
    }
}

fn rms_norm(t: usize, d: usize) -> Case {
    Case {
        name: format!("rms norm {t}x{d}"),
        quick: t > 1,
        open: Box::new(move |backend| {
            let (x, weight) = (filled(backend, t * d)?, filled(backend, d)?);
            let mut out = backend.alloc(t * d)?;
            let device = backend.clone();
            let run = move || {
                device.rms_norm(&mut out, View::packed(&x, t, d), &weight, 1e-5, false);
            };
            Ok(Repeated::new(bytes(2 * t * d), run))
        }),
    }
}

fn rope(t: usize, n_heads: usize, head_dim: usize) -> Case {
    Case {
        name: format!("rope {t}x{n_heads}x{head_dim}"),
        quick: true,
        open: Box::new(move |backend| {
            let width = n_heads * head_dim;
            let mut x = filled(backend, t * width)?;
            let mut table = backend.alloc(t * head_dim)?;
            // Rotations by an eighth turn, so that values neither grow nor vanish.
            backend.write(&mut table, 0, &vec![std::f32::consts::FRAC_1_SQRT_2; t * head_dim]);
            let positions: Vec<u32> = (0..t as u32).collect();
            let device = backend.clone();
            let run = move || {
                let rotation = Rotation {
                    table: &table,
                    positions: &positions,
                    n_rot: head_dim,
                    pairs: RopePairs::Neox,
                };
                let args = Rope { head_dim, norm: None, rotation: Some(rotation) };
                device.rope(&mut x, Rows::packed(t, width), args);
            };
            Ok(Repeated::new(bytes(2 * t * width), run))
        }),
    }
}

fn gated(t: usize, d_ff: usize) -> Case {
    Case {
        name: format!("gated silu {t}x{d_ff}"),
        quick: true,
        open: Box::new(move |backend| {
            let (gate, up) = (filled(backend, t * d_ff)?, filled(backend, t * d_ff)?);
            let mut out = backend.alloc(t * d_ff)?;
            let device = backend.clone();
            let run = move || {
                let view = |buffer| View::packed(buffer, t, d_ff);
                device.gated(&mut out, view(&gate), view(&up), GatedActivation::Silu);
            };
            Ok(Repeated::new(bytes(3 * t * d_ff), run))
        }),
    }
}

/// Quantization of activations, the first step of every matmul with quantized weights.
fn quantize(t: usize, k: usize) -> Case {
    Case {
        name: format!("quantize activations {t}x{k}"),
        quick: t > 1,
        open: Box::new(move |backend| {
            let (x, device) = (made_up(t * k), backend.device().clone());
            let mut activations = ActivationBuffer::new();
            let run = move || activations.quantize(&device, MatRef::packed(&x, t, k));
            Ok(Repeated::new(bytes(t * k), run))
        }),
    }
}
