// Loads weights of any format for gemm_coop.wgsl and dequantizes them; two chunks of 16 per invocation.

struct Weights {
    first: Weights16,
    second: Weights16,
}

fn read_weights(n0: u32, step: u32, lid: u32) -> Weights {
    // Adjacent invocations read adjacent chunks.
    let row = n0 + lid / 4u;
    let chunk = 4u * step + lid % 4u;
    let last = p.slice_rows - 1u;
    let first = dequantize16(min(row, last), chunk);
    return Weights(first, dequantize16(min(row + WG / 4u, last), chunk));
}

fn store_chunk(row: u32, quarter: u32, values: Weights16) {
    let at = row * ROW + 4u * quarter;
    w_tile[at] = vec4<f16>(values[0]);
    w_tile[at + 1u] = vec4<f16>(values[1]);
    w_tile[at + 2u] = vec4<f16>(values[2]);
    w_tile[at + 3u] = vec4<f16>(values[3]);
}

fn store_weights(all: Weights, lid: u32) {
    store_chunk(lid / 4u, lid % 4u, all.first);
    store_chunk(lid / 4u + WG / 4u, lid % 4u, all.second);
}
