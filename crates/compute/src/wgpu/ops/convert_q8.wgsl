// Quantizes rows to q8; four adjacent values per invocation.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out_operand: array<u32>;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let groups_per_row = (p.padded + 4u * WG - 1u) / (4u * WG);
    let index = group_index(group, groups);
    let t = index / groups_per_row;
    let c = (index % groups_per_row * WG + lid) * 4u;
    var v = vec4<f32>(0.0);
    for (var i = 0u; i < 4u; i++) {
        if t < p.rows && c + i < p.cols {
            v[i] = x[p.offset + t * p.stride + c + i];
        }
    }
    quantize4(v, t, c, p.padded, t < p.rows && c < p.padded, lid);
}
