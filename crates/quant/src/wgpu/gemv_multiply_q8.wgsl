// Dot products in integers: quantized weights, q8 activations.
//
//   16 weights w = scale * q + offset, 16 activations x = d * xq:
//   dot(w, x) = d * (scale * dot(q, xq) + offset * sum(xq))

// Dot product of 16 weights with chunk `c` of the row of activations at vector `at`.
fn dot16(weights: Quants16, at: u32, c: u32) -> f32 {
    let q = x_quants(at, c);
    let dot = dot4I8Packed(weights.q.x, q.x) + dot4I8Packed(weights.q.y, q.y)
        + dot4I8Packed(weights.q.z, q.z) + dot4I8Packed(weights.q.w, q.w);
    let header = x_header(at, c);
    let sum = f32(bitcast<i32>(select(header.y << 16u, header.y, (c & 1u) != 0u)) >> 16u);
    return bitcast<f32>(header.x) * fma(weights.scale, f32(dot), weights.offset * sum);
}

fn multiply(sums: ptr<function, array<f32, SUMS>>, first: u32, x_row: u32, lane: u32) {
    // Four chunks per step, which share vectors of the quants.
    for (var step = lane; step < p.chunks / 4u; step += LANES) {
        let c0 = chunk_of(step, 0u);
        let c1 = chunk_of(step, 1u);
        let c2 = chunk_of(step, 2u);
        let c3 = chunk_of(step, 3u);
        for (var r = 0u; r < TEAM_ROWS; r++) {
            let row = min(first + r, last_row());
            let q0 = load_quants16(row, c0);
            let q1 = load_quants16(row, c1);
            let q2 = load_quants16(row, c2);
            let q3 = load_quants16(row, c3);
            for (var t = 0u; t < X_ROWS; t++) {
                let at = p.x_offset + (min(t, p.rows - 1u) + x_row) * p.x_stride;
                let low = dot16(q0, at, c0) + dot16(q1, at, c1);
                let high = dot16(q2, at, c2) + dot16(q3, at, c3);
                (*sums)[r * X_ROWS + t] += low + high;
            }
        }
    }
}
