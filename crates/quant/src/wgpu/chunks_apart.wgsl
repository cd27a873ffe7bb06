// Of the chunks of 16 weights, number `i` of the four that share vectors: every second of eight.
fn chunk_of(unit: u32, i: u32) -> u32 {
    return ((unit >> 1u) << 3u) | (i << 1u) | (unit & 1u);
}
