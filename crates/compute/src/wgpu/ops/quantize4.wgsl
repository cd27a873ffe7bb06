// Writing activations in 8 bits to `twin`, see quantize.rs.

// Words of a row of `cols` values.
fn quantized_words(cols: u32) -> u32 {
    let groups = (cols + 31u) / 32u;
    return 4u * (2u * groups + (groups + 1u) / 2u);
}

// Stores the codes of the four values from `c` on of row `t`, and the head of their group where the values
// are its first.
fn store4(word: u32, scale: f32, sums: vec2<i32>, t: u32, c: u32, cols: u32) {
    let row = t * quantized_words(cols);
    twin[row + c / 4u] = word;
    if c % 32u == 0u {
        let head = row + (cols + 31u) / 32u * 8u + c / 32u * 2u;
        twin[head] = bitcast<u32>(scale);
        twin[head + 1u] = (bitcast<u32>(sums.x) & 0xffffu) | (bitcast<u32>(sums.y) << 16u);
    }
}
