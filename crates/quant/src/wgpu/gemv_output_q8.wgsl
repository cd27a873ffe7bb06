// Output of gemv.wgsl in q8. A workgroup takes a multiple of 32 rows.

@group(0) @binding(7) var<storage, read_write> out_operand: array<u32>;

var<workgroup> kept: array<f32, X_ROWS * GROUP_ROWS>;

fn keep_output(i: u32, at: u32, y: f32) {
    kept[i] = y;
}

// Quantizes the outputs of the workgroup, from row `start` of the matrix on.
fn finish_group(start: u32, lid: u32) {
    workgroupBarrier();
    for (var first = 0u; first < X_ROWS * GROUP_ROWS; first += 4u * WG) {
        let i = min(first + 4u * lid, X_ROWS * GROUP_ROWS - 4u);
        let v = vec4<f32>(kept[i], kept[i + 1u], kept[i + 2u], kept[i + 3u]);
        let t = i / GROUP_ROWS;
        let c = start + i % GROUP_ROWS;
        quantize4(v, t, c, p.n, first + 4u * lid < X_ROWS * GROUP_ROWS && t < p.rows && c < p.n, lid);
    }
}
