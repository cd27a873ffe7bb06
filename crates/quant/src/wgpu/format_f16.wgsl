// F16: one plane of values.
fn dequantize16(row: u32, c: u32) -> Weights16 {
    let at = row * p.w_stride + 2u * c;
    let a = vector(at);
    let b = vector(at + 1u);
    return Weights16(
        vec4<f32>(unpack2x16float(a.x), unpack2x16float(a.y)),
        vec4<f32>(unpack2x16float(a.z), unpack2x16float(a.w)),
        vec4<f32>(unpack2x16float(b.x), unpack2x16float(b.y)),
        vec4<f32>(unpack2x16float(b.z), unpack2x16float(b.w)),
    );
}
