//! Mixture of experts: routing of tokens, and the order of the routes by expert.

use bytemuck::{Pod, Zeroable};

use super::matrix::MatRef;
use crate::check_eq;
use crate::op::Routing;

/// Expert that a token is routed to.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct RoutedExpert {
    /// Index of the expert.
    pub expert: u32,
    /// Weight of its output.
    pub weight: f32,
}

/// Top `n_used` experts of every row of `logits`, `[T, E]`, by descending logit, equal ones by ascending id, with their routing
/// weights. `routes`: `[T, n_used]`.
///
/// # Panics
/// If `routes` has another length than `T * n_used`.
pub fn route(routes: &mut [RoutedExpert], logits: MatRef<'_>, n_used: usize, routing: Routing) {
    check_eq!(routes.len(), logits.rows * n_used, "route: routed experts");
    for (t, row) in routes.chunks_exact_mut(n_used).enumerate() {
        route_row(row, logits.row(t), routing);
    }
}

fn route_row(routes: &mut [RoutedExpert], logits: &[f32], routing: Routing) {
    // Insertion into a sorted list: there are few routes.
    let mut len = 0;
    for (expert, &logit) in (0..).zip(logits) {
        let at = routes[..len].iter().position(|r| r.weight < logit).unwrap_or(len);
        if at < routes.len() {
            len = (len + 1).min(routes.len());
            routes[at..len].rotate_right(1);
            routes[at] = RoutedExpert { expert, weight: logit };
        }
    }
    let Some(max) = routes.first().map(|r| r.weight) else { return };
    routes.iter_mut().for_each(|r| r.weight = (r.weight - max).exp());
    let total: f32 = match routing {
        Routing::Softmax => logits.iter().map(|l| (l - max).exp()).sum(),
        Routing::NormalizedTopK => routes.iter().map(|r| r.weight).sum(),
    };
    routes.iter_mut().for_each(|r| r.weight /= total);
}

/// Indexes of `routes` in ascending order of (expert, index).
///
/// # Panics
/// If `order` has another length.
pub fn sort_by_expert(order: &mut [u32], routes: &[RoutedExpert]) {
    check_eq!(order.len(), routes.len(), "sort_by_expert: length of the order");
    order.iter_mut().zip(0..).for_each(|(order, i)| *order = i);
    order.sort_unstable_by_key(|&i| (routes[i as usize].expert, i));
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::{RoutedExpert, route, sort_by_expert};
    use crate::cpu::MatRef;
    use crate::op::Routing;

    fn routed(logits: &[f32], n_used: usize, routing: Routing) -> Vec<(u32, f32)> {
        let mut routes = vec![RoutedExpert::zeroed(); n_used];
        route(&mut routes, MatRef::packed(logits, 1, logits.len()), n_used, routing);
        routes.iter().map(|r| (r.expert, r.weight)).collect()
    }

    #[test]
    fn tokens_are_routed_to_the_largest_logits_and_the_lower_of_equal_ones() {
        let experts = |logits: &[f32], n| -> Vec<u32> {
            routed(logits, n, Routing::Softmax).iter().map(|r| r.0).collect()
        };
        assert_eq!(experts(&[1.0, 3.0, 2.0, 3.0], 2), [1, 3]);
        assert_eq!(experts(&[0.0; 5], 3), [0, 1, 2]);
        assert_eq!(experts(&[-1.0, f32::NEG_INFINITY], 2), [0, 1]);
        assert_eq!(experts(&[f32::NAN; 3], 2), [0, 1]);
    }

    #[test]
    fn weights_are_normalized_over_all_experts_or_over_the_top_k() {
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        let close = |got: Vec<(u32, f32)>, expected: [(u32, f32); 2]| {
            for (got, expected) in got.iter().zip(expected) {
                assert_eq!(got.0, expected.0);
                assert!((got.1 - expected.1).abs() < 1e-6, "{got:?} {expected:?}");
            }
        };
        close(routed(&logits, 2, Routing::Softmax), [(2, 0.625), (1, 0.25)]);
        close(routed(&logits, 2, Routing::NormalizedTopK), [(2, 5.0 / 7.0), (1, 2.0 / 7.0)]);
    }

    #[test]
    fn routes_of_one_expert_keep_their_order() {
        let routes = [3, 1, 1, 0, 3].map(|expert| RoutedExpert { expert, weight: 1.0 });
        let mut order = [9; 5];
        sort_by_expert(&mut order, &routes);
        assert_eq!(order, [3, 1, 2, 0, 4]);
    }
}
