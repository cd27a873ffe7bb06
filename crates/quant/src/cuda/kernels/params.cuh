// Parameters of matmuls.
#pragma once
#include "tensor_map.cuh"

struct MatrixParams {
    const u8 *weights;
    const float *bias;
    Output out;
    u32 n, out_stride;
};

struct MatmulParams {
    MatrixParams matrices[3]; // Gated: gate, up; the first has the output.
    const u16 *x;
    const u32 *order, *blocks; // Experts: see moe.cu; null otherwise.
    u32 m, k_tiles, n_chunks, x_stride;
    u32 n_matrices, activation, accumulate, is_gated;
    float alpha, limit;
    u32 assignments_per_row, cols;
    // One row: the operand is the RMS norm of `row`, which is also written to `normed` unless null.
    const float *row, *norm_weight;
    float *normed;
    float eps;
    // GEMV: panels of a block, stages of its shared memory, split-K blocks of a panel.
    u32 block_panels, n_stages, n_splits;
    // Split-K GEMV: partial sums of slices, and counts of finished blocks, zeros at first.
    float4 *partials;
    u32 *counters;
    // Two formats: number of matrices of the first format, and of blocks that have them.
    u32 n_first_matrices, n_first_blocks;
};

// Matrices first .. end, all of one format; `block` is one of the n_blocks that have them.
struct Share {
    u32 first, end, block, n_blocks;
};

DEVICE Share first_share(const MatmulParams &p, u32 block) { return {0, p.n_first_matrices, block, p.n_first_blocks}; }

DEVICE Share second_share(const MatmulParams &p, u32 block, u32 n_blocks) {
    return {p.n_first_matrices, p.n_matrices, block - p.n_first_blocks, n_blocks - p.n_first_blocks};
}

DEVICE Share whole_share(const MatmulParams &p, u32 block, u32 n_blocks) { return {0, p.n_matrices, block, n_blocks}; }

// Slices of K with a partial sum each: slice s has super-tiles s, s + K_SLICES, ..
constexpr int K_SLICES = 8;
// GEMV of one row: groups of 8 warps of a block, each with panels of its own; maximum stages of a warp.
constexpr u32 GROUPS = 2, MAX_ROW_STAGES = 3;

// Static shared memory of GEMV of one row. The same for both formats of a pair.
struct RowShared {
    u64 barriers[GROUPS * K_SLICES * MAX_ROW_STAGES];
    float partials[GROUPS][2][2 * K_SLICES * 16];
    float norm_sums[GROUPS][K_SLICES];
};

// Two blocks per SM by registers: room for the next kernel.
#define ROW_KERNEL extern "C" __global__ void __launch_bounds__(256 * GROUPS, 2)

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// GEMM by wgmma: consumer warps, and a warpgroup of producers.
constexpr u32 GEMM_WARPS = 8, GEMM_THREADS = 32 * (GEMM_WARPS + 4);
// Maximum stages of x and of weights.
constexpr u32 MAX_X_STAGES = 6, MAX_CHUNK_STAGES = 8;

// Parameters of kernels with wgmma.
struct WarpgroupParams {
    TensorMap x; // A box has the rows of x of a block.
    MatmulParams matmul;
};

// Static shared memory of GEMM. The same for both formats of a pair.
struct GemmShared {
    u64 barriers[2 * (MAX_X_STAGES + MAX_CHUNK_STAGES)];
};
#endif
