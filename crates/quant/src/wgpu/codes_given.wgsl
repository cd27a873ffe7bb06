// Activations that are there in 8 bits: codes and heads of rows, see quantize.rs of stonechat-compute.
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;

fn prepare(is_first: bool, lid: u32) {}

// Chunk `c` of the row at `at`.
fn x_codes(at: u32, c: u32) -> vec4<u32> {
    return x[at + c];
}

// The scale and the sums of the group that it belongs to.
fn x_head(at: u32, c: u32) -> vec2<u32> {
    let heads = x[at + p.chunks + (c >> 2u)];
    return select(heads.xy, heads.zw, vec2<bool>((c & 2u) != 0u));
}
