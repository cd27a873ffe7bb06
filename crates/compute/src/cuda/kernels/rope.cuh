// QK norm and rotary embedding of a head by one warp.
#pragma once
#include "kv.cuh"

struct HeadsParams {
    const float *x;
    float *out;
    const float *weight; // QK norm; null: none.
    u32 n_heads, stride, out_stride;
    float eps;
};

struct RopeKvParams {
    HeadsParams q, k; // q.n_heads, k.n_heads may be 0. k.out may be null.
    const float *v;
    const float *table; // [n_ctx, n_rot]: cosines, sines; null: no rotation.
    const u32 *positions;
    const u32 *slots; // Pairs of page and slot; null: no KV write.
    Kv kv;
    u32 n_rows, head_dim, n_rot, is_adjacent, v_stride, has_k;
};

// Cosines and sines of a row; null without rotation.
DEVICE const float *angles_of(const RopeKvParams &p, u32 row) { return p.table ? p.table + (size_t)p.positions[row] * p.n_rot : nullptr; }

// Applies RMS norm and rotation to a head in shared memory.
DEVICE void rotate_head(const RopeKvParams &p, const HeadsParams &h, const float *angles, float *head, u32 lane) {
    u32 dim = p.head_dim;
    if (h.weight) {
        float squares = 0.f;
        for (u32 c = lane; c < dim; c += 32) squares = fmaf(head[c], head[c], squares);
        float scale = 1.f / sqrtf(warp_sum(squares) / dim + h.eps);
        for (u32 c = lane; c < dim; c += 32) head[c] *= scale * h.weight[c];
        __syncwarp();
    }
    u32 half = angles ? p.n_rot / 2 : 0;
    if (!half) return;
    for (u32 pair = lane; pair < half; pair += 32) {
        float c = angles[pair], s = angles[half + pair];
        u32 i = p.is_adjacent ? 2 * pair : pair, j = p.is_adjacent ? 2 * pair + 1 : pair + half;
        float a = head[i], b = head[j];
        head[i] = a * c - b * s;
        head[j] = a * s + b * c;
    }
    __syncwarp();
}
