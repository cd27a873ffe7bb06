// GEMV of up to 64 rows by instructions of warpgroups (Hopper), included by gemv.cuh, with the same sums.
//
//   block       N rows of x, 8 strips of weights, stages of a unit
//   warps 0..7  two warpgroups of four strips: products
//   warps 8..   copies of weights and rows of x to free stages; sums of blocks of x, for minima
//
// A stage has two barriers: it is full; it is free.
#include "wgmma.cuh"

constexpr u32 PRODUCT_WARPS = 8, COPY_WARPS = 4;

// Tiles of rows of 128 bytes, whose 16-byte parts are exchanged by row % 8: factors of instructions of warpgroups.
struct SwizzledRows {
    static DEVICE u32 at(u32 n_rows, u32 row, u32 tile, u32 part) { return (tile * n_rows + row) * 128 + (part ^ (row & 7)) * 16; }
};

// Place of a unit in the stages, and the phase of their barriers.
struct Stage {
    u32 index = 0, phase = 0;

    DEVICE void next(u32 n_stages) {
        if (++index == n_stages) index = 0, phase ^= 1;
    }
};

// Shared memory of the stages: rows of x, then units of the strips; behind all of them sums of blocks of x.
template <int N> struct Stages {
    static constexpr u32 X_SIZE = N * X_BYTES, SIZE = (X_SIZE + PRODUCT_WARPS * UNIT_BYTES + 1023) & ~1023u;
    u8 *first;
    u64 *barriers;
    u32 n;

    DEVICE u8 *weights(u32 stage) const { return first + stage * SIZE + X_SIZE; }
    DEVICE u32 rows(u32 stage) const { return shared_address(first + stage * SIZE); }
    DEVICE uint2 *sums(u32 stage) const { return (uint2 *)(first + n * SIZE) + stage * N / 8 * SUMS; }
    DEVICE u32 is_full(u32 stage) const { return shared_address(barriers + stage); }
    DEVICE u32 is_free(u32 stage) const { return shared_address(barriers + 4 + stage); }
};

// Blocks of x in a unit, and factors with ones in row i for block i.
constexpr u32 N_BLOCKS = UNIT * TILE_BLOCKS;
struct BlockOnes {
    u32 a[N_BLOCKS][4];

    DEVICE BlockOnes(u32 lane) {
#pragma unroll
        for (u32 block = 0; block < N_BLOCKS; block++)
            for (u32 i = 0; i < 4; i++) {
                a[block][i] = lane >> 2 == block % 8 && i % 2 == block / 8 % 2 ? ONES[0] : 0;
                // Stays in its register.
                asm volatile("" : "+r"(a[block][i]));
            }
    }
};

// Sums of blocks of x in a unit, as of `sum_blocks` for each tile: lane 4 g + t gets those of blocks g and g + 8 of rows 2 t, 2 t + 1.
DEVICE void sum_unit(uint2 *sums, const BlockOnes &ones, u32 x, u32 n_rows, u32 first, u32 lane) {
    u32 g = lane >> 2, t = lane & 3;
    // Two chains of instructions. Rows of other blocks get zeros, which is exact.
    float chains[2][4] = {}, c[4];
#pragma unroll
    for (u32 i = 0; i < 2 * UNIT; i++) {
        u32 b[4];
        load_matrices(b, x + SwizzledRows::at(n_rows, first + (lane & 7), i / 2, 4 * (i % 2) + lane / 8));
#pragma unroll
        for (u32 step = 0; step < 2; step++)
            multiply_add(chains[i % 2], ones.a[(2 * i + step) / BLOCK_STEPS], b[2 * step], b[2 * step + 1]);
    }
    for (u32 i = 0; i < 4; i++) c[i] = chains[0][i] + chains[1][i];
    // Lanes with an even g take row 2 t of two blocks, the others row 2 t + 1.
    bool is_odd = g & 1;
#pragma unroll
    for (u32 group = 0; group < MIN_GROUPS; group++) {
        float own = is_odd ? c[2 * group + 1] : c[2 * group], other = __shfl_xor_sync(0xffffffff, is_odd ? c[2 * group] : c[2 * group + 1], 4);
        sums[group * 32 + g / 2 * 8 + 2 * t + is_odd] = split_sums(is_odd ? other : own, is_odd ? own : other);
    }
}

// Copies all units of a block. `warp`: of those that copy; each has every fourth group of 8 rows, and its sums.
template <int N> DEVICE void copy_units(const GemvBlock &block, const Stages<N> &stages, Units units, const u8 *const *strips, const u16 *const *rows_of_x, u32 warp, u32 lane) {
    constexpr u32 GROUPS_OF_WARP = N / 8 / COPY_WARPS;
    const MatmulParams &p = block.p;
    u32 n_rows = block.n_rows();
    auto copy_weights = [&](u32 stage, u32 unit) {
        if (lane) return;
        u32 left = min((p.n_chunks - unit * UNIT_CHUNKS) * CHUNK_BYTES, UNIT_BYTES), barrier = stages.is_full(stage);
        if (warp == 0) expect_copies(barrier, PRODUCT_WARPS * left);
#pragma unroll
        for (u32 i = 0; i < PRODUCT_WARPS / COPY_WARPS; i++) {
            u32 strip = warp + i * COPY_WARPS;
            copy_bulk(shared_address(stages.weights(stage) + strip * UNIT_BYTES), strips[strip] + (u64)unit * UNIT_BYTES, left, barrier);
        }
    };
    // 16 bytes of rows r and r + 4 of each group, and of each tile; behind the last row: none.
    u32 r = lane / 8, part = lane % 8;
    const u16 *x[GROUPS_OF_WARP][2];
#pragma unroll
    for (u32 group = 0; group < GROUPS_OF_WARP; group++)
        for (u32 half = 0; half < 2; half++) {
            u32 row = 8 * (warp + COPY_WARPS * group) + r + 4 * half;
            x[group][half] = row < n_rows ? rows_of_x[row] + 8 * part : nullptr;
        }
    // Columns behind the last tile are zeros.
    auto copy_rows = [&](u32 stage, u32 unit) {
        u32 to = stages.rows(stage) + SwizzledRows::at(N, 8 * warp + r, 0, part);
#pragma unroll
        for (u32 group = 0; group < GROUPS_OF_WARP; group++)
            for (u32 half = 0; half < 2; half++) {
                if (!x[group][half]) continue;
                const u16 *from = x[group][half] + unit * UNIT * 64;
#pragma unroll
                for (u32 tile = 0; tile < UNIT; tile++) {
                    bool is_inside = TILES == 4 || unit * UNIT + tile < p.k_tiles;
                    copy16_async((to ^ 64 * half) + (tile * N + 8 * COPY_WARPS * group + 4 * half) * 128, is_inside ? from + 64 * tile : from, is_inside);
                }
            }
    };
    BlockOnes ones(lane);
    auto publish_rows = [&](u32 stage) {
        publish_shared();
        __syncwarp();
        if (MIN_GROUPS)
#pragma unroll
            for (u32 group = 0; group < GROUPS_OF_WARP; group++) {
                u32 of_all = warp + COPY_WARPS * group;
                sum_unit(stages.sums(stage) + of_all * SUMS, ones, stages.rows(stage), N, 8 * of_all, lane);
            }
        __syncwarp();
        if (lane == 0) arrive(stages.is_full(stage));
    };
    // Weights of the first stages do not depend on the kernel before.
    Units ahead = units;
    for (u32 i = 0; i < stages.n && ahead.has_unit(); i++, ahead.next()) copy_weights(i, ahead.unit);
    if (!p.blocks) wait_for_inputs();
    Stage stage, last;
    for (u32 i = 0;; i++, units.next(), stage.next(stages.n)) {
        bool has_unit = units.has_unit();
        if (has_unit) {
            if (i >= stages.n) {
                wait_for_barrier(stages.is_free(stage.index), stage.phase ^ 1);
                copy_weights(stage.index, units.unit);
            }
            copy_rows(stage.index, units.unit);
        }
        commit_copies();
        if (i > 0) {
            wait_for_copies<1>();
            publish_rows(last.index);
            last.next(stages.n);
        }
        if (!has_unit) break;
    }
}

// Products of four strips, one of each warp, with N rows of x.
template <int N> struct WarpgroupProducts {
    static constexpr int B = N / 8;
    float sum[N / 2], c[N / 2];
    // Not known to the compiler: f16 weights get registers of their own, which loads do not write while instructions read them.
    u32 zero;

    DEVICE WarpgroupProducts(u32 zero) : zero(zero) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) sum[i] = c[i] = 0.f;
    }

    // The sums of 8 rows, which become zeros.
    DEVICE float4 take(int b) {
        float4 x = make_float4(sum[4 * b], sum[4 * b + 1], sum[4 * b + 2], sum[4 * b + 3]);
        for (int i = 0; i < 4; i++) sum[4 * b + i] = 0.f;
        return x;
    }

    // Adds those of a unit of `n_tiles` tiles. Tiles behind the last one are the last one, and their columns of x zeros. `x`: address
    // of the rows; `sums`: those of their blocks.
    DEVICE void add(const u8 *unit, u32 x, const uint2 *sums, u32 n_tiles, u32 lane) {
        u32 header[2][5], a[2][4][4], t = lane & 3, b = uniform(matrix_at(x));
        fence_registers(HAS_INTEGERS ? c : sum);
#pragma unroll
        for (int j = 0; j < UNIT; j++) {
            Codes codes;
            const u8 *chunk = unit + (TILES == 1 ? min((u32)j, n_tiles - 1) : 0) * CHUNK_BYTES;
            load_codes<FromShared>(codes, chunk, j % TILES, lane);
            if (j % TILES == 0) for (int r = 0; r < 2; r++) load_header<FromShared>(header[r], chunk, (lane >> 2) + 8 * r);
            // The tile before the last one is done: its registers are free.
            wait_for_warpgroup<1>();
#pragma unroll
            for (int step = 0; step < 4; step++) {
                if (HAS_INTEGERS) integer_weights(codes, header, j, step, a[j & 1][step]);
                else scaled_weights(codes, header, j % TILES, step, a[j & 1][step]);
                if (FORMAT == F16)
                    for (int r = 0; r < 4; r++) asm volatile("or.b32 %0, %0, %1;" : "+r"(a[j & 1][step][r]) : "r"(zero));
            }
            fence_registers(a[j & 1]);
            begin_warpgroup();
#pragma unroll
            for (int step = 0; step < 4; step++)
                multiply_add_warpgroup(HAS_INTEGERS ? c : sum, a[j & 1][step], b + j * N * 8 + 2 * step, !HAS_INTEGERS || j || step);
            commit_warpgroup();
        }
        u32 minima[MIN_GROUPS ? MIN_GROUPS : 1][4];
        for (int group = 0; group < MIN_GROUPS; group++) {
            u32 row = integer_minima(header[0], group, t), other = integer_minima(header[1], group, t);
            minima[group][0] = minima[group][2] = row, minima[group][1] = minima[group][3] = other;
        }
        wait_for_warpgroup<0>();
        fence_registers(HAS_INTEGERS ? c : sum);
        if (!HAS_INTEGERS) return;
#pragma unroll
        for (int b = 0; b < B; b++) {
            float of_c[4], of_sum[4], mins[4] = {};
            for (int i = 0; i < 4; i++) of_c[i] = c[4 * b + i], of_sum[i] = sum[4 * b + i];
            for (int group = 0; group < MIN_GROUPS; group++) {
                uint2 of_x = sums[(b * MIN_GROUPS + group) * 32 + 8 * t + lane / 4];
                multiply_add(mins, minima[group], of_x.x, of_x.y);
            }
            add_scaled(of_sum, of_c, mins, header);
            for (int i = 0; i < 4; i++) sum[4 * b + i] = of_sum[i];
        }
    }
};

template <int N> DEVICE void gemv_warpgroup(const MatmulParams &p) {
    constexpr int B = N / 8;
    extern __shared__ uint4 memory[];
    __shared__ const u8 *strip_weights[PRODUCT_WARPS];
    __shared__ const u16 *rows_of_x[N];
    __shared__ u64 barriers[8];
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    GemvBlock block(p, N);
    if (block.m == 0) return;
    u8 *start = (u8 *)memory + (stages_at(memory) - shared_address(memory));
    Stages<N> stages = {start, barriers, p.n_stages};
    // One more arrival announces the bytes of weights.
    if (threadIdx.x < 8) init_barrier(shared_address(barriers + threadIdx.x), threadIdx.x < 4 ? COPY_WARPS + 1 : PRODUCT_WARPS);
    publish_shared();
    block.find(strip_weights, rows_of_x);
    u32 n_units = (p.k_tiles + UNIT - 1) / UNIT, n_parts = PARTS / p.n_splits;
    Units units(block.split * n_parts, (block.split + 1) * n_parts, n_units);
    bool has_products = warp < PRODUCT_WARPS;
    float4 totals[B];
#pragma unroll
    for (int b = 0; b < B; b++) totals[b] = make_float4(0.f, 0.f, 0.f, 0.f);
    float4 *partials = block.partials<B>(PRODUCT_WARPS, warp, lane);
    if (has_products) {
        WarpgroupProducts<N> products(p.m >> 31);
        for (Stage stage; units.has_unit(); units.next(), stage.next(stages.n)) {
            wait_for_barrier(stages.is_full(stage.index), stage.phase);
            __syncwarp();
            products.add(stages.weights(stage.index) + warp * UNIT_BYTES, stages.rows(stage.index), stages.sums(stage.index),
                p.k_tiles - units.unit * UNIT, lane);
            __syncwarp();
            if (lane == 0) arrive(stages.is_free(stage.index));
            if (!units.ends_part()) continue;
#pragma unroll
            for (int b = 0; b < B; b++) {
                float4 x = products.take(b);
                if (p.n_splits > 1) partials[(units.part * PRODUCT_WARPS * B + b) * 32] = x;
                else totals[b] = add4(totals[b], x);
            }
        }
        // Residuals are those of kernels before.
        wait_for_inputs();
    } else {
        copy_units<N>(block, stages, units, strip_weights, rows_of_x, warp - PRODUCT_WARPS, lane);
    }
    auto total_of = [&](int b) -> float4 & { return totals[b]; };
    if (p.n_splits > 1 && !block.add_parts<B>(n_units, partials, PRODUCT_WARPS, has_products, total_of)) return;
    float *results = (float *)start;
    __syncthreads();
    if (has_products)
#pragma unroll
        for (int b = 0; b < B; b++) block.write_total(results, 8 * b, warp, totals[b], lane);
    __syncthreads();
    block.store_results(results);
}

#define GEMV_WARPGROUP(N) \
    extern "C" __global__ void __launch_bounds__(32 * (PRODUCT_WARPS + COPY_WARPS), 1) gemv_warpgroup_##N(const __grid_constant__ MatmulParams p) { gemv_warpgroup<N>(p); }

GEMV_WARPGROUP(32)
GEMV_WARPGROUP(64)
