// R rows of the matrix times up to T rows of activations, or one chosen by an expert's token.

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    var first = group_index(group, groups) * R;
    // The first row in the part, in the columns of the output, and of the activations.
    var column = p.first + first;
    var x_row = 0u;
    var out_row = 0u;
    var bias_at = column;
    if BY_EXPERT != 0u {
        let expert = choices[2u * group.y];
        column = group.x * R;
        bias_at = expert * p.n + column;
        // Wraps where the rows are before the part.
        first = bias_at - p.first;
        x_row = group.y / p.choices_per_row;
        out_row = group.y;
    }
    var sums: array<f32, SUMS>;
    for (var i = 0u; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    for (var c = lid; c < p.chunks; c += WG) {
        for (var r = 0u; r < R; r++) {
            let weights = dequantize16(min(first + r, p.part_rows - 1u), c);
            for (var t = 0u; t < T; t++) {
                let row = min(t, p.rows - 1u) + x_row;
                let at = p.x_offset + row * p.x_stride + 4u * c;
                var sum = dot(weights[0], x[at]);
                sum += dot(weights[1], x[at + 1u]);
                sum += dot(weights[2], x[at + 2u]);
                sum += dot(weights[3], x[at + 3u]);
                sums[r * T + t] += sum;
            }
        }
    }
    let sum = reduce_rows(&sums, lid);
    let r = lid / T;
    let t = lid % T;
    if lid < SUMS && first + r < p.part_rows && t < p.rows && column + r < p.n {
        let at = (out_row + t) * p.n + column + r;
        var y = sum;
        if p.has_bias != 0u {
            y += bias[bias_at + r];
        }
        y = activate(y, p.activation);
        if p.accumulate != 0u {
            y += out[at];
        }
        out[at] = y;
    }
}
