// Sums of products in integers: weights whose format has codes, activations in 8 bits.

// Codes and heads of rows, see quantize.rs of stonechat-compute.
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;

fn dot16(a: vec4<u32>, b: vec4<u32>) -> f32 {
    return f32(dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w));
}

fn multiply(sums: ptr<function, array<f32, SUMS>>, first: u32, x_row: u32, place: u32) {
    // 32 weights at a time, which have a scale in the activations.
    let n_groups = p.chunks / 2u;
    for (var g = place; g < n_groups; g += L) {
        for (var r = 0u; r < R; r++) {
            let row = min(first + r, p.part_rows - 1u);
            let a = codes16(row, 2u * g);
            let b = codes16(row, 2u * g + 1u);
            for (var t = 0u; t < T; t++) {
                let at = p.x_offset + (min(t, p.rows - 1u) + x_row) * p.x_stride;
                let heads = x[at + 2u * n_groups + (g >> 1u)];
                let head = select(heads.xy, heads.zw, vec2<bool>((g & 1u) != 0u));
                let low = f32(bitcast<i32>(head.y << 16u) >> 16u);
                let high = f32(bitcast<i32>(head.y) >> 16u);
                var sum = a.scale * dot16(a.q, x[at + 2u * g]);
                sum = fma(b.scale, dot16(b.q, x[at + 2u * g + 1u]), sum);
                sum = fma(a.offset, low, fma(b.offset, high, sum));
                (*sums)[r * T + t] = fma(bitcast<f32>(head.x), sum, (*sums)[r * T + t]);
            }
        }
    }
}
