// Rounds rows to f16; eight values per invocation.

@group(0) @binding(1) var<storage, read> src: array<f32>;
@group(0) @binding(2) var<storage, read_write> dst: array<vec4<u32>>;

// Loads four adjacent values; zeros beyond the row.
fn load4(at: u32, column: u32) -> vec4<f32> {
    var values = vec4<f32>(0.0);
    for (var i = 0u; i < 4u; i++) {
        if column + i < p.cols {
            values[i] = src[at + i];
        }
    }
    return values;
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    let per_row = p.padded / 8u;
    if i < p.rows * per_row {
        let column = i % per_row * 8u;
        let at = p.offset + i / per_row * p.stride + column;
        let first = pack_f16x4(load4(at, column));
        dst[i] = vec4<u32>(first, pack_f16x4(load4(at + 4u, column + 4u)));
    }
}
