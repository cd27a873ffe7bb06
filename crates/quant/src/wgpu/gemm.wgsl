// GEMM in f32: a tile of 64 rows of activations x 64 rows of the matrix per workgroup, 4 x 4 outputs per invocation.
//
//   sums = 0                                          4 x 4 per invocation: activations ty + 16 i, matrix tx + 16 j
//   for each step of 32 columns:
//       x_tile = activations [64, 32]; w_tile = dequantized weights [64, 32]
//       for each vector of 4 columns: sums[i][j] += dot(x_tile row, w_tile row)
//   out = epilogue(sums)
//
// Tiles are 64 rows of 8 vectors. Vector i of row r is at i ^ (r % 8): the swizzle avoids bank conflicts of both the stores
// and the loads.

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

var<workgroup> w_tile: array<vec4<f32>, 512>;
var<workgroup> x_tile: array<vec4<f32>, 512>;

fn store(t: u32, n: u32, sum: f32) {
    if t < p.rows && n < p.slice_rows {
        let column = p.slice_first + n;
        let at = t * p.n + column;
        var y = sum;
        if p.has_bias != 0u {
            y += bias[column];
        }
        y = activate(y, p.activation);
        if p.accumulate != 0u {
            y += out[at];
        }
        out[at] = y;
    }
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let n0 = group.x * 64u;
    let t0 = group.y * 64u;
    let tx = lid & 15u;
    let ty = lid >> 4u;
    // Half of the invocations fill w_tile, half x_tile, 16 values each.
    let row = lid & 63u;
    let half = (lid >> 6u) & 1u;
    let fills_w = lid < 128u;
    let to = row * 8u;
    let swizzle = row & 7u;
    let w_row = min(n0 + row, p.slice_rows - 1u);
    let x_row = p.x_offset + min(t0 + row, p.rows - 1u) * p.x_stride;
    // sumsI[j]: activations row t0 + ty + 16 I, matrix row n0 + tx + 16 j.
    var sums0 = vec4<f32>(0.0);
    var sums1 = vec4<f32>(0.0);
    var sums2 = vec4<f32>(0.0);
    var sums3 = vec4<f32>(0.0);
    for (var chunk = 0u; chunk < p.chunks; chunk += 2u) {
        if fills_w {
            let weights = dequantize16(w_row, chunk + half);
            w_tile[to + ((4u * half) ^ swizzle)] = weights[0];
            w_tile[to + ((4u * half + 1u) ^ swizzle)] = weights[1];
            w_tile[to + ((4u * half + 2u) ^ swizzle)] = weights[2];
            w_tile[to + ((4u * half + 3u) ^ swizzle)] = weights[3];
        } else {
            let at = x_row + 4u * (chunk + half);
            x_tile[to + ((4u * half) ^ swizzle)] = x[at];
            x_tile[to + ((4u * half + 1u) ^ swizzle)] = x[at + 1u];
            x_tile[to + ((4u * half + 2u) ^ swizzle)] = x[at + 2u];
            x_tile[to + ((4u * half + 3u) ^ swizzle)] = x[at + 3u];
        }
        workgroupBarrier();
        for (var i = 0u; i < 8u; i++) {
            let w_at = tx * 8u + (i ^ (tx & 7u));
            let x_at = ty * 8u + (i ^ (ty & 7u));
            let b0 = w_tile[w_at];
            let b1 = w_tile[w_at + 128u];
            let b2 = w_tile[w_at + 256u];
            let b3 = w_tile[w_at + 384u];
            let a0 = x_tile[x_at];
            let a1 = x_tile[x_at + 128u];
            let a2 = x_tile[x_at + 256u];
            let a3 = x_tile[x_at + 384u];
            sums0 += vec4<f32>(dot(a0, b0), dot(a0, b1), dot(a0, b2), dot(a0, b3));
            sums1 += vec4<f32>(dot(a1, b0), dot(a1, b1), dot(a1, b2), dot(a1, b3));
            sums2 += vec4<f32>(dot(a2, b0), dot(a2, b1), dot(a2, b2), dot(a2, b3));
            sums3 += vec4<f32>(dot(a3, b0), dot(a3, b1), dot(a3, b2), dot(a3, b3));
        }
        workgroupBarrier();
    }
    let t = t0 + ty;
    let n = n0 + tx;
    store(t, n, sums0.x);
    store(t, n + 16u, sums0.y);
    store(t, n + 32u, sums0.z);
    store(t, n + 48u, sums0.w);
    store(t + 16u, n, sums1.x);
    store(t + 16u, n + 16u, sums1.y);
    store(t + 16u, n + 32u, sums1.z);
    store(t + 16u, n + 48u, sums1.w);
    store(t + 32u, n, sums2.x);
    store(t + 32u, n + 16u, sums2.y);
    store(t + 32u, n + 32u, sums2.z);
    store(t + 32u, n + 48u, sums2.w);
    store(t + 48u, n, sums3.x);
    store(t + 48u, n + 16u, sums3.y);
    store(t + 48u, n + 32u, sums3.z);
    store(t + 48u, n + 48u, sums3.w);
}
