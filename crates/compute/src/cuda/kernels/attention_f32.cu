// Attention over pages of f32. A block a query head of a row: 4 warps take positions in turns.
#include "attention.cuh"

// Widest head, in values of a lane.
#define MAX_VALUES 8

// Grid: (items, query heads). Items as of decode: row, table, start, end.
KERNEL(128) attention_f32(const __grid_constant__ AttentionParams p) {
    begin_kernel();
    __shared__ float values[4][32 * MAX_VALUES], largests[4], sums[4];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = p.kv.head_dim, padded = p.kv.padded_dim;
    const u32 *item = p.items + 4 * blockIdx.x;
    u32 row = item[0], table = item[1], start = item[2], end = item[3], head = blockIdx.y;
    const float *q = p.q + (size_t)row * p.q_stride + head * dim;
    float o[MAX_VALUES] = {}, largest = -INFINITY, sum = 0.f;
    for (u32 position = start + warp; position < end; position += 4) {
        const float *keys = (const float *)kv_head(p.kv, p.words[table + position / PAGE_LEN], head / p.group);
        u32 slot = position % PAGE_LEN;
        float x = 0.f;
        for (u32 c = lane; c < dim; c += 32) x = fmaf(q[c], keys[slot * padded + c], x);
        x = warp_sum(x) * p.scale;
        if (p.soft_cap != 0.f) x = p.soft_cap * tanhf(x / p.soft_cap);
        if (p.slopes) x = fmaf(p.slopes[head], (float)((int)position - (int)end + 1), x);
        // No weight, also if all scores so far are -inf, whose difference would be NaN.
        if (x == -INFINITY) continue;
        float top = fmaxf(largest, x), factor = expf(largest - top), weight = expf(x - top);
        sum = sum * factor + weight;
        largest = top;
        const float *v = keys + PAGE_LEN * padded;
        for (int i = 0; i < MAX_VALUES; i++) {
            u32 c = 32 * i + lane;
            o[i] *= factor;
            if (c < dim) o[i] = fmaf(weight, v[c * PAGE_LEN + slot], o[i]);
        }
    }
    for (int i = 0; i < MAX_VALUES; i++) values[warp][32 * i + lane] = o[i];
    if (lane == 0) largests[warp] = largest, sums[warp] = sum;
    __syncthreads();
    float top = p.sinks ? p.sinks[head] : -INFINITY;
    for (int i = 0; i < 4; i++) top = fmaxf(top, largests[i]);
    sum = p.sinks ? expf(p.sinks[head] - top) : 0.f;
    if (top > -INFINITY) for (int i = 0; i < 4; i++) sum += sums[i] * expf(largests[i] - top);
    for (u32 c = threadIdx.x; c < dim; c += 128) {
        float y = 0.f;
        if (sum > 0.f) for (int i = 0; i < 4; i++) y += values[i][c] * expf(largests[i] - top);
        store(p.out, ((size_t)row * p.n_heads + head) * dim + c, sum > 0.f ? y / sum : 0.f);
    }
}
