@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read> w1: array<vec4<u32>>;

// Which of them is read.
var<private> matrix: u32;

// 16 bytes of the matrix.
fn vector(i: u32) -> vec4<u32> {
    if matrix == 0u {
        return w[i];
    }
    return w1[i];
}
