// Formats in integers: a file gives the codes of 16 adjacent weights, each scale * code + offset.
struct Codes {
    // Signed bytes.
    q: vec4<u32>,
    scale: f32,
    offset: f32,
}

fn signed_bytes(x: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(x) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn dequantize16(row: u32, c: u32) -> Sixteen {
    let codes = codes16(row, c);
    let scale = vec4<f32>(codes.scale);
    let offset = vec4<f32>(codes.offset);
    return Sixteen(
        fma(signed_bytes(codes.q.x), scale, offset),
        fma(signed_bytes(codes.q.y), scale, offset),
        fma(signed_bytes(codes.q.z), scale, offset),
        fma(signed_bytes(codes.q.w), scale, offset),
    );
}
