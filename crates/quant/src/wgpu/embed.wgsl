// out[t] = scale * table[tokens[t]] + positions[pos[t]]; 16 values per invocation.

@group(0) @binding(2) var<storage, read> data: array<u32>;
@group(0) @binding(3) var<storage, read> positions: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read> top_k: array<f32>;

fn store(t: u32, c: u32, values: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if c + i < p.cols {
            var y = p.scale * values[i];
            if p.has_positions != 0u {
                y += positions[data[p.positions + t] * p.cols + c + i];
            }
            out[t * p.cols + c + i] = y;
        }
    }
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    let chunks = (p.cols + 15u) / 16u;
    if i >= p.rows * chunks {
        return;
    }
    let t = i / chunks;
    let c = i % chunks;
    var token = data[p.tokens + t];
    if (token & 0x80000000u) != 0u {
        token = u32(top_k[token & 0x7fffffffu]);
    }
    // Wraps around for rows before the slice.
    let row = token - p.slice_first;
    if row >= p.slice_rows {
        return;
    }
    let values = dequantize16(row, c);
    store(t, 16u * c, values[0]);
    store(t, 16u * c + 4u, values[1]);
    store(t, 16u * c + 8u, values[2]);
    store(t, 16u * c + 12u, values[3]);
}
