// Prefill by wgmma (Hopper), f16 pages: two warpgroups of 64 columns, which are rows of the instructions. Keys and values of a page are
// operands in shared memory as they are in the pool, both in rows of 128 bytes.
//
//   stages   copies of pages i + 1 and i + 2 are in flight while scores of page i are computed
//   S        Q K^T     Q in shared memory, too [64, 64 positions]
//   P        exp2(scale S - m) of page i, while the products of page i - 1 are computed
//   O       += P V     values are transposed   [64, D]
//
// The reference m of a column becomes the maximum score when that exceeds it by more than 8 powers of two. Until then O needs no
// rescaling, and weights are at most 2^8. Q is not in registers: ptxas 12.9 gives its registers to P, and takes the Q fragments of all
// pages for one.
#pragma once
#include "attention_mma.cuh"
#include "tensor_map.cuh"
#include "wgmma.cuh"

#if KV_TYPE == 1 && defined(__CUDA_ARCH_FEAT_SM90_ALL)
struct WarpgroupParams {
    TensorMap keys, values; // Keys: D columns, boxes of 64 positions. Values: 64 columns, boxes of D channels.
    AttentionParams attention;
};

template <int D> struct WarpgroupPrefill {
    static constexpr u32 STAGES = 5, KEY_BOX_BYTES = PAGE_LEN * 128, KEY_BYTES = PAGE_LEN * D * 2, STAGE_BYTES = 2 * KEY_BYTES;
    static constexpr u32 QUERY_BYTES = 128 * 128, WARP_COLUMNS = 16; // Queries [D / 64][128][64] follow the stages.
    static constexpr float MAX_RISE = 8.f;                          // Maximum of scores over m, in powers of two.

    // Addresses of stages and of their barriers.
    struct Stages {
        u32 base, barriers;

        DEVICE u32 keys(u32 stage) const { return base + stage * STAGE_BYTES; }
        DEVICE u32 is_full(u32 stage) const { return barriers + 8 * stage; }
        DEVICE u32 is_free(u32 stage) const { return barriers + 8 * (STAGES + stage); }
    };

    // Starts the copies of a head of a page by one thread.
    static DEVICE void copy_head(const WarpgroupParams &p, const Stages &stages, u32 stage, u32 head) {
        u32 barrier = stages.is_full(stage), keys = stages.keys(stage);
        mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
#pragma unroll
        for (u32 i = 0; i < D / 64; i++) tma_load_2d(keys + i * KEY_BOX_BYTES, p.keys, 64 * i, head * (2 * PAGE_LEN), barrier);
        tma_load_2d(keys + KEY_BYTES, p.values, 0, (2 * head + 1) * D, barrier);
    }

    // Positions from n_written on of a page are not written: their values become zeros.
    static DEVICE void clear_values(u32 values, u32 n_written) {
        for (u32 i = threadIdx.x; i < D * 8; i += 256) {
            u32 row = i / 8, part = i % 8, at = values + row * 128 + ((part ^ row) & 7) * 16;
            for (u32 e = max(n_written, 8 * part); e < 8 * part + 8; e++) asm volatile("st.shared.u16 [%0], %1;" ::"r"(at + e % 8 * 2), "h"((u16)0) : "memory");
        }
        fence_proxy_async();
        __syncthreads();
    }

    static DEVICE float exp2_of(float x) {
        float y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }

    // Two columns of a lane; positions from all_low to all_high are visible to all columns of the warp.
    struct Columns {
        Column two[2];
        u32 all_low, all_high;
    };

    struct Softmax {
        float m[2], l[2], rescale[2];
    };

    static DEVICE bool is_plain(const AttentionParams &p) { return p.soft_cap == 0.f && !p.slopes && p.scale > 0.f; }

    // Scale from products to scores in powers of two.
    static DEVICE float log2_scale(const AttentionParams &p) { return is_plain(p) ? p.scale * LOG2E : LOG2E; }

    // Online softmax: scores of a page, whose first position is `position`, become weights. Sets `rescale` for earlier weights.
    static DEVICE void weigh(float (&s)[32], Softmax &softmax, const AttentionParams &p, const Columns &columns, u32 position, u32 t) {
        if (!is_plain(p)) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const Column &c = columns.two[i >> 1 & 1];
                float x = s[i] * p.scale;
                if (p.soft_cap != 0.f) x = p.soft_cap * tanhf(x / p.soft_cap);
                s[i] = fmaf(c.slope, (float)((int)(position + i / 4 * 8 + 2 * t + (i & 1)) - (int)c.end + 1), x);
            }
        }
        if (position < columns.all_low || position + PAGE_LEN > columns.all_high) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const Column &c = columns.two[i >> 1 & 1];
                u32 at = position + i / 4 * 8 + 2 * t + (i & 1);
                if (at < c.start || at >= c.end) s[i] = -INFINITY;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float m = softmax.m[r], m_new = m;
#pragma unroll
            for (int b = 0; b < 8; b++) m_new = fmaxf(m_new, fmaxf(s[4 * b + 2 * r], s[4 * b + 2 * r + 1]));
            m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, 1));
            m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, 2));
            bool rises = (m_new - m) * log2_scale(p) > MAX_RISE; // Not if both are infinite.
            softmax.rescale[r] = rises ? exp2_of((m - m_new) * log2_scale(p)) : 1.f;
            softmax.m[r] = rises ? m_new : m;
            float offset = softmax.m[r] == -INFINITY ? 0.f : softmax.m[r] * log2_scale(p), page_sum = 0.f;
#pragma unroll
            for (int b = 0; b < 8; b++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &x = s[4 * b + 2 * r + i];
                    x = exp2_of(fmaf(x, log2_scale(p), -offset));
                    page_sum += x;
                }
            softmax.l[r] = fmaf(softmax.l[r], softmax.rescale[r], page_sum);
        }
    }

    // Grid: (items, KV heads * blocks of heads).
    static DEVICE void run(const WarpgroupParams &params) {
        const AttentionParams &p = params.attention;
        extern __shared__ uint4 smem[];
        __shared__ u32 starts[8], ends[8];
        __shared__ u64 barriers[2 * STAGES];
        launch_dependents();
        u32 lane = threadIdx.x % 32, warp = warp_uniform(threadIdx.x / 32), g = lane >> 2, t = lane & 3;
        Stages stages = {(smem_address(smem) + 1023) & ~1023u, smem_address(barriers)};
        if (threadIdx.x < 2 * STAGES) mbarrier_init(stages.barriers + 8 * threadIdx.x, threadIdx.x < STAGES ? 1 : 8);
        fence_proxy_async();
        const u32 *item = p.items + 4 * blockIdx.x;
        u32 first_row = item[0], n_rows = item[1], item_end = item[3];
        const u32 *table = p.words + item[2];
        u32 kv_head_index = blockIdx.y / p.n_head_blocks, block = blockIdx.y % p.n_head_blocks;
        u32 n_heads = min(p.heads_per_block, p.group - block * p.heads_per_block);
        u32 first_head = kv_head_index * p.group + block * p.heads_per_block, dim = p.kv.head_dim;
        u32 n_columns = n_rows * n_heads;
        Columns columns = {{}, 0, 0xffffffffu};
        u32 rows[2], heads[2], low = 0xffffffffu, high = 0; // Positions visible to some column of the warp.
        for (int r = 0; r < 2; r++) {
            u32 column = warp * WARP_COLUMNS + g + 8 * r;
            bool is_column = column < n_columns;
            rows[r] = first_row + (is_column ? column / n_heads : 0), heads[r] = first_head + (is_column ? column % n_heads : 0);
            columns.two[r] = {0, 0, 0.f};
            if (!is_column) continue;
            u32 start = p.ranges[2 * rows[r]], end = p.ranges[2 * rows[r] + 1];
            columns.two[r] = {start, end, p.slopes ? p.slopes[heads[r]] : 0.f};
            if (end > start) low = min(low, start), high = max(high, end);
            columns.all_low = max(columns.all_low, start), columns.all_high = min(columns.all_high, end);
        }
        for (int k = 4; k < 32; k *= 2) {
            low = min(low, __shfl_xor_sync(0xffffffff, low, k)), high = max(high, __shfl_xor_sync(0xffffffff, high, k));
            columns.all_low = max(columns.all_low, __shfl_xor_sync(0xffffffff, columns.all_low, k));
            columns.all_high = min(columns.all_high, __shfl_xor_sync(0xffffffff, columns.all_high, k));
        }
        if (lane == 0) starts[warp] = low, ends[warp] = high;
        __syncthreads();
        u32 first = 0xffffffffu, last = 0; // Pages of the block.
#pragma unroll
        for (int i = 0; i < 8; i++) first = min(first, starts[i]), last = max(last, ends[i]);
        first = first == 0xffffffffu ? 0 : first / PAGE_LEN, last = (last + PAGE_LEN - 1) / PAGE_LEN;
        u32 queries = stages.base + STAGES * STAGE_BYTES;
        bool copies = warp == 0 && elect_one();
        u32 next = copies && first < last ? table[first] : 0; // Loaded before it is needed.
        auto copy = [&](u32 page, u32 stage) {
            copy_head(params, stages, stage, next * p.kv.n_heads + kv_head_index);
            if (page + 1 < last) next = table[page + 1];
        };
        wait_for_inputs();
        if (copies) for (u32 i = 0; i < 3 && first + i < last; i++) copy(first + i, i);
        // Loads the queries of the warp: four channels per lane.
        u32 offsets[2] = {rows[0] * p.q_stride + heads[0] * dim, rows[1] * p.q_stride + heads[1] * dim};
        constexpr u32 LOADS = 8;
#pragma unroll 1
        for (u32 first_load = 0; first_load < WARP_COLUMNS * D / 128; first_load += LOADS) {
            float4 x[LOADS];
            auto column = [&](u32 i) { return (32 * (first_load + i) + lane) / (D / 4); };
            u32 c = 4 * (lane % (D / 4));
            auto load_all = [&](auto load) {
#pragma unroll
                for (u32 i = 0; i < LOADS; i++) {
                    u32 offset = __shfl_sync(0xffffffff, column(i) < 8 ? offsets[0] : offsets[1], 4 * (column(i) % 8));
                    bool is_column = warp * WARP_COLUMNS + column(i) < n_columns;
                    x[i] = is_column ? load(p.q + offset) : make_float4(0.f, 0.f, 0.f, 0.f);
                }
            };
            if (((dim | p.q_stride) & 3) == 0 && ((u64)p.q & 15) == 0)
                load_all([&](const float *q) { return c < dim ? *(const float4 *)(q + c) : make_float4(0.f, 0.f, 0.f, 0.f); });
            else load_all([&](const float *q) { return load4(q, c, dim); });
#pragma unroll
            for (u32 i = 0; i < LOADS; i++) {
                u32 at = warp * WARP_COLUMNS + column(i), to = queries + c / 64 * QUERY_BYTES + at * 128 + (((c % 64 / 8) ^ at) & 7) * 16 + c % 8 * 2;
                asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(pack_half(x[i].x, x[i].y)), "r"(pack_half(x[i].z, x[i].w)) : "memory");
            }
        }
        float s[32], o[D / 2];
        Softmax softmax = {{-INFINITY, -INFINITY}};
        PipelineState stage;
        u32 weights[4][4], query_descriptor = warp_uniform(wgmma_descriptor(queries + warp / 4 * (64 * 128)));
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] = 0.f;
        auto start_scores = [&](u32 page) {
            mbarrier_wait(stages.is_full(stage.index), stage.phase);
            __syncwarp();
            if ((page + 1) * PAGE_LEN > item_end) clear_values(stages.keys(stage.index) + KEY_BYTES, item_end - page * PAGE_LEN);
            u32 keys = warp_uniform(wgmma_descriptor(stages.keys(stage.index)));
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < D / 16; k++)
                wgmma_mma_async(s, query_descriptor + k / 4 * (QUERY_BYTES / 16) + 2 * (k % 4), keys + k / 4 * (KEY_BOX_BYTES / 16) + 2 * (k % 4), k > 0);
            wgmma_commit_group();
        };
        auto pack_weights = [&] {
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int i = 0; i < 4; i++) weights[k][i] = pack_half(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
        };
        auto start_products = [&](u32 stage) {
            u32 values = warp_uniform(wgmma_descriptor(stages.keys(stage) + KEY_BYTES));
            warpgroup_fence_operand(o);
            warpgroup_fence_operand(weights);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) wgmma_mma_async(o, weights[k], values + 2 * k);
            wgmma_commit_group();
        };
        fence_proxy_async();
        __syncthreads();
        if (first < last) {
            start_scores(first);
            wgmma_wait_group<0>();
            warpgroup_fence_operand(s);
            weigh(s, softmax, p, columns, first * PAGE_LEN, t);
            pack_weights();
            u32 before = 0; // Stage of the previous page.
#pragma unroll 1
            for (u32 page = first + 1; page < last; page++) {
                stage.next(STAGES);
                // Reuses the stage of page - 3.
                if (copies && page + 2 < last) {
                    PipelineState to = stage;
                    to.next(STAGES);
                    to.next(STAGES);
                    if (page + 2 >= first + STAGES) mbarrier_wait(stages.is_free(to.index), to.phase ^ 1);
                    copy(page + 2, to.index);
                }
                __syncwarp();
                start_scores(page);
                start_products(before);
                wgmma_wait_group<1>();
                warpgroup_fence_operand(s);
                weigh(s, softmax, p, columns, page * PAGE_LEN, t);
                wgmma_wait_group<0>();
                warpgroup_fence_operand(o);
                if (lane == 0) mbarrier_arrive(stages.is_free(before));
                before = stage.index;
                if (__any_sync(0xffffffff, softmax.rescale[0] != 1.f || softmax.rescale[1] != 1.f)) {
#pragma unroll
                    for (int i = 0; i < D / 2; i++) o[i] *= softmax.rescale[i >> 1 & 1];
                }
                pack_weights();
            }
            start_products(before);
            wgmma_wait_group<0>();
            warpgroup_fence_operand(o);
        }
        for (int r = 0; r < 2; r++) {
            float &l = softmax.l[r], rescale, m_new = softmax.m[r] * log2_scale(p);
            for (int k = 1; k < 4; k *= 2) l += __shfl_xor_sync(0xffffffff, l, k);
            if (warp * WARP_COLUMNS + g + 8 * r >= n_columns) continue;
            add_sink(p.sinks, heads[r], m_new, l, rescale);
            rescale = l > 0.f ? rescale / l : 0.f;
            size_t at = ((size_t)rows[r] * p.n_heads + heads[r]) * dim;
            if (dim % 16 == 0) {
                float2 y[D / 8];
#pragma unroll
                for (int b = 0; b < D / 8; b++) y[b] = make_float2(o[4 * b + 2 * r] * rescale, o[4 * b + 2 * r + 1] * rescale);
                if (p.out.values) {
                    float *to = p.out.values + at + 2 * t;
#pragma unroll
                    for (int b = 0; b < D / 8; b++) if (8 * b < dim) *(float2 *)(to + 8 * b) = y[b];
                }
                if (p.out.operand) {
                    // Columns 2 t + 8 of an operand are 4 after columns 2 t.
                    u16 *to = p.out.operand + operand_index(at + 2 * t);
#pragma unroll
                    for (int b = 0; b < D / 8; b++) if (8 * b < dim) *(u32 *)(to + b / 2 * 16 + b % 2 * 4) = pack_half(y[b].x, y[b].y);
                }
                continue;
            }
#pragma unroll
            for (int i = 0; i < D / 4; i++) {
                u32 c = i / 2 * 8 + 2 * t + i % 2;
                if (c < dim) store(p.out, at + c, o[i / 2 * 4 + 2 * r + i % 2] * rescale);
            }
        }
    }
};
#endif
