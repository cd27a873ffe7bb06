// Parameters and bindings of gemv_gate_up.wgsl. Bindings 1, 3, 4, 5: matrices; 2: activations; 6: output.

struct Params {
    w_stride: u32,
    w_blocks: u32,
    chunks: u32,
    rows: u32,
    slice_rows: u32,
    n: u32,
    x_offset: u32,
    x_stride: u32,
    activation: u32,
    alpha: f32,
    limit: f32,
    norm_eps: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
