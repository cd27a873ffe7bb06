// GEMV of 9 to 128 rows by instructions of warpgroups (Hopper), included by gemv.cuh, with the same sums.
//
//   block         N rows of x, 8 strips of weights
//   warps 0..7    two warpgroups of four strips: products
//   warp 8        copies of tiles of x to free stages
//   warp 9        the same of units of weights
//   warps 10, 11  sums of blocks of x, for minima
//
// A stage has two barriers: it is full; it is free.
#include "wgmma.cuh"

constexpr u32 PRODUCT_WARPS = 8, SUM_WARPS = MIN_GROUPS ? 2 : 0;

// A tile of rows of 128 bytes, whose 16-byte parts are exchanged by row % 8: a factor of instructions of warpgroups.
struct SwizzledTile {
    static DEVICE u32 at(u32 row, u32 part) { return row * 128 + (part ^ (row & 7)) * 16; }
};

// Shared memory: stages of tiles of x; stages of units of the strips; sums of blocks of x for each of these; sums of parts.
template <int N> struct GemvStages {
    static constexpr u32 S = 8, MAX_UNITS = 4, X_SIZE = N * 128, UNIT_SIZE = PRODUCT_WARPS * UNIT_BYTES, SUM_COUNT = N / 8 * SUMS;
    u8 *first;
    u64 *barriers;
    u32 n;

    DEVICE u32 x(u32 stage) const { return shared_address(first) + stage * X_SIZE; }
    DEVICE u8 *unit(u32 stage) const { return first + S * X_SIZE + stage * UNIT_SIZE; }
    DEVICE uint2 *sums(u32 stage) const { return (uint2 *)(first + S * X_SIZE + n * UNIT_SIZE) + stage * SUM_COUNT; }
    DEVICE float4 *totals() const { return (float4 *)sums(n); }
    DEVICE u32 x_is_full(u32 stage) const { return shared_address(barriers + stage); }
    DEVICE u32 x_is_free(u32 stage) const { return shared_address(barriers + S + stage); }
    DEVICE u32 unit_is_full(u32 stage) const { return shared_address(barriers + 2 * S + stage); }
    DEVICE u32 unit_is_free(u32 stage) const { return shared_address(barriers + 2 * S + MAX_UNITS + stage); }
    DEVICE u32 has_sums(u32 stage) const { return shared_address(barriers + 2 * S + 2 * MAX_UNITS + stage); }
    static constexpr u32 N_BARRIERS = 2 * S + 3 * MAX_UNITS;

    // Of barrier i, the arrivals of a phase: 1 of a bulk copy, 1 of a warp whose instruction reads, 32 of a warp whose lanes read or write.
    static DEVICE u32 arrivals(u32 i, bool gathers) {
        if (i < 2 * S) return i >= S ? PRODUCT_WARPS + 32 * SUM_WARPS : gathers ? 32 : 1;
        u32 kind = (i - 2 * S) / MAX_UNITS;
        return kind == 0 ? 1 : kind == 1 ? 32 * PRODUCT_WARPS : max(32 * SUM_WARPS, 1u);
    }
};

// Copies all tiles of x of a block, by a warp. Columns behind the last tile are zeros.
template <int N> DEVICE void copy_tiles(const WarpgroupParams &params, const GemvBlock &block, const GemvStages<N> &stages, Units units) {
    constexpr u32 S = GemvStages<N>::S;
    wait_for_inputs();
    Stage stage;
    for (u32 turn = 0; units.has_unit(); units.next(), turn += UNIT)
#pragma unroll 1
        for (u32 j = 0; j < UNIT; j++, stage.next(S)) {
            if (turn + j >= S) wait_for_barrier(stages.x_is_free(stage.index), stage.phase ^ 1);
            if (is_elected()) {
                expect_copies(stages.x_is_full(stage.index), N * 128);
                copy_box(stages.x(stage.index), params.x, 64 * (units.unit * UNIT + j), block.first_row, stages.x_is_full(stage.index));
            }
        }
}

// The same of rows of the choices of an expert.
template <int N> DEVICE void gather_tiles(const GemvBlock &block, const GemvStages<N> &stages, Units units, const u16 *const *rows, u32 lane) {
    constexpr u32 S = GemvStages<N>::S, LAG = 2;
    u32 n_rows = block.n_rows(), part = lane % 8, turn = 0;
    Stage stage, landed;
    auto publish = [&] {
        publish_shared();
        arrive(stages.x_is_full(landed.index));
        landed.next(S);
    };
    for (; units.has_unit(); units.next())
#pragma unroll 1
        for (u32 j = 0; j < UNIT; j++, turn++, stage.next(S)) {
            u32 tile = units.unit * UNIT + j;
            bool is_inside = tile < block.p.k_tiles;
            if (turn >= S) wait_for_barrier(stages.x_is_free(stage.index), stage.phase ^ 1);
            for (u32 row = lane / 8; row < n_rows; row += 4)
                copy16_async(stages.x(stage.index) + SwizzledTile::at(row, part), rows[row] + (is_inside ? 64 * tile : 0) + 8 * part, is_inside);
            commit_copies();
            if (turn < LAG) continue;
            wait_for_copies<LAG>();
            publish();
        }
    wait_for_copies<0>();
    for (u32 i = 0; i < min(turn, LAG); i++) publish();
}

// Copies all units of weights of a block, by a warp. They do not depend on the kernel before.
template <int N> DEVICE void copy_units(const MatmulParams &p, const GemvStages<N> &stages, Units units, const u8 *const *strips) {
    Stage stage;
    for (u32 turn = 0; units.has_unit(); units.next(), turn++, stage.next(stages.n)) {
        u32 left = min((p.n_chunks - units.unit * UNIT_CHUNKS) * CHUNK_BYTES, UNIT_BYTES), barrier = stages.unit_is_full(stage.index);
        u32 to = shared_address(stages.unit(stage.index));
        if (turn >= stages.n) wait_for_barrier(stages.unit_is_free(stage.index), stage.phase ^ 1);
        if (is_elected()) {
            expect_copies(barrier, PRODUCT_WARPS * left);
#pragma unroll
            for (u32 i = 0; i < PRODUCT_WARPS; i++) copy_bulk(to + i * UNIT_BYTES, strips[i] + (u64)units.unit * UNIT_BYTES, left, barrier);
        }
    }
}

// Sums of blocks of x for all units, as of `sum_blocks`, by SUM_WARPS warps: `warp` of them has every second group of 16 rows.
template <int N> DEVICE void sum_tiles(const GemvStages<N> &stages, Units units, u32 n_rows, u32 warp, u32 lane) {
    u32 g = lane >> 2, t = lane & 3, turn = 0, offsets[4];
    for (u32 step = 0; step < 4; step++) offsets[step] = SwizzledTile::at(16 * warp + lane % 16, 2 * step + lane / 16);
    Stage stage, of_unit;
    for (; units.has_unit(); units.next(), turn++, of_unit.next(stages.n)) {
        if (turn >= stages.n) wait_for_barrier(stages.unit_is_free(of_unit.index), of_unit.phase ^ 1);
        // Lanes with t = 0 store sums of row g, with t = 1 of row g + 8.
        uint2 *to = stages.sums(of_unit.index) + (2 * warp + t) * SUMS + g;
#pragma unroll 1
        for (u32 j = 0; j < UNIT; j++, stage.next(GemvStages<N>::S), to += TILE_BLOCKS / 2 * 8) {
            wait_for_barrier(stages.x_is_full(stage.index), stage.phase);
            __syncwarp();
#pragma unroll
            for (u32 i = 0; i < N / 32; i++) {
                if (16 * (2 * i + warp) >= n_rows) break;
                // All columns have the sums of rows g, g + 8.
                float c[TILE_BLOCKS][4] = {};
#pragma unroll
                for (u32 step = 0; step < 4; step++) {
                    u32 a[4];
                    load_matrices(a, stages.x(stage.index) + offsets[step] + i * 32 * 128);
                    multiply_add(c[step / BLOCK_STEPS], a, ONES[0], ONES[0]);
                }
#pragma unroll
                for (u32 pair = 0; pair < TILE_BLOCKS / 2; pair++) {
                    uint2 sums = split_sums(t ? c[2 * pair][2] : c[2 * pair][0], t ? c[2 * pair + 1][2] : c[2 * pair + 1][0]);
                    if (t < 2) to[i * 4 * SUMS + 8 * pair] = sums;
                }
            }
            arrive(stages.x_is_free(stage.index));
        }
        arrive(stages.has_sums(of_unit.index));
    }
}

// Products of four strips, one of each warp, with N rows of x.
template <int N> struct WarpgroupProducts {
    static constexpr int B = N / 8;
    float sum[N / 2], c[N / 2];
    // Not known to the compiler: f16 weights get registers of their own, which loads do not write while instructions read them.
    u32 zero;
    u32 first_matrix;

    DEVICE WarpgroupProducts(const GemvStages<N> &stages, u32 zero) : zero(zero), first_matrix(uniform(matrix_at(stages.x(0)))) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) sum[i] = c[i] = 0.f;
    }

    // The sums of 8 rows, which become zeros.
    DEVICE float4 take(int b) {
        float4 x = make_float4(sum[4 * b], sum[4 * b + 1], sum[4 * b + 2], sum[4 * b + 3]);
        for (int i = 0; i < 4; i++) sum[4 * b + i] = 0.f;
        return x;
    }

    // Adds those of a unit of `n_tiles` tiles. Tiles behind the last one are the last one, and their columns of x zeros.
    DEVICE void add(const GemvStages<N> &stages, Stage &stage, const Stage &of_unit, u32 n_tiles, u32 warp, u32 lane) {
        u32 header[2][5], a[2][4][4], t = lane & 3, last = 0;
        const u8 *unit = stages.unit(of_unit.index) + warp * UNIT_BYTES;
        wait_for_barrier(stages.unit_is_full(of_unit.index), of_unit.phase);
        fence_registers(HAS_INTEGERS ? c : sum);
#pragma unroll
        for (int j = 0; j < UNIT; j++) {
            Codes codes;
            const u8 *chunk = unit + (TILES == 1 ? min((u32)j, n_tiles - 1) : 0) * CHUNK_BYTES;
            load_codes<FromShared>(codes, chunk, j % TILES, lane);
            if (j % TILES == 0) for (int r = 0; r < 2; r++) load_header<FromShared>(header[r], chunk, (lane >> 2) + 8 * r);
#pragma unroll
            for (int step = 0; step < 4; step++) {
                if (HAS_INTEGERS) integer_weights(codes, header, j, step, a[j & 1][step]);
                else scaled_weights(codes, header, j % TILES, step, a[j & 1][step]);
                if (FORMAT == F16)
                    for (int r = 0; r < 4; r++) asm volatile("or.b32 %0, %0, %1;" : "+r"(a[j & 1][step][r]) : "r"(zero));
            }
            wait_for_barrier(stages.x_is_full(stage.index), stage.phase);
            __syncwarp();
            fence_registers(a[j & 1]);
            begin_warpgroup();
            u32 matrix = first_matrix + stage.index * (GemvStages<N>::X_SIZE / 16);
#pragma unroll
            for (int step = 0; step < 4; step++)
                multiply_add_warpgroup(HAS_INTEGERS ? c : sum, a[j & 1][step], matrix + 2 * step, !HAS_INTEGERS || j || step);
            commit_warpgroup();
            // The tile before is done: its registers and its stage are free.
            wait_for_warpgroup<1>();
            if (j > 0 && lane == 0) arrive(stages.x_is_free(last));
            last = stage.index;
            stage.next(GemvStages<N>::S);
        }
        u32 minima[MIN_GROUPS ? MIN_GROUPS : 1][4];
        for (int group = 0; group < MIN_GROUPS; group++) {
            u32 row = integer_minima(header[0], group, t), other = integer_minima(header[1], group, t);
            minima[group][0] = minima[group][2] = row, minima[group][1] = minima[group][3] = other;
        }
        wait_for_warpgroup<0>();
        fence_registers(HAS_INTEGERS ? c : sum);
        if (lane == 0) arrive(stages.x_is_free(last));
        if (MIN_GROUPS) wait_for_barrier(stages.has_sums(of_unit.index), of_unit.phase);
        __syncwarp();
        const uint2 *sums = stages.sums(of_unit.index);
        if (HAS_INTEGERS)
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
        arrive(stages.unit_is_free(of_unit.index));
    }
};

template <int N> DEVICE void gemv_warpgroup(const WarpgroupParams &params) {
    constexpr int B = N / 8;
    using Stages = GemvStages<N>;
    const MatmulParams &p = params.matmul;
    extern __shared__ uint4 memory[];
    __shared__ const u8 *strip_weights[PRODUCT_WARPS];
    __shared__ const u16 *rows_of_x[N];
    __shared__ u64 barriers[Stages::N_BARRIERS];
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32);
    GemvBlock block(p, N);
    if (block.m == 0) return;
    Stages stages = {(u8 *)memory + (stages_at(memory) - shared_address(memory)), barriers, p.n_stages};
    if (threadIdx.x < Stages::N_BARRIERS) init_barrier(shared_address(barriers + threadIdx.x), Stages::arrivals(threadIdx.x, p.blocks));
    publish_shared();
    block.find(strip_weights, rows_of_x);
    u32 n_units = (p.k_tiles + UNIT - 1) / UNIT, n_parts = PARTS / p.n_splits;
    Units units(block.split * n_parts, (block.split + 1) * n_parts, n_units);
    if (warp >= PRODUCT_WARPS) {
        lower_registers<104>();
        if (warp == PRODUCT_WARPS && p.blocks) gather_tiles<N>(block, stages, units, rows_of_x, lane);
        else if (warp == PRODUCT_WARPS) copy_tiles<N>(params, block, stages, units);
        else if (warp == PRODUCT_WARPS + 1) copy_units<N>(p, stages, units, strip_weights);
        else if (MIN_GROUPS) sum_tiles<N>(stages, units, block.n_rows(), warp - PRODUCT_WARPS - 2, lane);
        return;
    }
    raise_registers<200>();
    float4 *totals = stages.totals() + threadIdx.x, *partials = block.partials<B>(PRODUCT_WARPS, warp, lane);
    auto total_of = [&](int b) -> float4 & { return totals[256 * b]; };
    for (int b = 0; b < B; b++) total_of(b) = make_float4(0.f, 0.f, 0.f, 0.f);
    WarpgroupProducts<N> products(stages, p.m >> 31);
    for (Stage stage, of_unit; units.has_unit(); units.next(), of_unit.next(stages.n)) {
        products.add(stages, stage, of_unit, p.k_tiles - units.unit * UNIT, warp, lane);
        if (!units.ends_part()) continue;
#pragma unroll
        for (int b = 0; b < B; b++) {
            float4 x = products.take(b);
            if (p.n_splits > 1) partials[(units.part * PRODUCT_WARPS * B + b) * 32] = x;
            else total_of(b) = add4(total_of(b), x);
        }
    }
    // Residuals are those of kernels before.
    wait_for_inputs();
    auto synchronize = [] { group_barrier(0); };
    if (p.n_splits > 1 && !block.add_parts<B>(n_units, partials, PRODUCT_WARPS, synchronize, total_of)) return;
    float *results = (float *)stages.first;
    synchronize();
#pragma unroll
    for (int b = 0; b < B; b++) block.write_total(results, 8 * b, warp, total_of(b), lane);
    synchronize();
    block.store_results(results, 32 * PRODUCT_WARPS);
}

#define GEMV_WARPGROUP(N) \
    extern "C" __global__ void __launch_bounds__(32 * (PRODUCT_WARPS + 4), 1) gemv_warpgroup_##N(const __grid_constant__ WarpgroupParams p) { gemv_warpgroup<N>(p); }

GEMV_WARPGROUP(32)
GEMV_WARPGROUP(64)
