// Norms and rotates the heads of queries and keys, in place, and stores keys and values; a workgroup a query head,
// or the key and the value of a KV head.

struct Params {
    q_rotation: Rotation,
    k_rotation: Rotation,
    rows: u32,
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    row_words: u32,
    head_words: u32,
    page_words: u32,
    q_offset: u32,
    q_stride: u32,
    k_offset: u32,
    k_stride: u32,
    v_offset: u32,
    v_stride: u32,
    slots: u32,
    units: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read_write> queries: array<f32>;
@group(0) @binding(3) var<storage, read_write> keys: array<f32>;
@group(0) @binding(4) var<storage, read> values: array<f32>;
@group(0) @binding(5) var<storage, read> q_weight: array<f32>;
@group(0) @binding(6) var<storage, read> k_weight: array<f32>;
@group(0) @binding(7) var<storage, read> cos_sin: array<f32>;
@group(0) @binding(8) var<storage, read_write> pool: array<u32>;

var<workgroup> rotated_key: array<f32, 1024>;
// Where the value begins.
var<private> v_at: u32;

fn key_at(c: u32) -> f32 {
    return rotated_key[c];
}

fn value_at(c: u32) -> f32 {
    return values[v_at + c];
}

fn rotate_query(t: u32, h: u32, lid: u32) {
    let at = p.q_offset + t * p.q_stride + h * p.head_dim;
    var squares = 0.0;
    for (var c = lid; c < p.head_dim; c += WG) {
        let v = queries[at + c];
        squares = fma(v, v, squares);
        head[c] = v;
    }
    if p.q_rotation.has_norm != 0u {
        let scale = norm_scale(squares, p.head_dim, p.q_rotation, lid);
        for (var c = lid; c < p.head_dim; c += WG) {
            head[c] *= scale * q_weight[c];
        }
    }
    workgroupBarrier();
    for (var c = lid; c < p.head_dim; c += WG) {
        queries[at + c] = rotated(c, p.q_rotation, t * p.q_rotation.n_rot);
    }
}

fn rotate_key(t: u32, g: u32, lid: u32) {
    let at = p.k_offset + t * p.k_stride + g * p.head_dim;
    var squares = 0.0;
    for (var c = lid; c < p.head_dim; c += WG) {
        let v = keys[at + c];
        squares = fma(v, v, squares);
        head[c] = v;
    }
    if p.k_rotation.has_norm != 0u {
        let scale = norm_scale(squares, p.head_dim, p.k_rotation, lid);
        for (var c = lid; c < p.head_dim; c += WG) {
            head[c] *= scale * k_weight[c];
        }
    }
    workgroupBarrier();
    for (var c = lid; c < p.head_dim; c += WG) {
        let key = rotated(c, p.k_rotation, t * p.k_rotation.n_rot);
        rotated_key[c] = key;
        keys[at + c] = key;
    }
    workgroupBarrier();
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group.x;
    if group.y < p.n_heads {
        rotate_query(t, group.y, lid);
        return;
    }
    let g = group.y - p.n_heads;
    rotate_key(t, g, lid);
    v_at = p.v_offset + t * p.v_stride + g * p.head_dim;
    let page = data[p.slots + 2u * t];
    let slot = data[p.slots + 2u * t + 1u];
    for (var unit = lid; unit < p.units; unit += WG) {
        store(unit, page * p.page_words + g * p.head_words, slot);
    }
}
