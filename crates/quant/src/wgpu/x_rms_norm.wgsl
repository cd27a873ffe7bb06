// Activations as the RMS norm of one row, which every workgroup computes and quantizes for itself: faster than a kernel of
// its own and the barrier after it. Workgroup 0 also stores the norm.
//
//   x, weight        STEPS chunks (16 values) per invocation, in registers
//   scale = 1 / sqrt(mean(x^2) + eps)
//   y = x * scale * weight
//   norm_quants, norm_headers = q8 of y, in workgroup memory; two adjacent invocations hold a group
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(NORM_WEIGHT) var<storage, read> norm_weight: array<vec4<f32>>;
@group(0) @binding(NORM_OUT) var<storage, read_write> norm_out: array<vec4<f32>>;

// The norm in q8, by chunk and by group.
var<workgroup> norm_quants: array<vec4<u32>, CHUNKS>;
var<workgroup> norm_headers: array<vec2<u32>, CHUNKS / 2u>;

fn x_quants(at: u32, c: u32) -> vec4<u32> {
    return norm_quants[c];
}

fn x_header(at: u32, c: u32) -> vec2<u32> {
    return norm_headers[c >> 1u];
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
        var max_abs = 0u;
        for (var i = 0u; i < 4u; i++) {
            v[4u * step + i] = v[4u * step + i] * scale * weight[4u * step + i];
            max_abs = max(max_abs, max_abs_bits(v[4u * step + i]));
        }
        // Two adjacent chunks are a q8 group.
        let group_scale = q8_scale(max(max_abs, subgroupShuffleXor(max_abs, 1u)));
        var words = vec4<u32>(0u);
        var sum = 0;
        for (var i = 0u; i < 4u; i++) {
            let q = q8_values(v[4u * step + i], group_scale);
            words[i] = pack_bytes(q);
            sum += q.x + q.y + q.z + q.w;
        }
        let next_sum = subgroupShuffleXor(sum, 1u);
        if chunk < CHUNKS {
            norm_quants[chunk] = words;
            if chunk % 2u == 0u {
                let sums = (bitcast<u32>(sum) & 0xffffu) | (bitcast<u32>(next_sum) << 16u);
                norm_headers[chunk / 2u] = vec2<u32>(bitcast<u32>(group_scale), sums);
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
