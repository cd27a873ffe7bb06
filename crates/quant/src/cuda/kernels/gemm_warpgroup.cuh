// GEMM by matrix instructions of warpgroups (Hopper), included by gemm.cuh.
//
//   block      N rows of x, 128 rows of weights: two warpgroups of 64; K in tiles of 64 columns
//   x          stages of a tile in shared memory: 16 KB (N = 128) or 32 KB, copied S - 2 tiles ahead
//   weights    memory -> L2, 4 units ahead -> registers, one unit ahead -> f16, while the tile before is multiplied
//   epilogue   sums through shared memory; a lane has 4 columns: bias, activation, residual and results are vectors
#include "wgmma.cuh"

// Stages of x.
template <int N> constexpr int X_STAGES = N == 256 ? 4 : 6;

// Starts loads of a unit of weights into the L2 cache.
DEVICE void prefetch_unit(const u8 *strip, u32 first, u32 k_tiles, u32 lane) {
    constexpr u32 LINES = (UNIT_CHUNKS * CHUNK_BYTES + 127) / 128;
    if (first >= k_tiles) return;
    const u8 *from = strip + (u64)(first / TILES) * CHUNK_BYTES;
    for (u32 i = lane; i < LINES; i += 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + 128 * i));
}

// Grid: (blocks of N rows of x, blocks of 128 rows of the weights of all factors). `share`: of the second.
template <int N> DEVICE void wgmma(const MatmulParams &p, const Share &share) {
    extern __shared__ uint4 shared[];
    launch_dependents();
    load_codebook();
    constexpr u32 S = X_STAGES<N>, STAGE_BYTES = N * 128, AHEAD = 4 * UNIT;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
    u32 block_n;
    const Factor &f = factor_of_block(p, share, block_n);
    u32 first_row = blockIdx.x * N, first_n = block_n + warp * 16;
    u64 strip_bytes = (u64)p.n_chunks * CHUNK_BYTES;
    // Behind the last strip: the last one, whose results are not stored.
    const u8 *strip = f.weights + min(first_n / 16, (f.n + 15) / 16 - 1) * strip_bytes;
    for (u32 i = UNIT; i < AHEAD; i += UNIT) prefetch_unit(strip, i, p.k_tiles, lane);
    Unit next;
    load_unit(next, strip, 0, p.k_tiles, lane);
    wait_for_inputs();
    u32 base = stages_at(shared);
    for (u32 i = 0; i < S - 2; i++) {
        copy_tile<N>(base + i * STAGE_BYTES, p, first_row, i);
        commit_copies();
    }
    float sum[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[i] = 0.f;
    fence_registers(sum);
    u32 a[2][4][4];
    // Not known to the compiler: f16 weights get registers of their own, which loads do not write while instructions read them.
    u32 zero = p.m >> 31;
    // Stages of the tile, as a factor, and of the one that is copied.
    u32 first_matrix = uniform(matrix_at(base)), matrix = first_matrix, last_matrix = first_matrix + (S - 1) * (STAGE_BYTES / 16);
    u32 to = base + (S - 2) * STAGE_BYTES, end = base + S * STAGE_BYTES;
    for (u32 first = 0; first < p.k_tiles; first += UNIT) {
        Unit now = next;
        load_unit(next, strip, first + UNIT, p.k_tiles, lane);
        prefetch_unit(strip, first + AHEAD, p.k_tiles, lane);
#pragma unroll
        for (int j = 0; j < UNIT; j++) {
            // The tile before the last one is done: its registers and its stage are free.
            wait_for_warpgroup<1>();
            const Raw &raw = now.chunks[j / TILES];
#pragma unroll
            for (int step = 0; step < 4; step++) {
                scaled_weights(raw, j % TILES, step, a[j & 1][step]);
                if (FORMAT == F16)
                    for (int r = 0; r < 4; r++) asm volatile("or.b32 %0, %0, %1;" : "+r"(a[j & 1][step][r]) : "r"(zero));
            }
            wait_for_copies<S - 3>();
            publish_shared();
            __syncthreads();
            fence_registers(a[j & 1]);
            begin_warpgroup();
#pragma unroll
            for (int step = 0; step < 4; step++) multiply_add_warpgroup(sum, a[j & 1][step], matrix + 2 * step);
            commit_warpgroup();
            copy_tile<N>(to, p, first_row, first + j + S - 2);
            commit_copies();
            matrix = matrix == last_matrix ? first_matrix : matrix + STAGE_BYTES / 16;
            to = to + STAGE_BYTES == end ? base : to + STAGE_BYTES;
        }
    }
    // Columns 4 lane .. of the block, of every eighth row.
    u32 n = block_n + 4 * lane;
    bool is_whole = n + 4 <= f.n && f.out_stride % 4 == 0;
    float4 bias = make_float4(0.f, 0.f, 0.f, 0.f);
    if (f.bias && is_whole) bias = *(const float4 *)(f.bias + n);
    wait_for_warpgroup<0>();
    fence_registers(sum);
    wait_for_copies<0>();
    __syncthreads();
    // [N][128], columns exchanged by row so that lanes write to different banks.
    float *sums = (float *)((u8 *)shared + (base - shared_address(shared)));
#pragma unroll
    for (int b = 0; b < N / 8; b++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 row = 8 * b + 2 * t + (i & 1), n = warp * 16 + g + 8 * (i >> 1);
            sums[row * 128 + (n ^ 8 * t)] = sum[4 * b + i];
        }
    __syncthreads();
    if (!is_whole) {
        for (u32 row = warp; row < N; row += 8)
            for (u32 c = 0; c < 4; c++) store_gemm(p, f, first_row + row, n + c, sums[row * 128 + ((4 * lane + c) ^ (row >> 1 & 3) * 8)]);
        return;
    }
    // Residuals of four rows are loaded at once.
#pragma unroll 1
    for (u32 first = warp; first < N; first += 32) {
        float4 residual[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 row = first_row + first + 8 * i;
            residual[i] = make_float4(0.f, 0.f, 0.f, 0.f);
            if (p.accumulate && row < p.m) residual[i] = *(const float4 *)(f.out.values + (size_t)row * f.out_stride + n);
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 in_block = first + 8 * i, row = first_row + in_block;
            if (row >= p.m) break;
            float4 y = *(const float4 *)(sums + in_block * 128 + ((4 * lane) ^ (in_block >> 1 & 3) * 8));
            y.x = activate(y.x + bias.x, p.activation) + residual[i].x;
            y.y = activate(y.y + bias.y, p.activation) + residual[i].y;
            y.z = activate(y.z + bias.z, p.activation) + residual[i].z;
            y.w = activate(y.w + bias.w, p.activation) + residual[i].w;
            store4(f.out, (size_t)row * f.out_stride + n, y);
        }
    }
}
