// IQ4_XS: planes of 256 nibbles, and of the heads of blocks: d, the scales' high bits, their low bits.
fn codes16(row: u32, c: u32) -> Codes {
    let start = row * p.w_stride;
    let block = c >> 4u;
    let g = (c & 15u) >> 1u;
    let q = vector(start + 8u * block + g) >> vec4<u32>(4u * (c & 1u));
    let head = 4u * (start + 8u * p.w_blocks) + 2u * block;
    let first = word(head);
    let low = (word(head + 1u) >> (4u * g)) & 15u;
    let high = (first >> (16u + 2u * g)) & 3u;
    let d = unpack2x16float(first).x;
    return Codes(levels_of(q), d * (f32(low | (high << 4u)) - 32.0), 0.0);
}
