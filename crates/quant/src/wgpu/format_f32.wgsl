// f32: planes of values.
fn dequantize16(row: u32, c: u32) -> Sixteen {
    let at = row * p.w_stride + 4u * c;
    return Sixteen(
        bitcast<vec4<f32>>(vector(at)),
        bitcast<vec4<f32>>(vector(at + 1u)),
        bitcast<vec4<f32>>(vector(at + 2u)),
        bitcast<vec4<f32>>(vector(at + 3u)),
    );
}
