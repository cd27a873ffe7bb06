// out[t] = (x[t] - mean) / sqrt(variance + eps) * weight + bias; one workgroup per row.

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group_index(group, groups);
    if t >= p.rows {
        return;
    }
    var values = load_values(p.offset + t * p.stride, lid);
    var sum = 0.0;
    for (var step = 0u; step < STEPS; step++) {
        sum += dot(values.x[step], vec4<f32>(1.0));
    }
    let mean = reduce_add(sum, lid) / f32(p.cols);
    var squares = 0.0;
    for (var step = 0u; step < STEPS; step++) {
        for (var i = 0u; i < 4u; i++) {
            if column(step, lid) + i < p.cols {
                let d = values.x[step][i] - mean;
                squares = fma(d, d, squares);
            }
        }
    }
    let scale = 1.0 / sqrt(reduce_add(squares, lid) / f32(p.cols) + p.eps);
    for (var step = 0u; step < STEPS; step++) {
        let c = column(step, lid);
        var y = (values.x[step] - mean) * scale * values.weight[step];
        for (var i = 0u; i < 4u; i++) {
            if c + i < p.cols {
                if p.has_bias != 0u {
                    y[i] += bias[c + i];
                }
                if p.has_values != 0u {
                    out[t * p.cols + c + i] = y[i];
                }
            }
        }
        write_operand4(p.operand, y, t, c, p.cols, c < p.cols, lid);
    }
}
