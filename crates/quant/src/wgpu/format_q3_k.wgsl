// Q3_K, blocks of 256: planes of low 2 bits, of third bits, of the scales of 16 groups, and of d.
fn load_quants16(row: u32, c: u32) -> Quants16 {
    let start = row * p.w_stride;
    let block = c >> 4u;
    let g = c & 15u;
    let at = start + 4u * block + 2u * (g >> 3u) + (g & 1u);
    let low = (vector(at) >> vec4<u32>(2u * ((g & 7u) >> 1u))) & vec4<u32>(0x03030303u);
    let masks = vector(start + 4u * p.w_blocks + 2u * block + (g & 1u));
    let q = low | (((masks >> vec4<u32>(g >> 1u)) & vec4<u32>(0x01010101u)) << vec4<u32>(2u));
    let planes = 4u * (start + 6u * p.w_blocks);
    let scales = planes + 3u * block;
    let low_scale = (byte_at(scales, g & 7u) >> (4u * (g >> 3u))) & 15u;
    let high_scale = (byte_at(scales + 2u, g & 3u) >> (2u * (g >> 2u))) & 3u;
    let d = half_at(planes + 3u * p.w_blocks, block);
    let scale = d * (f32(low_scale | (high_scale << 4u)) - 32.0);
    return Quants16(q, scale, -4.0 * scale);
}
