// IQ4_NL, blocks of 32: planes of nibbles (the first 16 values low) and of d.
fn load_quants16(row: u32, c: u32) -> Quants16 {
    let start = row * p.w_stride;
    let block = c >> 1u;
    let q = vector(start + block) >> vec4<u32>(4u * (c & 1u));
    return Quants16(codebook_values(q), half_at(4u * (start + p.w_blocks), block), 0.0);
}
