//! Top-k: the `k` most probable tokens.

use crate::candidates::Candidates;

/// Keeps the `k` largest logits; `k` of 0 keeps all.
///
/// Source: Fan, Lewis, Dauphin 2018, "Hierarchical Neural Story Generation", §5.4. llama.cpp: `top_k`.
pub(super) fn apply(candidates: &mut Candidates, k: usize) {
    if k > 0 {
        candidates.keep_top_k(k);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{apply, check};

    #[test]
    fn keeps_k() {
        let top = |k| apply(&[0.1, 0.2, 0.3, 0.4], |c| super::apply(c, k));
        check(&top(1), &[1.0]);
        check(&top(3), &[0.444_44, 0.333_33, 0.222_22]);
        check(&top(4), &[0.4, 0.3, 0.2, 0.1]);
        check(&top(9), &[0.4, 0.3, 0.2, 0.1]);
        check(&top(0), &[0.4, 0.3, 0.2, 0.1]);
    }
}
