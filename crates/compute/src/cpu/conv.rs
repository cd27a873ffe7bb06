//! Convolutions over time. [`conv1d`] is a matmul over overlapping rows (im2col without a copy).

use super::matrix::{MatMut, MatRef};
use crate::check_eq;
use crate::scratch::with_scratch;

const TAPS: usize = 3;

/// Convolution over time with kernel size 3 and padding 1:
/// `out[t,o] = sum_{tap,i} w[o, tap * C_in + i] * x[t * stride + tap - 1, i]`.
///
/// Shapes: `x` = `[T, C_in]` without gaps, `out` = `[ceil(T / stride), C_out]`. Calls `matmul(out_rows, x_rows)` with
/// rows of `3 * C_in` values, for any weight type and epilogue: once for all positions inside the input, with an
/// overlapping view of `x`, and once for each position at the padding, with a copy.
///
/// # Panics
/// If the shapes do not fit, `x` has gaps, or `stride` is 0.
#[track_caller]
pub fn conv1d(
    out: MatMut<'_>,
    x: MatRef<'_>,
    stride: usize,
    mut matmul: impl FnMut(MatMut<'_>, MatRef<'_>),
) {
    let (mut out, x) = (out.checked(), x.checked());
    let (t_in, c_in) = (x.rows, x.cols);
    assert!(stride > 0, "conv1d: expected a stride of at least 1, got 0");
    assert!(
        x.stride == c_in || t_in <= 1,
        "conv1d: expected rows of {c_in} columns without gaps, got a stride of {}",
        x.stride
    );
    check_eq!(out.rows, t_in.div_ceil(stride), "conv1d: rows of the output");
    let edge = |out: MatMut<'_>, t: usize, matmul: &mut dyn FnMut(MatMut<'_>, MatRef<'_>)| {
        with_scratch(TAPS * c_in, |taps| {
            for tap in 0..TAPS {
                let taps = &mut taps[tap * c_in..][..c_in];
                match (t * stride + tap).checked_sub(1).filter(|&pos| pos < t_in) {
                    Some(pos) => taps.copy_from_slice(x.row(pos)),
                    None => taps.fill(0.0),
                }
            }
            matmul(out, MatRef::packed(taps, 1, TAPS * c_in));
        });
    };
    if out.rows == 0 {
        return;
    }
    edge(out.reborrow().slice(0, 1), 0, &mut matmul);
    // Row `t` reads positions `t * stride - 1 ..= t * stride + 1`; the last must be below `t_in`.
    let inner_end = (t_in.saturating_sub(2) / stride + 1).min(out.rows);
    if inner_end > 1 {
        let data = &x.data[(stride - 1) * c_in..];
        let rows = MatRef::new(data, inner_end - 1, TAPS * c_in, stride * c_in);
        matmul(out.reborrow().slice(1, inner_end - 1), rows);
    }
    for t in inner_end.max(1)..out.rows {
        edge(out.reborrow().slice(t, 1), t, &mut matmul);
    }
}

#[cfg(test)]
mod tests {
    use super::conv1d;
    use crate::cpu::test_data::{assert_close, random};
    use crate::cpu::{DenseWeight, Epilogue, MatMut, MatRef, matmul};
    use crate::{Cpu, Isa, ThreadTeam};

    #[test]
    fn matches_f64_at_both_strides() {
        let isa = *Isa::available().last().unwrap();
        let cpu = Cpu { isa, threads: ThreadTeam::new(2).unwrap() };
        let (c_in, c_out) = (5, 7);
        let w = random(c_out * 3 * c_in, 1);
        for stride in [1, 2, 3] {
            for t_in in (0..12).chain([100, 101]) {
                let x = random(t_in * c_in, 2);
                let t_out = t_in.div_ceil(stride);
                let mut out = vec![0.0; t_out * c_out];
                conv1d(
                    MatMut::packed(&mut out, t_out, c_out),
                    MatRef::packed(&x, t_in, c_in),
                    stride,
                    |y, x| matmul(&cpu, y, x, DenseWeight::F32(&w), Epilogue::default()),
                );
                let mut expected = vec![0.0f64; t_out * c_out];
                for t in 0..t_out {
                    for o in 0..c_out {
                        for tap in 0..3 {
                            let Some(pos) = (t * stride + tap).checked_sub(1) else { continue };
                            for i in 0..c_in {
                                let x = x.get(pos * c_in + i).copied().unwrap_or(0.0);
                                let w = w[o * 3 * c_in + tap * c_in + i];
                                expected[t * c_out + o] += f64::from(w) * f64::from(x);
                            }
                        }
                    }
                }
                assert_close(&out, &expected, 1e-5, &format!("stride {stride}, {t_in} positions"));
            }
        }
    }
}
