// Writing activations in 8 bits, see quantize.rs.

// Words of a row of `cols` values.
fn quantized_words(cols: u32) -> u32 {
    let groups = (cols + 31u) / 32u;
    return 4u * (2u * groups + (groups + 1u) / 2u);
}

// The greatest magnitude as bits, among which NaN is greater than all others: it stays in the scale.
fn greatest_bits(v: vec4<f32>) -> u32 {
    let m = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(m.x, m.y), max(m.z, m.w));
}

fn code_scale(greatest: u32) -> f32 {
    return bitcast<f32>(greatest) / 127.0;
}

fn codes_of(v: vec4<f32>, scale: f32) -> vec4<i32> {
    let by = select(1.0 / scale, 0.0, scale == 0.0);
    return vec4<i32>(clamp(round(v * by), vec4<f32>(-127.0), vec4<f32>(127.0)));
}

fn packed(c: vec4<i32>) -> u32 {
    let b = bitcast<vec4<u32>>(c) & vec4<u32>(0xffu);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

// Stores the codes of the four values from `c` on of row `t`, and the head of their group where the values
// are its first.
fn store4(word: u32, scale: f32, sums: vec2<i32>, t: u32, c: u32, cols: u32) {
    let row = t * quantized_words(cols);
    codes[row + c / 4u] = word;
    if c % 32u == 0u {
        let head = row + (cols + 31u) / 32u * 8u + c / 32u * 2u;
        codes[head] = bitcast<u32>(scale);
        codes[head + 1u] = (bitcast<u32>(sums.x) & 0xffffu) | (bitcast<u32>(sums.y) << 16u);
    }
}
