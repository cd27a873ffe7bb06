//! Convolutions over time: [`conv1d`] as a matmul over overlapping rows (im2col without a copy), [`conv_state`] of each channel.

use std::ops::Range;

use super::math::silu;
use super::matrix::{MatMut, MatRef, SharedMut};
use super::row_tasks::for_row_ranges;
use crate::op::{ConvStateArgs, MAX_CONV_STATE_KERNEL, StateRun};
use crate::scratch::with_scratch;
use crate::simd::{Kernel, Simd};
use crate::{Cpu, check_eq};

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

/// Channels that a task of [`conv_state`] convolves at a time.
const CHANNELS: usize = 256;
/// Largest number of inputs in a state.
const MAX_KEPT: usize = MAX_CONV_STATE_KERNEL - 1;

/// Causal convolution of each channel with state, see [`Op::ConvState`](crate::op::Op::ConvState). `states` holds all slots.
///
/// Shapes: `out` and `x` `[T, D]`, `T` the rows of all runs. Numerics: the sums are f32.
///
/// # Panics
/// If the shapes do not fit or there is no such slot.
#[track_caller]
pub fn conv_state(
    cpu: &Cpu,
    out: MatMut<'_>,
    x: MatRef<'_>,
    args: &ConvStateArgs<&[f32]>,
    (states, runs): (&mut [f32], &[StateRun]),
) {
    let x = x.checked();
    check_eq!((x.rows, x.cols), (out.rows, out.cols), "conv_state: shape of the operand");
    let n_rows = runs.iter().map(|run| run.n_rows as usize).sum::<usize>();
    check_eq!(n_rows, x.rows, "conv_state: rows of the runs");
    check_eq!(args.weight.len(), args.kernel * x.cols, "conv_state: weights");
    let n_kept = args.kernel - 1;
    let states = MatMut::packed(states, args.states.n_slots * n_kept, x.cols).shared();
    let out = out.shared();
    for_row_ranges(cpu, x.cols.div_ceil(CHANNELS), x.rows * CHANNELS, |blocks| {
        for block in blocks {
            let channels = block * CHANNELS..x.cols.min((block + 1) * CHANNELS);
            cpu.isa.dispatch(ConvState { out, x, args, states, runs, channels });
        }
    });
}

/// Convolution of some channels of all runs.
struct ConvState<'a> {
    out: SharedMut<'a>,
    x: MatRef<'a>,
    args: &'a ConvStateArgs<&'a [f32]>,
    states: SharedMut<'a>,
    runs: &'a [StateRun],
    channels: Range<usize>,
}

impl Kernel for ConvState<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { out, x, args, states, runs, channels } = self;
        let (first, n, kernel) = (channels.start, channels.len(), args.kernel);
        let n_kept = kernel - 1;
        // The weights of a tap side by side.
        let mut weights = [[0.0; CHANNELS]; MAX_CONV_STATE_KERNEL];
        for (c, of_channel) in
            args.weight[first * kernel..].chunks_exact(kernel).take(n).enumerate()
        {
            weights.iter_mut().zip(of_channel).for_each(|(taps, &weight)| taps[c] = weight);
        }
        let mut bias = [0.0; CHANNELS];
        args.bias.iter().for_each(|values| bias[..n].copy_from_slice(&values[channels.clone()]));
        let mut start = 0;
        for run in runs {
            let mut kept = [[0.0; CHANNELS]; MAX_KEPT];
            if let Some(slot) = run.from {
                for (i, kept) in kept[..n_kept].iter_mut().enumerate() {
                    // SAFETY: a task has channels of its own, and one span is alive at a time.
                    let state = unsafe { states.span(slot as usize * n_kept + i, first, n) };
                    kept[..n].copy_from_slice(state);
                }
            }
            // The inputs from the first one of the state on.
            let input = |i: usize| match i.checked_sub(n_kept) {
                None => &kept[i][..n],
                Some(row) => &x.row(start + row)[channels.clone()],
            };
            for row in 0..run.n_rows as usize {
                // SAFETY: as above.
                let out = unsafe { out.span(start + row, first, n) };
                let taps = |tap: usize| (&weights[tap][..n], input(row + tap));
                match kernel {
                    2 => convolve(s, out, &bias[..n], [0, 1].map(taps), args.silu),
                    3 => convolve(s, out, &bias[..n], [0, 1, 2].map(taps), args.silu),
                    _ => convolve(s, out, &bias[..n], [0, 1, 2, 3].map(taps), args.silu),
                }
            }
            for i in 0..n_kept {
                // SAFETY: as above.
                let state = unsafe { states.span(run.to as usize * n_kept + i, first, n) };
                state.copy_from_slice(input(run.n_rows as usize + i));
            }
            start += run.n_rows as usize;
        }
    }
}

/// `out = act(bias + Σ w x)` over the taps `(w, x)`.
#[inline(always)]
fn convolve<S: Simd, const K: usize>(
    s: S,
    out: &mut [f32],
    bias: &[f32],
    taps: [(&[f32], &[f32]); K],
    has_silu: bool,
) {
    let (out, out_tail) = s.split_mut(out);
    let (bias, bias_tail) = s.split(bias);
    let taps = taps.map(|(w, x)| (s.split(w), s.split(x)));
    for i in 0..out.len() {
        let mut sum = bias[i];
        for ((w, _), (x, _)) in &taps {
            sum = s.mul_add(w[i], x[i], sum);
        }
        out[i] = if has_silu { silu(s, sum) } else { sum };
    }
    let mut sum = s.load_partial(bias_tail);
    for ((_, w), (_, x)) in &taps {
        sum = s.mul_add(s.load_partial(w), s.load_partial(x), sum);
    }
    s.store_partial(out_tail, if has_silu { silu(s, sum) } else { sum });
}

#[cfg(test)]
mod tests {
    use super::{conv_state, conv1d};
    use crate::cpu::math::tests::sigmoid_f64;
    use crate::cpu::test_data::{assert_close, random};
    use crate::cpu::{DenseWeight, Epilogue, MatMut, MatRef, matmul};
    use crate::op::{ConvStateArgs, Port, StateRun, States};
    use crate::{Cpu, Isa, ThreadTeam};

    /// Outputs of one sequence in a step for each part of it, in slot 1 of 3; the last inputs at the end.
    fn in_parts(
        isa: Isa,
        x: MatRef<'_>,
        args: &ConvStateArgs<&[f32]>,
        parts: &[usize],
    ) -> (Vec<f32>, Vec<f32>) {
        let cpu = Cpu { isa, threads: ThreadTeam::new(2).unwrap() };
        let (len, mut first) = (args.states.len, 0);
        let mut states = vec![f32::NAN; 3 * len];
        let mut out = vec![f32::NAN; x.rows * x.cols];
        for &n in parts {
            let run = StateRun { n_rows: n as u32, from: (first > 0).then_some(1), to: 1 };
            let rows = MatMut::packed(&mut out[first * x.cols..], n, x.cols);
            conv_state(&cpu, rows, x.slice(first, n), args, (&mut states, &[run]));
            first += n;
        }
        assert!(states[..len].iter().chain(&states[2 * len..]).all(|v| v.is_nan()));
        (out, states[len..2 * len].to_vec())
    }

    #[test]
    fn sequences_in_any_parts_have_the_values_of_f64() {
        let n_rows = 70;
        for (isa, kernel) in
            Isa::available().into_iter().flat_map(|isa| [2, 3, 4].map(|kernel| (isa, kernel)))
        {
            for (cols, silu, has_bias) in [(1, true, true), (64, false, true), (601, true, false)] {
                let [x, weight, bias] = [(n_rows + 1) * (cols + 1), kernel * cols, cols]
                    .map(|len| random(len, (len + kernel) as u64));
                let x = MatRef::new(&x[1..], n_rows, cols, cols + 1);
                let len = (kernel - 1) * cols;
                let args = ConvStateArgs {
                    kernel,
                    weight: &weight[..],
                    bias: has_bias.then_some(&bias[..]),
                    silu,
                    states: States { port: Port::value(0), n_slots: 3, len },
                };
                let whole = in_parts(isa, x, &args, &[n_rows]);
                let at = |t: usize, c: usize| {
                    let term = |tap: usize| {
                        let t = (t + tap).checked_sub(kernel - 1)?;
                        Some(f64::from(weight[c * kernel + tap]) * f64::from(x.row(t)[c]))
                    };
                    let bias = if has_bias { f64::from(bias[c]) } else { 0.0 };
                    let sum = (0..kernel).filter_map(term).sum::<f64>() + bias;
                    if silu { sum * sigmoid_f64(sum) } else { sum }
                };
                let rows = (0..n_rows).flat_map(|t| (0..cols).map(move |c| (t, c)));
                let expected: Vec<f64> = rows.map(|(t, c)| at(t, c)).collect();
                assert_close(&whole.0, &expected, 2e-6, isa.name());
                let last: Vec<f32> =
                    (n_rows + 1 - kernel..n_rows).flat_map(|t| x.row(t)).copied().collect();
                assert_eq!(whole.1, last);
                for parts in [&[1; 70][..], &[1, 2, 67], &[67, 1, 2], &[2, 3, 1, 64]] {
                    assert!(in_parts(isa, x, &args, parts) == whole, "{isa}: {parts:?}");
                }
            }
        }
    }

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
