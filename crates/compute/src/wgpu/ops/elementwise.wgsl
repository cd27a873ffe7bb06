// ADD:      out[t, c] += x[offset + t * stride + c]
// SOFT_CAP: out[t, c] = cap * tanh(out[t, c] / cap)

const ADD: u32 = 0u;

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    if i >= p.rows * p.cols {
        return;
    }
    if p.op == ADD {
        out[i] += x[p.offset + i / p.cols * p.stride + i % p.cols];
    } else {
        out[i] = p.cap * tanh_exact(out[i] / p.cap);
    }
}
