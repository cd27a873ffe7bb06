// Norms a head and rotates pairs of its channels, in place; a workgroup a head.

struct Params {
    rows: u32,
    n_heads: u32,
    head_dim: u32,
    offset: u32,
    stride: u32,
    n_rot: u32,
    is_adjacent: u32,
    has_norm: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> cos_sin: array<f32>;

var<workgroup> head: array<f32, 1024>;

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let index = group_index(group, groups);
    if index >= p.rows * p.n_heads {
        return;
    }
    let t = index / p.n_heads;
    let at = p.offset + t * p.stride + index % p.n_heads * p.head_dim;
    var squares = 0.0;
    for (var c = lid; c < p.head_dim; c += WG) {
        let v = x[at + c];
        squares = fma(v, v, squares);
        head[c] = v;
    }
    if p.has_norm != 0u {
        let scale = 1.0 / sqrt(reduce_add(squares, lid) / f32(p.head_dim) + p.eps);
        for (var c = lid; c < p.head_dim; c += WG) {
            head[c] *= scale * weight[c];
        }
    }
    workgroupBarrier();
    let half = p.n_rot / 2u;
    for (var i = lid; i < half; i += WG) {
        let a = select(i, 2u * i, p.is_adjacent != 0u);
        let b = select(i + half, 2u * i + 1u, p.is_adjacent != 0u);
        let c = cos_sin[t * p.n_rot + i];
        let s = cos_sin[t * p.n_rot + half + i];
        x[at + a] = head[a] * c - head[b] * s;
        x[at + b] = head[a] * s + head[b] * c;
    }
    for (var c = p.n_rot + lid; c < p.head_dim; c += WG) {
        x[at + c] = head[c];
    }
}
