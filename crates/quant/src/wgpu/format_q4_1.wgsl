// Q4_1: planes of 32 nibbles (those of the first 16 values low) and of d with m.
fn codes16(row: u32, c: u32) -> Codes {
    let start = row * p.w_stride;
    let block = c >> 1u;
    let q = (vector(start + block) >> vec4<u32>(4u * (c & 1u))) & vec4<u32>(0x0f0f0f0fu);
    let d = unpack2x16float(word(4u * (start + p.w_blocks) + block));
    return Codes(q, d.x, d.y);
}
