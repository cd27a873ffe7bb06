// out[t, c] = act(gate[t, c]) * up[t, c]; four values of a row per invocation.

@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read> ups: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> out_operand: array<u32>;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let groups_per_row = (p.cols + 4u * WG - 1u) / (4u * WG);
    let index = group_index(group, groups);
    let t = index / groups_per_row;
    let c = (index % groups_per_row * WG + lid) * 4u;
    var y = vec4<f32>(0.0);
    for (var i = 0u; i < 4u; i++) {
        if t < p.rows && c + i < p.cols {
            let gate = gates[p.gate_offset + t * p.gate_stride + c + i];
            let up = ups[p.up_offset + t * p.up_stride + c + i];
            y[i] = gated_activation(gate, up, p.activation, p.alpha, p.limit);
            if p.has_values != 0u {
                out[t * p.cols + c + i] = y[i];
            }
        }
    }
    write_operand4(p.operand, y, t, c, p.cols, t < p.rows && c < p.cols, lid);
}
