// Sixteen signed bytes picked by nibbles.

// The level of a nibble; the levels are four words of four.
fn level(i: u32) -> f32 {
    let low = select(LEVELS.x, LEVELS.y, (i & 4u) != 0u);
    let high = select(LEVELS.z, LEVELS.w, (i & 4u) != 0u);
    let four = select(low, high, (i & 8u) != 0u);
    return f32(bitcast<i32>(four << (24u - 8u * (i & 3u))) >> 24u);
}

fn levels_of(q: u32, scale: f32) -> vec4<f32> {
    return scale * vec4<f32>(level(q & 15u), level((q >> 8u) & 15u), level((q >> 16u) & 15u), level((q >> 24u) & 15u));
}

// scale * level of the low nibbles of the bytes of four words.
fn leveled(q: vec4<u32>, scale: f32) -> Sixteen {
    return Sixteen(levels_of(q.x, scale), levels_of(q.y, scale), levels_of(q.z, scale), levels_of(q.w, scale));
}
