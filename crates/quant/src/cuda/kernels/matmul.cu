// modules: formats.cuh -DFORMAT=*
//
// Matmul with weights in panels, see format.cuh: y[m, n] = act(x[m, k] w[n, k] + bias).
//
//   gemv_row   one row (Hopper and later), gemv_row.cuh
//   gemv_N     up to 128 rows, N or 2 N of them per block, gemv.cuh
//   gemv_warpgroup_N   up to 128 rows, N of them per block, by wgmma (Hopper), gemv_warpgroup.cuh
//   gemm       more rows, 128 rows of weights x 128 rows of activations per block, by mma, gemm.cuh
//   wgmma_N    more rows, 128 x N per block, by wgmma (Hopper), gemm_warpgroup.cuh
//   embed      rows of a table
//   repack     GGML blocks to panels, repack.cuh
//
// Activations are f16 in the column order of mma fragments, see `operand_index`; sums are f32. Weights are dequantized to f16. GEMV
// multiplies integers instead for formats with integer scales, and scales the sums of 256 columns in f32. All GEMV kernels add the
// columns of a K slice in order, then the slices in order: the sums of a row of y do not depend on the other rows of x.
#include "format.cuh"
#include "product.cuh"

#include "gemm.cuh"
#include "gemv.cuh"
#include "gemv_row.cuh"
#include "repack.cuh"

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
        gemm_warpgroup<N>(p, whole_share(p.matmul, blockIdx.y, gridDim.y), shared); \
    }
GEMM_WARPGROUP(128)
GEMM_WARPGROUP(256)
#endif

struct EmbedParams {
    const u8 *table;
    const u32 *tokens;
    const float *top_k; // Results of a top-k, for tokens that refer to it; null: none.
    const float *positions_table;
    const u32 *positions;
    float *out;
    u32 n_chunks, k_tiles, cols;
    float scale;
};

// out[i] = scale * table[token i] + positions_table[position i]. Grid: (tokens, super-tiles); one warp per block.
KERNEL(32) embed(const __grid_constant__ EmbedParams p) {
    begin_kernel();
    load_codebook();
    u32 lane = threadIdx.x, g = lane >> 2, t = lane & 3, token = p.tokens[blockIdx.x];
    if (token >> 31) token = (u32)p.top_k[token & 0x7fffffffu];
    const u8 *panel = p.table + (u64)(token / 16) * p.n_chunks * CHUNK_BYTES;
    __shared__ u32 row[SUPER_TILE_LEN * 32];
    SuperTile u;
    u32 first = blockIdx.y * SUPER_TILE_LEN;
    load_super_tile(u, panel, first, p.k_tiles, lane);
#pragma unroll
    for (int j = 0; j < SUPER_TILE_LEN; j++) {
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
    for (u32 i = lane; i < SUPER_TILE_LEN * 64; i += 32) {
        u32 column = first * 64 + i;
        if (column >= p.cols) break;
        float y = p.scale * from_half((u16)(row[i / 2] >> i % 2 * 16));
        if (p.positions_table) y += p.positions_table[(size_t)p.positions[blockIdx.x] * p.cols + column];
        p.out[(size_t)blockIdx.x * p.cols + column] = y;
    }
}
