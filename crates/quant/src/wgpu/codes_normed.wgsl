// Activations that are the RMS norm of one row, which every workgroup makes for itself: a kernel of its own, and
// the wait for it, take longer. One workgroup stores it too.
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(NORM_WEIGHT) var<storage, read> norm_weight: array<vec4<f32>>;
@group(0) @binding(NORM_OUT) var<storage, read_write> norm_out: array<vec4<f32>>;

// In 8 bits, an invocation a chunk.
var<workgroup> own_codes: array<vec4<u32>, CHUNKS>;
var<workgroup> own_heads: array<vec2<u32>, CHUNKS / 2u>;

fn x_codes(at: u32, c: u32) -> vec4<u32> {
    return own_codes[c];
}

fn x_head(at: u32, c: u32) -> vec2<u32> {
    return own_heads[c >> 1u];
}

fn prepare(is_first: bool, lid: u32) {
    var v: array<vec4<f32>, 4u * STEPS>;
    var weight: array<vec4<f32>, 4u * STEPS>;
    var squares = 0.0;
    for (var i = 0u; i < 4u * STEPS; i++) {
        let at = (i / 4u * WG + lid) * 4u + i % 4u;
        v[i] = vec4<f32>(0.0);
        weight[i] = vec4<f32>(0.0);
        if at < 4u * CHUNKS {
            v[i] = x[p.x_offset + at];
            weight[i] = norm_weight[at];
        }
        squares += dot(v[i], v[i]);
    }
    let scale = 1.0 / sqrt(reduce_add(squares, lid) / f32(16u * CHUNKS) + p.norm_eps);
    for (var step = 0u; step < STEPS; step++) {
        let chunk = step * WG + lid;
        var greatest = 0u;
        for (var i = 0u; i < 4u; i++) {
            v[4u * step + i] = v[4u * step + i] * scale * weight[4u * step + i];
            greatest = max(greatest, greatest_bits(v[4u * step + i]));
        }
        // Two adjacent chunks are a group.
        let by = code_scale(max(greatest, subgroupShuffleXor(greatest, 1u)));
        var words = vec4<u32>(0u);
        var sum = 0;
        for (var i = 0u; i < 4u; i++) {
            let q = codes_of(v[4u * step + i], by);
            words[i] = packed(q);
            sum += q.x + q.y + q.z + q.w;
        }
        let other = subgroupShuffleXor(sum, 1u);
        if chunk < CHUNKS {
            own_codes[chunk] = words;
            if chunk % 2u == 0u {
                let sums = (bitcast<u32>(sum) & 0xffffu) | (bitcast<u32>(other) << 16u);
                own_heads[chunk / 2u] = vec2<u32>(bitcast<u32>(by), sums);
            }
            if is_first {
                for (var i = 0u; i < 4u; i++) {
                    norm_out[4u * chunk + i] = v[4u * step + i];
                }
            }
        }
    }
    workgroupBarrier();
}
