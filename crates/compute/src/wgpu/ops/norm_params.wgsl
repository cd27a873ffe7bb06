// What both norms are given; see norm.rs. An invocation takes four adjacent values at a time.

struct Params {
    rows: u32,
    cols: u32,
    offset: u32,
    stride: u32,
    // Layer norm: whether there is a bias. RMS norm: whether the result is added.
    is_set: u32,
    twin: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read_write> twin: array<u32>;

// STEPS times four values of a row, which an invocation keeps.
struct Own {
    x: array<vec4<f32>, STEPS>,
    weight: array<vec4<f32>, STEPS>,
}

// The first of the four values of a step.
fn column(step: u32, lid: u32) -> u32 {
    return (step * WG + lid) * 4u;
}

// Reads both before anything waits for either.
fn read_own(start: u32, lid: u32) -> Own {
    var own: Own;
    for (var step = 0u; step < STEPS; step++) {
        for (var i = 0u; i < 4u; i++) {
            let c = column(step, lid) + i;
            own.x[step][i] = 0.0;
            own.weight[step][i] = 0.0;
            if c < p.cols {
                own.x[step][i] = x[start + c];
                own.weight[step][i] = weight[c];
            }
        }
    }
    return own;
}
