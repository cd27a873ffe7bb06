// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight, or added to out; a workgroup a row.

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group_index(group, groups);
    if t >= p.rows {
        return;
    }
    let start = p.offset + t * p.stride;
    var squares = 0.0;
    for (var c = lid; c < p.cols; c += WG) {
        squares = fma(x[start + c], x[start + c], squares);
    }
    let scale = 1.0 / sqrt(reduce_add(squares, lid) / f32(p.cols) + p.eps);
    for (var c = lid; c < p.cols; c += WG) {
        var y = x[start + c] * scale * weight[c];
        if p.is_set != 0u {
            y += out[t * p.cols + c];
        }
        out[t * p.cols + c] = y;
    }
}
