@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;

// 16 bytes of the matrix.
fn vector(i: u32) -> vec4<u32> {
    return w[i];
}
