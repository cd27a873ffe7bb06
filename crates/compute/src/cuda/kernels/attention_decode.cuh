// Decode: attention of one row per block, 8 query heads of a KV head, a split of 256 positions.
//
//   rope     optional, of the only row of a step: norms and rotates the heads, writes the new key and value
//   splits   warp w takes positions 16 w .. 16 w + 15 of each page
//   merge    over the warps; then over the splits, by the last block of a row to finish
#pragma once
#include "attention_mma.cuh"
#include "rope.cuh"

// Splits have a fixed length, so that the sums of a row do not depend on other rows.
constexpr u32 SPLIT_LEN = 256, SPLIT_PAGES = SPLIT_LEN / PAGE_LEN;
constexpr u32 DECODE_THREADS = 128, DECODE_WARPS = DECODE_THREADS / 32, DECODE_HEADS = 8;

// Prefetches the pages of a split into L2.
template <int D> DEVICE void prefetch_pages(const AttentionParams &p, u32 table, u32 head, u32 first_page, u32 end) {
    constexpr u32 LINES = (KV_TYPE == 1 ? 4 : 2) * D * PAGE_LEN / 128;
    for (u32 page = first_page; page < first_page + SPLIT_PAGES && page * PAGE_LEN < end; page++) {
        const u8 *from = kv_head(p.kv, p.words[table + page], head);
        for (u32 i = threadIdx.x; i < LINES; i += DECODE_THREADS) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + 128 * i));
    }
}

// Query heads and split of a block.
struct DecodeBlock {
    u32 row, table, start, end;
    u32 kv_head_index, first_head, n_heads;
    u32 first_split, n_splits;

    DEVICE explicit DecodeBlock(const AttentionParams &p) {
        const u32 *item = p.items + 4 * blockIdx.x;
        row = item[0], table = item[1], start = item[2], end = item[3];
        kv_head_index = blockIdx.y / p.n_head_blocks;
        u32 block = blockIdx.y % p.n_head_blocks;
        first_head = kv_head_index * p.group + block * p.heads_per_block;
        n_heads = min(p.heads_per_block, p.group - block * p.heads_per_block);
        first_split = start / SPLIT_LEN, n_splits = end > start ? (end - 1) / SPLIT_LEN - first_split + 1 : 1;
    }
};

// Loads query heads, then key and value, into `heads`, norms and rotates them, and writes key and value to their page if the split is
// the last one. Angles follow the heads.
template <int D>
DEVICE void rotate_heads(const AttentionParams &p, const RopeKvParams &rope, const DecodeBlock &block,
    float (&memory)[DECODE_WARPS][D][DECODE_HEADS], u32 warp, u32 lane) {
    float *heads = memory[0][0];
    u32 dim = p.kv.head_dim, n_heads = block.n_heads, kv_head_index = block.kv_head_index;
    bool has_new = blockIdx.z + 1 == block.n_splits;
    u32 n = n_heads * dim, n_all = has_new ? n + 2 * dim : n;
    // Angles and earlier positions do not depend on the kernel before.
    const float *angles = angles_of(rope, 0);
    float *own_angles = heads + (DECODE_HEADS + 2) * D;
    if (angles) for (u32 i = threadIdx.x; i < rope.n_rot; i += DECODE_THREADS) own_angles[i] = angles[i];
    prefetch_pages<D>(p, block.table, kv_head_index, (block.first_split + blockIdx.z) * SPLIT_PAGES, block.end);
    wait_for_inputs();
    const float *queries = rope.q.x + block.first_head * dim, *key = rope.k.x + kv_head_index * dim, *value = rope.v + kv_head_index * dim;
#pragma unroll
    for (u32 k = 0; k < (DECODE_HEADS + 2) * D / 512 + 1; k++) {
        u32 i = 4 * (k * DECODE_THREADS + threadIdx.x);
        if (i >= n_all) break;
        *(float4 *)(heads + i) = *(const float4 *)(i < n ? queries + i : i < n + dim ? key + (i - n) : value + (i - n - dim));
    }
    __syncthreads();
    for (u32 i = warp; i < n_heads + has_new; i += DECODE_WARPS)
        rotate_head(rope, i < n_heads ? rope.q : rope.k, angles ? own_angles : nullptr, heads + i * dim, lane);
    if (has_new && warp == n_heads % DECODE_WARPS) write_key(p.kv, rope.slots[0], rope.slots[1], kv_head_index, heads + n, lane);
    if (has_new && warp == (n_heads + 1) % DECODE_WARPS) write_value(p.kv, rope.slots[0], rope.slots[1], kv_head_index, heads + n + dim, lane);
    __syncthreads();
}

// Stores channel c of a head: o over l, with the sink of the head.
DEVICE void store_head(const AttentionParams &p, u32 row, u32 head, u32 c, float m, float l, float o) {
    float rescale;
    add_sink(p.sinks, head, m, l, rescale);
    if (c < p.kv.head_dim)
        store(p.out, ((size_t)row * p.n_heads + head) * p.kv.head_dim + c, l > 0.f ? o * rescale / l : 0.f);
}

// Merges output, running maximum and sum of the warps: to the result if the row has one split, else to `partials`.
template <int D>
DEVICE void merge_warps(const AttentionParams &p, const DecodeBlock &block, const float (&warp_o)[DECODE_WARPS][D][DECODE_HEADS],
    const float (&warp_m)[DECODE_WARPS][DECODE_HEADS], const float (&warp_l)[DECODE_WARPS][DECODE_HEADS]) {
    for (u32 i = threadIdx.x; i < block.n_heads * D; i += DECODE_THREADS) {
        u32 column = i / D, c = i % D, head = block.first_head + column;
        float m = -INFINITY, l = 0.f, o = 0.f;
        for (int k = 0; k < DECODE_WARPS; k++) m = fmaxf(m, warp_m[k][column]);
        if (m > -INFINITY) for (int k = 0; k < DECODE_WARPS; k++) {
            float scale = exp2f(warp_m[k][column] - m);
            l = fmaf(warp_l[k][column], scale, l);
            o = fmaf(warp_o[k][c][column], scale, o);
        }
        if (block.n_splits == 1) {
            store_head(p, block.row, head, c, m, l, o);
        } else {
            float *partial = p.partials + (((size_t)blockIdx.x * p.n_heads + head) * p.n_splits + blockIdx.z) * (D + 2);
            partial[c] = o;
            if (c == 0) partial[D] = m, partial[D + 1] = l;
        }
    }
}

// Merges the splits of a row, by the last block to finish.
template <int D> DEVICE void merge_splits(const AttentionParams &p, const DecodeBlock &block) {
    for (u32 i = threadIdx.x; i < block.n_heads * D; i += DECODE_THREADS) {
        u32 column = i / D, c = i % D, head = block.first_head + column;
        const float *partial = p.partials + ((size_t)blockIdx.x * p.n_heads + head) * p.n_splits * (D + 2);
        float m = -INFINITY, l = 0.f, o = 0.f;
        for (u32 k = 0; k < block.n_splits; k++) m = fmaxf(m, __ldcg(partial + k * (D + 2) + D));
        if (m > -INFINITY) for (u32 k = 0; k < block.n_splits; k++) {
            const float *split = partial + k * (D + 2);
            float scale = exp2f(__ldcg(split + D) - m);
            l = fmaf(__ldcg(split + D + 1), scale, l);
            o = fmaf(__ldcg(split + c), scale, o);
        }
        store_head(p, block.row, head, c, m, l, o);
    }
}

// Grid: (items, KV heads * blocks of heads, splits).
template <int D> DEVICE void decode(const AttentionParams &p, const RopeKvParams &rope) {
    launch_dependents();
    bool has_rope = rope.q.x;
    if (!has_rope) wait_for_inputs();
    // Results of the warps; heads are rotated in the memory of `warp_o`.
    __shared__ __align__(16) float warp_o[DECODE_WARPS][D][DECODE_HEADS];
    __shared__ float warp_m[DECODE_WARPS][DECODE_HEADS], warp_l[DECODE_WARPS][DECODE_HEADS];
    __shared__ bool is_last;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
    DecodeBlock block(p);
    if (blockIdx.z >= block.n_splits) return;
    u32 dim = p.kv.head_dim, start = block.start, end = block.end;
    const float *q = p.q + (size_t)block.row * p.q_stride + (block.first_head + g) * dim;
    if (has_rope) {
        rotate_heads<D>(p, rope, block, warp_o, warp, lane);
        q = warp_o[0][0] + g * dim;
    }
    WarpAttention<D, 1> w;
    w.load_query(0, q, g < block.n_heads, dim, t);
    w.clear();
    if (has_rope) __syncthreads();
    Column columns[1][2];
    for (int i = 0; i < 2; i++) {
        bool is_column = 2 * t + i < block.n_heads;
        columns[0][i] = {start, end, p.slopes && is_column ? p.slopes[block.first_head + 2 * t + i] : 0.f};
    }
    u32 split = block.first_split + blockIdx.z;
    u32 first_page = max(split * SPLIT_PAGES, start / PAGE_LEN);
    u32 end_page = min((split + 1) * SPLIT_PAGES, (end + PAGE_LEN - 1) / PAGE_LEN);
    for (u32 page = first_page; page < end_page; page++) {
        u32 first = page * PAGE_LEN + 16 * warp;
        if (first >= end || first + 16 <= start) continue;
        const u8 *head = kv_head(p.kv, p.words[block.table + page], block.kv_head_index);
        w.add_quarter(head, page * PAGE_LEN, warp, end, columns, p.scale, p.soft_cap, lane);
    }
    w.finish();
    for (int i = 0; i < 2; i++) {
        for (int b = 0; b < D / 16; b++) {
            warp_o[warp][16 * b + g][2 * t + i] = w.o[b][0][i];
            warp_o[warp][16 * b + g + 8][2 * t + i] = w.o[b][0][i + 2];
        }
        if (g == 0) warp_m[warp][2 * t + i] = w.m[0][i], warp_l[warp][2 * t + i] = w.l[0][i];
    }
    __syncthreads();
    merge_warps<D>(p, block, warp_o, warp_m, warp_l);
    if (block.n_splits == 1) return;
    __threadfence();
    __syncthreads();
    u32 *count = p.counts + blockIdx.x * gridDim.y + blockIdx.y;
    if (threadIdx.x == 0) is_last = atomicAdd(count, 1) + 1 == block.n_splits;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) *count = 0;
    merge_splits<D>(p, block);
}
