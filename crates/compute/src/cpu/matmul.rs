//! Dense matmul `y = act(x · wᵀ + bias)`: shape checks, and dispatch to GEMV (up to 48 rows) or GEMM.

use std::ops::Range;

use half::{bf16, f16};

use super::element::Element;
use super::epilogue::Epilogue;
use super::gemm::{DensePanels, Weights, gemm};
use super::gemv::{MAX_ROWS, gemv, gemv_dequantized};
use super::matrix::{MatMut, MatRef};
use crate::Cpu;
use crate::check_eq;

/// A weight matrix `[N, K]`, row-major, without gaps.
#[derive(Debug, Clone, Copy)]
pub enum DenseWeight<'a> {
    /// f32 values.
    F32(&'a [f32]),
    /// f16 values.
    F16(&'a [f16]),
    /// bf16 values.
    BF16(&'a [bf16]),
}

/// `out[t,n] = epilogue(sum_k x[t,k] * w[n,k])`.
///
/// Shapes: `x` = `[T, K]`, `w` = `[N, K]`, `out` = `[T, N]`. Rows of `x` may overlap. Numerics:
/// f32 products and sums; 16-bit weights convert to f32 exactly.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul(
    cpu: &Cpu,
    out: MatMut<'_>,
    x: MatRef<'_>,
    w: DenseWeight<'_>,
    epilogue: Epilogue<'_>,
) {
    match w {
        DenseWeight::F32(w) => dense(cpu, out, x, w, epilogue, Weights::F32(w)),
        DenseWeight::F16(w) => {
            dense(cpu, out, x, w, epilogue, Weights::Rows(&widen_rows(w, x.cols)));
        }
        DenseWeight::BF16(w) => {
            dense(cpu, out, x, w, epilogue, Weights::Rows(&widen_rows(w, x.cols)));
        }
    }
}

/// [`matmul`] with weights that are packed already. The result is the same.
///
/// # Panics
/// If the shapes do not fit or the weights were packed for another instruction set.
#[track_caller]
pub fn matmul_panels(
    cpu: &Cpu,
    out: MatMut<'_>,
    x: MatRef<'_>,
    w: &DensePanels,
    epilogue: Epilogue<'_>,
) {
    dense(cpu, out, x, w.rows(), epilogue, Weights::Packed(w));
}

/// [`matmul`] with weights of any type: `dequantize(rows, block)` writes rows `rows` of `w[N,K]` to `block`, `[rows, K]`.
/// Called concurrently, once per row and block of output rows.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul_dequantized(
    cpu: &Cpu,
    out: MatMut<'_>,
    x: MatRef<'_>,
    dequantize: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
    epilogue: Epilogue<'_>,
) {
    let (out, x) = (out.checked(), x.checked());
    check_eq!(out.rows, x.rows, "matmul: rows of the output");
    epilogue.check(out.cols);
    if out.rows == 0 || out.cols == 0 {
        return;
    }
    let out = out.shared();
    if x.rows <= MAX_ROWS {
        gemv_dequantized(cpu, out, x, dequantize, epilogue);
    } else {
        gemm(cpu, out, x, Weights::Rows(dequantize), epilogue);
    }
}

#[track_caller]
fn dense<E: Element>(
    cpu: &Cpu,
    out: MatMut<'_>,
    x: MatRef<'_>,
    w: &[E],
    epilogue: Epilogue<'_>,
    rows: Weights<'_>,
) {
    let (out, x) = (out.checked(), x.checked());
    check_eq!(out.rows, x.rows, "matmul: rows of the output");
    check_eq!(w.len(), out.cols * x.cols, "matmul: values of {}x{} weights", out.cols, x.cols);
    epilogue.check(out.cols);
    if out.rows == 0 || out.cols == 0 {
        return;
    }
    let out = out.shared();
    if x.rows <= MAX_ROWS {
        gemv(cpu, out, x, w, epilogue);
    } else {
        gemm(cpu, out, x, rows, epilogue);
    }
}

fn widen_rows<E: Element>(w: &[E], k: usize) -> impl Fn(Range<usize>, &mut [f32]) + Sync {
    move |rows, block| E::widen_slice(&w[rows.start * k..rows.end * k], block)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{DensePanels, DenseWeight, matmul, matmul_dequantized, matmul_panels};
    use crate::cpu::math::tests::{erf_f64, gelu_tanh_f64};
    use crate::cpu::test_data::{assert_close, random};
    use crate::cpu::{Epilogue, MatMut, MatRef};
    use crate::op::Activation;
    use crate::{Cpu, Isa, ThreadTeam};

    const SHAPES: [(usize, usize, usize); 16] = [
        (1, 1, 1),
        (1, 33, 17),
        (1, 512, 384),
        (2, 31, 5),
        (3, 64, 100),
        (4, 7, 16),
        (5, 300, 129),
        (13, 9, 31),
        (16, 40, 64),
        (17, 65, 40),
        (23, 1, 3),
        (30, 100, 33),
        (200, 96, 48),
        (401, 33, 65),
        (18, 50, 0),
        (1, 3, 0),
    ];

    fn expected(y: &[f32], x: MatRef<'_>, w: &[f32], e: Epilogue<'_>) -> Vec<f64> {
        let n = y.len() / x.rows;
        let mut out = Vec::new();
        for m in 0..x.rows {
            for j in 0..n {
                let mut sum = 0.0;
                for k in 0..x.cols {
                    sum += f64::from(x.row(m)[k]) * f64::from(w[j * x.cols + k]);
                }
                sum += e.bias.map_or(0.0, |b| f64::from(b[j]));
                sum = match e.activation {
                    Activation::None => sum,
                    Activation::Gelu => sum * 0.5 * (1.0 + erf_f64(sum * 0.5f64.sqrt())),
                    Activation::GeluTanh => gelu_tanh_f64(sum),
                };
                out.push(sum + if e.accumulate { f64::from(y[m * n + j]) } else { 0.0 });
            }
        }
        out
    }

    fn check(cpu: &Cpu, (m, n, k): (usize, usize, usize), epilogue: Epilogue<'_>) {
        let stride = k + 5;
        let x = random(m * stride, 1);
        let x = MatRef::new(&x, m, k, stride);
        let w = random(n * k, 2);
        let half: Vec<f16> = w.iter().map(|&v| f16::from_f32(v)).collect();
        let brain: Vec<bf16> = w.iter().map(|&v| bf16::from_f32(v)).collect();
        let half_wide: Vec<f32> = half.iter().map(|v| v.to_f32()).collect();
        let brain_wide: Vec<f32> = brain.iter().map(|v| v.to_f32()).collect();
        let y = random(m * n, 3);
        let cases = [
            (DenseWeight::F32(&w), &w),
            (DenseWeight::F16(&half), &half_wide),
            (DenseWeight::BF16(&brain), &brain_wide),
        ];
        for (weight, wide) in cases {
            let what = format!("{} {m}x{n}x{k}", cpu.isa);
            let expected = expected(&y, x, wide, epilogue);
            let mut out = y.clone();
            matmul(cpu, MatMut::packed(&mut out, m, n), x, weight, epilogue);
            assert_close(&out, &expected, 1e-4, &what);

            let mut out = y.clone();
            let rows = |rows: std::ops::Range<usize>, block: &mut [f32]| {
                block.copy_from_slice(&wide[rows.start * k..rows.end * k]);
            };
            matmul_dequantized(cpu, MatMut::packed(&mut out, m, n), x, &rows, epilogue);
            assert_close(&out, &expected, 1e-4, &what);
        }
        if k > 0 {
            let (mut out, mut packed_out) = (y.clone(), y);
            matmul(cpu, MatMut::packed(&mut out, m, n), x, DenseWeight::F32(&w), epilogue);
            let packed = DensePanels::new(cpu.isa, w, k);
            matmul_panels(cpu, MatMut::packed(&mut packed_out, m, n), x, &packed, epilogue);
            assert_eq!(packed_out, out, "packed {} {m}x{n}x{k}", cpu.isa);
        }
    }

    #[test]
    fn matches_f64_at_odd_shapes() {
        for isa in Isa::available() {
            for n_threads in [1, 3] {
                let cpu = Cpu { isa, threads: ThreadTeam::new(n_threads).unwrap() };
                for shape in SHAPES {
                    let bias = random(shape.1, 4);
                    check(&cpu, shape, Epilogue::default());
                    let bias = Some(&bias[..]);
                    check(&cpu, shape, Epilogue { bias, ..Epilogue::default() });
                    let activation = Activation::GeluTanh;
                    check(&cpu, shape, Epilogue { bias, activation, accumulate: false });
                    check(
                        &cpu,
                        shape,
                        Epilogue { bias, activation: Activation::Gelu, accumulate: true },
                    );
                }
            }
        }
    }

    #[test]
    fn rows_without_outputs_are_untouched() {
        let cpu =
            Cpu { isa: *Isa::available().last().unwrap(), threads: ThreadTeam::new(1).unwrap() };
        let mut out = vec![7.0; 100];
        let x = vec![1.0; 40 * 3];
        let w = [1.0; 6];
        let x = MatRef::packed(&x, 20, 3);
        let wide = MatMut::new(&mut out, 20, 2, 5);
        matmul(&cpu, wide, x, DenseWeight::F32(&w), Epilogue::default());
        for (i, &v) in out.iter().enumerate() {
            assert_eq!(v, if i % 5 < 2 { 3.0 } else { 7.0 }, "[{i}]");
        }
    }
}
