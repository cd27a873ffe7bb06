// How formats read their planes. A row starts at a multiple of p.w_stride vectors and has p.w_blocks blocks.

alias Sixteen = array<vec4<f32>, 4>;

// The f16 at `index` behind word `first`.
fn half_at(first: u32, index: u32) -> f32 {
    let pair = unpack2x16float(word(first + (index >> 1u)));
    return select(pair.x, pair.y, (index & 1u) != 0u);
}

// The byte at `index` behind word `first`.
fn byte_at(first: u32, index: u32) -> u32 {
    return (word(first + (index >> 2u)) >> (8u * (index & 3u))) & 0xffu;
}
