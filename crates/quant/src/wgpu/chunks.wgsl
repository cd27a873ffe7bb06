// Chunk (16 weights of a row) `i` of the four of step `step`, which share vectors of the quants.
//
//   CHUNK_STRIDE 1: 0 1 2 3 | 4 5 6 7 | ...     adjacent
//   CHUNK_STRIDE 2: 0 2 4 6 | 1 3 5 7 | ...     every second of eight
fn chunk_of(step: u32, i: u32) -> u32 {
    if CHUNK_STRIDE == 1u {
        return 4u * step + i;
    }
    return ((step >> 1u) << 3u) | (i << 1u) | (step & 1u);
}
