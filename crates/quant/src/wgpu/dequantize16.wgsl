// Quantized formats: `load_quants16` of a format file gives 16 adjacent weights as scale * q + offset.
struct Quants16 {
    // 16 signed bytes.
    q: vec4<u32>,
    scale: f32,
    offset: f32,
}

fn signed_bytes(x: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(x) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn dequantize16(row: u32, c: u32) -> Weights16 {
    let quants = load_quants16(row, c);
    let scale = vec4<f32>(quants.scale);
    let offset = vec4<f32>(quants.offset);
    return Weights16(
        fma(signed_bytes(quants.q.x), scale, offset),
        fma(signed_bytes(quants.q.y), scale, offset),
        fma(signed_bytes(quants.q.z), scale, offset),
        fma(signed_bytes(quants.q.w), scale, offset),
    );
}
