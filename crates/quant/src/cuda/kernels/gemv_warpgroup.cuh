// GEMV of 9 to 128 rows by wgmma (Hopper), included by gemv.cuh, with the same order of sums.
//
//   block         N rows of x, 8 panels of weights
//   warps 0..7    consumers: two warpgroups of four panels
//   warp 8        producer: tiles of x
//   warp 9        producer: super-tiles of weights
//   warps 10, 11  block sums of x, for minima
//
// A stage has two mbarriers: full, free.
#include "wgmma.cuh"

constexpr u32 PRODUCT_WARPS = 8, SUM_WARPS = MIN_GROUPS ? 2 : 0;

// wgmma operand in shared memory: rows of 128 bytes with the 128-byte swizzle.
struct SwizzledTile {
    static DEVICE u32 at(u32 row, u32 part) { return row * 128 + (part ^ (row & 7)) * 16; }
};

// Shared memory: stages of tiles of x; stages of super-tiles of the panels; block sums of x for each of these; totals of the threads.
template <int N> struct GemvStages {
    static constexpr u32 S = 8, MAX_WEIGHT_STAGES = 4, X_SIZE = N * 128, WEIGHTS_SIZE = PRODUCT_WARPS * SUPER_TILE_BYTES, SUM_COUNT = N / 8 * SUMS;
    u8 *first;
    u64 *barriers;
    u32 n;

    DEVICE u32 x(u32 stage) const { return smem_address(first) + stage * X_SIZE; }
    DEVICE u8 *weights(u32 stage) const { return first + S * X_SIZE + stage * WEIGHTS_SIZE; }
    DEVICE uint2 *sums(u32 stage) const { return (uint2 *)(first + S * X_SIZE + n * WEIGHTS_SIZE) + stage * SUM_COUNT; }
    DEVICE float4 *totals() const { return (float4 *)sums(n); }
    DEVICE u32 x_is_full(u32 stage) const { return smem_address(barriers + stage); }
    DEVICE u32 x_is_free(u32 stage) const { return smem_address(barriers + S + stage); }
    DEVICE u32 weights_are_full(u32 stage) const { return smem_address(barriers + 2 * S + stage); }
    DEVICE u32 weights_are_free(u32 stage) const { return smem_address(barriers + 2 * S + MAX_WEIGHT_STAGES + stage); }
    DEVICE u32 has_sums(u32 stage) const { return smem_address(barriers + 2 * S + 2 * MAX_WEIGHT_STAGES + stage); }
    static constexpr u32 N_BARRIERS = 2 * S + 3 * MAX_WEIGHT_STAGES;

    // Arrivals per phase of barrier i: 1 per bulk copy, 1 per warp reading through wgmma, 32 per warp whose lanes read or write.
    static DEVICE u32 arrivals(u32 i, bool gathers) {
        if (i < 2 * S) return i >= S ? PRODUCT_WARPS + 32 * SUM_WARPS : gathers ? 32 : 1;
        u32 kind = (i - 2 * S) / MAX_WEIGHT_STAGES;
        return kind == 0 ? 1 : kind == 1 ? 32 * PRODUCT_WARPS : max(32 * SUM_WARPS, 1u);
    }
};

// Producer warp: copies all tiles of x of a block. Columns past the last tile are zeros.
template <int N> DEVICE void copy_tiles(const WarpgroupParams &params, const GemvBlock &block, const GemvStages<N> &stages, SuperTiles super_tiles) {
    constexpr u32 S = GemvStages<N>::S;
    wait_for_inputs();
    PipelineState stage;
    for (u32 turn = 0; super_tiles.is_valid(); super_tiles.next(), turn += SUPER_TILE_LEN)
#pragma unroll 1
        for (u32 j = 0; j < SUPER_TILE_LEN; j++, stage.next(S)) {
            if (turn + j >= S) mbarrier_wait(stages.x_is_free(stage.index), stage.phase ^ 1);
            if (elect_one()) {
                mbarrier_arrive_expect_tx(stages.x_is_full(stage.index), N * 128);
                tma_load_2d(stages.x(stage.index), params.x, 64 * (super_tiles.index * SUPER_TILE_LEN + j), block.first_row, stages.x_is_full(stage.index));
            }
        }
}

// As above, for rows gathered by expert.
template <int N> DEVICE void gather_tiles(const GemvBlock &block, const GemvStages<N> &stages, SuperTiles super_tiles, const u16 *const *rows, u32 lane) {
    constexpr u32 S = GemvStages<N>::S, LAG = 2;
    u32 n_rows = block.n_rows(), part = lane % 8, turn = 0;
    PipelineState stage, landed;
    auto publish = [&] {
        fence_proxy_async();
        mbarrier_arrive(stages.x_is_full(landed.index));
        landed.next(S);
    };
    for (; super_tiles.is_valid(); super_tiles.next())
#pragma unroll 1
        for (u32 j = 0; j < SUPER_TILE_LEN; j++, turn++, stage.next(S)) {
            u32 tile = super_tiles.index * SUPER_TILE_LEN + j;
            bool is_inside = tile < block.p.k_tiles;
            if (turn >= S) mbarrier_wait(stages.x_is_free(stage.index), stage.phase ^ 1);
            for (u32 row = lane / 8; row < n_rows; row += 4)
                cp_async_16(stages.x(stage.index) + SwizzledTile::at(row, part), rows[row] + (is_inside ? 64 * tile : 0) + 8 * part, is_inside);
            cp_async_commit_group();
            if (turn < LAG) continue;
            cp_async_wait_group<LAG>();
            publish();
        }
    cp_async_wait_group<0>();
    for (u32 i = 0; i < min(turn, LAG); i++) publish();
}

// Producer warp: copies all super-tiles of weights of a block. Weights do not depend on the kernel before.
template <int N> DEVICE void copy_super_tiles(const MatmulParams &p, const GemvStages<N> &stages, SuperTiles super_tiles, const u8 *const *panels) {
    PipelineState stage;
    for (u32 turn = 0; super_tiles.is_valid(); super_tiles.next(), turn++, stage.next(stages.n)) {
        u32 left = min((p.n_chunks - super_tiles.index * SUPER_TILE_CHUNKS) * CHUNK_BYTES, SUPER_TILE_BYTES), barrier = stages.weights_are_full(stage.index);
        u32 to = smem_address(stages.weights(stage.index));
        if (turn >= stages.n) mbarrier_wait(stages.weights_are_free(stage.index), stage.phase ^ 1);
        if (elect_one()) {
            mbarrier_arrive_expect_tx(barrier, PRODUCT_WARPS * left);
#pragma unroll
            for (u32 i = 0; i < PRODUCT_WARPS; i++)
                cp_async_bulk(to + i * SUPER_TILE_BYTES, panels[i] + (u64)super_tiles.index * SUPER_TILE_BYTES, left, barrier);
        }
    }
}

// Block sums of x for all super-tiles, as in `sum_blocks`, by SUM_WARPS warps: each has every second group of 16 rows.
template <int N> DEVICE void sum_tiles(const GemvStages<N> &stages, SuperTiles super_tiles, u32 n_rows, u32 warp, u32 lane) {
    u32 g = lane >> 2, t = lane & 3, turn = 0, offsets[4];
    for (u32 step = 0; step < 4; step++) offsets[step] = SwizzledTile::at(16 * warp + lane % 16, 2 * step + lane / 16);
    PipelineState stage, weight_stage;
    for (; super_tiles.is_valid(); super_tiles.next(), turn++, weight_stage.next(stages.n)) {
        if (turn >= stages.n) mbarrier_wait(stages.weights_are_free(weight_stage.index), weight_stage.phase ^ 1);
        // Lanes with t = 0 store the sums of row g, lanes with t = 1 those of row g + 8.
        uint2 *to = stages.sums(weight_stage.index) + (2 * warp + t) * SUMS + g;
#pragma unroll 1
        for (u32 j = 0; j < SUPER_TILE_LEN; j++, stage.next(GemvStages<N>::S), to += TILE_BLOCKS / 2 * 8) {
            mbarrier_wait(stages.x_is_full(stage.index), stage.phase);
            __syncwarp();
#pragma unroll
            for (u32 i = 0; i < N / 32; i++) {
                if (16 * (2 * i + warp) >= n_rows) break;
                // Every column of c holds the sums of rows g, g + 8.
                float c[TILE_BLOCKS][4] = {};
#pragma unroll
                for (u32 step = 0; step < 4; step++) {
                    u32 a[4];
                    ldmatrix_x4(a, stages.x(stage.index) + offsets[step] + i * 32 * 128);
                    mma(c[step / BLOCK_STEPS], a, ONES[0], ONES[0]);
                }
#pragma unroll
                for (u32 pair = 0; pair < TILE_BLOCKS / 2; pair++) {
                    uint2 sums = split_sums(t ? c[2 * pair][2] : c[2 * pair][0], t ? c[2 * pair + 1][2] : c[2 * pair + 1][0]);
                    if (t < 2) to[i * 4 * SUMS + 8 * pair] = sums;
                }
            }
            mbarrier_arrive(stages.x_is_free(stage.index));
        }
        mbarrier_arrive(stages.has_sums(weight_stage.index));
    }
}

// Products of four panels, one per warp, with N rows of x.
template <int N> struct WarpgroupProducts {
    static constexpr int B = N / 8;
    float sum[N / 2], c[N / 2];
    // 0, unknown to the compiler: keeps f16 fragments in registers of their own, which loads do not overwrite while wgmma reads them.
    u32 zero;
    u32 first_descriptor;

    DEVICE WarpgroupProducts(const GemvStages<N> &stages, u32 zero) : zero(zero), first_descriptor(warp_uniform(wgmma_descriptor(stages.x(0)))) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) sum[i] = c[i] = 0.f;
    }

    // Returns the sums of 8 rows and clears them.
    DEVICE float4 take(int b) {
        float4 x = make_float4(sum[4 * b], sum[4 * b + 1], sum[4 * b + 2], sum[4 * b + 3]);
        for (int i = 0; i < 4; i++) sum[4 * b + i] = 0.f;
        return x;
    }

    // Accumulates one super-tile (`n_tiles` K tiles). Past the last tile it reads the last tile again; the columns of x are zeros.
    DEVICE void add(const GemvStages<N> &stages, PipelineState &stage, const PipelineState &weight_stage, u32 n_tiles, u32 warp, u32 lane) {
        u32 header[2][5], a[2][4][4], t = lane & 3, last = 0;
        const u8 *super_tile = stages.weights(weight_stage.index) + warp * SUPER_TILE_BYTES;
        mbarrier_wait(stages.weights_are_full(weight_stage.index), weight_stage.phase);
        warpgroup_fence_operand(HAS_INTEGERS ? c : sum);
#pragma unroll
        for (int j = 0; j < SUPER_TILE_LEN; j++) {
            Codes codes;
            const u8 *chunk = super_tile + (TILES == 1 ? min((u32)j, n_tiles - 1) : 0) * CHUNK_BYTES;
            load_codes<FromShared>(codes, chunk, j % TILES, lane);
            if (j % TILES == 0) for (int r = 0; r < 2; r++) load_header<FromShared>(header[r], chunk, (lane >> 2) + 8 * r);
#pragma unroll
            for (int step = 0; step < 4; step++) {
                if (HAS_INTEGERS) integer_weights(codes, header, j, step, a[j & 1][step]);
                else scaled_weights(codes, header, j % TILES, step, a[j & 1][step]);
                if (FORMAT == F16)
                    for (int r = 0; r < 4; r++) asm volatile("or.b32 %0, %0, %1;" : "+r"(a[j & 1][step][r]) : "r"(zero));
            }
            mbarrier_wait(stages.x_is_full(stage.index), stage.phase);
            __syncwarp();
            warpgroup_fence_operand(a[j & 1]);
            wgmma_fence();
            u32 descriptor = first_descriptor + stage.index * (GemvStages<N>::X_SIZE / 16);
#pragma unroll
            for (int step = 0; step < 4; step++)
                wgmma_mma_async(HAS_INTEGERS ? c : sum, a[j & 1][step], descriptor + 2 * step, !HAS_INTEGERS || j || step);
            wgmma_commit_group();
            // The previous tile is finished: its registers and its stage are free.
            wgmma_wait_group<1>();
            if (j > 0 && lane == 0) mbarrier_arrive(stages.x_is_free(last));
            last = stage.index;
            stage.next(GemvStages<N>::S);
        }
        u32 minima[MIN_GROUPS ? MIN_GROUPS : 1][4];
        for (int group = 0; group < MIN_GROUPS; group++) {
            u32 row = integer_minima(header[0], group, t), other = integer_minima(header[1], group, t);
            minima[group][0] = minima[group][2] = row, minima[group][1] = minima[group][3] = other;
        }
        wgmma_wait_group<0>();
        warpgroup_fence_operand(HAS_INTEGERS ? c : sum);
        if (lane == 0) mbarrier_arrive(stages.x_is_free(last));
        if (MIN_GROUPS) mbarrier_wait(stages.has_sums(weight_stage.index), weight_stage.phase);
        __syncwarp();
        const uint2 *sums = stages.sums(weight_stage.index);
        if (HAS_INTEGERS)
#pragma unroll
        for (int b = 0; b < B; b++) {
            float of_c[4], of_sum[4], mins[4] = {};
            for (int i = 0; i < 4; i++) of_c[i] = c[4 * b + i], of_sum[i] = sum[4 * b + i];
            for (int group = 0; group < MIN_GROUPS; group++) {
                uint2 of_x = sums[(b * MIN_GROUPS + group) * 32 + 8 * t + lane / 4];
                mma(mins, minima[group], of_x.x, of_x.y);
            }
            add_scaled(of_sum, of_c, mins, header);
            for (int i = 0; i < 4; i++) sum[4 * b + i] = of_sum[i];
        }
        mbarrier_arrive(stages.weights_are_free(weight_stage.index));
    }
};

template <int N> DEVICE void gemv_warpgroup(const WarpgroupParams &params) {
    constexpr int B = N / 8;
    using Stages = GemvStages<N>;
    const MatmulParams &p = params.matmul;
    extern __shared__ uint4 smem[];
    __shared__ const u8 *panel_weights[PRODUCT_WARPS];
    __shared__ const u16 *rows_of_x[N];
    __shared__ u64 barriers[Stages::N_BARRIERS];
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, warp = warp_uniform(threadIdx.x / 32);
    GemvBlock block(p, N);
    if (block.m == 0) return;
    Stages stages = {(u8 *)smem + (stages_at(smem) - smem_address(smem)), barriers, p.n_stages};
    if (threadIdx.x < Stages::N_BARRIERS) mbarrier_init(smem_address(barriers + threadIdx.x), Stages::arrivals(threadIdx.x, p.blocks));
    fence_proxy_async();
    block.find(panel_weights, rows_of_x);
    u32 n_super_tiles = (p.k_tiles + SUPER_TILE_LEN - 1) / SUPER_TILE_LEN, n_slices = K_SLICES / p.n_splits;
    SuperTiles super_tiles(block.split * n_slices, (block.split + 1) * n_slices, n_super_tiles);
    if (warp >= PRODUCT_WARPS) {
        setmaxnreg_dec<104>();
        if (warp == PRODUCT_WARPS && p.blocks) gather_tiles<N>(block, stages, super_tiles, rows_of_x, lane);
        else if (warp == PRODUCT_WARPS) copy_tiles<N>(params, block, stages, super_tiles);
        else if (warp == PRODUCT_WARPS + 1) copy_super_tiles<N>(p, stages, super_tiles, panel_weights);
        else if (MIN_GROUPS) sum_tiles<N>(stages, super_tiles, block.n_rows(), warp - PRODUCT_WARPS - 2, lane);
        return;
    }
    setmaxnreg_inc<200>();
    float4 *totals = stages.totals() + threadIdx.x, *partials = block.partials<B>(PRODUCT_WARPS, warp, lane);
    auto total_of = [&](int b) -> float4 & { return totals[256 * b]; };
    for (int b = 0; b < B; b++) total_of(b) = make_float4(0.f, 0.f, 0.f, 0.f);
    WarpgroupProducts<N> products(stages, p.m >> 31);
    for (PipelineState stage, weight_stage; super_tiles.is_valid(); super_tiles.next(), weight_stage.next(stages.n)) {
        products.add(stages, stage, weight_stage, p.k_tiles - super_tiles.index * SUPER_TILE_LEN, warp, lane);
        if (!super_tiles.ends_slice()) continue;
#pragma unroll
        for (int b = 0; b < B; b++) {
            float4 x = products.take(b);
            if (p.n_splits > 1) partials[(super_tiles.slice * PRODUCT_WARPS * B + b) * 32] = x;
            else total_of(b) = add4(total_of(b), x);
        }
    }
    // Residuals are written by earlier kernels.
    wait_for_inputs();
    auto synchronize = [] { named_barrier_sync(0); };
    if (p.n_splits > 1 && !block.reduce_slices<B>(n_super_tiles, partials, PRODUCT_WARPS, synchronize, total_of)) return;
    float *results = (float *)stages.first;
    synchronize();
#pragma unroll
    for (int b = 0; b < B; b++) block.write_total(results, 8 * b, warp, total_of(b), lane);
    synchronize();
    block.store_results(results, 32 * PRODUCT_WARPS);
}

#define GEMV_WARPGROUP(N) \
    extern "C" __global__ void __launch_bounds__(32 * (PRODUCT_WARPS + 4), 1) gemv_warpgroup_##N(const __grid_constant__ WarpgroupParams p) { \
        gemv_warpgroup<N>(p); \
    }

GEMV_WARPGROUP(32)
GEMV_WARPGROUP(64)
