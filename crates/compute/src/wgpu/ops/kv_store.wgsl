// Stores a word of a key and of a value in f32 or f16.
fn store(word: u32, head: u32, slot: u32) {
    var k: array<f32, 4>;
    var v: array<f32, 4>;
    for (var e = 0u; e < ELEMENTS; e++) {
        let c = word * ELEMENTS + e;
        k[e] = 0.0;
        v[e] = 0.0;
        if c < p.head_dim {
            k[e] = key_at(c);
            v[e] = value_at(c);
        }
    }
    pool[head + word * 64u + slot] = pack(k);
    pool[head + (64u + slot) * p.row_words + word] = pack(v);
}
