// Parameters and bindings of matmuls, see `MatmulParams` in matmul.rs. Bindings 1, 6: matrix; 2: activations.

struct Params {
    w_stride: u32,
    w_blocks: u32,
    chunks: u32,
    rows: u32,
    slice_rows: u32,
    slice_first: u32,
    n: u32,
    x_offset: u32,
    x_stride: u32,
    has_bias: u32,
    activation: u32,
    accumulate: u32,
    routes_per_row: u32,
    norm_eps: f32,
    f16_output: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> routes: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
