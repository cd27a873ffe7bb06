//! Ops on rows of activations: norms, rotation, gates, quantization. Rates count the f32 values that are
//! read and written; they stay in caches, so that memory is no limit.

use std::f32::consts::FRAC_1_SQRT_2;

use anyhow::Result;
use stonechat_benches::protocol::Unit;
use stonechat_compute::cpu::MatRef;
use stonechat_nn::op::{NormArgs, Op, RopeArgs, Rotation};
use stonechat_nn::{Device, GatedActivation, RopePairs, Step};
use stonechat_quant::ActivationBuffer;

use super::{Case, Ops, Repeated, made_up, step};

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
        open: Box::new(move |cpu| {
            let device = Device::from(cpu.clone());
            let weight = device.load_values(&made_up(d))?;
            let args = NormArgs { bias: Some(weight.clone()), weight, eps: 1e-5 };
            let run = unary(&device, (t, d), Op::LayerNorm(args))?;
            Ok(Repeated::new(bytes(2 * t * d), run))
        }),
    }
}

/// An op of one operand.
fn unary(device: &Device, (t, d): (usize, usize), op: Op) -> Result<impl FnMut() + Send + use<>> {
    let mut ops = Ops::new(t);
    let x = ops.tokens(d);
    let y = ops.recorder.op(op, &[x]);
    ops.output(y);
    ops.runner(device)
}

fn rms_norm(t: usize, d: usize) -> Case {
    Case {
        name: format!("rms norm {t}x{d}"),
        quick: t > 1,
        open: Box::new(move |cpu| {
            let device = Device::from(cpu.clone());
            let weight = device.load_values(&made_up(d))?;
            let args = NormArgs { weight, bias: None, eps: 1e-5 };
            let run = unary(&device, (t, d), Op::RmsNorm(args))?;
            Ok(Repeated::new(bytes(2 * t * d), run))
        }),
    }
}

fn rope(t: usize, n_heads: usize, head_dim: usize) -> Case {
    /// Rotations of a run, each in the place of the last: all but the first read no import.
    const CALLS: usize = 32;
    Case {
        name: format!("rope {t}x{n_heads}x{head_dim}"),
        quick: true,
        open: Box::new(move |cpu| {
            let device = Device::from(cpu.clone());
            let width = n_heads * head_dim;
            // Rotations by an eighth turn, so that values neither grow nor vanish.
            let table = device.load_values(&vec![FRAC_1_SQRT_2; t * head_dim])?;
            let rotation = Some(Rotation { table, n_rot: head_dim, pairs: RopePairs::Neox });
            let mut ops = Ops::new(t);
            let mut x = ops.tokens(width);
            for _ in 0..CALLS {
                let args = RopeArgs { head_dim, norm: None, rotation: rotation.clone() };
                x = ops.recorder.rope(x, args);
            }
            ops.output(x);
            let (mut executable, counts) = ops.compile(&device)?;
            let positions: Vec<u32> = (0..t as u32).collect();
            let run = move || executable.run(&Step { positions: &positions, ..step(counts) });
            Ok(Repeated::new(bytes(2 * t * width), run).of_calls(CALLS))
        }),
    }
}

fn gated(t: usize, d_ff: usize) -> Case {
    Case {
        name: format!("gated silu {t}x{d_ff}"),
        quick: true,
        open: Box::new(move |cpu| {
            let mut ops = Ops::new(t);
            let (gate, up) = (ops.tokens(d_ff), ops.tokens(d_ff));
            let y = ops.recorder.gated(gate, up, GatedActivation::Silu);
            ops.output(y);
            let run = ops.runner(&Device::from(cpu.clone()))?;
            Ok(Repeated::new(bytes(3 * t * d_ff), run))
        }),
    }
}

/// Quantization of activations, the first step of every matmul with quantized weights.
fn quantize(t: usize, k: usize) -> Case {
    Case {
        name: format!("quantize activations {t}x{k}"),
        quick: t > 1,
        open: Box::new(move |cpu| {
            let (x, device) = (made_up(t * k), cpu.device().clone());
            let mut activations = ActivationBuffer::new();
            let run = move || activations.quantize(&device, MatRef::packed(&x, t, k));
            Ok(Repeated::new(bytes(t * k), run))
        }),
    }
}
