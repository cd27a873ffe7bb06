// IQ4_XS, blocks of 256: planes of nibbles and of block headers: d, high bits of the scales, low bits of the scales.
fn load_quants16(row: u32, c: u32) -> Quants16 {
    let start = row * p.w_stride;
    let block = c >> 4u;
    let g = (c & 15u) >> 1u;
    let q = vector(start + 8u * block + g) >> vec4<u32>(4u * (c & 1u));
    let header = 4u * (start + 8u * p.w_blocks) + 2u * block;
    let first = word(header);
    let low = (word(header + 1u) >> (4u * g)) & 15u;
    let high = (first >> (16u + 2u * g)) & 3u;
    let d = unpack2x16float(first).x;
    return Quants16(codebook_values(q), d * (f32(low | (high << 4u)) - 32.0), 0.0);
}
