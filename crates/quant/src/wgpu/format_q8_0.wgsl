// Q8_0: planes of 32 bytes and of d.
fn dequantize16(row: u32, c: u32) -> Sixteen {
    let start = row * p.w_stride;
    let q = w[start + c];
    let d = half_at(4u * (start + 2u * p.w_blocks), c >> 1u);
    return Sixteen(d * signed_bytes(q.x), d * signed_bytes(q.y), d * signed_bytes(q.z), d * signed_bytes(q.w));
}
