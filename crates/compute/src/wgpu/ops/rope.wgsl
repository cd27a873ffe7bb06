// RMS norm and RoPE of a head, in place; one workgroup per head.

@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read> cos_sin: array<f32>;

// First value of the head.
var<private> head_at: u32;

fn head_value(c: u32) -> f32 {
    return x[head_at + c];
}

fn head_weight(c: u32) -> f32 {
    return weight[c];
}

fn store_value(c: u32, v: f32) {
    x[head_at + c] = v;
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let index = group_index(group, groups);
    if index >= p.rows * p.n_heads {
        return;
    }
    let t = index / p.n_heads;
    head_at = p.offset + t * p.stride + index % p.n_heads * p.head_dim;
    let angles = table_row(t, p.rotation);
    let first = angle(lid, p.rotation, angles);
    load_head(p.head_dim, p.rotation, lid);
    store_rotated(p.head_dim, p.rotation, angles, first, lid);
}
