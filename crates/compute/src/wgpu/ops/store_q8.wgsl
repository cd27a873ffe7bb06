// Stores q8 groups to `out_operand`, see q8.rs for the layout.

// Row length in words, for `cols` values.
fn q8_row_words(cols: u32) -> u32 {
    let groups = (cols + 31u) / 32u;
    return 4u * (2u * groups + (groups + 1u) / 2u);
}

// Stores four quants, the columns from `c` on of row `t`, and the header of their group if they are its first.
fn store_q8x4(word: u32, scale: f32, sums: vec2<i32>, t: u32, c: u32, cols: u32) {
    let row = t * q8_row_words(cols);
    out_operand[row + c / 4u] = word;
    if c % 32u == 0u {
        let header = row + (cols + 31u) / 32u * 8u + c / 32u * 2u;
        out_operand[header] = bitcast<u32>(scale);
        out_operand[header + 1u] = (bitcast<u32>(sums.x) & 0xffffu) | (bitcast<u32>(sums.y) << 16u);
    }
}
