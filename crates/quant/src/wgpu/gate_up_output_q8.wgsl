// Output of gemv_gate_up.wgsl in q8.
@group(0) @binding(6) var<storage, read_write> out_operand: array<u32>;

fn store_output(y: vec4<f32>, t: u32, c: u32, is_stored: bool, lid: u32) {
    quantize4(y, t, c, p.n, is_stored, lid);
}
