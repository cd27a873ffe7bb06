// Bindings of both norms, see norm.rs. An invocation takes STEPS times four adjacent values of a row.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read_write> out_operand: array<u32>;

// Values and weights of an invocation, in registers.
struct LaneValues {
    x: array<vec4<f32>, STEPS>,
    weight: array<vec4<f32>, STEPS>,
}

// First column of a step.
fn column(step: u32, lid: u32) -> u32 {
    return (step * WG + lid) * 4u;
}

// Loads values and weights; all loads are independent.
fn load_values(start: u32, lid: u32) -> LaneValues {
    var values: LaneValues;
    for (var step = 0u; step < STEPS; step++) {
        for (var i = 0u; i < 4u; i++) {
            let c = column(step, lid) + i;
            values.x[step][i] = 0.0;
            values.weight[step][i] = 0.0;
            if c < p.cols {
                values.x[step][i] = x[start + c];
                values.weight[step][i] = weight[c];
            }
        }
    }
    return values;
}
