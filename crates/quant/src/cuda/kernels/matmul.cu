// modules: q4_0 -DFORMAT=0; q4_1 -DFORMAT=1; q5_0 -DFORMAT=2; q5_1 -DFORMAT=3;
//   q8_0 -DFORMAT=4; q2_k -DFORMAT=5; q3_k -DFORMAT=6; q4_k -DFORMAT=7;
//   q5_k -DFORMAT=8; q6_k -DFORMAT=9; iq4_nl -DFORMAT=10; iq4_xs -DFORMAT=11;
//   mxfp4 -DFORMAT=12; f16 -DFORMAT=13
//
// Products with weights in strips, see format.cuh: y[m, n] = act(x[m, k] w[n, k] + bias).
//
//   gemv_row   one row. A block takes strips in turns; its 8 warps take units of 4 tiles in turns, and add their sums in order.
//              Weights come by bulk copies through slots of shared memory (Hopper and later).
//   gemv_B     up to 8 B rows, in the same way. Weights go from memory into the registers of instructions, one unit ahead;
//              activations come from L1 and L2.
//   gemm       128 rows of weights x 128 rows of activations a block, a tile at a time; 8 warps of 32 x 64. Weights as above;
//              activations through stages of shared memory.
//   wgmma_N    128 rows of weights x N rows of activations a block, by instructions of warpgroups (Hopper).
//   embed      rows of a table.
//
// GEMM reads activations in an order of its own, see `operand_index`: rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of a step's factor are
// columns 4 t .. of the 16, which lane t has of the weights.
//
// Activations are f16, sums f32. GEMM has weights in f16. GEMV has exact codes: the product of each block of 32 or 16 columns is
// scaled in f32. Four pairs of blocks are added as (0 + 1) + (2 + 3), then to the sum of the warp, in both kernels: the sums of a
// row of y do not depend on the other rows of x.
#include "format.cuh"
#include "row_norm.cuh"

constexpr int UNIT = FORMAT == F16 ? 2 : 4; // Tiles.
constexpr int UNIT_CHUNKS = UNIT / TILES > 0 ? UNIT / TILES : 1;
constexpr int WARPS = 8;

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
    u32 unused;
};

struct Unit {
    Raw chunks[UNIT_CHUNKS];
};

// Loads the unit of tiles from `first` on; behind the last tile of a row the last one, whose activations are zeros.
DEVICE void load_unit(Unit &u, const u8 *strip, u32 first, u32 k_tiles, u32 lane) {
#pragma unroll
    for (int i = 0; i < UNIT_CHUNKS; i++)
        load_raw<FromGlobal>(u.chunks[i], strip + (u64)min(first / TILES + i, (k_tiles - 1) / TILES) * CHUNK_BYTES, lane);
}

// Tiles of four pairs of blocks; pairs of a tile.
constexpr int GROUP_TILES = BLOCK / 8;
constexpr int TILE_PAIRS = TILE_BLOCKS / 2;

// Adds the products of a unit of tiles from `first` on. `rows[b]`: the lane's columns of its row of block b.
template <int B>
DEVICE void multiply_unit(float (&sum)[B][4], const Unit &u, u32 first, u32 k_tiles, const u16 *const (&rows)[B]) {
    constexpr u32 ONES[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
    // Sums of the first pair of blocks, or of the first two; of the third.
    float first_pairs[B][4], third_pair[B][4];
#pragma unroll
    for (int j = 0; j < UNIT; j++) {
        // Chunks of 4 tiles are whole units.
        bool is_inside = TILES == 4 || first + j < k_tiles;
        const Raw &raw = u.chunks[j / TILES];
        if (FORMAT == F16) {
            if (!is_inside) break;
#pragma unroll
            for (int step = 0; step < 4; step++) {
                u32 a[4];
                codes_of(raw, j % TILES, step, a);
#pragma unroll
                for (int b = 0; b < B; b++) {
                    uint2 x = *(const uint2 *)(rows[b] + (first + j) * 64 + 16 * step);
                    multiply_add(sum[b], a, x.x, x.y);
                }
            }
            continue;
        }
#pragma unroll
        for (int i = 0; i < TILE_PAIRS; i++) {
            float pair[B][4] = {};
            if (is_inside) {
#pragma unroll
                for (int h = 2 * i; h < 2 * i + 2; h++) {
                    BlockScale scales[2];
                    for (int r = 0; r < 2; r++) scales[r] = block_scale(raw.header[r], j % TILES, h, r);
                    u32 a[BLOCK_STEPS][4];
                    for (int k = 0; k < BLOCK_STEPS; k++) codes_of(raw, j % TILES, BLOCK_STEPS * h + k, a[k]);
#pragma unroll
                    for (int b = 0; b < B; b++) {
                        float c[4] = {}, of_x[4] = {};
#pragma unroll
                        for (int k = 0; k < BLOCK_STEPS; k++) {
                            uint2 x = *(const uint2 *)(rows[b] + (first + j) * 64 + 16 * (BLOCK_STEPS * h + k));
                            multiply_add(c, a[k], x.x, x.y);
                            if (NEEDS_SUM) multiply_add(of_x, ONES, x.x, x.y);
                        }
#pragma unroll
                        for (int e = 0; e < 4; e++) pair[b][e] = add_block(pair[b][e], scales[e >> 1], c[e], of_x[e & 1], e >> 1);
                    }
                }
            }
            int index = j % GROUP_TILES * TILE_PAIRS + i;
#pragma unroll
            for (int b = 0; b < B; b++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    if (index == 0) first_pairs[b][e] = pair[b][e];
                    if (index == 1) first_pairs[b][e] += pair[b][e];
                    if (index == 2) third_pair[b][e] = pair[b][e];
                    if (index == 3) sum[b][e] += first_pairs[b][e] + (third_pair[b][e] + pair[b][e]);
                }
        }
    }
}

// Adds the products of a strip with 8 B rows of x to the sums. `rows[b]`: the lane's columns of its row of block b. `next` is the
// first unit of the warp, and becomes that of the strip at `then`, if there is one.
template <int B>
DEVICE void multiply(float (&sum)[B][4], Unit &next, const u8 *strip, const u8 *then, u32 k_tiles, u32 warp, u32 lane, const u16 *const (&rows)[B]) {
    constexpr u32 STEP = WARPS * UNIT;
    auto load_after = [&](Unit &u, u32 first) {
        if (first + STEP < k_tiles) load_unit(u, strip, first + STEP, k_tiles, lane);
        else if (then) load_unit(u, then, warp * UNIT, k_tiles, lane);
    };
    u32 first = warp * UNIT;
    if (first >= k_tiles) return;
    while (true) {
        Unit other;
        load_after(other, first);
        multiply_unit<B>(sum, next, first, k_tiles, rows);
        first += STEP;
        // Two units in turns need no copies of registers, but more of them.
        constexpr bool IN_TURNS = B == 1 && plane4(FORMAT) && !plane2(FORMAT) && !plane1(FORMAT);
        if (!IN_TURNS || first >= k_tiles) {
            next = other;
            if (first >= k_tiles) break;
            continue;
        }
        load_after(next, first);
        multiply_unit<B>(sum, other, first, k_tiles, rows);
        first += STEP;
        if (first >= k_tiles) break;
    }
}

// Up to 8 B rows. Grid: strips of all factors in turns; of one of a gated pair, with the gate first; or of an expert, and blocks
// of choices, see moe.cu. Expert e has the rows e N .. (e + 1) N of the weights.
template <int B> DEVICE void gemv(const MatmulParams &p) {
    extern __shared__ float partial[];
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
    u64 strip_bytes = (u64)p.n_chunks * CHUNK_BYTES;
    u32 first_strip = 0, n_items = (p.factors[0].n + 15) / 16, first_choice = 0, first_n = 0, m = p.m;
    if (p.blocks) {
        wait_for_inputs();
        const u32 *block = p.blocks + 3 * blockIdx.y;
        first_choice = block[1], m = block[2];
        if (m == 0) return;
        first_n = block[0] * p.factors[0].n;
        first_strip = first_n / 16;
        n_items = (first_n + p.factors[0].n + 15) / 16 - first_strip;
    } else if (!p.is_gated) {
        for (u32 i = 1; i < p.n_factors; i++) n_items += (p.factors[i].n + 15) / 16;
    }
    // Factor and strip of an item.
    auto locate = [&](u32 item, u32 &strip) -> u32 {
        u32 index = 0;
        strip = first_strip + item;
        if (p.is_gated || p.blocks) return 0;
        for (; index + 1 < p.n_factors; index++) {
            u32 n = (p.factors[index].n + 15) / 16;
            if (strip < n) break;
            strip -= n;
        }
        return index;
    };
    auto weights = [&](u32 item) -> const u8 * {
        u32 strip, index = locate(item, strip);
        return p.factors[index].weights + strip * strip_bytes;
    };
    if (blockIdx.x >= n_items) return;
    Unit next;
    load_unit(next, weights(blockIdx.x), warp * UNIT, p.k_tiles, lane);
    if (!p.blocks) wait_for_inputs();
    // Behind the last row: the last one, whose results are not stored.
    const u16 *rows[B];
    for (int b = 0; b < B; b++) {
        u32 row = min(8 * b + g, m - 1);
        if (p.blocks) row = p.order[first_choice + row] / p.choices_per_row;
        rows[b] = p.x + (size_t)row * p.x_stride + 4 * t;
    }
    constexpr int LEN = 16 * 8 * B;
    for (u32 item = blockIdx.x; item < n_items; item += gridDim.x) {
        u32 strip, index = locate(item, strip);
        const Factor &f = p.factors[index];
        __syncthreads();
        for (u32 pass = 0; pass <= p.is_gated; pass++) {
            bool has_pass = pass < p.is_gated;
            const u8 *then = has_pass ? p.factors[1].weights + strip * strip_bytes : item + gridDim.x < n_items ? weights(item + gridDim.x) : nullptr;
            float sum[B][4] = {};
            multiply<B>(sum, next, p.factors[index + pass].weights + strip * strip_bytes, then, p.k_tiles, warp, lane, rows);
#pragma unroll
            for (int b = 0; b < B; b++) for (int i = 0; i < 4; i++)
                partial[(pass * WARPS + warp) * LEN + (g + 8 * (i >> 1)) * 8 * B + 8 * b + 2 * t + (i & 1)] = sum[b][i];
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < LEN; i += 32 * WARPS) {
            u32 row = i / 16, n = i % 16, column = strip * 16 + n;
            if (row >= m || column < first_n || column >= first_n + f.n) continue;
            const float *from = partial + n * 8 * B + row;
            float y = 0.f;
            // In the order of the warps.
            for (int w = 0; w < WARPS; w++) y += from[w * LEN];
            size_t at = (size_t)(p.blocks ? p.order[first_choice + row] : row) * f.out_stride + column - first_n;
            if (p.is_gated) {
                float up = 0.f;
                for (int w = 0; w < WARPS; w++) up += from[(WARPS + w) * LEN];
                y = gated_activation(y, up, p.activation, p.alpha, p.limit);
            } else {
                if (f.bias) y += f.bias[column];
                y = activate(y, p.activation);
                if (p.accumulate) y += f.out.values[at];
            }
            store(f.out, at, y);
        }
    }
}

// Slots of a warp's weights in shared memory: units on their way.
constexpr u32 UNIT_BYTES = UNIT_CHUNKS * CHUNK_BYTES;
constexpr u32 SLOTS = UNIT_BYTES > 4000 ? 2 : 3;
// Groups of 8 warps of a block, each with strips of its own.
constexpr u32 GROUPS = 2;

#if __CUDA_ARCH__ >= 900
// Place of column c of the operand in shared memory: the 8 columns of a lane in a block of 32 are adjacent.
DEVICE u32 row_index(u32 c) {
    return FORMAT == F16 || BLOCK == 16 ? c : (c & ~31u) | (c & 12) << 1 | (c & 16) >> 2 | (c & 3);
}

// Products of one row: 8 blocks at once are the columns of an instruction's second factor, which is zero elsewhere.
struct RowProducts {
    u32 masks[8]; // f16 1, twice, for block g; 0 for the others.
    // Even t: row g; odd t: row g + 8. f16 weights: rows g and g + 8.
    float sum, sums[4];

    DEVICE RowProducts(u32 lane) {
        for (u32 q = 0; q < 8; q++) masks[q] = lane >> 2 == q ? 0x3c003c00u : 0u;
    }

    DEVICE void clear() {
        sum = 0.f;
        for (int i = 0; i < 4; i++) sums[i] = 0.f;
    }

    // Adds the products of a unit with its columns of x. `n_tiles`: those of the unit that are there.
    DEVICE void add(const u8 *unit, const u16 *x, u32 n_tiles, u32 lane) {
        Unit u;
#pragma unroll
        for (int i = 0; i < UNIT_CHUNKS; i++) load_codes<FromShared>(u.chunks[i], unit + i * CHUNK_BYTES, lane);
        if (FORMAT == F16) {
#pragma unroll
            for (int j = 0; j < UNIT; j++) {
                if (j >= n_tiles) break;
#pragma unroll
                for (int step = 0; step < 4; step++) {
                    u32 a[4];
                    codes_of(u.chunks[j / TILES], j % TILES, step, a);
                    uint2 b = *(const uint2 *)(x + 64 * j + 16 * step + 4 * (lane & 3));
                    multiply_add(sums, a, b.x, b.y);
                }
            }
            return;
        }
#pragma unroll
        for (int group = 0; group < UNIT / GROUP_TILES; group++) add_group(u, unit, x + group * 64 * GROUP_TILES, group, n_tiles, lane);
    }

    DEVICE void add_group(const Unit &u, const u8 *unit, const u16 *x, int group, u32 n_tiles, u32 lane) {
        constexpr u32 ONES[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
        u32 t = lane & 3, own[2 * BLOCK_STEPS];
        if (BLOCK_STEPS == 2) *(uint4 *)own = *(const uint4 *)(x + 8 * lane);
        else *(uint2 *)own = *(const uint2 *)(x + 4 * lane);
        float of_x[4] = {}, c[2][4] = {};
#pragma unroll
        for (int k = 0; k < BLOCK_STEPS; k++) if (NEEDS_SUM) multiply_add(of_x, ONES, own[2 * k], own[2 * k + 1]);
#pragma unroll
        for (int q = 0; q < 8; q++) {
            int j = group * GROUP_TILES + q / TILE_BLOCKS;
            if (TILES == 1 && j >= n_tiles) break;
#pragma unroll
            for (int k = 0; k < BLOCK_STEPS; k++) {
                u32 a[4];
                codes_of(u.chunks[j / TILES], j % TILES, q % TILE_BLOCKS * BLOCK_STEPS + k, a);
                multiply_add(c[q / 4], a, mul_half2(own[2 * k], masks[q]), mul_half2(own[2 * k + 1], masks[q]));
            }
        }
        // The lane has blocks 2 t and 2 t + 1, of rows g and g + 8.
        float z[2] = {};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 row = (lane >> 2) + 8 * r, h[5];
            if (TILES == 4) load_header<FromShared>(h, unit, row);
            else if (t < n_tiles) load_header<FromShared>(h, unit + t * CHUNK_BYTES, row);
            u32 word = t & 2 ? (t & 1 ? h[3] : h[2]) : (t & 1 ? h[1] : h[0]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                BlockScale s = header_of(FORMAT) == Q4K ? scale_of_bits(h, t, i, r)
                    : BLOCK == 16 ? scale_of_byte(word, 2 * group + i, h[4], r) : scale_of_halves(h[0], h[1], i, r);
                if (TILES == 1 && t >= n_tiles) s = {0.f, 0.f};
                z[r] = add_block(z[r], s, c[0][2 * r + i] + c[1][2 * r + i], of_x[i], r);
            }
        }
        float kept = t & 1 ? z[1] : z[0];
        kept += __shfl_xor_sync(0xffffffff, t & 1 ? z[0] : z[1], 1);
        sum += kept + __shfl_xor_sync(0xffffffff, kept, 2);
    }

    // Sums of the strip's rows.
    DEVICE void store(float *out, u32 lane) {
        u32 g = lane >> 2, t = lane & 3;
        if (FORMAT == F16 && t == 0) out[g] = sums[0], out[g + 8] = sums[2];
        if (FORMAT != F16 && t < 2) out[g + 8 * t] = sum;
    }
};

// One row. As `gemv`, with weights by bulk copies to slots of each warp, before the kernel waits for its inputs, and the operand in
// shared memory. A block takes more than half of the shared memory of a multiprocessor: two blocks on one would leave others idle.
// The block of the next kernel starts, and loads its weights, when that of this one ends.
extern "C" __global__ void __launch_bounds__(256 * GROUPS, 2) gemv_row(const __grid_constant__ MatmulParams p) {
    extern __shared__ uint4 weights_and_row[];
    __shared__ u64 barriers[GROUPS * WARPS * SLOTS];
    __shared__ float partials[GROUPS][2][2 * WARPS * 16];
    __shared__ float norm_sums[GROUPS][WARPS];
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, group = threadIdx.x / 256, thread = threadIdx.x % 256, warp = thread / 32;
    u8 *slots = (u8 *)weights_and_row + (group * WARPS + warp) * SLOTS * UNIT_BYTES;
    u16 *x = (u16 *)((u8 *)weights_and_row + GROUPS * WARPS * SLOTS * UNIT_BYTES);
    u32 barrier = shared_address(barriers + (group * WARPS + warp) * SLOTS);
    if (lane < SLOTS) init_barrier(barrier + 8 * lane);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    u64 strip_bytes = (u64)p.n_chunks * CHUNK_BYTES;
    // Items: strips of all factors, or of a gated pair.
    u32 n_first = (p.factors[0].n + 15) / 16, n_items = n_first, n_second = 0;
    if (!p.is_gated && p.n_factors > 1) n_second = (p.factors[1].n + 15) / 16, n_items += n_second;
    if (!p.is_gated && p.n_factors > 2) n_items += (p.factors[2].n + 15) / 16;
    auto factor_of = [&](u32 item) -> u32 { return item < n_first ? 0 : item < n_first + n_second ? 1 : 2; };
    auto strip_of = [&](u32 item) -> u32 { return item < n_first ? item : item < n_first + n_second ? item - n_first : item - n_first - n_second; };
    u32 first_item = blockIdx.x + group * gridDim.x, step = gridDim.x * GROUPS;
    // The next unit to copy: item, pass, first tile.
    u32 next_item = first_item, next_pass = 0, next_tile = warp * UNIT;
    auto copy_next = [&](u32 slot) {
        if (next_item >= n_items || next_tile >= p.k_tiles) return;
        if (lane == 0) {
            // The last unit may have fewer tiles than others only if chunks are tiles.
            u32 bytes = TILES == 4 ? UNIT_BYTES : min((u32)UNIT, p.k_tiles - next_tile) * CHUNK_BYTES;
            const u8 *from = p.factors[p.is_gated ? next_pass : factor_of(next_item)].weights + strip_of(next_item) * strip_bytes;
            copy_bulk(shared_address(slots + slot * UNIT_BYTES), from + (u64)(next_tile / TILES) * CHUNK_BYTES, bytes, barrier + 8 * slot);
        }
        next_tile += WARPS * UNIT;
        if (next_tile < p.k_tiles) return;
        next_tile = warp * UNIT;
        if (++next_pass > p.is_gated) next_pass = 0, next_item += step;
    };
#pragma unroll 1
    for (u32 i = 0; i < SLOTS; i++) copy_next(i);
    // The operand in shared memory: the RMS norm of `row`, as `norm_rows` writes it, or a copy of x.
    u32 padded = (p.k_tiles + 3) / 4 * 256;
    if (p.row) {
        // Both groups compute the norm, and each writes half of it.
        NormRow<true> row;
        row.load_weights(p.norm_weight, p.cols, thread);
        wait_for_inputs();
        row.load(p.row, p.eps, false, [&](float y) {
            y = warp_sum(y);
            if (lane == 0) norm_sums[group][warp] = y;
            group_barrier(group);
            float sum = 0.f;
            for (int i = 0; i < WARPS; i++) sum += norm_sums[group][i];
            return sum;
        });
        row.write(p.row, p.norm_weight, [&](u32 c, float4 y) {
            if (c / 1024 % GROUPS != group) return;
            *(uint2 *)(x + row_index(c)) = make_uint2(pack_half(y.x, y.y), pack_half(y.z, y.w));
            if (p.normed && blockIdx.x == 0) *(float4 *)(p.normed + c) = y;
        });
        for (u32 c = p.cols + 4 * threadIdx.x; c < padded; c += 4 * 256 * GROUPS) *(uint2 *)(x + row_index(c)) = make_uint2(0, 0);
    } else {
        wait_for_inputs();
        for (u32 i = threadIdx.x; i < padded / 8; i += 256 * GROUPS) {
            uint4 part = i < p.k_tiles * 8 ? ((const uint4 *)p.x)[i] : make_uint4(0, 0, 0, 0);
            *(uint2 *)(x + row_index(8 * i)) = make_uint2(part.x, part.y);
            *(uint2 *)(x + row_index(8 * i + 4)) = make_uint2(part.z, part.w);
        }
    }
    __syncthreads();
    RowProducts products(lane);
    u32 slot = 0, phase = 0, side = 0;
    for (u32 item = first_item; item < n_items; item += step, side ^= 1) {
        float *partial = partials[group][side];
        for (u32 pass = 0; pass <= p.is_gated; pass++) {
            products.clear();
#pragma unroll 1
            for (u32 first = warp * UNIT; first < p.k_tiles; first += WARPS * UNIT) {
                wait_for_barrier(barrier + 8 * slot, phase);
                products.add(slots + slot * UNIT_BYTES, x + first * 64, p.k_tiles - first, lane);
                __syncwarp();
                copy_next(slot);
                if (++slot == SLOTS) slot = 0, phase ^= 1;
            }
            products.store(partial + (pass * WARPS + warp) * 16, lane);
        }
        // The other side is read until here at most.
        group_barrier(group);
        const Factor &f = p.factors[p.is_gated ? 0 : factor_of(item)];
        u32 n = thread, column = strip_of(item) * 16 + n;
        if (n >= 16 || column >= f.n) continue;
        float y = 0.f;
        // In the order of the warps.
        for (int w = 0; w < WARPS; w++) y += partial[w * 16 + n];
        if (p.is_gated) {
            float up = 0.f;
            for (int w = 0; w < WARPS; w++) up += partial[(WARPS + w) * 16 + n];
            y = gated_activation(y, up, p.activation, p.alpha, p.limit);
        } else {
            if (f.bias) y += f.bias[column];
            y = activate(y, p.activation);
            if (p.accumulate) y += f.out.values[column];
        }
        store(f.out, column, y);
    }
}
#endif

// Copies a tile of N rows of x from `first_row` on to shared memory: rows of 128 bytes, whose 16-byte parts are exchanged by
// row % 8.
// Behind the last row and the last tile: zeros.
template <int N> DEVICE void copy_tile(u32 stage, const MatmulParams &p, u32 first_row, u32 tile) {
    u32 part = threadIdx.x % 8, first = threadIdx.x / 8;
    const u16 *x = p.x + (size_t)(first_row + first) * p.x_stride + tile * 64 + part * 8;
    stage += first * 128 + ((part ^ (first & 7)) * 16);
#pragma unroll
    for (int i = 0; i < N / 32; i++) {
        bool is_inside = first_row + first + 32 * i < p.m && tile < p.k_tiles;
        copy16_async(stage + i * 32 * 128, is_inside ? x + (size_t)(32 * i) * p.x_stride : p.x, is_inside);
    }
}

DEVICE void store_gemm(const MatmulParams &p, const Factor &f, u32 row, u32 n, float y) {
    if (n >= f.n || row >= p.m) return;
    if (f.bias) y += f.bias[n];
    y = activate(y, p.activation);
    size_t at = (size_t)row * f.out_stride + n;
    if (p.accumulate) y += f.out.values[at];
    store(f.out, at, y);
}

DEVICE u32 stages_at(const void *shared) { return (shared_address(shared) + 1023) & ~1023u; }

#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Grid: (blocks of 128 rows of x, blocks of 128 rows of weights).
KERNEL(256) gemm(const __grid_constant__ MatmulParams p) {
    extern __shared__ uint4 shared[];
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
    u32 first_row = blockIdx.x * 128, first_n = blockIdx.y * 128 + warp % 4 * 32, warp_rows = warp / 4 * 64;
    const Factor &f = p.factors[0];
    u64 strip_bytes = (u64)p.n_chunks * CHUNK_BYTES;
    u32 n_strips = (f.n + 15) / 16;
    const u8 *strips[2];
    // Behind the last strip: the last one, whose results are not stored.
    for (u32 s = 0; s < 2; s++) strips[s] = f.weights + min(first_n / 16 + s, n_strips - 1) * strip_bytes;
    Unit next[2];
    for (int s = 0; s < 2; s++) load_unit(next[s], strips[s], 0, p.k_tiles, lane);
    wait_for_inputs();
    constexpr u32 STAGES = 4, STAGE_BYTES = 128 * 128;
    u32 base = stages_at(shared);
    for (u32 i = 0; i < STAGES - 1; i++) {
        copy_tile<128>(base + i * STAGE_BYTES, p, first_row, i);
        commit_copies();
    }
    float sum[2][8][4] = {};
    for (u32 first = 0; first < p.k_tiles; first += UNIT) {
        Unit now[2];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            now[s] = next[s];
            load_unit(next[s], strips[s], first + UNIT, p.k_tiles, lane);
        }
#pragma unroll
        for (int j = 0; j < UNIT; j++) {
            u32 tile = first + j;
            wait_for_copies<STAGES - 2>();
            __syncthreads();
            u32 later = tile + STAGES - 1;
            copy_tile<128>(base + later % STAGES * STAGE_BYTES, p, first_row, later);
            commit_copies();
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
                    load_matrices(x, stage + row * 128 + (((4 * half + lane / 8) ^ (row & 7)) * 16));
#pragma unroll
                    for (int s = 0; s < 2; s++) {
                        multiply_add(sum[s][b], a[s][0], x[0], x[1]);
                        multiply_add(sum[s][b], a[s][1], x[2], x[3]);
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

extern "C" __global__ void __launch_bounds__(256, 2) gemv_1(const __grid_constant__ MatmulParams p) { gemv<1>(p); }
KERNEL(256) gemv_2(const __grid_constant__ MatmulParams p) { gemv<2>(p); }
KERNEL(256) gemv_4(const __grid_constant__ MatmulParams p) { gemv<4>(p); }
KERNEL(256) gemv_8(const __grid_constant__ MatmulParams p) { gemv<8>(p); }

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
