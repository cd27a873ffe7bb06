// Values as 8 bits, see quantize.rs.

// The greatest magnitude as bits, among which NaN is greater than all others: it stays in the scale.
fn greatest_bits(v: vec4<f32>) -> u32 {
    let m = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(m.x, m.y), max(m.z, m.w));
}

fn code_scale(greatest: u32) -> f32 {
    return bitcast<f32>(greatest) / 127.0;
}

fn codes_of(v: vec4<f32>, scale: f32) -> vec4<i32> {
    let by = select(1.0 / scale, 0.0, scale == 0.0);
    return vec4<i32>(clamp(round(v * by), vec4<f32>(-127.0), vec4<f32>(127.0)));
}

fn packed(c: vec4<i32>) -> u32 {
    let b = bitcast<vec4<u32>>(c) & vec4<u32>(0xffu);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}
