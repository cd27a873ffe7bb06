// Dot products in f32, for float formats.

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

fn prepare(is_first: bool, lid: u32) {}

fn multiply(sums: ptr<function, array<f32, SUMS>>, first: u32, x_row: u32, lane: u32) {
    for (var c = lane; c < p.chunks; c += LANES) {
        for (var r = 0u; r < TEAM_ROWS; r++) {
            let weights = dequantize16(min(first + r, last_row()), c);
            for (var t = 0u; t < X_ROWS; t++) {
                let at = p.x_offset + (min(t, p.rows - 1u) + x_row) * p.x_stride + 4u * c;
                var sum = dot(weights[0], x[at]);
                sum += dot(weights[1], x[at + 1u]);
                sum += dot(weights[2], x[at + 2u]);
                sum += dot(weights[3], x[at + 3u]);
                (*sums)[r * X_ROWS + t] += sum;
            }
        }
    }
}
