// Products that are also stored in 8 bits. A workgroup takes a multiple of 32 rows.

@group(0) @binding(7) var<storage, read_write> twin: array<u32>;

var<workgroup> kept: array<f32, T * ROWS>;

fn keep(i: u32, y: f32) {
    kept[i] = y;
}

// All rows of the workgroup, of which `start` is the first.
fn finish(start: u32, lid: u32) {
    workgroupBarrier();
    for (var first = 0u; first < T * ROWS; first += 4u * WG) {
        let i = min(first + 4u * lid, T * ROWS - 4u);
        let v = vec4<f32>(kept[i], kept[i + 1u], kept[i + 2u], kept[i + 3u]);
        let t = i / ROWS;
        let c = start + i % ROWS;
        quantize4(v, t, c, p.n, first + 4u * lid < T * ROWS && t < p.rows && c < p.n, lid);
    }
}
