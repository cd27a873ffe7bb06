// GEMV of up to 128 rows by mma. A block has at most 64 rows of x and 2, 4 or 8 panels of weights: a warp has one panel and 8 B rows.
// gemv_warpgroup.cuh is the same algorithm by wgmma.
//
// Super-tiles of weights and their columns of x go through stages of shared memory. Sums of blocks of x, for minima, are computed one
// stage ahead, once for all panels.
//
// K is divided into K_SLICES slices with a partial sum each, which are added in order. With split-K, each block has some of the slices;
// the last block to finish reduces all of them.

// Block sums of 8 rows of x in a super-tile.
constexpr u32 SUMS = MIN_GROUPS * 32;
// Bytes of a row of x in a super-tile.
constexpr u32 X_BYTES = SUPER_TILE_LEN * 128;
// Padding of a row of the result tile in shared memory, against bank conflicts.
constexpr u32 TILE_PADDING = 4;

// Iterates over the super-tiles of the K slices of a block: slice s has super-tiles s, s + K_SLICES, ..
struct SuperTiles {
    u32 slice, end_slice, index, n_super_tiles;

    DEVICE SuperTiles(u32 first, u32 end, u32 n) : slice(first), end_slice(end), index(first), n_super_tiles(n) {}
    DEVICE bool is_valid() const { return slice < end_slice && index < n_super_tiles; }
    // True for the last super-tile of a slice.
    DEVICE bool ends_slice() const { return index + K_SLICES >= n_super_tiles; }
    DEVICE void next() {
        index += K_SLICES;
        if (index >= n_super_tiles) index = ++slice;
    }
};

// Stride of rows of x in a stage, in bytes: 8 rows are in different banks.
constexpr u32 X_STRIDE = X_BYTES + 16;

// Copies super-tiles of the panels, and rows of x, to stages of shared memory.
struct StageCopies {
    const MatmulParams &p;
    const u8 *const *panels;
    const u16 *const *rows;
    u32 n_rows, n_panels;

#if __CUDA_ARCH__ >= 900
    // Bulk copies. One lane issues each, so warps take them in turns.
    u32 barriers;

    DEVICE StageCopies(const MatmulParams &p, const u8 *const *panels, const u16 *const *rows, u32 n_rows, u32 n_panels)
        : p(p), panels(panels), rows(rows), n_rows(n_rows), n_panels(n_panels) {
        __shared__ u64 of_stages[4];
        barriers = smem_address(of_stages);
        if (threadIdx.x < 4) mbarrier_init(barriers + 8 * threadIdx.x, 1);
        fence_proxy_async();
        __syncthreads();
    }

    DEVICE void start_weights(u8 *to, u32 stage, u32 super_tile) {
        u32 left = min((p.n_chunks - super_tile * SUPER_TILE_CHUNKS) * CHUNK_BYTES, SUPER_TILE_BYTES), warp = warp_uniform(threadIdx.x / 32);
        if (!elect_one()) return;
        if (warp == 0) mbarrier_arrive_expect_tx(barriers + 8 * stage, n_panels * left + n_rows * row_bytes(super_tile));
        for (u32 i = warp; i < n_panels; i += blockDim.x / 32)
            cp_async_bulk(smem_address(to + i * SUPER_TILE_BYTES), panels[i] + (u64)super_tile * SUPER_TILE_BYTES, left, barriers + 8 * stage);
    }

    DEVICE u32 row_bytes(u32 super_tile) const { return min(p.k_tiles - super_tile * SUPER_TILE_LEN, (u32)SUPER_TILE_LEN) * 128; }

    DEVICE void start_rows(u8 *to, u32 stage, u32 super_tile) {
        u32 warp = warp_uniform(threadIdx.x / 32);
        if (!elect_one()) return;
        for (u32 i = warp; i < n_rows; i += blockDim.x / 32)
            cp_async_bulk(smem_address(to + n_panels * SUPER_TILE_BYTES + i * X_STRIDE), rows[i] + super_tile * SUPER_TILE_LEN * 64,
                row_bytes(super_tile), barriers + 8 * stage);
    }

    DEVICE void end_stage() {}

    // Use i of a stage has phase i % 2.
    DEVICE void wait(u32 stage, u32 phase, u32) { mbarrier_wait(barriers + 8 * stage, phase); }
#else
    DEVICE StageCopies(const MatmulParams &p, const u8 *const *panels, const u16 *const *rows, u32 n_rows, u32 n_panels)
        : p(p), panels(panels), rows(rows), n_rows(n_rows), n_panels(n_panels) {}

    DEVICE void start_weights(u8 *to, u32, u32 super_tile) {
        u32 left = (p.n_chunks - super_tile * SUPER_TILE_CHUNKS) * CHUNK_BYTES;
        for (u32 i = threadIdx.x; i < n_panels * (SUPER_TILE_BYTES / 16); i += blockDim.x) {
            u32 panel = i / (SUPER_TILE_BYTES / 16), at = i % (SUPER_TILE_BYTES / 16) * 16;
            if (at < left) cp_async_16(smem_address(to) + 16 * i, panels[panel] + (u64)super_tile * SUPER_TILE_BYTES + at, true);
        }
    }

    DEVICE void start_rows(u8 *to, u32, u32 super_tile) {
        for (u32 i = threadIdx.x; i < n_rows * (X_BYTES / 16); i += blockDim.x) {
            u32 row = i / (X_BYTES / 16), part = i % (X_BYTES / 16);
            if (super_tile * SUPER_TILE_LEN + part / 8 < p.k_tiles)
                cp_async_16(smem_address(to + n_panels * SUPER_TILE_BYTES) + row * X_STRIDE + 16 * part,
                    rows[row] + super_tile * SUPER_TILE_LEN * 64 + 8 * part, true);
        }
    }

    DEVICE void end_stage() { cp_async_commit_group(); }

    // Waits until at most `n_later` later stages are pending.
    DEVICE void wait(u32, u32, u32 n_later) {
        if (n_later == 2) cp_async_wait_group<2>();
        else if (n_later == 1) cp_async_wait_group<1>();
        else cp_async_wait_group<0>();
    }
#endif
};

// Block sums of 8 rows of x in a tile, see `split_sums`. `x`: address of the rows; `sums`: [pairs of blocks of a super-tile][8 rows].
DEVICE void sum_blocks(uint2 *sums, u32 x, u32 tile, u32 lane) {
    float c[2][2][4];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 b[4];
        ldmatrix_x4(b, x + (lane & 7) * X_STRIDE + 128 * tile + 64 * half + lane / 8 * 16);
        mma_init(c[half][0], ONES, b[0], b[1]);
        if (BLOCK == 32) mma(c[half][0], ONES, b[2], b[3]);
        else mma_init(c[half][1], ONES, b[2], b[3]);
    }
    if (lane >= 4) return;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        uint2 *to = sums + tile * TILE_BLOCKS / 2 * 8 + 2 * lane + i;
        if (BLOCK == 32) *to = split_sums(c[0][0][i], c[1][0][i]);
        else to[0] = split_sums(c[0][0][i], c[0][1][i]), to[8] = split_sums(c[1][0][i], c[1][1][i]);
    }
}

// Products of a panel with 8 B rows of x.
template <int B> struct PanelProducts {
    float sum[B][4];

    DEVICE void clear() {
#pragma unroll
        for (int b = 0; b < B; b++) for (int i = 0; i < 4; i++) sum[b][i] = 0.f;
    }

    // Accumulates one super-tile (`n_tiles` K tiles). `x`: address of the rows. `sums`: block sums of x for 8 B rows.
    DEVICE void add(const u8 *super_tile, u32 x, const uint2 *sums, u32 n_tiles, u32 lane) {
        u32 header[2][5];
        float c[B][4];
        x += (lane & 7) * X_STRIDE + lane / 8 * 16;
        float mins[B][4] = {};
#pragma unroll
        for (int j = 0; j < SUPER_TILE_LEN; j++) {
            if (TILES == 1 && j >= n_tiles) break;
            Codes codes;
            const u8 *chunk = super_tile + j / TILES * CHUNK_BYTES;
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
                    ldmatrix_x4(columns, x + 8 * b * X_STRIDE + 128 * j + 64 * half);
                    if (HAS_INTEGERS && j == 0 && half == 0) mma_init(c[b], a[0], columns[0], columns[1]);
                    else mma(HAS_INTEGERS ? c[b] : sum[b], a[0], columns[0], columns[1]);
                    mma(HAS_INTEGERS ? c[b] : sum[b], a[1], columns[2], columns[3]);
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
                mma(mins[b], a, of_x.x, of_x.y);
            }
        }
#pragma unroll
        for (int b = 0; b < B; b++) add_scaled(sum[b], c[b], mins[b], header);
    }
};

// Output tile of a thread block: panels and rows. Grid: (blocks of panels of all matrices, or of both of a gated pair, times blocks of
// rows times split-K blocks, blocks of expert assignments, see moe.cu). Expert e has rows e N .. (e + 1) N of the weights.
struct GemvBlock {
    const MatmulParams &p;
    u32 rows, n_panels, split, tile, m, first_row = 0, first_assignment = 0, first_n = 0;

    // With experts it waits for inputs, and m may be 0.
    DEVICE GemvBlock(const MatmulParams &p, u32 rows)
        : p(p), rows(rows), n_panels(p.block_panels), split(blockIdx.x % p.n_splits), tile(blockIdx.x / p.n_splits), m(p.m) {
        if (p.blocks) {
            wait_for_inputs();
            const u32 *block = p.blocks + 3 * blockIdx.y;
            first_assignment = block[1], m = block[2];
            first_n = block[0] * p.matrices[0].n;
        } else {
            u32 n_row_blocks = (m + rows - 1) / rows;
            first_row = tile % n_row_blocks * rows, tile /= n_row_blocks;
        }
    }

    // Matrix of panel i of the block, and the panel within it; n_matrices past the last panel.
    DEVICE u32 locate(u32 i, u32 &panel) const {
        if (p.is_gated) {
            panel = tile * (n_panels / 2) + i % (n_panels / 2);
            return panel < (p.matrices[0].n + 15) / 16 ? i / (n_panels / 2) : p.n_matrices;
        }
        panel = tile * n_panels + i;
        if (p.blocks) {
            panel += first_n / 16;
            return panel < (first_n + p.matrices[0].n + 15) / 16 ? 0 : p.n_matrices;
        }
        u32 index = 0;
        for (; index < p.n_matrices; index++) {
            u32 n = (p.matrices[index].n + 15) / 16;
            if (panel < n) break;
            panel -= n;
        }
        return index;
    }

    DEVICE u32 n_rows() const { return min(rows, m - first_row); }

    DEVICE u32 row_of_x(u32 i) const {
        u32 row = first_row + i;
        return p.blocks ? p.order[first_assignment + row] / p.assignments_per_row : row;
    }

    // Writes the addresses of panels and rows. Synchronizes the block.
    DEVICE void find(const u8 **panels, const u16 **rows_of_x) const {
        u32 i = threadIdx.x;
        if (i < n_rows()) {
            rows_of_x[i] = p.x + (size_t)row_of_x(i) * p.x_stride;
        }
        if (i < n_panels) {
            u32 panel, index = locate(i, panel);
            // Past the last panel: recomputes the first panel of the block, or of an expert that ends before the block; its result is
            // dropped.
            if (index == p.n_matrices) index = locate(0, panel);
            if (index == p.n_matrices) index = 0, panel = first_n / 16;
            panels[i] = p.matrices[index].weights + (u64)panel * p.n_chunks * CHUNK_BYTES;
        }
        __syncthreads();
    }

    // Partial sums of the lane for B groups of 8 rows: slice s and group b are at (s * n_warps * B + b) * 32.
    template <int B> DEVICE float4 *partials(u32 n_warps, u32 warp, u32 lane) const {
        u32 block = blockIdx.y * (gridDim.x / p.n_splits) + blockIdx.x / p.n_splits;
        return p.partials + (size_t)block * K_SLICES * n_warps * B * 32 + warp * B * 32 + lane;
    }

    // Split-K reduction by the last block to finish: adds the partial sums of all slices to `total_of(b)`. Returns false in the other
    // blocks. `synchronize`: barrier of all threads that have sums.
    template <int B, class Synchronize, class Totals>
    DEVICE bool reduce_slices(u32 n_super_tiles, const float4 *partials, u32 n_warps, Synchronize synchronize, Totals total_of) const {
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
        // Loads of two groups are in flight.
        constexpr int AT_ONCE = B < 2 ? B : 2;
#pragma unroll
        for (int first = 0; first < B; first += AT_ONCE) {
            float4 x[AT_ONCE][K_SLICES];
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++)
#pragma unroll
                for (u32 slice = 0; slice < K_SLICES; slice++)
                    if (slice < n_super_tiles) x[b][slice] = load_l2(partials + (slice * n_warps * B + first + b) * 32);
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++) {
                float4 total = total_of(first + b);
#pragma unroll
                for (u32 slice = 0; slice < K_SLICES; slice++) if (slice < n_super_tiles) total = add4(total, x[b][slice]);
                total_of(first + b) = total;
            }
        }
        return true;
    }

    DEVICE u32 columns() const { return 16 * n_panels; }
    DEVICE u32 stride() const { return columns() + TILE_PADDING; }

    // Writes a lane's sums of rows row + 2 t, row + 2 t + 1 of a panel to `results`: [rows][16 columns of each panel].
    DEVICE void write_total(float *results, u32 row, u32 panel, float4 total, u32 lane) const {
        float *to = results + (row + 2 * (lane & 3)) * stride() + 16 * panel + lane / 4;
        to[0] = total.x, to[stride()] = total.y, to[8] = total.z, to[stride() + 8] = total.w;
    }

    // Stores apply(row) plus the residual for rows first, first + step, .. and columns column .. column + 3. AT_ONCE residuals are in
    // flight.
    template <u32 AT_ONCE, class Apply> DEVICE void store_rows(const MatrixParams &f, u32 column, u32 first, u32 step, Apply apply) const {
#pragma unroll 1
        for (; first < n_rows(); first += AT_ONCE * step) {
            size_t at[AT_ONCE];
            float4 residual[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                u32 row = first + i * step;
                residual[i] = make_float4(0.f, 0.f, 0.f, 0.f);
                if (row >= n_rows()) continue;
                at[i] = (size_t)(p.blocks ? p.order[first_assignment + first_row + row] : first_row + row) * f.out_stride + column - first_n;
                if (p.accumulate) residual[i] = *(const float4 *)(f.out.values + at[i]);
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                if (first + i * step < n_rows()) store4(f.out, at[i], add4(apply(first + i * step), residual[i]));
        }
    }

    // Epilogue of `results` by `n_threads` threads: bias, activation, residual.
    DEVICE void store_results(const float *results, u32 n_threads) const {
        u32 width = p.is_gated ? columns() / 2 : columns(), lanes = width / 4, n = threadIdx.x % lanes * 4, panel, index = locate(n / 16, panel);
        if (index == p.n_matrices) return;
        const MatrixParams &f = p.matrices[index];
        u32 column = panel * 16 + n % 16, first = threadIdx.x / lanes, step = n_threads / lanes;
        results += n;
        // An expert may begin within a panel.
        if (column < first_n || column + 4 > first_n + f.n || (f.out_stride | first_n) % 4) {
#pragma unroll 1
            for (u32 row = first; row < n_rows(); row += step)
#pragma unroll 1
                for (u32 c = 0; c < 4; c++)
                    if (column + c >= first_n && column + c < first_n + f.n) store_result(f, results + row * stride() + c, row, column + c);
            return;
        }
        auto load = [&](u32 row, u32 offset) { return *(const float4 *)(results + row * stride() + offset); };
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

    // Epilogue of one result.
    DEVICE void store_result(const MatrixParams &f, const float *result, u32 row, u32 column) const {
        u32 y_row = first_row + row;
        size_t at = (size_t)(p.blocks ? p.order[first_assignment + y_row] : y_row) * f.out_stride + column - first_n;
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
    extern __shared__ uint4 smem[];
    __shared__ const u8 *panel_weights[8];
    __shared__ const u16 *rows_of_x[64];
    launch_dependents();
    load_codebook();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    u32 n_panels = p.block_panels, panel_of_warp = warp % n_panels, rows = n_warps / n_panels * 8 * B;
    GemvBlock block(p, rows);
    if (block.m == 0) return;
    block.find(panel_weights, rows_of_x);

    // Shared memory: stages (super-tiles of the panels, then rows of x), block sums of x for each stage, totals of the lanes.
    u32 weight_bytes = n_panels * SUPER_TILE_BYTES, stage_bytes = weight_bytes + rows * X_STRIDE, n_rows = block.n_rows();
    u8 *stages = (u8 *)smem;
    uint2 *all_sums = (uint2 *)(stages + p.n_stages * stage_bytes);
    u32 n_sums = rows / 8 * SUMS;
    u32 n_super_tiles = (p.k_tiles + SUPER_TILE_LEN - 1) / SUPER_TILE_LEN, n_slices = K_SLICES / p.n_splits;
    SuperTiles super_tiles(block.split * n_slices, (block.split + 1) * n_slices, n_super_tiles);
    StageCopies copies(p, panel_weights, rows_of_x, n_rows, n_panels);
    auto at = [&](u32 stage) { return stages + stage * stage_bytes; };
    auto sum_rows = [&](u32 stage) {
        u32 x = smem_address(at(stage) + weight_bytes);
        for (u32 i = warp; i < rows / 8 * SUPER_TILE_LEN; i += n_warps)
            sum_blocks(all_sums + stage * n_sums + i / SUPER_TILE_LEN * SUMS, x + i / SUPER_TILE_LEN * 8 * X_STRIDE, i % SUPER_TILE_LEN, lane);
    };

    // Copies run ahead by all stages but one.
    SuperTiles ahead = super_tiles;
    for (u32 i = 0; i < p.n_stages - 1 && ahead.is_valid(); i++, ahead.next()) copies.start_weights(at(i), i, ahead.index);
    if (!p.blocks) wait_for_inputs();
    ahead = super_tiles;
    for (u32 i = 0; i < p.n_stages - 1; i++, ahead.next()) {
        if (ahead.is_valid()) copies.start_rows(at(i), i, ahead.index);
        copies.end_stage();
    }
    if (super_tiles.is_valid()) copies.wait(0, 0, p.n_stages - 2);
    __syncthreads();
    if (SUMS) sum_rows(0);

    PanelProducts<B> products;
    products.clear();
    // Totals of the lane over finished slices.
    float4 *totals = (float4 *)(all_sums + p.n_stages * n_sums) + warp * B * 32 + lane;
    for (int b = 0; b < B; b++) totals[32 * b] = make_float4(0.f, 0.f, 0.f, 0.f);
    u32 warp_rows = warp / n_panels * 8 * B, stage = 0, phase = 0;
    float4 *partials = block.partials<B>(n_warps, warp, lane);
    for (; super_tiles.is_valid(); super_tiles.next(), ahead.next()) {
        u32 next = stage + 1 == p.n_stages ? 0 : stage + 1, last = stage ? stage - 1 : p.n_stages - 1;
        if (next == 0) phase ^= 1;
        SuperTiles after = super_tiles;
        after.next();
        if (after.is_valid()) copies.wait(next, phase, p.n_stages - 3);
        // The block sums of this stage are complete, and the previous stage is free.
        __syncthreads();
        if (ahead.is_valid()) copies.start_weights(at(last), last, ahead.index), copies.start_rows(at(last), last, ahead.index);
        copies.end_stage();
        if (SUMS) sum_rows(next);
        products.add(at(stage) + panel_of_warp * SUPER_TILE_BYTES, smem_address(at(stage) + weight_bytes + warp_rows * X_STRIDE),
            all_sums + stage * n_sums + warp_rows / 8 * SUMS, p.k_tiles - super_tiles.index * SUPER_TILE_LEN, lane);
        stage = next;
        if (!super_tiles.ends_slice()) continue;
#pragma unroll
        for (int b = 0; b < B; b++) {
            float4 x = make_float4(products.sum[b][0], products.sum[b][1], products.sum[b][2], products.sum[b][3]);
            if (p.n_splits > 1) partials[(super_tiles.slice * n_warps * B + b) * 32] = x;
            else totals[32 * b] = add4(totals[32 * b], x);
        }
        products.clear();
    }
    auto total_of = [&](int b) -> float4 & { return totals[32 * b]; };
    if (p.n_splits > 1 && !block.reduce_slices<B>(n_super_tiles, partials, n_warps, [] { __syncthreads(); }, total_of)) return;
    float *results = (float *)smem;
    __syncthreads();
    for (int b = 0; b < B; b++) block.write_total(results, warp_rows + 8 * b, panel_of_warp, totals[32 * b], lane);
    __syncthreads();
    block.store_results(results, blockDim.x);
}

extern "C" __global__ void __launch_bounds__(512, 1) gemv_8(const __grid_constant__ MatmulParams p) { gemv<1>(p); }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gemv_warpgroup.cuh"
#else
extern "C" __global__ void __launch_bounds__(512, 1) gemv_32(const __grid_constant__ MatmulParams p) { gemv<4>(p); }
#endif
