// Parameters and buffers of the products of a pair; bindings 1, 6, 8 and 9 are the matrices, 2 the activations.

struct Params {
    w_stride: u32,
    w_blocks: u32,
    chunks: u32,
    rows: u32,
    part_rows: u32,
    n: u32,
    x_offset: u32,
    x_stride: u32,
    gate: u32,
    alpha: f32,
    limit: f32,
    has_codes: u32,
    norm_eps: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(3) var<storage, read_write> gate_out: array<f32>;
@group(0) @binding(4) var<storage, read_write> up_out: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<storage, read_write> twin: array<u32>;
