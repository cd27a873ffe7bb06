// Parameters and bindings of gemv_gate_up.wgsl. Bindings 1, 6, 8, 9: matrices; 2: activations.

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
    has_q8_copy: u32,
    norm_eps: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(3) var<storage, read_write> gate_out: array<f32>;
@group(0) @binding(4) var<storage, read_write> up_out: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<storage, read_write> out_copy: array<u32>;
