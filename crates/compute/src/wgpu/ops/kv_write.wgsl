// Stores keys and values of f32 or f16; an invocation writes one word of each.

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    if i >= p.rows * p.n_kv_heads * p.row_words {
        return;
    }
    let word = i % p.row_words;
    let g = i / p.row_words % p.n_kv_heads;
    let t = i / (p.row_words * p.n_kv_heads);
    let page = data[p.slots + 2u * t];
    let slot = data[p.slots + 2u * t + 1u];
    var k: array<f32, 4>;
    var v: array<f32, 4>;
    for (var e = 0u; e < E; e++) {
        let c = word * E + e;
        k[e] = 0.0;
        v[e] = 0.0;
        if c < p.head_dim {
            k[e] = keys[p.k_offset + t * p.k_stride + g * p.head_dim + c];
            v[e] = values[p.v_offset + t * p.v_stride + g * p.head_dim + c];
        }
    }
    let head = page * p.page_words + g * p.head_words;
    pool[head + word * 64u + slot] = pack(k);
    pool[head + (64u + slot) * p.row_words + word] = pack(v);
}
