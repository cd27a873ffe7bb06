// The weight matrix, bound as vectors and as words.
@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read> w_words: array<u32>;

// Vector `i` (16 bytes) of the matrix.
fn vector(i: u32) -> vec4<u32> {
    return w[i];
}

// Word `i` of the matrix.
fn word(i: u32) -> u32 {
    return w_words[i];
}
