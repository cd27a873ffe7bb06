// Rounds 32 channels of a key and of a value to int8 and stores them.

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

fn store(block: u32, head: u32, slot: u32) {
    let first = block * 32u;
    let end = min(first + 32u, p.head_dim);
    var greatest = vec2<u32>(0u, 0u);
    for (var c = first; c < end; c++) {
        let bits = vec2<u32>(bitcast<u32>(key_at(c)), bitcast<u32>(value_at(c)));
        greatest = max(greatest, bits & vec2<u32>(0x7fffffffu));
    }
    let k_bits = scale_bits(greatest.x);
    let v_bits = scale_bits(greatest.y);
    let k_scale = half_value(k_bits);
    let v_scale = half_value(v_bits);
    for (var word = first / 4u; word < (end + 3u) / 4u; word++) {
        var k = 0u;
        var v = 0u;
        for (var e = 0u; e < 4u; e++) {
            let c = word * 4u + e;
            if c < end {
                k |= integer(key_at(c), k_scale) << (8u * e);
                v |= integer(value_at(c), v_scale) << (8u * e);
            }
        }
        pool[head + word * 64u + slot] = k;
        pool[head + (64u + slot) * p.row_words + word] = v;
    }
    pool[head + (2u * p.row_words + block) * 64u + slot] = k_bits | (v_bits << 16u);
}
