// GEMV of one row, by bulk copies (Hopper and later).
#include "params.cuh"
#include "row_norm.cuh"

// Slots of a warp's weights in shared memory: units on their way.
constexpr u32 SLOTS = UNIT_BYTES > 4000 ? 2 : MAX_SLOTS;
#if __CUDA_ARCH__ >= 900
// Place of column c of the operand in shared memory: the 8 columns of a lane in 32 are adjacent.
DEVICE u32 row_index(u32 c) { return (c & ~31u) | (c & 12) << 1 | (c & 16) >> 2 | (c & 3); }

// Products of a strip with one row, in all columns of the second factor.
struct RowProducts {
    float sum[4]; // Of rows g, g and g + 8, g + 8.

    DEVICE void clear() {
        for (int i = 0; i < 4; i++) sum[i] = 0.f;
    }

    // Adds the products of a unit with its columns of x. `n_tiles`: those of the unit that are there.
    DEVICE void add(const u8 *unit, const u16 *x, u32 n_tiles, u32 lane) {
        u32 header[2][5], t = lane & 3;
        float c[4] = {};
#pragma unroll
        for (int j = 0; j < UNIT; j++) {
            if (TILES == 1 && j >= n_tiles) break;
            Raw raw;
            const u8 *chunk = unit + j / TILES * CHUNK_BYTES;
            load_codes<FromShared>(raw.tiles[0], chunk, j % TILES, lane);
            if (j % TILES == 0) for (int r = 0; r < 2; r++) load_header<FromShared>(header[r], chunk, (lane >> 2) + 8 * r);
#pragma unroll
            for (int step = 0; step < 4; step++) {
                u32 a[4];
                uint4 both = *(const uint4 *)(x + 64 * j + 32 * (step / 2) + 8 * t);
                if (HAS_INTEGERS) integer_weights(raw.tiles[0], header, j, step, a);
                else scaled_weights(raw.tiles[0], header, j % TILES, step, a);
                multiply_add(HAS_INTEGERS ? c : sum, a, step % 2 ? both.z : both.x, step % 2 ? both.w : both.y);
            }
        }
        if (!HAS_INTEGERS) return;
        float mins[4] = {};
#pragma unroll
        for (int group = 0; group < MIN_GROUPS; group++) {
            float of_x[4];
            if (BLOCK == 32) {
                uint4 own = *(const uint4 *)(x + 8 * lane);
                multiply(of_x, ONES, own.x, own.y);
                multiply_add(of_x, ONES, own.z, own.w);
            } else {
                uint2 own = *(const uint2 *)(x + 128 * group + 32 * (lane / 8) + 8 * t + lane / 4 % 2 * 4);
                multiply(of_x, ONES, own.x, own.y);
            }
            u32 row = integer_minima(header[0], group, t), other = integer_minima(header[1], group, t), a[4] = {row, other, row, other};
            uint2 sums = split_sums(of_x[0], of_x[1]);
            multiply_add(mins, a, sums.x, sums.y);
        }
        add_scaled(sum, c, mins, header);
    }

    // Sums of the strip's rows.
    DEVICE void store(float *out, u32 lane) {
        if ((lane & 3) == 0) out[lane >> 2] = sum[0], out[(lane >> 2) + 8] = sum[2];
    }
};

// One row. As `gemv`, with weights by bulk copies to slots of each warp, before the kernel waits for its inputs, and the operand in
// shared memory. A block takes more than half of the shared memory of a multiprocessor: two blocks on one would leave others idle.
// The block of the next kernel starts, and loads its weights, when that of this one ends.
DEVICE void multiply_row(const MatmulParams &p, const Share &share, RowShared &shared) {
    extern __shared__ uint4 weights_and_row[];
    auto &norm_sums = shared.norm_sums;
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, group = uniform(threadIdx.x / 256), thread = threadIdx.x % 256, warp = uniform(thread / 32);
    u8 *slots = (u8 *)weights_and_row + (group * PARTS + warp) * SLOTS * UNIT_BYTES;
    u16 *x = (u16 *)((u8 *)weights_and_row + GROUPS * PARTS * SLOTS * UNIT_BYTES);
    u32 barrier = shared_address(shared.barriers + (group * PARTS + warp) * SLOTS);
    if (lane < SLOTS) init_barrier(barrier + 8 * lane, 1);
    publish_shared();
    __syncwarp();
    u64 strip_bytes = (u64)p.n_chunks * CHUNK_BYTES;
    // Items: strips of all factors, or of a gated pair.
    const Factor *factors = p.factors + share.first;
    u32 n_factors = share.end - share.first;
    u32 n_first = (factors[0].n + 15) / 16, n_items = n_first, n_second = 0;
    if (!p.is_gated && n_factors > 1) n_second = (factors[1].n + 15) / 16, n_items += n_second;
    if (!p.is_gated && n_factors > 2) n_items += (factors[2].n + 15) / 16;
    auto factor_of = [&](u32 item) -> u32 { return item < n_first ? 0 : item < n_first + n_second ? 1 : 2; };
    auto strip_of = [&](u32 item) -> u32 { return item < n_first ? item : item < n_first + n_second ? item - n_first : item - n_first - n_second; };
    u32 first_item = share.block + group * share.n_blocks, step = share.n_blocks * GROUPS;
    // The next unit to copy: item, pass, first tile.
    u32 next_item = first_item, next_pass = 0, next_tile = warp * UNIT;
    auto copy_next = [&](u32 slot) {
        if (next_item >= n_items || next_tile >= p.k_tiles) return;
        if (is_elected()) {
            // The last unit may have fewer tiles than others only if chunks are tiles.
            u32 bytes = TILES == 4 ? UNIT_BYTES : min((u32)UNIT, p.k_tiles - next_tile) * CHUNK_BYTES;
            const u8 *from = factors[p.is_gated ? next_pass : factor_of(next_item)].weights + strip_of(next_item) * strip_bytes;
            expect_copies(barrier + 8 * slot, bytes);
            copy_bulk(shared_address(slots + slot * UNIT_BYTES), from + (u64)(next_tile / TILES) * CHUNK_BYTES, bytes, barrier + 8 * slot);
        }
        next_tile += PARTS * UNIT;
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
            for (int i = 0; i < PARTS; i++) sum += norm_sums[group][i];
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
            // Pairs of columns 4 t .. of 16, see `operand_index`.
            u32 words[4] = {part.x, part.y, part.z, part.w}, first = i / 2 * 16 + i % 2 * 2;
            for (u32 t = 0; t < 4; t++) *(u32 *)(x + row_index(first + 4 * t)) = words[t];
        }
    }
    __syncthreads();
    RowProducts products;
    u32 slot = 0, phase = 0, side = 0;
    for (u32 item = first_item; item < n_items; item += step, side ^= 1) {
        float *partial = shared.partials[group][side];
        for (u32 pass = 0; pass <= p.is_gated; pass++) {
            products.clear();
#pragma unroll 1
            for (u32 first = warp * UNIT; first < p.k_tiles; first += PARTS * UNIT) {
                wait_for_barrier(barrier + 8 * slot, phase);
                products.add(slots + slot * UNIT_BYTES, x + first * 64, p.k_tiles - first, lane);
                __syncwarp();
                copy_next(slot);
                if (++slot == SLOTS) slot = 0, phase ^= 1;
            }
            products.store(partial + (pass * PARTS + warp) * 16, lane);
        }
        // The other side is read until here at most.
        group_barrier(group);
        const Factor &f = factors[p.is_gated ? 0 : factor_of(item)];
        u32 n = thread, column = strip_of(item) * 16 + n;
        if (n >= 16 || column >= f.n) continue;
        float y = 0.f;
        // In the order of the warps.
        for (int w = 0; w < PARTS; w++) y += partial[w * 16 + n];
        if (p.is_gated) {
            float up = 0.f;
            for (int w = 0; w < PARTS; w++) up += partial[(PARTS + w) * 16 + n];
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
