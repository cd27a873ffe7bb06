// GEMM of many rows: weights are dequantized to f16 fragments.
#include "params.cuh"

struct SuperTile {
    Raw chunks[SUPER_TILE_CHUNKS];
};

// Loads the super-tile of tiles from `first` on. Past the last tile it loads the last tile again; its activations are zeros.
DEVICE void load_super_tile(SuperTile &u, const u8 *panel, u32 first, u32 k_tiles, u32 lane) {
#pragma unroll
    for (int i = 0; i < SUPER_TILE_CHUNKS; i++)
        load_raw<FromGlobal>(u.chunks[i], panel + (u64)min(first / TILES + i, (k_tiles - 1) / TILES) * CHUNK_BYTES, lane);
}

DEVICE void store_gemm(const MatmulParams &p, const MatrixParams &f, u32 row, u32 n, float y) {
    if (n >= f.n || row >= p.m) return;
    if (f.bias) y += f.bias[n];
    y = activate(y, p.activation);
    size_t at = (size_t)row * f.out_stride + n;
    if (p.accumulate) y += f.out.values[at];
    store(f.out, at, y);
}

// Matrix of a block of 128 rows of weights, and the first row of the block within it.
DEVICE const MatrixParams &matrix_of_block(const MatmulParams &p, const Share &share, u32 &first_n) {
    u32 i = share.first, block = share.block;
    for (; i + 1 < share.end && block >= (p.matrices[i].n + 127) / 128; i++) block -= (p.matrices[i].n + 127) / 128;
    first_n = block * 128;
    return p.matrices[i];
}

// Address of the stages: the next multiple of 1,024, which the swizzle needs.
DEVICE u32 stages_at(const void *smem) { return (smem_address(smem) + 1023) & ~1023u; }

#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Copies a tile of N rows of x from `first_row` on to shared memory: rows of 128 bytes with the 128-byte swizzle. Rows and tiles past the
// last one are zeros.
template <int N> DEVICE void copy_tile(u32 stage, const MatmulParams &p, u32 first_row, u32 tile) {
    u32 part = threadIdx.x % 8, first = threadIdx.x / 8;
    const u16 *x = p.x + (size_t)(first_row + first) * p.x_stride + tile * 64 + part * 8;
    stage += first * 128 + ((part ^ (first & 7)) * 16);
#pragma unroll
    for (int i = 0; i < N / 32; i++) {
        bool is_inside = first_row + first + 32 * i < p.m && tile < p.k_tiles;
        cp_async_16(stage + i * 32 * 128, is_inside ? x + (size_t)(32 * i) * p.x_stride : p.x, is_inside);
    }
}

// Grid: (blocks of 128 rows of x, blocks of 128 rows of the weights of all matrices).
KERNEL(256) gemm(const __grid_constant__ MatmulParams p) {
    extern __shared__ uint4 smem[];
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
    u32 block_n;
    const MatrixParams &f = matrix_of_block(p, whole_share(p, blockIdx.y, gridDim.y), block_n);
    u32 first_row = blockIdx.x * 128, first_n = block_n + warp % 4 * 32, warp_rows = warp / 4 * 64;
    u64 panel_bytes = (u64)p.n_chunks * CHUNK_BYTES;
    u32 n_panels = (f.n + 15) / 16;
    const u8 *panels[2];
    // Past the last panel: recomputes the last panel; its result is dropped.
    for (u32 s = 0; s < 2; s++) panels[s] = f.weights + min(first_n / 16 + s, n_panels - 1) * panel_bytes;
    SuperTile next[2];
    for (int s = 0; s < 2; s++) load_super_tile(next[s], panels[s], 0, p.k_tiles, lane);
    wait_for_inputs();
    constexpr u32 STAGES = 4, STAGE_BYTES = 128 * 128;
    u32 base = stages_at(smem);
    for (u32 i = 0; i < STAGES - 1; i++) {
        copy_tile<128>(base + i * STAGE_BYTES, p, first_row, i);
        cp_async_commit_group();
    }
    float sum[2][8][4] = {};
    for (u32 first = 0; first < p.k_tiles; first += SUPER_TILE_LEN) {
        SuperTile now[2];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            now[s] = next[s];
            load_super_tile(next[s], panels[s], first + SUPER_TILE_LEN, p.k_tiles, lane);
        }
#pragma unroll
        for (int j = 0; j < SUPER_TILE_LEN; j++) {
            u32 tile = first + j;
            cp_async_wait_group<STAGES - 2>();
            __syncthreads();
            u32 later = tile + STAGES - 1;
            copy_tile<128>(base + later % STAGES * STAGE_BYTES, p, first_row, later);
            cp_async_commit_group();
            u32 stage = base + tile % STAGES * STAGE_BYTES;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 a[2][2][4];
#pragma unroll
                for (int s = 0; s < 2; s++) for (int i = 0; i < 2; i++) scaled_weights(now[s].chunks[j / TILES], j % TILES, 2 * half + i, a[s][i]);
#pragma unroll
                for (int b = 0; b < 8; b++) {
                    // Four 8x8 matrices: both halves of two steps, of 8 rows.
                    u32 row = warp_rows + 8 * b + (lane & 7), x[4];
                    ldmatrix_x4(x, stage + row * 128 + (((4 * half + lane / 8) ^ (row & 7)) * 16));
#pragma unroll
                    for (int s = 0; s < 2; s++) {
                        mma(sum[s][b], a[s][0], x[0], x[1]);
                        mma(sum[s][b], a[s][1], x[2], x[3]);
                    }
                }
            }
        }
    }
    for (int s = 0; s < 2; s++) for (int b = 0; b < 8; b++) for (int i = 0; i < 4; i++)
        store_gemm(p, f, first_row + warp_rows + 8 * b + 2 * t + (i & 1), first_n + 16 * s + g + 8 * (i >> 1), sum[s][b][i]);
}
#else
#include "gemm_warpgroup.cuh"
#endif
