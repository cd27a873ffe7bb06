// out[t, i] = act(gate[t, i]) * up[t, i].

struct Params {
    rows: u32,
    cols: u32,
    gate_offset: u32,
    gate_stride: u32,
    up_offset: u32,
    up_stride: u32,
    activation: u32,
    alpha: f32,
    limit: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read> ups: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    if i >= p.rows * p.cols {
        return;
    }
    let t = i / p.cols;
    let c = i % p.cols;
    let gate = gates[p.gate_offset + t * p.gate_stride + c];
    let up = ups[p.up_offset + t * p.up_stride + c];
    switch p.activation {
        case 0u: {
            out[i] = gate * sigmoid(gate) * up;
        }
        case 1u: {
            out[i] = gelu_tanh(gate) * up;
        }
        default: {
            let low = min(gate, p.limit);
            out[i] = low * sigmoid(p.alpha * low) * (clamp(up, -p.limit, p.limit) + 1.0);
        }
    }
}
