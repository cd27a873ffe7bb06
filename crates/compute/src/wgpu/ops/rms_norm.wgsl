// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight, or added to out; a workgroup a row.

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group_index(group, groups);
    if t >= p.rows {
        return;
    }
    let start = p.offset + t * p.stride;
    var squares = 0.0;
    for (var first = 0u; first < p.cols; first += 4u * WG) {
        for (var i = 0u; i < 4u; i++) {
            let c = first + 4u * lid + i;
            if c < p.cols {
                squares = fma(x[start + c], x[start + c], squares);
            }
        }
    }
    let scale = 1.0 / sqrt(reduce_add(squares, lid) / f32(p.cols) + p.eps);
    for (var first = 0u; first < p.cols; first += 4u * WG) {
        var y = vec4<f32>(0.0);
        for (var i = 0u; i < 4u; i++) {
            let c = first + 4u * lid + i;
            if c < p.cols {
                y[i] = x[start + c] * scale * weight[c];
                if p.is_set != 0u {
                    y[i] += out[t * p.cols + c];
                }
                out[t * p.cols + c] = y[i];
            }
        }
        if p.has_codes != 0u {
            let c = first + 4u * lid;
            quantize4(y, t, c, p.cols, c < p.cols, lid);
        }
    }
}
