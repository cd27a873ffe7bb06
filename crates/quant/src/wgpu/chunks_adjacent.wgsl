// Of the chunks of 16 weights, number `i` of the four that share vectors: adjacent ones.
fn chunk_of(unit: u32, i: u32) -> u32 {
    return 4u * unit + i;
}
