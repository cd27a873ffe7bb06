// Look-up of signed bytes in the codebook of a format by 4-bit indices.

// Byte `i` of CODEBOOK, four words of four bytes, a constant from the table of formats.
fn codebook_value(i: u32) -> u32 {
    let low = select(CODEBOOK.x, CODEBOOK.y, (i & 4u) != 0u);
    let high = select(CODEBOOK.z, CODEBOOK.w, (i & 4u) != 0u);
    let four = select(low, high, (i & 8u) != 0u);
    return (four >> (8u * (i & 3u))) & 0xffu;
}

fn codebook_word(q: u32) -> u32 {
    return codebook_value(q & 15u) | (codebook_value((q >> 8u) & 15u) << 8u) | (codebook_value((q >> 16u) & 15u) << 16u) | (codebook_value((q >> 24u) & 15u) << 24u);
}

// Bytes of the codebook for the low nibbles of the bytes of four words.
fn codebook_values(q: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(codebook_word(q.x), codebook_word(q.y), codebook_word(q.z), codebook_word(q.w));
}
