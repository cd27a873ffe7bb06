//! Top-p (nucleus): the smallest set of tokens with a total probability of `p`.

use crate::candidates::Candidates;

/// Keeps the shortest prefix of the tokens in descending order with `Σ p_i >= p`, but at least `min_keep`; `p` of 1
/// keeps all.
///
/// Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", §3.1. llama.cpp: `top_p`.
pub(super) fn apply(candidates: &mut Candidates, p: f32, min_keep: usize) {
    if p >= 1.0 {
        return;
    }
    candidates.softmax();
    let (mut ordered, mut mass) = (0, 0.0);
    for i in 0..candidates.len() {
        if i == ordered {
            // Sorts four times as many at a time: the nucleus is mostly small.
            ordered = (4 * ordered).max(256);
            candidates.sort_prefix(ordered);
        }
        mass += f64::from(candidates.as_slice()[i].p);
        // Compared in f32, the type of `p`, so that 0.3 + 0.4 reaches 0.7.
        if mass as f32 >= p && i + 1 >= min_keep {
            return candidates.truncate(i + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::candidates::Candidates;
    use crate::testing::{apply, check};

    #[test]
    fn keeps_the_nucleus() {
        let top = |p, min_keep| apply(&[0.1, 0.2, 0.3, 0.4], |c| super::apply(c, p, min_keep));
        check(&top(0.0, 0), &[1.0]);
        check(&top(0.7, 0), &[0.571_429, 0.428_571]);
        check(&top(0.8, 0), &[0.444_44, 0.333_33, 0.222_22]);
        check(&top(1.0, 0), &[0.4, 0.3, 0.2, 0.1]);
        check(&top(0.1, 3), &[0.444_44, 0.333_33, 0.222_22]);
    }

    #[test]
    fn a_wide_nucleus_of_a_large_vocabulary_is_found() {
        let mut candidates = Candidates::new(10_000);
        let logits: Vec<f32> = (0..10_000).map(|i| (i as f32).ln()).collect();
        candidates.load(&logits);
        super::apply(&mut candidates, 0.8, 1);
        // Σ i over the n largest of 0..10000 first reaches 0.8 of the whole at n = 5528.
        let whole = 9999 * 10_000 / 2;
        let mut sum = 0;
        let n = (0..10_000).rev().take_while(|i| {
            let short = 10 * sum < 8 * whole;
            sum += i;
            short
        });
        assert_eq!(candidates.len(), n.count());
        assert_eq!(candidates.as_slice()[0].token, 9999);
    }
}
