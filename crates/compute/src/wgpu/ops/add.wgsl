// out[t, c] += x[offset + t * stride + c].

struct Params {
    rows: u32,
    cols: u32,
    offset: u32,
    stride: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    if i < p.rows * p.cols {
        out[i] += x[p.offset + i / p.cols * p.stride + i % p.cols];
    }
}
