// GEMV of one row with bulk copies (Hopper and later).
#include "params.cuh"
#include "row_norm.cuh"

// Stages of a warp's weights in shared memory: super-tiles in flight.
constexpr u32 ROW_STAGES = SUPER_TILE_BYTES > 4000 ? 2 : MAX_ROW_STAGES;
#if __CUDA_ARCH__ >= 900
// Index of column c of the operand in shared memory: the 8 columns of a lane in 32 are adjacent.
DEVICE u32 row_index(u32 c) { return (c & ~31u) | (c & 12) << 1 | (c & 16) >> 2 | (c & 3); }

// Products of a panel with one row, repeated in all columns of the B fragment.
struct RowProducts {
    float sum[4]; // Rows g, g, g + 8, g + 8.

    DEVICE void clear() {
        for (int i = 0; i < 4; i++) sum[i] = 0.f;
    }

    // Accumulates one super-tile (`n_tiles` K tiles) times its columns of x.
    DEVICE void add(const u8 *super_tile, const u16 *x, u32 n_tiles, u32 lane) {
        u32 header[2][5], t = lane & 3;
        float c[4] = {};
#pragma unroll
        for (int j = 0; j < SUPER_TILE_LEN; j++) {
            if (TILES == 1 && j >= n_tiles) break;
            Raw raw;
            const u8 *chunk = super_tile + j / TILES * CHUNK_BYTES;
            load_codes<FromShared>(raw.tiles[0], chunk, j % TILES, lane);
            if (j % TILES == 0) for (int r = 0; r < 2; r++) load_header<FromShared>(header[r], chunk, (lane >> 2) + 8 * r);
#pragma unroll
            for (int step = 0; step < 4; step++) {
                u32 a[4];
                uint4 both = *(const uint4 *)(x + 64 * j + 32 * (step / 2) + 8 * t);
                if (HAS_INTEGERS) integer_weights(raw.tiles[0], header, j, step, a);
                else scaled_weights(raw.tiles[0], header, j % TILES, step, a);
                mma(HAS_INTEGERS ? c : sum, a, step % 2 ? both.z : both.x, step % 2 ? both.w : both.y);
            }
        }
        if (!HAS_INTEGERS) return;
        float mins[4] = {};
#pragma unroll
        for (int group = 0; group < MIN_GROUPS; group++) {
            float of_x[4];
            if (BLOCK == 32) {
                uint4 own = *(const uint4 *)(x + 8 * lane);
                mma_init(of_x, ONES, own.x, own.y);
                mma(of_x, ONES, own.z, own.w);
            } else {
                uint2 own = *(const uint2 *)(x + 128 * group + 32 * (lane / 8) + 8 * t + lane / 4 % 2 * 4);
                mma_init(of_x, ONES, own.x, own.y);
            }
            u32 row = integer_minima(header[0], group, t), other = integer_minima(header[1], group, t), a[4] = {row, other, row, other};
            uint2 sums = split_sums(of_x[0], of_x[1]);
            mma(mins, a, sums.x, sums.y);
        }
        add_scaled(sum, c, mins, header);
    }

    // Stores the sums of the panel's rows.
    DEVICE void store(float *out, u32 lane) {
        if ((lane & 3) == 0) out[lane >> 2] = sum[0], out[(lane >> 2) + 8] = sum[2];
    }
};

// GEMV of one row. Each warp copies weights to stages of its own before the kernel waits for its inputs; the operand is in shared memory.
// A block takes more than half of the shared memory of an SM: two blocks on one SM would leave others idle. The block of the next
// kernel starts, and loads its weights, when this one ends.
DEVICE void multiply_row(const MatmulParams &p, const Share &share, RowShared &shared) {
    extern __shared__ uint4 smem[];
    auto &norm_sums = shared.norm_sums;
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, group = warp_uniform(threadIdx.x / 256), thread = threadIdx.x % 256, warp = warp_uniform(thread / 32);
    u8 *stages = (u8 *)smem + (group * K_SLICES + warp) * ROW_STAGES * SUPER_TILE_BYTES;
    u16 *x = (u16 *)((u8 *)smem + GROUPS * K_SLICES * ROW_STAGES * SUPER_TILE_BYTES);
    u32 barrier = smem_address(shared.barriers + (group * K_SLICES + warp) * ROW_STAGES);
    if (lane < ROW_STAGES) mbarrier_init(barrier + 8 * lane, 1);
    fence_proxy_async();
    __syncwarp();
    u64 panel_bytes = (u64)p.n_chunks * CHUNK_BYTES;
    // Items: panels of all matrices, or of a gated pair.
    const MatrixParams *matrices = p.matrices + share.first;
    u32 n_matrices = share.end - share.first;
    u32 n_first = (matrices[0].n + 15) / 16, n_items = n_first, n_second = 0;
    if (!p.is_gated && n_matrices > 1) n_second = (matrices[1].n + 15) / 16, n_items += n_second;
    if (!p.is_gated && n_matrices > 2) n_items += (matrices[2].n + 15) / 16;
    auto matrix_of = [&](u32 item) -> u32 { return item < n_first ? 0 : item < n_first + n_second ? 1 : 2; };
    auto panel_of = [&](u32 item) -> u32 { return item < n_first ? item : item < n_first + n_second ? item - n_first : item - n_first - n_second; };
    u32 first_item = share.block + group * share.n_blocks, step = share.n_blocks * GROUPS;
    // Next super-tile to copy: item, pass, first tile.
    u32 next_item = first_item, next_pass = 0, next_tile = warp * SUPER_TILE_LEN;
    auto copy_next = [&](u32 stage) {
        if (next_item >= n_items || next_tile >= p.k_tiles) return;
        if (elect_one()) {
            // The last super-tile may be shorter only if a chunk is one tile.
            u32 bytes = TILES == 4 ? SUPER_TILE_BYTES : min((u32)SUPER_TILE_LEN, p.k_tiles - next_tile) * CHUNK_BYTES;
            const u8 *from = matrices[p.is_gated ? next_pass : matrix_of(next_item)].weights + panel_of(next_item) * panel_bytes;
            mbarrier_arrive_expect_tx(barrier + 8 * stage, bytes);
            cp_async_bulk(smem_address(stages + stage * SUPER_TILE_BYTES), from + (u64)(next_tile / TILES) * CHUNK_BYTES, bytes, barrier + 8 * stage);
        }
        next_tile += K_SLICES * SUPER_TILE_LEN;
        if (next_tile < p.k_tiles) return;
        next_tile = warp * SUPER_TILE_LEN;
        if (++next_pass > p.is_gated) next_pass = 0, next_item += step;
    };
#pragma unroll 1
    for (u32 i = 0; i < ROW_STAGES; i++) copy_next(i);
    // Operand in shared memory: RMS norm of `row`, as `norm_rows` computes it, or a copy of x.
    u32 padded = (p.k_tiles + 3) / 4 * 256;
    if (p.row) {
        // Both groups compute the norm, and each writes half of it.
        NormRow<true> row;
        row.load_weights(p.norm_weight, p.cols, thread);
        wait_for_inputs();
        row.load(p.row, p.eps, false, [&](float y) {
            y = warp_sum(y);
            if (lane == 0) norm_sums[group][warp] = y;
            named_barrier_sync(group);
            float sum = 0.f;
            for (int i = 0; i < K_SLICES; i++) sum += norm_sums[group][i];
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
            // Pairs of columns 4 t .. 4 t + 3 of 16, see `operand_index`.
            u32 words[4] = {part.x, part.y, part.z, part.w}, first = i / 2 * 16 + i % 2 * 2;
            for (u32 t = 0; t < 4; t++) *(u32 *)(x + row_index(first + 4 * t)) = words[t];
        }
    }
    __syncthreads();
    RowProducts products;
    u32 stage = 0, phase = 0, side = 0;
    for (u32 item = first_item; item < n_items; item += step, side ^= 1) {
        float *partial = shared.partials[group][side];
        for (u32 pass = 0; pass <= p.is_gated; pass++) {
            products.clear();
#pragma unroll 1
            for (u32 first = warp * SUPER_TILE_LEN; first < p.k_tiles; first += K_SLICES * SUPER_TILE_LEN) {
                mbarrier_wait(barrier + 8 * stage, phase);
                products.add(stages + stage * SUPER_TILE_BYTES, x + first * 64, p.k_tiles - first, lane);
                __syncwarp();
                copy_next(stage);
                if (++stage == ROW_STAGES) stage = 0, phase ^= 1;
            }
            products.store(partial + (pass * K_SLICES + warp) * 16, lane);
        }
        // The other buffer of partial sums is free from here on.
        named_barrier_sync(group);
        const MatrixParams &f = matrices[p.is_gated ? 0 : matrix_of(item)];
        u32 n = thread, column = panel_of(item) * 16 + n;
        if (n >= 16 || column >= f.n) continue;
        float y = 0.f;
        // Adds the warps in order.
        for (int w = 0; w < K_SLICES; w++) y += partial[w * 16 + n];
        if (p.is_gated) {
            float up = 0.f;
            for (int w = 0; w < K_SLICES; w++) up += partial[(K_SLICES + w) * 16 + n];
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
