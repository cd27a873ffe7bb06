// GEMV of up to 128 rows. Blocks of 64 rows of x at most, and of 2, 4 or 8 strips of weights: a warp has a strip, and 8 B rows.
// gemv_warpgroup.cuh has the same by instructions of warpgroups.
//
// Units of weights and their columns of x go through stages of shared memory. Sums of blocks of x, for minima, are computed a stage
// ahead, once for all strips.
//
// Parts are added in their order. Blocks of small matrices have some of the parts each; the last block adds those of all.

// Sums of 8 rows of x in a unit.
constexpr u32 SUMS = MIN_GROUPS * 32;
// Columns of x of a unit.
constexpr u32 X_BYTES = UNIT * 128;
// Rows of a tile of results in shared memory are so much longer than its columns.
constexpr u32 TILE_PADDING = 4;

// Units of the parts of a block.
struct Units {
    u32 part, end_part, unit, n_units;

    DEVICE Units(u32 first, u32 end, u32 n) : part(first), end_part(end), unit(first), n_units(n) {}
    DEVICE bool has_unit() const { return part < end_part && unit < n_units; }
    // Whether the unit is the last one of its part.
    DEVICE bool ends_part() const { return unit + PARTS >= n_units; }
    DEVICE void next() {
        unit += PARTS;
        if (unit >= n_units) unit = ++part;
    }
};

// Bytes from one row of x in a stage to the next: 8 rows are in different banks.
constexpr u32 X_STRIDE = X_BYTES + 16;

// Copies of units to stages of shared memory: of the strips, and of rows of x.
struct StageCopies {
    const MatmulParams &p;
    const u8 *const *strips;
    const u16 *const *rows;
    u32 n_rows, n_strips;

#if __CUDA_ARCH__ >= 900
    // By bulk copies. Each is an instruction of one lane, so warps take them in turns.
    u32 barriers;

    DEVICE StageCopies(const MatmulParams &p, const u8 *const *strips, const u16 *const *rows, u32 n_rows, u32 n_strips)
        : p(p), strips(strips), rows(rows), n_rows(n_rows), n_strips(n_strips) {
        __shared__ u64 of_stages[4];
        barriers = shared_address(of_stages);
        if (threadIdx.x < 4) init_barrier(barriers + 8 * threadIdx.x, 1);
        publish_shared();
        __syncthreads();
    }

    DEVICE void start_weights(u8 *to, u32 stage, u32 unit) {
        u32 left = min((p.n_chunks - unit * UNIT_CHUNKS) * CHUNK_BYTES, UNIT_BYTES), warp = uniform(threadIdx.x / 32);
        if (!is_elected()) return;
        if (warp == 0) expect_copies(barriers + 8 * stage, n_strips * left + n_rows * row_bytes(unit));
        for (u32 i = warp; i < n_strips; i += blockDim.x / 32)
            copy_bulk(shared_address(to + i * UNIT_BYTES), strips[i] + (u64)unit * UNIT_BYTES, left, barriers + 8 * stage);
    }

    DEVICE u32 row_bytes(u32 unit) const { return min(p.k_tiles - unit * UNIT, (u32)UNIT) * 128; }

    DEVICE void start_rows(u8 *to, u32 stage, u32 unit) {
        u32 warp = uniform(threadIdx.x / 32);
        if (!is_elected()) return;
        for (u32 i = warp; i < n_rows; i += blockDim.x / 32)
            copy_bulk(shared_address(to + n_strips * UNIT_BYTES + i * X_STRIDE), rows[i] + unit * UNIT * 64, row_bytes(unit), barriers + 8 * stage);
    }

    DEVICE void end_stage() {}

    // Turn i of a stage has phase i % 2.
    DEVICE void wait(u32 stage, u32 phase, u32) { wait_for_barrier(barriers + 8 * stage, phase); }
#else
    DEVICE StageCopies(const MatmulParams &p, const u8 *const *strips, const u16 *const *rows, u32 n_rows, u32 n_strips)
        : p(p), strips(strips), rows(rows), n_rows(n_rows), n_strips(n_strips) {}

    DEVICE void start_weights(u8 *to, u32, u32 unit) {
        u32 left = (p.n_chunks - unit * UNIT_CHUNKS) * CHUNK_BYTES;
        for (u32 i = threadIdx.x; i < n_strips * (UNIT_BYTES / 16); i += blockDim.x) {
            u32 strip = i / (UNIT_BYTES / 16), at = i % (UNIT_BYTES / 16) * 16;
            if (at < left) copy16_async(shared_address(to) + 16 * i, strips[strip] + (u64)unit * UNIT_BYTES + at, true);
        }
    }

    DEVICE void start_rows(u8 *to, u32, u32 unit) {
        for (u32 i = threadIdx.x; i < n_rows * (X_BYTES / 16); i += blockDim.x) {
            u32 row = i / (X_BYTES / 16), part = i % (X_BYTES / 16);
            if (unit * UNIT + part / 8 < p.k_tiles)
                copy16_async(shared_address(to + n_strips * UNIT_BYTES) + row * X_STRIDE + 16 * part, rows[row] + unit * UNIT * 64 + 8 * part, true);
        }
    }

    DEVICE void end_stage() { commit_copies(); }

    // Waits until at most `n_later` later stages are under way.
    DEVICE void wait(u32, u32, u32 n_later) {
        if (n_later == 2) wait_for_copies<2>();
        else if (n_later == 1) wait_for_copies<1>();
        else wait_for_copies<0>();
    }
#endif
};

// Sums of blocks of 8 rows of x, in a tile, see `split_sums`. `x`: address of the rows; `sums`: [pairs of blocks of a unit][8 rows].
DEVICE void sum_blocks(uint2 *sums, u32 x, u32 tile, u32 lane) {
    float c[2][2][4];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 b[4];
        load_matrices(b, x + (lane & 7) * X_STRIDE + 128 * tile + 64 * half + lane / 8 * 16);
        multiply(c[half][0], ONES, b[0], b[1]);
        if (BLOCK == 32) multiply_add(c[half][0], ONES, b[2], b[3]);
        else multiply(c[half][1], ONES, b[2], b[3]);
    }
    if (lane >= 4) return;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        uint2 *to = sums + tile * TILE_BLOCKS / 2 * 8 + 2 * lane + i;
        if (BLOCK == 32) *to = split_sums(c[0][0][i], c[1][0][i]);
        else to[0] = split_sums(c[0][0][i], c[0][1][i]), to[8] = split_sums(c[1][0][i], c[1][1][i]);
    }
}

// Products of a strip with 8 B rows of x.
template <int B> struct StripProducts {
    float sum[B][4];

    DEVICE void clear() {
#pragma unroll
        for (int b = 0; b < B; b++) for (int i = 0; i < 4; i++) sum[b][i] = 0.f;
    }

    // Adds those of a unit of `n_tiles` tiles. `x`: address of the rows; `sums`: those of blocks of x, of B times 8 rows.
    DEVICE void add(const u8 *unit, u32 x, const uint2 *sums, u32 n_tiles, u32 lane) {
        u32 header[2][5];
        float c[B][4];
        x += (lane & 7) * X_STRIDE + lane / 8 * 16;
        float mins[B][4] = {};
#pragma unroll
        for (int j = 0; j < UNIT; j++) {
            if (TILES == 1 && j >= n_tiles) break;
            Codes codes;
            const u8 *chunk = unit + j / TILES * CHUNK_BYTES;
            load_codes<FromShared>(codes, chunk, j % TILES, lane);
            if (j % TILES == 0) for (int r = 0; r < 2; r++) load_header<FromShared>(header[r], chunk, (lane >> 2) + 8 * r);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 a[2][4];
#pragma unroll
                for (int step = 0; step < 2; step++) {
                    if (HAS_INTEGERS) integer_weights(codes, header, j, 2 * half + step, a[step]);
                    else scaled_weights(codes, header, j % TILES, 2 * half + step, a[step]);
                }
#pragma unroll
                for (int b = 0; b < B; b++) {
                    u32 columns[4];
                    load_matrices(columns, x + 8 * b * X_STRIDE + 128 * j + 64 * half);
                    if (HAS_INTEGERS && j == 0 && half == 0) multiply(c[b], a[0], columns[0], columns[1]);
                    else multiply_add(HAS_INTEGERS ? c[b] : sum[b], a[0], columns[0], columns[1]);
                    multiply_add(HAS_INTEGERS ? c[b] : sum[b], a[1], columns[2], columns[3]);
                }
            }
        }
        if (!HAS_INTEGERS) return;
#pragma unroll
        for (int group = 0; group < MIN_GROUPS; group++) {
            u32 t = lane & 3, row = integer_minima(header[0], group, t), other = integer_minima(header[1], group, t), a[4] = {row, other, row, other};
#pragma unroll
            for (int b = 0; b < B; b++) {
                uint2 of_x = sums[(b * MIN_GROUPS + group) * 32 + 8 * t + lane / 4];
                multiply_add(mins[b], a, of_x.x, of_x.y);
            }
        }
#pragma unroll
        for (int b = 0; b < B; b++) add_scaled(sum[b], c[b], mins[b], header);
    }
};

// A block of strips and rows. Grid: (blocks of strips of all factors, or of both of a gated pair, times blocks of rows times splits,
// blocks of choices of experts, see moe.cu). Expert e has the rows e N .. (e + 1) N of the weights.
struct GemvBlock {
    const MatmulParams &p;
    u32 rows, n_strips, split, tile, m, first_row = 0, first_choice = 0, first_n = 0;

    // Experts: waits for inputs; m may be 0.
    DEVICE GemvBlock(const MatmulParams &p, u32 rows)
        : p(p), rows(rows), n_strips(p.block_strips), split(blockIdx.x % p.n_splits), tile(blockIdx.x / p.n_splits), m(p.m) {
        if (p.blocks) {
            wait_for_inputs();
            const u32 *block = p.blocks + 3 * blockIdx.y;
            first_choice = block[1], m = block[2];
            first_n = block[0] * p.factors[0].n;
        } else {
            u32 n_row_blocks = (m + rows - 1) / rows;
            first_row = tile % n_row_blocks * rows, tile /= n_row_blocks;
        }
    }

    // Factor of strip i of the block, and the strip within it; behind the last one n_factors.
    DEVICE u32 locate(u32 i, u32 &strip) const {
        if (p.is_gated) {
            strip = tile * (n_strips / 2) + i % (n_strips / 2);
            return strip < (p.factors[0].n + 15) / 16 ? i / (n_strips / 2) : p.n_factors;
        }
        strip = tile * n_strips + i;
        if (p.blocks) {
            strip += first_n / 16;
            return strip < (first_n + p.factors[0].n + 15) / 16 ? 0 : p.n_factors;
        }
        u32 index = 0;
        for (; index < p.n_factors; index++) {
            u32 n = (p.factors[index].n + 15) / 16;
            if (strip < n) break;
            strip -= n;
        }
        return index;
    }

    DEVICE u32 n_rows() const { return min(rows, m - first_row); }

    DEVICE u32 row_of_x(u32 i) const {
        u32 row = first_row + i;
        return p.blocks ? p.order[first_choice + row] / p.choices_per_row : row;
    }

    // Addresses of strips and rows. The block synchronizes.
    DEVICE void find(const u8 **strips, const u16 **rows_of_x) const {
        u32 i = threadIdx.x;
        if (i < n_rows()) {
            rows_of_x[i] = p.x + (size_t)row_of_x(i) * p.x_stride;
        }
        if (i < n_strips) {
            u32 strip, index = locate(i, strip);
            // Past the last strip: the first one of the block, or of an expert that ends before the block. No result is stored twice.
            if (index == p.n_factors) index = locate(0, strip);
            if (index == p.n_factors) index = 0, strip = first_n / 16;
            strips[i] = p.factors[index].weights + (u64)strip * p.n_chunks * CHUNK_BYTES;
        }
        __syncthreads();
    }

    // Sums of parts of the lane, of B groups of 8 rows: those of `part` and group b are at (part * n_warps * B + b) * 32.
    template <int B> DEVICE float4 *partials(u32 n_warps, u32 warp, u32 lane) const {
        u32 block = blockIdx.y * (gridDim.x / p.n_splits) + blockIdx.x / p.n_splits;
        return p.partials + (size_t)block * PARTS * n_warps * B * 32 + warp * B * 32 + lane;
    }

    // Adds the sums of all parts to `total_of(b)`, by the last block that has stored its own; others get false. `synchronize`: waits for
    // all threads that have sums.
    template <int B, class Synchronize, class Totals>
    DEVICE bool add_parts(u32 n_units, const float4 *partials, u32 n_warps, Synchronize synchronize, Totals total_of) const {
        __shared__ bool is_last;
        u32 *counter = p.counters + blockIdx.y * (gridDim.x / p.n_splits) + blockIdx.x / p.n_splits;
        __threadfence();
        synchronize();
        if (threadIdx.x == 0) {
            is_last = atomicAdd(counter, 1) + 1 == p.n_splits;
            if (is_last) *counter = 0;
        }
        synchronize();
        if (!is_last) return false;
        __threadfence();
        // Loads of two groups are under way.
        constexpr int AT_ONCE = B < 2 ? B : 2;
#pragma unroll
        for (int first = 0; first < B; first += AT_ONCE) {
            float4 x[AT_ONCE][PARTS];
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++)
#pragma unroll
                for (u32 part = 0; part < PARTS; part++) if (part < n_units) x[b][part] = load_l2(partials + (part * n_warps * B + first + b) * 32);
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++) {
                float4 total = total_of(first + b);
#pragma unroll
                for (u32 part = 0; part < PARTS; part++) if (part < n_units) total = add4(total, x[b][part]);
                total_of(first + b) = total;
            }
        }
        return true;
    }

    DEVICE u32 columns() const { return 16 * n_strips; }
    DEVICE u32 stride() const { return columns() + TILE_PADDING; }

    // Writes a lane's sums of rows row + 2 t, row + 2 t + 1 and a strip to `results`: [rows][16 of each strip].
    DEVICE void write_total(float *results, u32 row, u32 strip, float4 total, u32 lane) const {
        float *to = results + (row + 2 * (lane & 3)) * stride() + 16 * strip + lane / 4;
        to[0] = total.x, to[stride()] = total.y, to[8] = total.z, to[stride() + 8] = total.w;
    }

    // Stores `apply` of rows first, first + step .. of the block and columns column .. column + 3, with their residuals, of which AT_ONCE
    // are loaded at once.
    template <u32 AT_ONCE, class Apply> DEVICE void store_rows(const Factor &f, u32 column, u32 first, u32 step, Apply apply) const {
#pragma unroll 1
        for (; first < n_rows(); first += AT_ONCE * step) {
            size_t at[AT_ONCE];
            float4 residual[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                u32 row = first + i * step;
                residual[i] = make_float4(0.f, 0.f, 0.f, 0.f);
                if (row >= n_rows()) continue;
                at[i] = (size_t)(p.blocks ? p.order[first_choice + first_row + row] : first_row + row) * f.out_stride + column - first_n;
                if (p.accumulate) residual[i] = *(const float4 *)(f.out.values + at[i]);
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                if (first + i * step < n_rows()) store4(f.out, at[i], add4(apply(first + i * step), residual[i]));
        }
    }

    // Bias, activation and residual of `results`, which `n_threads` threads have written before a barrier.
    DEVICE void store_results(const float *results, u32 n_threads) const {
        u32 width = p.is_gated ? columns() / 2 : columns(), lanes = width / 4, n = threadIdx.x % lanes * 4, strip, index = locate(n / 16, strip);
        if (index == p.n_factors) return;
        const Factor &f = p.factors[index];
        u32 column = strip * 16 + n % 16, first = threadIdx.x / lanes, step = n_threads / lanes;
        results += n;
        // Rows of an expert may begin within a strip.
        if (column < first_n || column + 4 > first_n + f.n || (f.out_stride | first_n) % 4) {
#pragma unroll 1
            for (u32 row = first; row < n_rows(); row += step)
#pragma unroll 1
                for (u32 c = 0; c < 4; c++)
                    if (column + c >= first_n && column + c < first_n + f.n) store_result(f, results + row * stride() + c, row, column + c);
            return;
        }
        auto load = [&](u32 row, u32 behind) { return *(const float4 *)(results + row * stride() + behind); };
        if (p.is_gated) return store_rows<1>(f, column, first, step, [&](u32 row) {
            float4 y = load(row, 0), up = load(row, width);
            auto apply = [&](float gate, float up) { return gated_activation(gate, up, p.activation, p.alpha, p.limit); };
            return make_float4(apply(y.x, up.x), apply(y.y, up.y), apply(y.z, up.z), apply(y.w, up.w));
        });
        float4 bias = make_float4(0.f, 0.f, 0.f, 0.f);
        if (f.bias) bias = *(const float4 *)(f.bias + column);
        if (p.activation == ACTIVATION_NONE) return store_rows<4>(f, column, first, step, [&](u32 row) { return add4(load(row, 0), bias); });
        store_rows<1>(f, column, first, step, [&](u32 row) {
            float4 y = add4(load(row, 0), bias);
            return make_float4(activate(y.x, p.activation), activate(y.y, p.activation), activate(y.z, p.activation), activate(y.w, p.activation));
        });
    }

    // One of them.
    DEVICE void store_result(const Factor &f, const float *result, u32 row, u32 column) const {
        u32 y_row = first_row + row;
        size_t at = (size_t)(p.blocks ? p.order[first_choice + y_row] : y_row) * f.out_stride + column - first_n;
        float y = *result;
        if (p.is_gated) {
            y = gated_activation(y, result[columns() / 2], p.activation, p.alpha, p.limit);
        } else {
            if (f.bias) y += f.bias[column];
            y = activate(y, p.activation);
            if (p.accumulate) y += f.out.values[at];
        }
        store(f.out, at, y);
    }
};

template <int B> DEVICE void gemv(const MatmulParams &p) {
    extern __shared__ uint4 memory[];
    __shared__ const u8 *strip_weights[8];
    __shared__ const u16 *rows_of_x[64];
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    u32 n_strips = p.block_strips, strip_of_warp = warp % n_strips, rows = n_warps / n_strips * 8 * B;
    GemvBlock block(p, rows);
    if (block.m == 0) return;
    block.find(strip_weights, rows_of_x);

    // Stages: units of the strips, then rows of x. Behind them sums of blocks of x for two stages, and sums of parts.
    u32 weight_bytes = n_strips * UNIT_BYTES, stage_bytes = weight_bytes + rows * X_STRIDE, n_rows = block.n_rows();
    u8 *stages = (u8 *)memory;
    uint2 *all_sums = (uint2 *)(stages + p.n_stages * stage_bytes);
    u32 n_sums = rows / 8 * SUMS;
    u32 n_units = (p.k_tiles + UNIT - 1) / UNIT, n_parts = PARTS / p.n_splits;
    Units units(block.split * n_parts, (block.split + 1) * n_parts, n_units);
    StageCopies copies(p, strip_weights, rows_of_x, n_rows, n_strips);
    auto at = [&](u32 stage) { return stages + stage * stage_bytes; };
    auto sum_rows = [&](u32 stage) {
        u32 x = shared_address(at(stage) + weight_bytes);
        for (u32 i = warp; i < rows / 8 * UNIT; i += n_warps)
            sum_blocks(all_sums + stage * n_sums + i / UNIT * SUMS, x + i / UNIT * 8 * X_STRIDE, i % UNIT, lane);
    };

    // Copies are ahead by all stages but one.
    Units ahead = units;
    for (u32 i = 0; i < p.n_stages - 1 && ahead.has_unit(); i++, ahead.next()) copies.start_weights(at(i), i, ahead.unit);
    if (!p.blocks) wait_for_inputs();
    ahead = units;
    for (u32 i = 0; i < p.n_stages - 1; i++, ahead.next()) {
        if (ahead.has_unit()) copies.start_rows(at(i), i, ahead.unit);
        copies.end_stage();
    }
    if (units.has_unit()) copies.wait(0, 0, p.n_stages - 2);
    __syncthreads();
    if (SUMS) sum_rows(0);

    StripProducts<B> products;
    products.clear();
    // Sums of the parts so far, of the lane.
    float4 *totals = (float4 *)(all_sums + p.n_stages * n_sums) + warp * B * 32 + lane;
    for (int b = 0; b < B; b++) totals[32 * b] = make_float4(0.f, 0.f, 0.f, 0.f);
    u32 warp_rows = warp / n_strips * 8 * B, stage = 0, phase = 0;
    float4 *partials = block.partials<B>(n_warps, warp, lane);
    for (; units.has_unit(); units.next(), ahead.next()) {
        u32 next = stage + 1 == p.n_stages ? 0 : stage + 1, last = stage ? stage - 1 : p.n_stages - 1;
        if (next == 0) phase ^= 1;
        Units after = units;
        after.next();
        if (after.has_unit()) copies.wait(next, phase, p.n_stages - 3);
        // The sums of this stage are there, and the stage before it is free.
        __syncthreads();
        if (ahead.has_unit()) copies.start_weights(at(last), last, ahead.unit), copies.start_rows(at(last), last, ahead.unit);
        copies.end_stage();
        if (SUMS) sum_rows(next);
        products.add(at(stage) + strip_of_warp * UNIT_BYTES, shared_address(at(stage) + weight_bytes + warp_rows * X_STRIDE),
            all_sums + stage * n_sums + warp_rows / 8 * SUMS, p.k_tiles - units.unit * UNIT, lane);
        stage = next;
        if (!units.ends_part()) continue;
#pragma unroll
        for (int b = 0; b < B; b++) {
            float4 x = make_float4(products.sum[b][0], products.sum[b][1], products.sum[b][2], products.sum[b][3]);
            if (p.n_splits > 1) partials[(units.part * n_warps * B + b) * 32] = x;
            else totals[32 * b] = add4(totals[32 * b], x);
        }
        products.clear();
    }
    if (p.n_splits > 1 && !block.add_parts<B>(n_units, partials, n_warps, [] { __syncthreads(); }, [&](int b) -> float4 & { return totals[32 * b]; })) return;
    float *results = (float *)memory;
    __syncthreads();
    for (int b = 0; b < B; b++) block.write_total(results, warp_rows + 8 * b, strip_of_warp, totals[32 * b], lane);
    __syncthreads();
    block.store_results(results, blockDim.x);
}

extern "C" __global__ void __launch_bounds__(512, 1) gemv_8(const __grid_constant__ MatmulParams p) { gemv<1>(p); }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gemv_warpgroup.cuh"
#else
extern "C" __global__ void __launch_bounds__(512, 1) gemv_32(const __grid_constant__ MatmulParams p) { gemv<4>(p); }
#endif
