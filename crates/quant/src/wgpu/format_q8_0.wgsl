// Q8_0: planes of 32 bytes and of d.
fn codes16(row: u32, c: u32) -> Codes {
    let start = row * p.w_stride;
    return Codes(vector(start + c), half_at(4u * (start + 2u * p.w_blocks), c >> 1u), 0.0);
}
