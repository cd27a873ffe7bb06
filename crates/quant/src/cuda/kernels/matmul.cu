// modules: q4_0 -DFORMAT=0; q4_1 -DFORMAT=1; q5_0 -DFORMAT=2; q5_1 -DFORMAT=3;
//   q8_0 -DFORMAT=4; q2_k -DFORMAT=5; q3_k -DFORMAT=6; q4_k -DFORMAT=7;
//   q5_k -DFORMAT=8; q6_k -DFORMAT=9; iq4_nl -DFORMAT=10; iq4_xs -DFORMAT=11;
//   mxfp4 -DFORMAT=12; f16 -DFORMAT=13
//
// Products with weights in strips, see format.cuh: y[m, n] = act(x[m, k] w[n, k] + bias).
//
//   gemv_row   one row (Hopper and later), gemv_row.cuh
//   gemv_N     up to 128 rows, N or 2 N of them a block, gemv.cuh
//   gemv_warpgroup_N   the same, N of them a block, by instructions of warpgroups (Hopper)
//   gemm       more, 128 rows of weights x 128 rows of activations a block, by instructions of warps, gemm.cuh
//   wgmma_N    the same, of N rows of activations, by instructions of warpgroups (Hopper)
//   embed      rows of a table
//
// Activations are f16, in an order of columns in which lanes load what instructions need, see `operand_index`; sums are f32.
// Weights are f16; GEMV has integers instead for formats with integer scales, and scales sums of 256 columns in f32. Both kernels of
// GEMV add a part of the columns in order, then the parts in theirs: the sums of a row of y do not depend on the other rows of x.
#include "format.cuh"
#include "product.cuh"

#include "gemm.cuh"
#include "gemv.cuh"
#include "gemv_row.cuh"

#if __CUDA_ARCH__ >= 900
ROW_KERNEL gemv_row(const __grid_constant__ MatmulParams p) {
    __shared__ RowShared shared;
    multiply_row(p, whole_share(p, blockIdx.x, gridDim.x), shared);
}
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GEMM_WARPGROUP(N) \
    KERNEL(GEMM_THREADS) wgmma_##N(const __grid_constant__ WarpgroupParams p) { \
        __shared__ GemmShared shared; \
        wgmma<N>(p, whole_share(p.matmul, blockIdx.y, gridDim.y), shared); \
    }
GEMM_WARPGROUP(128)
GEMM_WARPGROUP(256)
#endif

struct EmbedParams {
    const u8 *table;
    const u32 *tokens;
    const float *top_k; // References to tokens; null: none.
    const float *positions_table;
    const u32 *positions;
    float *out;
    u32 n_chunks, k_tiles, cols;
    float scale;
};

// out[i] = scale * table[token i] + positions_table[position i]. Grid: (tokens, units of tiles); a warp a block.
KERNEL(32) embed(const __grid_constant__ EmbedParams p) {
    begin_kernel();
    load_codebook();
    u32 lane = threadIdx.x, g = lane >> 2, t = lane & 3, token = p.tokens[blockIdx.x];
    if (token >> 31) token = (u32)p.top_k[token & 0x7fffffffu];
    const u8 *strip = p.table + (u64)(token / 16) * p.n_chunks * CHUNK_BYTES;
    __shared__ u32 row[UNIT * 32];
    Unit u;
    u32 first = blockIdx.y * UNIT;
    load_unit(u, strip, first, p.k_tiles, lane);
#pragma unroll
    for (int j = 0; j < UNIT; j++) {
        if (first + j >= p.k_tiles) break;
        const Raw &raw = u.chunks[j / TILES];
#pragma unroll
        for (int step = 0; step < 4; step++) {
            u32 a[4];
            scaled_weights(raw, j % TILES, step, a);
            if (g != token % 8) continue;
            bool is_high = token % 16 / 8;
            u32 *pairs = row + j * 32 + 8 * step + 2 * t;
            pairs[0] = is_high ? a[1] : a[0], pairs[1] = is_high ? a[3] : a[2];
        }
    }
    __syncwarp();
    for (u32 i = lane; i < UNIT * 64; i += 32) {
        u32 column = first * 64 + i;
        if (column >= p.cols) break;
        float y = p.scale * from_half((u16)(row[i / 2] >> i % 2 * 16));
        if (p.positions_table) y += p.positions_table[(size_t)p.positions[blockIdx.x] * p.cols + column];
        p.out[(size_t)blockIdx.x * p.cols + column] = y;
    }
}
