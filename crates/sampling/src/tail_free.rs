//! Tail-free sampling: cuts where the curve of the sorted probabilities flattens.

use crate::candidates::Candidates;

/// Keeps the top `i` tokens, `i` the smallest index with `Σ_{j<=i} c_j > z`, but at least `min_keep`; `z` of 1 keeps all.
/// `c_j = |(p_j − p_{j+1}) − (p_{j+1} − p_{j+2})|`, normalized to a sum of 1, over descending probabilities.
///
/// Source: trentbrick, "Tail Free Sampling", 2019; llama.cpp's `tfs_z` until PR 10071.
pub(super) fn apply(candidates: &mut Candidates, z: f32, min_keep: usize) {
    let n = candidates.len();
    if z >= 1.0 || n <= 2 {
        return;
    }
    candidates.softmax();
    let sorted = candidates.sort_prefix(n);
    let curvature = |i: usize| {
        let [a, b, c] = [sorted[i].p, sorted[i + 1].p, sorted[i + 2].p].map(f64::from);
        ((a - b) - (b - c)).abs()
    };
    let total: f64 = (0..n - 2).map(curvature).sum();
    let mut sum = 0.0;
    for i in 0..n - 2 {
        // No curvature: equal shares.
        sum += if total > 1e-6 { curvature(i) / total } else { 1.0 / (n - 2) as f64 };
        if sum > f64::from(z) && i >= min_keep.max(1) {
            return candidates.truncate(i);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{apply, check};

    #[test]
    fn cuts_the_tail() {
        // Second differences 0.2, 0.09, 0, 0.01 of 0.3 in all: shares 0.667, 0.967, 0.967, 1.
        let p = [0.55f32, 0.25, 0.15, 0.04, 0.01, 0.0];
        let cut = |z, min_keep| apply(&p, |c| super::apply(c, z, min_keep)).len();
        let second = |i: usize| ((p[i] - p[i + 1]) - (p[i + 1] - p[i + 2])).abs();
        let total: f32 = (0..4).map(second).sum();
        for z in [0.1, 0.5, 0.75, 0.9, 0.95] {
            let mut sum = 0.0;
            let expected = (0..4).find(|&i| {
                sum += second(i) / total;
                sum > z && i >= 1
            });
            assert_eq!(cut(z, 1), expected.unwrap(), "z {z}");
        }
        assert_eq!(cut(0.1, 3), 3);
        assert_eq!(cut(1.0, 1), 5);
    }

    #[test]
    fn equal_steps_are_cut_by_count() {
        check(&apply(&[0.1, 0.15, 0.2, 0.25, 0.3], |c| super::apply(c, 0.25, 1)), &[1.0]);
        let two = [0.3 / 0.55, 0.25 / 0.55];
        check(&apply(&[0.1, 0.15, 0.2, 0.25, 0.3], |c| super::apply(c, 0.75, 1)), &two);
        check(&apply(&[0.1, 0.15, 0.2, 0.25, 0.3], |c| super::apply(c, 0.99, 1)), &two);
    }

    #[test]
    fn one_and_two_tokens_have_no_curve() {
        check(&apply(&[1.0], |c| super::apply(c, 0.5, 1)), &[1.0]);
        check(&apply(&[0.4, 0.6], |c| super::apply(c, 0.5, 1)), &[0.6, 0.4]);
    }

    #[test]
    fn a_sum_equal_to_z_does_not_cut() {
        // Equal steps: four shares of 0.25.
        let p = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(|w: f32| w / 21.0);
        let kept = |z, min_keep| apply(&p, |c| super::apply(c, z, min_keep)).len();
        assert_eq!([0.2, 0.25, 0.5, 0.74, 0.75, 0.9].map(|z| kept(z, 1)), [1, 1, 2, 2, 3, 3]);
        assert_eq!([kept(0.2, 0), kept(0.2, 2), kept(0.2, 3), kept(0.2, 4)], [1, 2, 3, 6]);
    }
}
