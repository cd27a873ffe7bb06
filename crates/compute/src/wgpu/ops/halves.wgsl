// Rows rounded to f16, eight values an invocation.

struct Params {
    rows: u32,
    cols: u32,
    src_offset: u32,
    src_stride: u32,
    dst_cols: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<f32>;
@group(0) @binding(2) var<storage, read_write> dst: array<vec4<u32>>;

// The f16 of two adjacent values.
fn pair(at: u32, column: u32) -> u32 {
    var values = vec2<f32>(0.0);
    if column < p.cols {
        values.x = src[at];
    }
    if column + 1u < p.cols {
        values.y = src[at + 1u];
    }
    return pack2x16float(clamp(values, vec2<f32>(-65504.0), vec2<f32>(65504.0)));
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    let per_row = p.dst_cols / 8u;
    if i < p.rows * per_row {
        let column = i % per_row * 8u;
        let at = p.src_offset + i / per_row * p.src_stride + column;
        dst[i] = vec4<u32>(
            pair(at, column),
            pair(at + 2u, column + 2u),
            pair(at + 4u, column + 4u),
            pair(at + 6u, column + 6u),
        );
    }
}
