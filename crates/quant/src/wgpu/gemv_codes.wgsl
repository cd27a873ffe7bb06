// Sums of products in integers: weights whose format has codes, activations in 8 bits.

// The product of 16 weights with chunk `c` of the row of activations at `at`.
fn product16(codes: Codes, at: u32, c: u32) -> f32 {
    let q = x_codes(at, c);
    let dot = dot4I8Packed(codes.q.x, q.x) + dot4I8Packed(codes.q.y, q.y)
        + dot4I8Packed(codes.q.z, q.z) + dot4I8Packed(codes.q.w, q.w);
    let head = x_head(at, c);
    let sum = f32(bitcast<i32>(select(head.y << 16u, head.y, (c & 1u) != 0u)) >> 16u);
    return bitcast<f32>(head.x) * fma(codes.scale, f32(dot), codes.offset * sum);
}

fn multiply(sums: ptr<function, array<f32, SUMS>>, first: u32, x_row: u32, place: u32) {
    // 64 weights at a time, those that formats keep in the same vectors.
    for (var unit = place; unit < p.chunks / 4u; unit += L) {
        let c0 = chunk_of(unit, 0u);
        let c1 = chunk_of(unit, 1u);
        let c2 = chunk_of(unit, 2u);
        let c3 = chunk_of(unit, 3u);
        for (var r = 0u; r < R; r++) {
            let row = min(first + r, last_row());
            let q0 = codes16(row, c0);
            let q1 = codes16(row, c1);
            let q2 = codes16(row, c2);
            let q3 = codes16(row, c3);
            for (var t = 0u; t < T; t++) {
                let at = p.x_offset + (min(t, p.rows - 1u) + x_row) * p.x_stride;
                let low = product16(q0, at, c0) + product16(q1, at, c1);
                let high = product16(q2, at, c2) + product16(q3, at, c3);
                (*sums)[r * T + t] += low + high;
            }
        }
    }
}
