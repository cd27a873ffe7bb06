// F32: one plane of values.
fn dequantize16(row: u32, c: u32) -> Weights16 {
    let at = row * p.w_stride + 4u * c;
    return Weights16(
        bitcast<vec4<f32>>(vector(at)),
        bitcast<vec4<f32>>(vector(at + 1u)),
        bitcast<vec4<f32>>(vector(at + 2u)),
        bitcast<vec4<f32>>(vector(at + 3u)),
    );
}
