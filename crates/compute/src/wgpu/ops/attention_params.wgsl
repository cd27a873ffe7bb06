// Bindings of the attention kernels.

@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
// Binding 3: pages.
@group(0) @binding(4) var<storage, read> slopes: array<f32>;
@group(0) @binding(5) var<storage, read> sinks: array<f32>;
// The output; with splits one partial result a row, head and split: weighted sums of the values, running maximum,
// running sum.
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

// Score of invisible positions: below any score, and finite in sums.
const LOWEST: f32 = -3.0e38;

