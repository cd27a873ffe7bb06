// Chooses the experts with the largest logits; a workgroup a token.

struct Params {
    rows: u32,
    offset: u32,
    stride: u32,
    n_experts: u32,
    n_used: u32,
    of_chosen: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> choices: array<u32>;

// Logits that are not finite count as this.
const LOWEST: f32 = -3.0e38;

// Logits that are not chosen yet.
var<workgroup> left: array<f32, 1024>;
var<workgroup> best_logit: array<f32, WG>;
var<workgroup> best_expert: array<u32, WG>;

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group_index(group, groups);
    if t >= p.rows {
        return;
    }
    let start = p.offset + t * p.stride;
    for (var e = lid; e < p.n_experts; e += WG) {
        left[e] = max(logits[start + e], LOWEST);
    }
    workgroupBarrier();
    var greatest = 0.0;
    var chosen = 0.0;
    for (var i = 0u; i < p.n_used; i++) {
        var logit = -3.2e38;
        var expert = 0u;
        for (var e = lid; e < p.n_experts; e += WG) {
            if left[e] > logit {
                logit = left[e];
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
            greatest = logit;
        }
        let weight = exp_exact(logit - greatest);
        chosen += weight;
        if lid == 0u {
            left[expert] = -3.3e38;
            choices[2u * (t * p.n_used + i)] = expert;
            choices[2u * (t * p.n_used + i) + 1u] = bitcast<u32>(weight);
        }
        workgroupBarrier();
    }
    var total = 0.0;
    for (var e = lid; e < p.n_experts; e += WG) {
        total += exp_exact(logits[start + e] - greatest);
    }
    total = reduce_add(total, lid);
    if p.of_chosen != 0u {
        total = chosen;
    }
    if lid == 0u {
        for (var i = 0u; i < p.n_used; i++) {
            let at = 2u * (t * p.n_used + i) + 1u;
            choices[at] = bitcast<u32>(bitcast<f32>(choices[at]) / total);
        }
    }
}
