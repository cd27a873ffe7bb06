// out[t] (+)= sum_i weight[t, i] * results[t * n_used + i].

@group(0) @binding(1) var<storage, read> routes: array<u32>;
@group(0) @binding(2) var<storage, read> results: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    if i >= p.rows * p.cols {
        return;
    }
    let t = i / p.cols;
    let c = i % p.cols;
    var sum = 0.0;
    if p.accumulate != 0u {
        sum = out[i];
    }
    for (var j = 0u; j < p.n_used; j++) {
        let route = t * p.n_used + j;
        sum = fma(bitcast<f32>(routes[2u * route + 1u]), results[route * p.cols + c], sum);
    }
    out[i] = sum;
}
