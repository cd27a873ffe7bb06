// Parameters of products, and units of weights.
#pragma once
#include "format.cuh"

constexpr int UNIT = FORMAT == F16 ? 2 : 4; // Tiles.
constexpr int UNIT_CHUNKS = UNIT / TILES > 0 ? UNIT / TILES : 1;
constexpr u32 UNIT_BYTES = UNIT_CHUNKS * CHUNK_BYTES;
// Parts of the columns, with a sum each: units part, part + PARTS and so on.
constexpr int PARTS = 8;

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
};

// Sums of blocks of x for minima: of a group of 8 blocks, the lane's 2 t and 2 t + 1, as the second factor of an instruction whose
// first one has the minima twice. A sum is that of two f16.
DEVICE uint2 split_sums(float first, float second) {
    u32 high = pack_half(first, second);
    return make_uint2(high, pack_half(first - low_half(high), second - high_half(high)));
}

constexpr u32 ONES[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};

// Adds the products of a unit with integer weights, c, to sums: d * c - dmin * (minima * sums of blocks). `mins`: products with
// minima.
DEVICE void add_scaled(float (&sum)[4], const float (&c)[4], const float (&mins)[4], const u32 (&header)[2][5]) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        u32 factors = factors_of(header[e >> 1]);
        sum[e] = fmaf(low_half(factors) * (1.f / CODE_OF_ROW[e >> 1]), c[e], sum[e]);
        if (HAS_MIN) sum[e] = fmaf(-high_half(factors), mins[e], sum[e]);
    }
}

// Groups of 8 blocks of a unit, which have minima.
constexpr int MIN_GROUPS = HAS_INTEGERS && HAS_MIN ? UNIT * TILE_BLOCKS / 8 : 0;
