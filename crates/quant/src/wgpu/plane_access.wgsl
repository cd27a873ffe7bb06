// Access to the planes of a row, see planes.rs. Row r starts at vector r * p.w_stride and has p.w_blocks blocks.

alias Weights16 = array<vec4<f32>, 4>;

// The f16 at `index` from word `first` on.
fn half_at(first: u32, index: u32) -> f32 {
    let pair = unpack2x16float(word(first + (index >> 1u)));
    return select(pair.x, pair.y, (index & 1u) != 0u);
}

// The byte at `index` from word `first` on.
fn byte_at(first: u32, index: u32) -> u32 {
    return (word(first + (index >> 2u)) >> (8u * (index & 3u))) & 0xffu;
}
