// GEMM by wgmma (Hopper), included by gemm.cuh.
//
//   block       N rows of x, 128 rows of weights; K in tiles of 64 columns
//   warps 0..7  consumers: two warpgroups of 64 rows of weights: chunks in shared memory -> registers -> f16 fragments, while the
//               previous tile is multiplied
//   warp 8      producer: tiles of x, 16 KB (N = 128) or 32 KB
//   warps 9..   producers: chunks of weights
//   epilogue    sums go through shared memory; a lane has 4 columns: bias, activation, residual and results are vectors
//
// A stage has two mbarriers: full, free.
#include "wgmma.cuh"

// Panels of a block, and producer warps of weights.
constexpr u32 BLOCK_PANELS = 8, WEIGHT_WARPS = 3;

// Stages of x.
template <int N> constexpr u32 X_STAGES = N == 256 ? 4 : MAX_X_STAGES;

// Shared memory of a block: tiles of x, chunks of weights. Barriers of x, then of weights: full, free.
template <int N> struct GemmStages {
    static constexpr u32 X_SIZE = N * 128, CHUNKS_SIZE = BLOCK_PANELS * CHUNK_BYTES, S = X_STAGES<N>;
    static constexpr u32 N_BARRIERS = 2 * (S + MAX_CHUNK_STAGES);
    u32 first, barriers, n_chunks;

    DEVICE u32 x(u32 stage) const { return first + stage * X_SIZE; }
    DEVICE u32 chunks(u32 stage) const { return first + S * X_SIZE + stage * CHUNKS_SIZE; }
    DEVICE u32 x_is_full(u32 stage) const { return barriers + 8 * stage; }
    DEVICE u32 x_is_free(u32 stage) const { return barriers + 8 * (S + stage); }
    DEVICE u32 chunks_are_full(u32 stage) const { return barriers + 8 * (2 * S + stage); }
    DEVICE u32 chunks_are_free(u32 stage) const { return barriers + 8 * (2 * S + MAX_CHUNK_STAGES + stage); }

    // Arrivals per phase of barrier i: 1 per TMA copy, 1 per warp reading through wgmma, 32 per warp whose lanes load.
    static DEVICE u32 arrivals(u32 i) {
        if (i < 2 * S) return i < S ? 1 : GEMM_WARPS;
        return i < 2 * S + MAX_CHUNK_STAGES ? 1 : 32 * GEMM_WARPS;
    }
};

// Number of K tiles, rounded up to TILES_AT_ONCE, an even number: the fragments are double-buffered. Columns of x past the last tile are
// zeros.
constexpr u32 TILES_AT_ONCE = TILES == 4 ? 4 : 2;
DEVICE u32 tiles_of(const MatmulParams &p) { return (p.k_tiles + TILES_AT_ONCE - 1) / TILES_AT_ONCE * TILES_AT_ONCE; }

// Producer warp: copies all tiles of x of a block.
template <int N> DEVICE void copy_rows(const WarpgroupParams &p, const GemmStages<N> &stages) {
    constexpr u32 S = X_STAGES<N>;
    u32 n_tiles = tiles_of(p.matmul);
    wait_for_inputs();
    PipelineState stage;
    for (u32 tile = 0; tile < n_tiles; tile++, stage.next(S)) {
        u32 barrier = stages.x_is_full(stage.index);
        if (tile >= S) mbarrier_wait(stages.x_is_free(stage.index), stage.phase ^ 1);
        if (elect_one()) {
            mbarrier_arrive_expect_tx(barrier, N * 128);
            tma_load_2d(stages.x(stage.index), p.x, 64 * tile, blockIdx.x * N, barrier);
        }
    }
}

// Producer warps: WEIGHT_WARPS warps copy all chunks of weights of a block. Weights do not depend on the kernel before.
template <int N> DEVICE void copy_chunks(const MatmulParams &p, const GemmStages<N> &stages, const MatrixParams &f, u32 block_n, u32 warp) {
    constexpr u32 PANELS_OF_WARP = (BLOCK_PANELS + WEIGHT_WARPS - 1) / WEIGHT_WARPS;
    u32 n_chunks = tiles_of(p) / TILES;
    const u8 *from[PANELS_OF_WARP];
#pragma unroll
    for (u32 i = 0; i < PANELS_OF_WARP; i++) {
        // Past the last panel: recomputes the last panel; its result is dropped.
        u32 panel = min(block_n / 16 + warp + i * WEIGHT_WARPS, (f.n + 15) / 16 - 1);
        from[i] = f.weights + (u64)panel * p.n_chunks * CHUNK_BYTES;
    }
    PipelineState stage;
    for (u32 chunk = 0; chunk < n_chunks; chunk++, stage.next(stages.n_chunks)) {
        u32 barrier = stages.chunks_are_full(stage.index), to = stages.chunks(stage.index) + warp * CHUNK_BYTES;
        if (chunk >= stages.n_chunks) mbarrier_wait(stages.chunks_are_free(stage.index), stage.phase ^ 1);
        if (elect_one()) {
            if (warp == 0) mbarrier_arrive_expect_tx(barrier, BLOCK_PANELS * CHUNK_BYTES);
#pragma unroll
            for (u32 i = 0; i < PANELS_OF_WARP; i++)
                if (warp + i * WEIGHT_WARPS < BLOCK_PANELS) cp_async_bulk(to + i * WEIGHT_WARPS * CHUNK_BYTES, from[i], CHUNK_BYTES, barrier);
        }
        if (chunk + 1 < p.n_chunks)
#pragma unroll
            for (u32 i = 0; i < PANELS_OF_WARP; i++) from[i] += CHUNK_BYTES;
    }
}

// Stores rows row, row + 8, .. of a lane, `n_rows` of them: columns n .. n + 3 of `sums`.
template <u32 ACTIVATION> DEVICE void store_rows(const MatmulParams &p, const MatrixParams &f, const float *sums, u32 row, u32 n, u32 n_rows) {
    float4 bias = make_float4(0.f, 0.f, 0.f, 0.f);
    if (f.bias) bias = *(const float4 *)(f.bias + n);
    size_t at = (size_t)row * f.out_stride + n, step = (size_t)8 * f.out_stride;
    // Residuals of four rows are in flight.
#pragma unroll 1
    for (u32 first = 0; first < n_rows; first += 4, at += 4 * step, sums += 4 * 8 * 128) {
        float4 residual[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            residual[i] = make_float4(0.f, 0.f, 0.f, 0.f);
            if (p.accumulate && first + i < n_rows) residual[i] = *(const float4 *)(f.out.values + at + i * step);
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float4 y = add4(*(const float4 *)(sums + i * 8 * 128), bias);
            y = make_float4(activate(y.x, ACTIVATION), activate(y.y, ACTIVATION), activate(y.z, ACTIVATION), activate(y.w, ACTIVATION));
            if (first + i < n_rows) store4(f.out, at + i * step, add4(y, residual[i]));
        }
    }
}

// Epilogue of a block by 8 warps: bias, activation and residual of the sums [N][128], whose columns are swizzled by row.
template <int N> DEVICE void store_block(const MatmulParams &p, const MatrixParams &f, const float *sums, u32 first_row, u32 block_n, u32 warp, u32 lane) {
    u32 n = block_n + 4 * lane, row = first_row + warp, n_rows = row < p.m ? min((p.m - row + 7) / 8, N / 8) : 0;
    if (n + 4 > f.n || f.out_stride % 4) {
        for (u32 i = 0; i < n_rows; i++)
            for (u32 c = 0; c < 4; c++) store_gemm(p, f, row + 8 * i, n + c, sums[(warp + 8 * i) * 128 + ((4 * lane + c) ^ (warp >> 1 & 3) * 8)]);
        return;
    }
    sums += warp * 128 + ((4 * lane) ^ (warp >> 1 & 3) * 8);
    switch (p.activation) {
    case ACTIVATION_GELU: return store_rows<ACTIVATION_GELU>(p, f, sums, row, n, n_rows);
    case ACTIVATION_GELU_TANH: return store_rows<ACTIVATION_GELU_TANH>(p, f, sums, row, n, n_rows);
    default: return store_rows<ACTIVATION_NONE>(p, f, sums, row, n, n_rows);
    }
}

// Grid: (blocks of N rows of x, blocks of 128 rows of the weights of all matrices). `share`: part of the second dimension.
template <int N> DEVICE void gemm_warpgroup(const WarpgroupParams &params, const Share &share, GemmShared &shared) {
    extern __shared__ uint4 smem[];
    constexpr u32 S = X_STAGES<N>;
    using Stages = GemmStages<N>;
    const MatmulParams &p = params.matmul;
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, warp = warp_uniform(threadIdx.x / 32), g = lane >> 2, t = lane & 3;
    Stages stages = {stages_at(smem), smem_address(shared.barriers), p.n_stages};
    for (u32 i = threadIdx.x; i < Stages::N_BARRIERS; i += GEMM_THREADS) mbarrier_init(stages.barriers + 8 * i, Stages::arrivals(i));
    fence_proxy_async();
    u32 block_n;
    const MatrixParams &f = matrix_of_block(p, share, block_n);
    u32 first_row = blockIdx.x * N;
    __syncthreads();
    if (warp >= GEMM_WARPS) {
        setmaxnreg_dec<40>();
        if (warp == GEMM_WARPS) copy_rows<N>(params, stages);
        else copy_chunks<N>(p, stages, f, block_n, warp - GEMM_WARPS - 1);
        return;
    }
    setmaxnreg_inc<232>();
    float sum[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[i] = 0.f;
    warpgroup_fence_operand(sum);
    u32 a[2][4][4], header[2][5];
    // 0, unknown to the compiler: keeps f16 fragments in registers of their own, which loads do not overwrite while wgmma reads them.
    u32 zero = p.m >> 31;
    u32 first_descriptor = warp_uniform(wgmma_descriptor(stages.first));
    const u8 *chunks = (const u8 *)smem + (stages.chunks(0) - smem_address(smem)) + warp * CHUNK_BYTES;
    PipelineState stage, of_chunk;
    u32 last = S;
    for (u32 first = 0; first < p.k_tiles; first += TILES_AT_ONCE) {
#pragma unroll
        for (int j = 0; j < TILES_AT_ONCE; j++, stage.next(S)) {
            const u8 *chunk = chunks + of_chunk.index * Stages::CHUNKS_SIZE;
            if (j % TILES == 0) {
                mbarrier_wait(stages.chunks_are_full(of_chunk.index), of_chunk.phase);
                for (int r = 0; r < 2; r++) load_header<FromShared>(header[r], chunk, g + 8 * r);
            }
            Codes codes;
            load_codes<FromShared>(codes, chunk, j % TILES, lane);
#pragma unroll
            for (int step = 0; step < 4; step++) {
                scaled_weights(codes, header, j % TILES, step, a[j & 1][step]);
                if (FORMAT == F16)
                    for (int r = 0; r < 4; r++) asm volatile("or.b32 %0, %0, %1;" : "+r"(a[j & 1][step][r]) : "r"(zero));
            }
            mbarrier_wait(stages.x_is_full(stage.index), stage.phase);
            __syncwarp();
            if (j % TILES == TILES - 1) {
                mbarrier_arrive(stages.chunks_are_free(of_chunk.index));
                of_chunk.next(stages.n_chunks);
            }
            warpgroup_fence_operand(a[j & 1]);
            wgmma_fence();
            u32 descriptor = first_descriptor + stage.index * (Stages::X_SIZE / 16);
#pragma unroll
            for (int step = 0; step < 4; step++) wgmma_mma_async(sum, a[j & 1][step], descriptor + 2 * step);
            wgmma_commit_group();
            // The previous tile is finished: its registers and its stage are free.
            wgmma_wait_group<1>();
            if (last < S && lane == 0) mbarrier_arrive(stages.x_is_free(last));
            last = stage.index;
        }
    }
    wgmma_wait_group<0>();
    warpgroup_fence_operand(sum);
    // Residuals are written by earlier kernels.
    wait_for_inputs();
    named_barrier_sync(0);
    // [N][128], columns swizzled by row so that lanes write to different banks.
    float *sums = (float *)((u8 *)smem + (stages.first - smem_address(smem)));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float *to = sums + (2 * t + (i & 1)) * 128 + ((warp * 16 + g + 8 * (i >> 1)) ^ 8 * t);
#pragma unroll
        for (int b = 0; b < N / 8; b++) to[b * 8 * 128] = sum[4 * b + i];
    }
    named_barrier_sync(0);
    store_block<N>(p, f, sums, first_row, block_n, warp, lane);
}
