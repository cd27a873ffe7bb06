//! Activation of gated MLPs (`SwiGLU`, `GeGLU`).

use super::math::{gelu_tanh, sigmoid, silu};
use super::matrix::{MatMut, MatRef};
use super::row_tasks::for_row_ranges;
use crate::check_eq;
use crate::op::GatedActivation;
use crate::simd::{F32, Kernel, Simd};
use crate::{Cpu, Isa};

impl GatedActivation {
    /// Computes `out = act(gate) * up` on this thread.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn combine(self, isa: Isa, out: &mut [f32], gate: &[f32], up: &[f32]) {
        check_eq!([gate.len(), up.len()], [out.len(); 2], "gated: lengths of gate and up");
        isa.dispatch(Combine { activation: self, out, gate, up });
    }

    #[inline(always)]
    fn apply<S: Simd>(self, s: S, gate: F32<S>, up: F32<S>) -> F32<S> {
        match self {
            Self::Silu => s.mul(silu(s, gate), up),
            Self::GeluTanh => s.mul(gelu_tanh(s, gate), up),
            Self::ClampedSwiglu { alpha, limit } => {
                let gate = s.min(gate, s.splat(limit));
                let up = s.max(s.min(up, s.splat(limit)), s.splat(-limit));
                let gate = s.mul(gate, sigmoid(s, s.mul(gate, s.splat(alpha))));
                s.mul_add(gate, up, gate)
            }
        }
    }
}

/// `out[t,f] = act(gate[t,f]) * up[t,f]`.
///
/// Shapes: all `[T, F]`. Numerics: relative error of about 5e-7 for [`GatedActivation::Silu`]; absolute error of
/// `3e-7 * max(|gate|, 1)` of the approximate GELU.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn gated(
    cpu: &Cpu,
    out: MatMut<'_>,
    gate: MatRef<'_>,
    up: MatRef<'_>,
    activation: GatedActivation,
) {
    let (out, gate, up) = (out.checked(), gate.checked(), up.checked());
    check_eq!((gate.rows, gate.cols), (out.rows, out.cols), "gated: shape of the gate");
    check_eq!((up.rows, up.cols), (out.rows, out.cols), "gated: shape of up");
    let out = out.shared();
    for_row_ranges(cpu, out.rows, out.cols, |rows| {
        for r in rows {
            // SAFETY: each row belongs to one task, and one span is alive at a time.
            let out = unsafe { out.span(r, 0, out.cols) };
            activation.combine(cpu.isa, out, gate.row(r), up.row(r));
        }
    });
}

struct Combine<'a> {
    activation: GatedActivation,
    out: &'a mut [f32],
    gate: &'a [f32],
    up: &'a [f32],
}

impl Kernel for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let activation = self.activation;
        let (out, out_tail) = s.split_mut(self.out);
        let (gate, gate_tail) = s.split(self.gate);
        let (up, up_tail) = s.split(self.up);
        for i in 0..out.len() {
            out[i] = activation.apply(s, gate[i], up[i]);
        }
        let y = activation.apply(s, s.load_partial(gate_tail), s.load_partial(up_tail));
        s.store_partial(out_tail, y);
    }
}

#[cfg(test)]
mod tests {
    use super::gated;
    use crate::cpu::math::tests::{gelu_tanh_f64, sigmoid_f64};
    use crate::cpu::test_data::{assert_close, random};
    use crate::cpu::{MatMut, MatRef};
    use crate::op::GatedActivation;
    use crate::{Cpu, Isa, ThreadTeam};

    fn expected(gate: f32, up: f32, activation: GatedActivation) -> f64 {
        let (gate, up) = (f64::from(gate), f64::from(up));
        match activation {
            GatedActivation::Silu => gate * sigmoid_f64(gate) * up,
            GatedActivation::GeluTanh => gelu_tanh_f64(gate) * up,
            GatedActivation::ClampedSwiglu { alpha, limit } => {
                let (gate, up) = (gate.min(limit.into()), up.clamp((-limit).into(), limit.into()));
                gate * sigmoid_f64(f64::from(alpha) * gate) * (up + 1.0)
            }
        }
    }

    #[test]
    fn every_kind_matches_f64_at_odd_widths() {
        let kinds = [
            GatedActivation::Silu,
            GatedActivation::GeluTanh,
            GatedActivation::ClampedSwiglu { alpha: 1.702, limit: 3.0 },
        ];
        for isa in Isa::available() {
            let cpu = Cpu { isa, threads: ThreadTeam::new(2).unwrap() };
            for (t, f) in [(0, 3), (1, 1), (2, 7), (1, 16), (3, 33), (40, 2050)] {
                let stride = 2 * f + 1;
                let x: Vec<f32> = random(t * stride, 6).iter().map(|v| 6.0 * v).collect();
                let part = |from: usize| {
                    let from = from.min(x.len());
                    MatRef::new(&x[from..], t, f, stride)
                };
                let (gate, up) = (part(0), part(f));
                for kind in kinds {
                    let mut out = vec![f32::NAN; t * f];
                    gated(&cpu, MatMut::packed(&mut out, t, f), gate, up, kind);
                    let expected: Vec<f64> = (0..t)
                        .flat_map(|r| gate.row(r).iter().zip(up.row(r)))
                        .map(|(&g, &u)| expected(g, u, kind))
                        .collect();
                    assert_close(&out, &expected, 2e-5, isa.name());
                }
            }
        }
    }
}
