// Quantization to q8, see q8.rs.

// Bits of the largest magnitude, among which NaN is largest, so that the scale becomes NaN.
fn max_abs_bits(v: vec4<f32>) -> u32 {
    let m = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(m.x, m.y), max(m.z, m.w));
}

fn q8_scale(max_abs: u32) -> f32 {
    return bitcast<f32>(max_abs) / 127.0;
}

fn q8_values(v: vec4<f32>, scale: f32) -> vec4<i32> {
    let inverse = select(1.0 / scale, 0.0, scale == 0.0);
    return vec4<i32>(clamp(round(v * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
}

fn pack_bytes(q: vec4<i32>) -> u32 {
    let b = bitcast<vec4<u32>>(q) & vec4<u32>(0xffu);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}
