// BF16: one plane of values, the upper halves of f32.
fn bf16x4(x: vec2<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(x.x << 16u, x.x & 0xffff0000u, x.y << 16u, x.y & 0xffff0000u));
}

fn dequantize16(row: u32, c: u32) -> Weights16 {
    let at = row * p.w_stride + 2u * c;
    let a = vector(at);
    let b = vector(at + 1u);
    return Weights16(bf16x4(a.xy), bf16x4(a.zw), bf16x4(b.xy), bf16x4(b.zw));
}
