// Parameters of products.
#pragma once
#include "tensor_map.cuh"

struct Factor {
    const u8 *weights;
    const float *bias;
    Output out;
    u32 n, out_stride;
};

struct MatmulParams {
    Factor factors[3]; // Gated: gate, up; the result is that of the first.
    const u16 *x;
    const u32 *order, *blocks; // Experts: see moe.cu; null otherwise.
    u32 m, k_tiles, n_chunks, x_stride;
    u32 n_factors, activation, accumulate, is_gated;
    float alpha, limit;
    u32 choices_per_row, cols;
    // One row: RMS norm of `row` as the operand, which is also written to `normed`, unless null.
    const float *row, *norm_weight;
    float *normed;
    float eps;
    // GEMV: strips of a block, stages of its shared memory, blocks that share the parts of a strip.
    u32 block_strips, n_stages, n_splits;
    // GEMV with splits: sums of parts, and blocks that have stored theirs, zeros at first.
    float4 *partials;
    u32 *counters;
    // Two formats: factors of the first one, and blocks that have them.
    u32 n_first_factors, n_first_blocks;
};

// Factors first .. end, which have one format, and a block of the n_blocks that have them.
struct Share {
    u32 first, end, block, n_blocks;
};

DEVICE Share first_share(const MatmulParams &p, u32 block) { return {0, p.n_first_factors, block, p.n_first_blocks}; }

DEVICE Share second_share(const MatmulParams &p, u32 block, u32 n_blocks) {
    return {p.n_first_factors, p.n_factors, block - p.n_first_blocks, n_blocks - p.n_first_blocks};
}

DEVICE Share whole_share(const MatmulParams &p, u32 block, u32 n_blocks) { return {0, p.n_factors, block, n_blocks}; }

// Parts of the columns, with a sum each: units part, part + PARTS and so on.
constexpr int PARTS = 8;
// One row: groups of 8 warps of a block, each with strips of its own; most units of weights of a warp in shared memory.
constexpr u32 GROUPS = 2, MAX_SLOTS = 3;

// Shared memory of a block of one row, beside weights and operand. Both formats have the same.
struct RowShared {
    u64 barriers[GROUPS * PARTS * MAX_SLOTS];
    float partials[GROUPS][2][2 * PARTS * 16];
    float norm_sums[GROUPS][PARTS];
};

// Registers leave room for the next kernel.
#define ROW_KERNEL extern "C" __global__ void __launch_bounds__(256 * GROUPS, 2)

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// GEMM by instructions of warpgroups: warps with products, and a warpgroup that copies.
constexpr u32 GEMM_WARPS = 8, GEMM_THREADS = 32 * (GEMM_WARPS + 4);
// Most stages of x and of weights.
constexpr u32 MAX_X_STAGES = 6, MAX_CHUNK_STAGES = 8;

// Of kernels with instructions of warpgroups.
struct WarpgroupParams {
    TensorMap x; // Boxes have the rows of x of a block.
    MatmulParams matmul;
};

// Shared memory of a block of GEMM beside stages. Both formats have the same.
struct GemmShared {
    u64 barriers[2 * (MAX_X_STAGES + MAX_CHUNK_STAGES)];
};
#endif
