// MXFP4, blocks of 32: planes of nibbles (the first 16 values low) and of exponents.

// 2^(e - 128); the two smallest are subnormal.
fn half_power(e: u32) -> f32 {
    return bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << e, e < 2u));
}

fn load_quants16(row: u32, c: u32) -> Quants16 {
    let start = row * p.w_stride;
    let block = c >> 1u;
    let q = vector(start + block) >> vec4<u32>(4u * (c & 1u));
    return Quants16(codebook_values(q), half_power(byte_at(4u * (start + p.w_blocks), block)), 0.0);
}
