//! XTC ("exclude top choices"): removes the most probable tokens, with a given probability.

use crate::candidates::Candidates;
use crate::mt19937::Mt19937;

/// With `probability`, removes all tokens with `p_i >= threshold` but the least probable of them, if at least `min_keep`
/// candidates remain. A threshold above 0.5 disables it.
///
/// Source: text-generation-webui PR 6335 (p-e-w); llama.cpp PR 9742. llama.cpp: `xtc`.
pub(super) fn apply(
    candidates: &mut Candidates,
    probability: f32,
    threshold: f32,
    min_keep: usize,
    rng: &mut Mt19937,
) {
    if probability <= 0.0 || threshold > 0.5 || candidates.len() < 2 {
        return;
    }
    if rng.uniform_f32() > probability {
        return;
    }
    candidates.softmax();
    // At most `1 / threshold` tokens have a probability of at least `threshold`.
    let max_top = (1.0 / threshold).ceil().min(u32::MAX as f32) as usize + 1;
    let top = candidates.sort_prefix(max_top).iter().take_while(|c| c.p >= threshold).count();
    let removed = top.saturating_sub(1);
    if removed > 0 && candidates.len() - removed >= min_keep {
        candidates.drop_prefix(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::Mt19937;
    use crate::testing::{apply, check};

    #[test]
    fn drops_all_top_choices_but_the_last() {
        let xtc = |threshold, min_keep| {
            let p = [0.4, 0.3, 0.2, 0.1];
            apply(&p, |c| super::apply(c, 1.0, threshold, min_keep, &mut Mt19937::new(0)))
        };
        check(&xtc(0.09, 0), &[1.0]);
        check(&xtc(0.19, 0), &[0.2 / 0.3, 0.1 / 0.3]);
        check(&xtc(0.29, 0), &[0.3 / 0.6, 0.2 / 0.6, 0.1 / 0.6]);
        check(&xtc(0.39, 0), &[0.4, 0.3, 0.2, 0.1]);
        check(&xtc(0.51, 0), &[0.4, 0.3, 0.2, 0.1]);
        check(&xtc(0.19, 3), &[0.4, 0.3, 0.2, 0.1]);
    }

    #[test]
    fn acts_with_the_given_probability() {
        let mut rng = Mt19937::new(7);
        let acted = (0..2000)
            .filter(|_| apply(&[0.6, 0.4], |c| super::apply(c, 0.25, 0.1, 0, &mut rng)).len() == 1);
        // 500 expected, a standard deviation is 19.
        let acted = acted.count();
        assert!((420..=580).contains(&acted), "acted {acted} times of 2000");
    }

    #[test]
    fn the_threshold_and_min_keep_are_inclusive() {
        let xtc = |p: &[f32], threshold, min_keep| {
            apply(p, |c| super::apply(c, 1.0, threshold, min_keep, &mut Mt19937::new(0)))
        };
        check(&xtc(&[0.5, 0.5], 0.5, 0), &[1.0]);
        let p = [0.4, 0.3, 0.2, 0.1];
        check(&xtc(&p, 0.29, 3), &[0.3 / 0.6, 0.2 / 0.6, 0.1 / 0.6]);
        check(&xtc(&p, 0.29, 4), &p);
        check(&xtc(&[1.0], 0.1, 0), &[1.0]);
    }

    #[test]
    fn many_top_choices_are_found_in_any_order() {
        let weights: Vec<f32> =
            (0..30).map(|i| if i % 2 == 0 { 20.0 + i as f32 } else { 0.1 }).collect();
        let sum: f32 = weights.iter().sum();
        let p: Vec<f32> = weights.iter().map(|w| w / sum).collect();
        let kept = apply(&p, |c| super::apply(c, 1.0, 0.035, 0, &mut Mt19937::new(0)));
        // Tokens from 18 on are top choices (20 / 511.5 and more); the least of them and the rest stay.
        let least = weights.iter().position(|w| w / sum >= 0.035 && *w > 1.0).unwrap();
        let stays = |i: &usize| weights[*i] <= weights[least];
        assert_eq!(kept.len(), (0..30).filter(stays).count());
        assert!(kept.len() < 30 - 10, "{}", kept.len());
    }

    #[test]
    fn no_number_is_drawn_if_it_is_off() {
        for (p, probability, threshold) in
            [(&[0.6, 0.4][..], 0.0, 0.1), (&[0.6, 0.4], 1.0, 0.51), (&[1.0], 1.0, 0.1)]
        {
            let mut rng = Mt19937::new(1);
            check(&apply(p, |c| super::apply(c, probability, threshold, 0, &mut rng)), p);
            assert_eq!(rng.uniform(), Mt19937::new(1).uniform());
        }
    }
}
