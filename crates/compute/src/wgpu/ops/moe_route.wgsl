// Top-k experts of a token with their weights; one workgroup per token.
//
//   repeat n_used times: take the expert with the largest remaining logit, the lowest of equals
//   weight = exp(logit - largest logit) / sum of exp over all experts, or over the chosen ones if normalize_top_k

@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> routes: array<u32>;

// Lower bound of the logits, for -inf and NaN.
const LOWEST: f32 = -3.0e38;

// Logits of the experts that are not chosen yet.
var<workgroup> remaining: array<f32, 1024>;
var<workgroup> best_logit: array<f32, WG>;
var<workgroup> best_expert: array<u32, WG>;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group_index(group, groups);
    if t >= p.rows {
        return;
    }
    let start = p.offset + t * p.stride;
    for (var e = lid; e < p.n_experts; e += WG) {
        remaining[e] = max(logits[start + e], LOWEST);
    }
    workgroupBarrier();
    var max_logit = 0.0;
    var chosen_sum = 0.0;
    for (var i = 0u; i < p.n_used; i++) {
        var logit = -3.2e38;
        var expert = 0u;
        for (var e = lid; e < p.n_experts; e += WG) {
            if remaining[e] > logit {
                logit = remaining[e];
                expert = e;
            }
        }
        best_logit[lid] = logit;
        best_expert[lid] = expert;
        workgroupBarrier();
        for (var width = WG / 2u; width > 0u; width = width / 2u) {
            if lid < width {
                let other = best_logit[lid + width];
                let is_lower = best_expert[lid + width] < best_expert[lid];
                if other > best_logit[lid] || (other == best_logit[lid] && is_lower) {
                    best_logit[lid] = other;
                    best_expert[lid] = best_expert[lid + width];
                }
            }
            workgroupBarrier();
        }
        logit = best_logit[0];
        expert = best_expert[0];
        workgroupBarrier();
        if i == 0u {
            max_logit = logit;
        }
        let weight = exp_exact(logit - max_logit);
        chosen_sum += weight;
        if lid == 0u {
            remaining[expert] = -3.3e38;
            routes[2u * (t * p.n_used + i)] = expert;
            routes[2u * (t * p.n_used + i) + 1u] = bitcast<u32>(weight);
        }
        workgroupBarrier();
    }
    var total = 0.0;
    for (var e = lid; e < p.n_experts; e += WG) {
        total += exp_exact(logits[start + e] - max_logit);
    }
    total = reduce_add(total, lid);
    if p.normalize_top_k != 0u {
        total = chosen_sum;
    }
    if lid == 0u {
        for (var i = 0u; i < p.n_used; i++) {
            let at = 2u * (t * p.n_used + i) + 1u;
            routes[at] = bitcast<u32>(bitcast<f32>(routes[at]) / total);
        }
    }
}
