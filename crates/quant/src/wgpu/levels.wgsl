// Sixteen signed bytes picked by nibbles.

// The level of a nibble, as a byte; the levels are four words of four.
fn level(i: u32) -> u32 {
    let low = select(LEVELS.x, LEVELS.y, (i & 4u) != 0u);
    let high = select(LEVELS.z, LEVELS.w, (i & 4u) != 0u);
    let four = select(low, high, (i & 8u) != 0u);
    return (four >> (8u * (i & 3u))) & 0xffu;
}

fn four_levels(q: u32) -> u32 {
    return level(q & 15u) | (level((q >> 8u) & 15u) << 8u) | (level((q >> 16u) & 15u) << 16u) | (level((q >> 24u) & 15u) << 24u);
}

// The levels of the low nibbles of the bytes of four words.
fn levels_of(q: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(four_levels(q.x), four_levels(q.y), four_levels(q.z), four_levels(q.w));
}
