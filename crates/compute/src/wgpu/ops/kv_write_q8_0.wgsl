// Rounds keys and values to int8 and stores them; an invocation takes 32 channels of each.

// The f16 scale of a block whose greatest magnitude has these bits; NaN is greater than all others.
fn scale_bits(greatest: u32) -> u32 {
    return half_bits(bitcast<f32>(greatest) / 127.0);
}

fn integer(v: f32, scale: f32) -> u32 {
    if scale == 0.0 {
        return 0u;
    }
    return bitcast<u32>(i32(clamp(round(v / scale), -127.0, 127.0))) & 0xffu;
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    let blocks = (p.head_dim + 31u) / 32u;
    if i >= p.rows * p.n_kv_heads * blocks {
        return;
    }
    let block = i % blocks;
    let g = i / blocks % p.n_kv_heads;
    let t = i / (blocks * p.n_kv_heads);
    let page = data[p.slots + 2u * t];
    let slot = data[p.slots + 2u * t + 1u];
    let k_at = p.k_offset + t * p.k_stride + g * p.head_dim;
    let v_at = p.v_offset + t * p.v_stride + g * p.head_dim;
    let first = block * 32u;
    let end = min(first + 32u, p.head_dim);
    var greatest = vec2<u32>(0u, 0u);
    for (var c = first; c < end; c++) {
        let bits = vec2<u32>(bitcast<u32>(keys[k_at + c]), bitcast<u32>(values[v_at + c]));
        greatest = max(greatest, bits & vec2<u32>(0x7fffffffu));
    }
    let k_bits = scale_bits(greatest.x);
    let v_bits = scale_bits(greatest.y);
    let k_scale = half_value(k_bits);
    let v_scale = half_value(v_bits);
    let head = page * p.page_words + g * p.head_words;
    for (var word = first / 4u; word < (end + 3u) / 4u; word++) {
        var k = 0u;
        var v = 0u;
        for (var e = 0u; e < 4u; e++) {
            let c = word * 4u + e;
            if c < end {
                k |= integer(keys[k_at + c], k_scale) << (8u * e);
                v |= integer(values[v_at + c], v_scale) << (8u * e);
            }
        }
        pool[head + word * 64u + slot] = k;
        pool[head + (64u + slot) * p.row_words + word] = v;
    }
    pool[head + (2u * p.row_words + block) * 64u + slot] = k_bits | (v_bits << 16u);
}
