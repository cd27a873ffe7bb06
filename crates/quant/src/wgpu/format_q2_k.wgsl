// Q2_K, blocks of 256: planes of 2-bit values, of scales and mins of 16 groups, and of d with dmin.
fn load_quants16(row: u32, c: u32) -> Quants16 {
    let start = row * p.w_stride;
    let block = c >> 4u;
    let g = c & 15u;
    let at = start + 4u * block + 2u * (g >> 3u) + (g & 1u);
    let q = (vector(at) >> vec4<u32>(2u * ((g & 7u) >> 1u))) & vec4<u32>(0x03030303u);
    let scales = byte_at(4u * (start + 4u * p.w_blocks + block), g);
    let d = unpack2x16float(word(4u * (start + 5u * p.w_blocks) + block));
    return Quants16(q, d.x * f32(scales & 15u), -d.y * f32(scales >> 4u));
}
