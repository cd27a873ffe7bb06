// Q8_0, blocks of 32: planes of bytes and of d.
fn load_quants16(row: u32, c: u32) -> Quants16 {
    let start = row * p.w_stride;
    return Quants16(vector(start + c), half_at(4u * (start + 2u * p.w_blocks), c >> 1u), 0.0);
}
