// out[t] (+)= x[t] / sqrt(mean(x[t]^2) + eps) * weight; one workgroup per row.

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group_index(group, groups);
    if t >= p.rows {
        return;
    }
    var values = load_values(p.offset + t * p.stride, lid);
    var squares = 0.0;
    for (var step = 0u; step < STEPS; step++) {
        squares += dot(values.x[step], values.x[step]);
    }
    let scale = 1.0 / sqrt(reduce_add(squares, lid) / f32(p.cols) + p.eps);
    for (var step = 0u; step < STEPS; step++) {
        let c = column(step, lid);
        var y = values.x[step] * scale * values.weight[step];
        for (var i = 0u; i < 4u; i++) {
            if c + i < p.cols {
                let at = t * p.cols + c + i;
                if p.accumulate != 0u {
                    y[i] += out[at];
                }
                if p.has_values != 0u {
                    out[at] = y[i];
                }
            }
        }
        write_operand4(p.operand, y, t, c, p.cols, c < p.cols, lid);
    }
}
