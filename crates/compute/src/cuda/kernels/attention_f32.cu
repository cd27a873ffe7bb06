// Attention over pages of f32. One block per query head of a row; 4 warps take positions in turns.
#include "attention.cuh"

// Values of a lane, for the widest head.
#define MAX_VALUES 8

// Grid: (items, query heads). Items: row, page table, start, end.
KERNEL(128) attention_f32(const __grid_constant__ AttentionParams p) {
    begin_kernel();
    __shared__ float warp_o[4][32 * MAX_VALUES], warp_m[4], warp_l[4];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = p.kv.head_dim, padded = p.kv.padded_dim;
    const u32 *item = p.items + 4 * blockIdx.x;
    u32 row = item[0], table = item[1], start = item[2], end = item[3], head = blockIdx.y;
    const float *q = p.q + (size_t)row * p.q_stride + head * dim;
    float o[MAX_VALUES] = {}, m = -INFINITY, l = 0.f;
    for (u32 position = start + warp; position < end; position += 4) {
        const float *keys = (const float *)kv_head(p.kv, p.words[table + position / PAGE_LEN], head / p.group);
        u32 slot = position % PAGE_LEN;
        float x = 0.f;
        for (u32 c = lane; c < dim; c += 32) x = fmaf(q[c], keys[slot * padded + c], x);
        x = warp_sum(x) * p.scale;
        if (p.soft_cap != 0.f) x = p.soft_cap * tanhf(x / p.soft_cap);
        if (p.slopes) x = fmaf(p.slopes[head], (float)((int)position - (int)end + 1), x);
        // A score of -inf has weight 0; the difference of two would be NaN.
        if (x == -INFINITY) continue;
        float m_new = fmaxf(m, x), rescale = expf(m - m_new), weight = expf(x - m_new);
        l = l * rescale + weight;
        m = m_new;
        const float *v = keys + PAGE_LEN * padded;
        for (int i = 0; i < MAX_VALUES; i++) {
            u32 c = 32 * i + lane;
            o[i] *= rescale;
            if (c < dim) o[i] = fmaf(weight, v[c * PAGE_LEN + slot], o[i]);
        }
    }
    for (int i = 0; i < MAX_VALUES; i++) warp_o[warp][32 * i + lane] = o[i];
    if (lane == 0) warp_m[warp] = m, warp_l[warp] = l;
    __syncthreads();
    float m_new = p.sinks ? p.sinks[head] : -INFINITY;
    for (int i = 0; i < 4; i++) m_new = fmaxf(m_new, warp_m[i]);
    l = p.sinks ? expf(p.sinks[head] - m_new) : 0.f;
    if (m_new > -INFINITY) for (int i = 0; i < 4; i++) l += warp_l[i] * expf(warp_m[i] - m_new);
    for (u32 c = threadIdx.x; c < dim; c += 128) {
        float y = 0.f;
        if (l > 0.f) for (int i = 0; i < 4; i++) y += warp_o[i][c] * expf(warp_m[i] - m_new);
        store(p.out, ((size_t)row * p.n_heads + head) * dim + c, l > 0.f ? y / l : 0.f);
    }
}
