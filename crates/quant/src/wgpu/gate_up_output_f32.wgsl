// Output of gemv_gate_up.wgsl in f32.
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

fn store_output(y: vec4<f32>, t: u32, c: u32, is_stored: bool, lid: u32) {
    if is_stored {
        for (var j = 0u; j < 4u; j++) {
            out[t * p.n + c + j] = y[j];
        }
    }
}
