// The gate (w) and up (w1) matrices, bound as vectors and as words.
@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> w_words: array<u32>;
@group(0) @binding(4) var<storage, read> w1: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> w1_words: array<u32>;

// Matrix that `vector` and `word` read: 0 gate, 1 up.
var<private> matrix: u32;

// Vector `i` (16 bytes) of the matrix.
fn vector(i: u32) -> vec4<u32> {
    if matrix == 0u {
        return w[i];
    }
    return w1[i];
}

// Word `i` of the matrix.
fn word(i: u32) -> u32 {
    if matrix == 0u {
        return w_words[i];
    }
    return w1_words[i];
}
