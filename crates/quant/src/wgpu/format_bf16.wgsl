// bf16: planes of values, the upper halves of f32.
fn wide(x: vec2<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(x.x << 16u, x.x & 0xffff0000u, x.y << 16u, x.y & 0xffff0000u));
}

fn dequantize16(row: u32, c: u32) -> Sixteen {
    let at = row * p.w_stride + 2u * c;
    let a = vector(at);
    let b = vector(at + 1u);
    return Sixteen(wide(a.xy), wide(a.zw), wide(b.xy), wide(b.zw));
}
