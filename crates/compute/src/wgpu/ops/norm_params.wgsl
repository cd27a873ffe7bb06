// What both norms are given; see norm.rs. An invocation takes four adjacent values at a time.

struct Params {
    rows: u32,
    cols: u32,
    offset: u32,
    stride: u32,
    // Layer norm: whether there is a bias. RMS norm: whether the result is added.
    is_set: u32,
    has_codes: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read_write> codes: array<u32>;

