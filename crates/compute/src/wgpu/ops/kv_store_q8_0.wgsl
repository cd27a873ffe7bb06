// Quantizes a block of 32 channels of a key and of a value to int8 and stores it.

// Bits of the f16 scale of a block, from the bits of its largest magnitude, among which NaN is largest.
fn scale_bits(max_abs: u32) -> u32 {
    return half_bits(bitcast<f32>(max_abs) / 127.0);
}

fn quantize(v: f32, scale: f32) -> u32 {
    if scale == 0.0 {
        return 0u;
    }
    return bitcast<u32>(i32(clamp(round(v / scale), -127.0, 127.0))) & 0xffu;
}

fn store(block: u32, head: u32, slot: u32) {
    let first = block * 32u;
    let end = min(first + 32u, p.head_dim);
    var max_abs = vec2<u32>(0u, 0u);
    for (var c = first; c < end; c++) {
        let bits = vec2<u32>(bitcast<u32>(key_at(c)), bitcast<u32>(value_at(c)));
        max_abs = max(max_abs, bits & vec2<u32>(0x7fffffffu));
    }
    let k_bits = scale_bits(max_abs.x);
    let v_bits = scale_bits(max_abs.y);
    let k_scale = half_value(k_bits);
    let v_scale = half_value(v_bits);
    for (var word = first / 4u; word < (end + 3u) / 4u; word++) {
        var k = 0u;
        var v = 0u;
        for (var e = 0u; e < 4u; e++) {
            let c = word * 4u + e;
            if c < end {
                k |= quantize(key_at(c), k_scale) << (8u * e);
                v |= quantize(value_at(c), v_scale) << (8u * e);
            }
        }
        pool[head + word * 64u + slot] = k;
        pool[head + (64u + slot) * p.row_words + word] = v;
    }
    pool[head + (2u * p.row_words + block) * 64u + slot] = k_bits | (v_bits << 16u);
}
