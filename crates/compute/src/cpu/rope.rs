//! Rotary position embedding (`RoPE`), with an optional RMS norm of each head before it (QK norm).

use std::ops::Range;

use super::matrix::{MatMut, SharedMut};
use super::norm::inverse_rms;
use super::row_tasks::for_row_ranges;
use crate::Cpu;
use crate::check_eq;
use crate::op::{RopeArgs, RopePairs, Rotation};
use crate::simd::{Kernel, Simd};

/// Norms every head of `x` and rotates its pairs `(u, v)` to `(u cos - v sin, u sin + v cos)` by the angles of the row's
/// position; `positions` is `[T]`, or empty without a rotation.
///
/// Shapes: `x` = `[T, H*C]`. Numerics: f32. Source: Su et al. 2021, eq. 34.
///
/// # Panics
/// If the shapes do not fit, `R` is odd or a position is outside the table.
#[track_caller]
pub fn rope(cpu: &Cpu, x: MatMut<'_>, args: RopeArgs<&[f32]>, positions: &[u32]) {
    let x = x.checked();
    let c = args.head_dim;
    assert!(
        c > 0 && x.cols.is_multiple_of(c),
        "rope: {} columns are not a multiple of head_dim {c}",
        x.cols
    );
    if let Some((weight, _)) = args.norm {
        check_eq!(weight.len(), c, "rope: values of the norm");
    }
    if let Some(Rotation { table, n_rot, .. }) = args.rotation {
        assert!(
            n_rot.is_multiple_of(2) && n_rot <= c,
            "rope: expected an even number of rotated channels, at most {c}, got {n_rot}"
        );
        check_eq!(positions.len(), x.rows, "rope: positions, one per row");
        let n_ctx = table.len().checked_div(n_rot).unwrap_or(usize::MAX);
        let max = positions.iter().max().map_or(0, |&max| max as usize + 1);
        assert!(max <= n_ctx, "rope: expected positions below {n_ctx}, got {}", max - 1);
    }
    let x = x.shared();
    for_row_ranges(cpu, x.rows, x.cols, |rows| {
        cpu.isa.dispatch(RopeRows { x, args, positions, rows });
    });
}

struct RopeRows<'a> {
    x: SharedMut<'a>,
    args: RopeArgs<&'a [f32]>,
    positions: &'a [u32],
    rows: Range<usize>,
}

impl Kernel for RopeRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for r in self.rows {
            // SAFETY: the row ranges of tasks are disjoint, and the span ends before the next row.
            let row = unsafe { self.x.span(r, 0, self.x.cols) };
            let rotation = self.args.rotation.map(|Rotation { table, n_rot, pairs }| {
                (&table[self.positions[r] as usize * n_rot..][..n_rot], pairs)
            });
            for head in row.chunks_exact_mut(self.args.head_dim) {
                if let Some((weight, eps)) = self.args.norm {
                    norm(s, head, weight, eps);
                }
                if let Some((cos_sin, pairs)) = rotation {
                    let head = &mut head[..cos_sin.len()];
                    match pairs {
                        RopePairs::Neox => rotate_neox(s, head, cos_sin),
                        RopePairs::Adjacent => rotate_adjacent(head, cos_sin),
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn norm<S: Simd>(s: S, head: &mut [f32], weight: &[f32], eps: f32) {
    let scale = inverse_rms(s, head, eps);
    let (values, tail) = s.split_mut(head);
    let (weight, weight_tail) = s.split(weight);
    for (v, &w) in values.iter_mut().zip(weight) {
        *v = s.mul(s.mul(*v, s.splat(scale)), w);
    }
    for (v, &w) in tail.iter_mut().zip(weight_tail) {
        *v = *v * scale * w;
    }
}

#[inline(always)]
fn rotate_neox<S: Simd>(s: S, head: &mut [f32], cos_sin: &[f32]) {
    let half = head.len() / 2;
    let (u, v) = head.split_at_mut(half);
    let (cos, sin) = cos_sin.split_at(half);
    let ((u, u_tail), (v, v_tail)) = (s.split_mut(u), s.split_mut(v));
    let ((cos, cos_tail), (sin, sin_tail)) = (s.split(cos), s.split(sin));
    for i in 0..u.len() {
        let (a, b) = (u[i], v[i]);
        u[i] = s.sub(s.mul(a, cos[i]), s.mul(b, sin[i]));
        v[i] = s.mul_add(a, sin[i], s.mul(b, cos[i]));
    }
    for i in 0..u_tail.len() {
        let (a, b) = (u_tail[i], v_tail[i]);
        u_tail[i] = a * cos_tail[i] - b * sin_tail[i];
        v_tail[i] = a * sin_tail[i] + b * cos_tail[i];
    }
}

/// Scalar code, which the compiler vectorizes with shuffles of the interleaved pairs.
#[inline(always)]
fn rotate_adjacent(head: &mut [f32], cos_sin: &[f32]) {
    let pairs = head.as_chunks_mut::<2>().0;
    let (cos, sin) = cos_sin.split_at(pairs.len());
    for ((pair, &cos), &sin) in pairs.iter_mut().zip(cos).zip(sin) {
        let [a, b] = *pair;
        *pair = [a * cos - b * sin, a * sin + b * cos];
    }
}

#[cfg(test)]
mod tests {
    use super::rope;
    use crate::cpu::MatMut;
    use crate::cpu::test_data::{assert_close, random};
    use crate::op::{RopeArgs, RopePairs, Rotation};
    use crate::{Cpu, Isa, ThreadTeam};

    /// `t` rows of `n_heads` heads of `c` channels, `r` of them rotated.
    #[derive(Clone, Copy)]
    struct Case {
        t: usize,
        n_heads: usize,
        c: usize,
        r: usize,
    }

    fn expected(head: &[f32], args: RopeArgs<&[f32]>, position: usize) -> Vec<f64> {
        let mut head: Vec<f64> = head.iter().map(|&v| f64::from(v)).collect();
        if let Some((weight, eps)) = args.norm {
            let mean = head.iter().map(|v| v * v).sum::<f64>() / head.len() as f64;
            let scale = 1.0 / (mean + f64::from(eps)).sqrt();
            head.iter_mut().zip(weight).for_each(|(v, &w)| *v *= scale * f64::from(w));
        }
        if let Some(Rotation { table, n_rot, pairs }) = args.rotation {
            let half = n_rot / 2;
            for i in 0..half {
                let (a, b) = match pairs {
                    RopePairs::Adjacent => (2 * i, 2 * i + 1),
                    RopePairs::Neox => (i, i + half),
                };
                let row = &table[position * n_rot..][..n_rot];
                let (cos, sin) = (f64::from(row[i]), f64::from(row[i + half]));
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
            }
        }
        head
    }

    fn check(cpu: &Cpu, Case { t, n_heads, c, r }: Case) {
        let width = n_heads * c;
        let stride = width + 3;
        let n_ctx = t + 7;
        let (x, weight, angles) = (random(t * stride, 1), random(c, 2), random(n_ctx * r, 3));
        // The last position first; two rows may have one position.
        let positions: Vec<u32> =
            (0..t).map(|row| ((row * 5 + 1) * (n_ctx - 1) % n_ctx) as u32).collect();
        let neox = Rotation { table: &angles[..], n_rot: r, pairs: RopePairs::Neox };
        let adjacent = Rotation { pairs: RopePairs::Adjacent, ..neox };
        for norm in [None, Some((&weight[..], 1e-6))] {
            for rotation in [None, Some(neox), Some(adjacent)] {
                let args = RopeArgs { head_dim: c, norm, rotation };
                let mut y = x.clone();
                rope(cpu, MatMut::new(&mut y, t, width, stride), args, &positions);
                let mut all: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
                for row in 0..t {
                    for head in 0..n_heads {
                        let at = row * stride + head * c..row * stride + (head + 1) * c;
                        all[at.clone()].copy_from_slice(&expected(
                            &x[at],
                            args,
                            positions[row] as usize,
                        ));
                    }
                }
                assert_close(&y, &all, 4e-6, cpu.isa.name());
            }
        }
    }

    #[test]
    fn both_pairings_match_f64_at_odd_widths() {
        for isa in Isa::available() {
            let cpu = Cpu { isa, threads: ThreadTeam::new(2).unwrap() };
            for (c, r) in [(1, 0), (2, 2), (5, 4), (8, 6), (64, 64), (80, 32), (34, 34), (128, 126)]
            {
                check(&cpu, Case { t: 3, n_heads: 2, c, r });
            }
            check(&cpu, Case { t: 0, n_heads: 2, c: 8, r: 8 });
            check(&cpu, Case { t: 90, n_heads: 6, c: 64, r: 64 });
        }
    }

    #[test]
    #[should_panic(expected = "rotated channels")]
    fn more_rotated_channels_than_a_head_has_are_refused() {
        rotate_row(&[0.0; 6], 6, &[0]);
    }

    #[test]
    #[should_panic(expected = "expected positions below 3, got 3")]
    fn positions_outside_the_table_are_refused() {
        rotate_row(&[0.0; 12], 4, &[3]);
    }

    #[test]
    #[should_panic(expected = "positions, one per row: expected 1, got 0")]
    fn fewer_positions_than_rows_are_refused() {
        rotate_row(&[0.0; 12], 4, &[]);
    }

    /// Rotates one row of two heads of 4 channels.
    fn rotate_row(table: &[f32], n_rot: usize, positions: &[u32]) {
        let cpu = Cpu { isa: Isa::available()[0], threads: ThreadTeam::new(1).unwrap() };
        let rotation = Some(Rotation { table, n_rot, pairs: RopePairs::Neox });
        let mut x = [0.0; 8];
        let args = RopeArgs { head_dim: 4, norm: None, rotation };
        rope(&cpu, MatMut::packed(&mut x, 1, 8), args, positions);
    }
}
