// f32: planes of values.
fn dequantize16(row: u32, c: u32) -> Sixteen {
    let at = row * p.w_stride + 4u * c;
    return Sixteen(
        bitcast<vec4<f32>>(w[at]),
        bitcast<vec4<f32>>(w[at + 1u]),
        bitcast<vec4<f32>>(w[at + 2u]),
        bitcast<vec4<f32>>(w[at + 3u]),
    );
}
