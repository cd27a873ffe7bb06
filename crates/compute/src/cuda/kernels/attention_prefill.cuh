// Prefill: attention of adjacent rows of a sequence, by mma instructions. A block has 64 N columns, a warp 8 N of them; all warps read
// the same pages.
#pragma once
#include "attention_mma.cuh"

// Grid: (items, KV heads * blocks of heads).
template <int D, int N> DEVICE void prefill(const AttentionParams &p) {
    begin_kernel();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
    const u32 *item = p.items + 4 * blockIdx.x;
    u32 first_row = item[0], n_rows = item[1], table = item[2], end = item[3];
    u32 kv_head_index = blockIdx.y / p.n_head_blocks, block = blockIdx.y % p.n_head_blocks;
    u32 n_heads = min(p.heads_per_block, p.group - block * p.heads_per_block);
    u32 first_head = kv_head_index * p.group + block * p.heads_per_block, dim = p.kv.head_dim;
    u32 n_columns = n_rows * n_heads;
    if (warp * 8 * N >= n_columns) return;
    WarpAttention<D, N> w;
    Column columns[N][2];
    u32 warp_start = 0xffffffffu, warp_end = 0;
    for (int n = 0; n < N; n++) {
        u32 column = warp * 8 * N + 8 * n + g;
        u32 row = first_row + column / n_heads, head = first_head + column % n_heads;
        w.load_query(n, p.q + (size_t)row * p.q_stride + head * dim, column < n_columns, dim, t);
        for (int i = 0; i < 2; i++) {
            column = warp * 8 * N + 8 * n + 2 * t + i;
            Column &c = columns[n][i];
            c = {0, 0, 0.f};
            if (column < n_columns) {
                row = first_row + column / n_heads;
                c.start = p.ranges[2 * row], c.end = p.ranges[2 * row + 1];
                if (p.slopes) c.slope = p.slopes[first_head + column % n_heads];
                if (c.end > c.start) warp_start = min(warp_start, c.start), warp_end = max(warp_end, c.end);
            }
        }
    }
    for (int k = 1; k < 4; k *= 2) {
        warp_start = min(warp_start, __shfl_xor_sync(0xffffffff, warp_start, k));
        warp_end = max(warp_end, __shfl_xor_sync(0xffffffff, warp_end, k));
    }
    w.clear();
    for (u32 page = warp_start / PAGE_LEN; page * PAGE_LEN < warp_end; page++) {
        const u8 *head = kv_head(p.kv, p.words[table + page], kv_head_index);
        w.add_page(head, page * PAGE_LEN, end, columns, p.scale, p.soft_cap, lane);
    }
    w.finish();
    for (int n = 0; n < N; n++) for (int i = 0; i < 2; i++) {
        u32 column = warp * 8 * N + 8 * n + 2 * t + i;
        if (column >= n_columns) continue;
        u32 row = first_row + column / n_heads, head = first_head + column % n_heads;
        float rescale;
        add_sink(p.sinks, head, w.m[n][i], w.l[n][i], rescale);
        rescale = w.l[n][i] > 0.f ? rescale / w.l[n][i] : 0.f;
        size_t at = ((size_t)row * p.n_heads + head) * dim;
        for (int b = 0; b < D / 16; b++) {
            u32 c = 16 * b + g;
            if (c < dim) store(p.out, at + c, w.o[b][n][i] * rescale);
            if (c + 8 < dim) store(p.out, at + c + 8, w.o[b][n][i + 2] * rescale);
        }
    }
}
