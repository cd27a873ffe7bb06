// out[t] = (x[t] - mean) / sqrt(variance + eps) * weight + bias; a workgroup a row.

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group_index(group, groups);
    if t >= p.rows {
        return;
    }
    let start = p.offset + t * p.stride;
    var sum = 0.0;
    for (var c = lid; c < p.cols; c += WG) {
        sum += x[start + c];
    }
    let mean = reduce_add(sum, lid) / f32(p.cols);
    var squares = 0.0;
    for (var c = lid; c < p.cols; c += WG) {
        let d = x[start + c] - mean;
        squares = fma(d, d, squares);
    }
    let scale = 1.0 / sqrt(reduce_add(squares, lid) / f32(p.cols) + p.eps);
    for (var first = 0u; first < p.cols; first += 4u * WG) {
        var y = vec4<f32>(0.0);
        for (var i = 0u; i < 4u; i++) {
            let c = first + 4u * lid + i;
            if c < p.cols {
                y[i] = (x[start + c] - mean) * scale * weight[c];
                if p.is_set != 0u {
                    y[i] += bias[c];
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
