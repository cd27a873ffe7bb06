// Matmul with f32 weights [N, K] in rows: routers of experts, f32 models. Products and sums are f32.
#include "common.cuh"

struct DenseParams {
    const float *weights;
    const float *x;
    const float *bias;
    Output out;
    const u32 *assignments; // Experts: expert and weight of each output row; null otherwise.
    u32 m, n, k, x_stride, out_stride, activation, accumulate, assignments_per_row;
};

// One warp per result. Grid: (results / 8, rows).
KERNEL(256) dense(const __grid_constant__ DenseParams p) {
    begin_kernel();
    u32 lane = threadIdx.x % 32, n = blockIdx.x * 8 + threadIdx.x / 32;
    if (n >= p.n) return;
    for (u32 row = blockIdx.y; row < p.m; row += gridDim.y) {
        u32 first = p.assignments ? p.assignments[2 * row] * p.n : 0;
        const float *x = p.x + (size_t)(row / p.assignments_per_row) * p.x_stride;
        const float *w = p.weights + (size_t)(first + n) * p.k;
        float y = 0.f;
        for (u32 k = lane; k < p.k; k += 32) y = fmaf(w[k], x[k], y);
        y = warp_sum(y);
        if (lane != 0) continue;
        if (p.bias) y += p.bias[first + n];
        y = activate(y, p.activation);
        size_t at = (size_t)row * p.out_stride + n;
        if (p.accumulate) y += p.out.values[at];
        store(p.out, at, y);
    }
}

struct DenseEmbedParams {
    const float *table;
    const u32 *tokens;
    const float *top_k;
    const float *positions_table;
    const u32 *positions;
    float *out;
    u32 n_tokens, cols;
    float scale;
    u32 unused;
};

KERNEL(256) dense_embed(const __grid_constant__ DenseEmbedParams p) {
    begin_kernel();
    u32 row = blockIdx.x, token = p.tokens[row];
    if (token >> 31) token = (u32)p.top_k[token & 0x7fffffffu];
    for (u32 c = blockIdx.y * 256 + threadIdx.x; c < p.cols; c += gridDim.y * 256) {
        float y = p.scale * p.table[(size_t)token * p.cols + c];
        if (p.positions_table) y += p.positions_table[(size_t)p.positions[row] * p.cols + c];
        p.out[(size_t)row * p.cols + c] = y;
    }
}
