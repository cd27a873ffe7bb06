// IQ4_NL: planes of 32 nibbles (those of the first 16 values low) and of d.
fn codes16(row: u32, c: u32) -> Codes {
    let start = row * p.w_stride;
    let block = c >> 1u;
    let q = vector(start + block) >> vec4<u32>(4u * (c & 1u));
    return Codes(levels_of(q), half_at(4u * (start + p.w_blocks), block), 0.0);
}
