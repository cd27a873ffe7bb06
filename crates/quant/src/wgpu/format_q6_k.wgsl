// Q6_K, blocks of 256: planes of nibbles, of upper 2 bits, of the scales of 16 groups, and of d.
fn load_quants16(row: u32, c: u32) -> Quants16 {
    let start = row * p.w_stride;
    let block = c >> 4u;
    let g = c & 15u;
    let half = g >> 3u;
    let pair = (g & 7u) >> 1u;
    let at = start + 8u * block + 4u * half + 2u * (pair & 1u) + (g & 1u);
    let low = (vector(at) >> vec4<u32>(4u * (pair >> 1u))) & vec4<u32>(0x0f0f0f0fu);
    let high = vector(start + 8u * p.w_blocks + 4u * block + 2u * half + (g & 1u));
    let q = low | (((high >> vec4<u32>(2u * pair)) & vec4<u32>(0x03030303u)) << vec4<u32>(4u));
    let byte = byte_at(4u * (start + 12u * p.w_blocks + block), g);
    let d = half_at(4u * (start + 13u * p.w_blocks), block);
    let scale = d * f32(bitcast<i32>(byte << 24u) >> 24u);
    return Quants16(q, scale, -32.0 * scale);
}
