// RMS norm and RoPE of the heads of queries and keys, in place, and the write of keys and values to their pages; one
// workgroup a query head, or a KV head.

@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read_write> queries: array<f32>;
@group(0) @binding(3) var<storage, read_write> keys: array<f32>;
@group(0) @binding(4) var<storage, read> values: array<f32>;
@group(0) @binding(5) var<storage, read> q_weight: array<f32>;
@group(0) @binding(6) var<storage, read> k_weight: array<f32>;
@group(0) @binding(7) var<storage, read> cos_sin: array<f32>;
@group(0) @binding(8) var<storage, read_write> pool: array<u32>;

var<workgroup> rotated_key: array<f32, 1024>;
// Whether this workgroup has a KV head, and the first values of the head and of its value.
var<private> is_key: bool;
var<private> head_at: u32;
var<private> v_at: u32;

fn head_value(c: u32) -> f32 {
    if is_key {
        return keys[head_at + c];
    }
    return queries[head_at + c];
}

fn head_weight(c: u32) -> f32 {
    if is_key {
        return k_weight[c];
    }
    return q_weight[c];
}

fn store_value(c: u32, v: f32) {
    if is_key {
        rotated_key[c] = v;
        keys[head_at + c] = v;
    } else {
        queries[head_at + c] = v;
    }
}

fn key_at(c: u32) -> f32 {
    return rotated_key[c];
}

fn value_at(c: u32) -> f32 {
    return values[v_at + c];
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group.x;
    // Browsers accept barriers behind a condition that they know to be uniform, which no private variable is.
    let has_key = group.y >= p.n_heads;
    is_key = has_key;
    // Queries and keys have one rotation.
    let angles = table_row(t, p.q_rotation);
    let first = angle(lid, p.q_rotation, angles);
    let page = data[p.slots + 2u * t];
    let slot = data[p.slots + 2u * t + 1u];
    if !has_key {
        head_at = p.q_offset + t * p.q_stride + group.y * p.head_dim;
        load_head(p.head_dim, p.q_rotation, lid);
        store_rotated(p.head_dim, p.q_rotation, angles, first, lid);
        return;
    }
    let g = group.y - p.n_heads;
    head_at = p.k_offset + t * p.k_stride + g * p.head_dim;
    load_head(p.head_dim, p.k_rotation, lid);
    store_rotated(p.head_dim, p.k_rotation, angles, first, lid);
    workgroupBarrier();
    v_at = p.v_offset + t * p.v_stride + g * p.head_dim;
    for (var index = lid; index < p.stores_per_head; index += WG) {
        store(index, page * p.page_words + g * p.head_words, slot);
    }
}
