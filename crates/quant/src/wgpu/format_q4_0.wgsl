// Q4_0, blocks of 32: planes of nibbles (the first 16 values low) and of d.
fn load_quants16(row: u32, c: u32) -> Quants16 {
    let start = row * p.w_stride;
    let block = c >> 1u;
    let q = (vector(start + block) >> vec4<u32>(4u * (c & 1u))) & vec4<u32>(0x0f0f0f0fu);
    let d = half_at(4u * (start + p.w_blocks), block);
    return Quants16(q, d, -8.0 * d);
}
