// Q5_0, blocks of 32: planes of nibbles (the first 16 values low), of fifth bits and of d.

// Word i has bits first + 4 i .. first + 4 i + 4 of `x` as the fifth bits of its bytes.
fn fifth_bits(x: u32, first: u32) -> vec4<u32> {
    let four = (vec4<u32>(x >> first) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    // Bit j moves to bit 8 j + 4.
    return (four * vec4<u32>(0x02040810u)) & vec4<u32>(0x10101010u);
}

fn load_quants16(row: u32, c: u32) -> Quants16 {
    let start = row * p.w_stride;
    let block = c >> 1u;
    let high = 4u * (start + p.w_blocks);
    let low = (vector(start + block) >> vec4<u32>(4u * (c & 1u))) & vec4<u32>(0x0f0f0f0fu);
    let q = low | fifth_bits(word(high + block), 16u * (c & 1u));
    let d = half_at(high + p.w_blocks, block);
    return Quants16(q, d, -16.0 * d);
}
