// Writes keys and values to their pages; one call of `store` per invocation. Keys of adjacent positions and values of adjacent
// channels are adjacent in a page, so 32 invocations take a tile of 4 rows and 8 stores.

@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read> keys: array<f32>;
@group(0) @binding(3) var<storage, read> values: array<f32>;
@group(0) @binding(4) var<storage, read_write> pool: array<u32>;

// First value of the head in keys and values.
var<private> k_at: u32;
var<private> v_at: u32;

fn key_at(c: u32) -> f32 {
    return keys[k_at + c];
}

fn value_at(c: u32) -> f32 {
    return values[v_at + c];
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    let n_tiles = (p.stores_per_head + 7u) / 8u;
    let tile = i / 32u;
    let index = tile % n_tiles * 8u + i % 8u;
    let g = tile / n_tiles % p.n_kv_heads;
    let t = tile / (n_tiles * p.n_kv_heads) * 4u + i % 32u / 8u;
    if index >= p.stores_per_head || t >= p.rows {
        return;
    }
    let page = data[p.slots + 2u * t];
    let slot = data[p.slots + 2u * t + 1u];
    k_at = p.k_offset + t * p.k_stride + g * p.head_dim;
    v_at = p.v_offset + t * p.v_stride + g * p.head_dim;
    store(index, page * p.page_words + g * p.head_words, slot);
}
