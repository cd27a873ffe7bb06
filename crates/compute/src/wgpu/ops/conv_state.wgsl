// Causal convolution of each channel over the rows of a run, which the last inputs of its state precede. One channel of a row an
// invocation; that of a run's first row convolves all rows that read the state, then replaces it.

@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> states: array<f32>;

const NO_SLOT: u32 = 0xffffffffu;

fn input(row: u32, c: u32) -> f32 {
    return x[p.offset + row * p.stride + c];
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let groups_per_row = (p.cols + WG - 1u) / WG;
    let index = group_index(group, groups);
    let t = index / groups_per_row;
    let c = index % groups_per_row * WG + lid;
    if t >= p.rows || c >= p.cols {
        return;
    }
    let kept = p.kernel - 1u;
    let words = p.words + 4u * t;
    let first = data[words];
    let end = data[words + 1u];
    if t > first && t < first + kept {
        return;
    }
    // Weights of the last taps, and the inputs of all but the last: shorter kernels begin with zeros.
    let skipped = 4u - p.kernel;
    var w = vec4<f32>(0.0);
    for (var tap = skipped; tap < 4u; tap++) {
        w[tap] = weights[c * p.kernel + tap - skipped];
    }
    var before = vec3<f32>(0.0);
    let slot = data[words + 2u];
    for (var i = 0u; i < kept; i++) {
        if t > first {
            before[skipped + i] = input(t - kept + i, c);
        } else if slot != NO_SLOT {
            before[skipped + i] = states[(slot * kept + i) * p.cols + c];
        }
    }
    var start = 0.0;
    if p.has_bias != 0u {
        start = bias[c];
    }
    let last = select(t + 1u, min(t + kept, end), t == first);
    for (var row = t; row < last; row++) {
        let next = input(row, c);
        let sum = start + dot(w, vec4<f32>(before, next));
        out[row * p.cols + c] = select(sum, sum * sigmoid(sum), p.has_silu != 0u);
        before = vec3<f32>(before.yz, next);
    }
    if t == first {
        for (var i = 0u; i < kept; i++) {
            // Runs of more rows than the state end in other invocations.
            var value = before[skipped + i];
            if end - first > kept {
                value = input(end - kept + i, c);
            }
            states[(data[words + 3u] * kept + i) * p.cols + c] = value;
        }
    }
}
