// Activations in q8: quants and group headers of rows, see ops/q8.rs of stonechat-compute.
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;

fn prepare(is_first: bool, lid: u32) {}

// Quants of chunk `c` of the row at vector `at`.
fn x_quants(at: u32, c: u32) -> vec4<u32> {
    return x[at + c];
}

// Header of the group of chunk `c`: scale, and sums of the quants of both chunks.
fn x_header(at: u32, c: u32) -> vec2<u32> {
    let headers = x[at + p.chunks + (c >> 2u)];
    return select(headers.xy, headers.zw, vec2<bool>((c & 2u) != 0u));
}
