// Combines the splits of a row and head; one workgroup per row and head, four channels per invocation.
//
//   m = max over splits of their maximum m_s (and the sink)
//   l = sum over splits of l_s * exp(m_s - m) (and exp(sink - m))
//   out = sum over splits of acc_s * exp(m_s - m) / l

// [rows, heads, splits, head_dim + 2]: weighted sums of the values, maximum, sum of the weights.
@group(0) @binding(1) var<storage, read> partials: array<f32>;
@group(0) @binding(2) var<storage, read> sinks: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> out_operand: array<u32>;

const LOWEST: f32 = -3.0e38;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let index = group_index(group, groups);
    if index >= p.n_rows * p.n_heads {
        return;
    }
    let stride = p.head_dim + 2u;
    let first = index * p.n_splits * stride;
    var max_score = LOWEST;
    for (var i = 0u; i < p.n_splits; i++) {
        max_score = max(max_score, partials[first + i * stride + p.head_dim]);
    }
    var total = 0.0;
    if p.has_sinks != 0u {
        let sink = sinks[index % p.n_heads];
        max_score = max(max_score, sink);
        total = exp_exact(sink - max_score);
    }
    for (var i = 0u; i < p.n_splits; i++) {
        let at = first + i * stride + p.head_dim;
        total += partials[at + 1u] * exp_exact(partials[at] - max_score);
    }
    for (var channel = 0u; channel < p.head_dim; channel += 4u * WG) {
        let c = channel + 4u * lid;
        var y = vec4<f32>(0.0);
        for (var i = 0u; i < p.n_splits; i++) {
            let at = first + i * stride;
            let weight = exp_exact(partials[at + p.head_dim] - max_score);
            for (var j = 0u; j < 4u; j++) {
                if c + j < p.head_dim {
                    y[j] += partials[at + c + j] * weight;
                }
            }
        }
        y = select(vec4<f32>(0.0), y / total, vec4<bool>(total > 0.0));
        for (var j = 0u; j < 4u; j++) {
            if c + j < p.head_dim && p.has_operand == 0u {
                out[index * p.head_dim + c + j] = y[j];
            }
        }
        if p.has_operand != 0u {
            let t = index / p.n_heads;
            let column = index % p.n_heads * p.head_dim + c;
            quantize4(y, t, column, p.n_heads * p.head_dim, c < p.head_dim, lid);
        }
    }
}
