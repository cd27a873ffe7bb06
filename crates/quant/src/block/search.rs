//! Searches for scale and min with the least error, for the quantizers of the K types.
//!
//! Each tries several scales around `limit / max` and keeps the best by weighted squared (or absolute) error. The order of
//! the f32 operations is part of the definition: another order would pick another scale for some groups. Source:
//! `make_qx_quants`, `make_q3_quants` and `make_qkx2_quants` of llama.cpp's `ggml-quants.c`.

/// Groups are stored as zeros if all magnitudes are below this.
pub(super) const GROUP_MAX_EPS: f32 = 1e-15;

/// Rounds to the nearest integer, ties to even, by adding 1.5 * 2^23; beyond ±2^22 the result is the low bits of the sum.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    let bits = (x + 12_582_912.0).to_bits() as i32;
    (bits & 0x007f_ffff) - 0x0040_0000
}

/// Quantizes to `scale * (q - limit)`, `q` in `0..2 * limit`, and returns the scale of least error weighted by `x^2`
/// (`make_qx_quants`).
pub(super) fn search_scale<const N: usize>(limit: i32, x: &[f32; N], quants: &mut [u8; N]) -> f32 {
    let max = super::definition::signed_max(x);
    if max.abs() < GROUP_MAX_EPS {
        quants.fill(0);
        return 0.0;
    }
    let level = |inverse: f32, v: f32| nearest(inverse * v).clamp(-limit, limit - 1);
    let sums = |inverse: f32| {
        let (mut sum_lx, mut sum_l2) = (0.0f32, 0.0f32);
        for &v in x {
            let l = level(inverse, v) as f32;
            let w = v * v;
            sum_lx += w * v * l;
            sum_l2 += w * l * l;
        }
        (sum_lx, sum_l2)
    };
    let mut store = |inverse: f32| {
        for (q, &v) in quants.iter_mut().zip(x) {
            *q = (level(inverse, v) + limit) as u8;
        }
    };

    let inverse = -limit as f32 / max;
    let (sum_lx, sum_l2) = sums(inverse);
    store(inverse);
    let mut scale = if sum_l2 == 0.0 { 0.0 } else { sum_lx / sum_l2 };
    let mut best = scale * sum_lx;
    for step in (-9..=9).filter(|&step| step != 0) {
        let inverse = -(limit as f32 + 0.1 * step as f32) / max;
        let (sum_lx, sum_l2) = sums(inverse);
        if sum_l2 > 0.0 && sum_lx * sum_lx > best * sum_l2 {
            store(inverse);
            scale = sum_lx / sum_l2;
            best = scale * sum_lx;
        }
    }
    scale
}

/// Quantizes to `scale * (q - 4)`, `q` in `0..8`, improved one value at a time, and returns the scale
/// (`make_q3_quants`).
pub(super) fn search_scale_q3(x: &[f32; 16], quants: &mut [u8; 16]) -> f32 {
    let max = super::definition::signed_max(x);
    if max.abs() < GROUP_MAX_EPS {
        quants.fill(0);
        return 0.0;
    }
    let inverse = -4.0 / max;
    let mut levels = [0i32; 16];
    let (mut sum_lx, mut sum_l2) = (0.0f32, 0.0f32);
    for (level, &v) in levels.iter_mut().zip(x) {
        *level = nearest(inverse * v).clamp(-4, 3);
        let (l, w) = (*level as f32, v * v);
        sum_lx += w * v * l;
        sum_l2 += w * l * l;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (level, &v) in levels.iter_mut().zip(x) {
            let (l, w) = (*level as f32, v * v);
            let mut other_lx = sum_lx - w * v * l;
            if other_lx > 0.0 {
                let mut other_l2 = sum_l2 - w * l * l;
                let better = nearest(v * other_l2 / other_lx).clamp(-4, 3);
                if better != *level {
                    let l = better as f32;
                    other_lx += w * v * l;
                    other_l2 += w * l * l;
                    let gains = other_lx * other_lx * sum_l2 > sum_lx * sum_lx * other_l2;
                    if other_l2 > 0.0 && gains {
                        *level = better;
                        (sum_lx, sum_l2) = (other_lx, other_l2);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    *quants = levels.map(|level| (level + 4) as u8);
    if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }
}

/// Parameters of [`search_scale_min`].
pub(super) struct AffineSearch {
    /// The highest level.
    pub(super) limit: i32,
    /// The first candidate's distance from `limit`.
    pub(super) first: f32,
    /// The distance between candidates.
    pub(super) step: f32,
    /// The number of candidates less one.
    pub(super) steps: i32,
    /// Whether to minimise the absolute error instead of the squared one.
    pub(super) absolute: bool,
}

/// Quantizes to `scale * q - min`, `q` in `0..=limit`, and returns `(scale, min)` of least weighted error, `min >= 0`
/// (`make_qkx2_quants`).
pub(super) fn search_scale_min<const N: usize>(
    search: &AffineSearch,
    x: &[f32; N],
    weights: &[f32; N],
    quants: &mut [u8; N],
) -> (f32, f32) {
    let limit = search.limit;
    let (mut min, mut max) = (x[0], x[0]);
    let mut sum_w = weights[0];
    let mut sum_x = sum_w * x[0];
    for i in 1..N {
        if x[i] < min {
            min = x[i];
        }
        if x[i] > max {
            max = x[i];
        }
        sum_w += weights[i];
        sum_x += weights[i] * x[i];
    }
    if min > 0.0 {
        min = 0.0;
    }
    if max == min {
        quants.fill(0);
        return (0.0, -min);
    }
    let levels =
        |inverse: f32, min: f32| x.map(|v| nearest(inverse * (v - min)).clamp(0, limit) as u8);
    let error = |scale: f32, min: f32, quants: &[u8; N]| {
        let mut error = 0.0f32;
        for i in 0..N {
            let difference = scale * f32::from(quants[i]) + min - x[i];
            let loss = if search.absolute { difference.abs() } else { difference * difference };
            error += weights[i] * loss;
        }
        error
    };

    let inverse = limit as f32 / (max - min);
    let mut scale = 1.0 / inverse;
    *quants = levels(inverse, min);
    let mut best = error(scale, min, quants);
    for step in 0..=search.steps {
        let numerator = search.first + search.step * step as f32 + limit as f32;
        // The min of the best candidate so far, not the minimum of `x`.
        let candidate = levels(numerator / (max - min), min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0f32, 0.0f32, 0.0f32);
        for i in 0..N {
            let (l, w) = (f32::from(candidate[i]), weights[i]);
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x[i];
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant > 0.0 {
            let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut this_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if this_min > 0.0 {
                this_min = 0.0;
                this_scale = sum_xl / sum_l2;
            }
            let this_error = error(this_scale, this_min, &candidate);
            if this_error < best {
                *quants = candidate;
                (best, scale, min) = (this_error, this_scale, this_min);
            }
        }
    }
    (scale, -min)
}
