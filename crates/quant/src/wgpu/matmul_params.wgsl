// Bindings of matmuls. Bindings 1, 6: matrix; 2: activations.

@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> routes: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
