// modules: attention_f16 -DKV_TYPE=1; attention_q8 -DKV_TYPE=2
//
// Attention over pages of f16 or int8, by matrix instructions. A column is a query head of a token; C channels of a head are
// padded to D. A warp multiplies a page of 64 positions with 8 N columns:
//
//   S = K Q^T     4 blocks of 16 positions, k: D channels       [64, 8 N]
//   P = softmax of the columns of S, online (Milakov & Gimelshein 2018)
//   O += V^T P    D / 16 blocks of channels, k: 64 positions    [D, 8 N]
//
// The order of k within an instruction is free as long as both factors agree. So lane t of 4 takes channels t D/4 .. of K and Q,
// and positions 16 t .. of V and P: it loads vectors of 16 bytes straight into the registers of the factors. Row r of
// block b of S is position 16 (r % 8 / 2) + 4 b + 2 (r / 8) + r % 2.
#include "attention.cuh"
#include "rope.cuh"
#include "tensor_map.cuh"
#include "wgmma.cuh"

#define LOG2E 1.44269504f

// Positions and head of a lane's two columns of a block of 8.
struct Column {
    u32 start, end;
    float slope;
};

template <int D, int N> struct Warp {
    u32 q[D / 16][N][2];
    float o[D / 16][N][4];
    float largest[N][2], sum[N][2];

    // Column `column` of block n is at x + offset; no column: zeros.
    DEVICE void load_query(int n, const float *x, bool is_column, u32 dim, u32 t) {
        for (int s = 0; s < D / 16; s++) {
            float v[4];
            for (int e = 0; e < 4; e++) {
                u32 c = t * (D / 4) + 4 * s + e;
                v[e] = is_column && c < dim ? x[c] : 0.f;
            }
            q[s][n][0] = pack_half(v[0], v[1]);
            q[s][n][1] = pack_half(v[2], v[3]);
        }
    }

    DEVICE void clear() {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 2; i++) largest[n][i] = -INFINITY, sum[n][i] = 0.f;
            for (int b = 0; b < D / 16; b++) for (int i = 0; i < 4; i++) o[b][n][i] = 0.f;
        }
    }

    // Adds the page with the positions from `first` on, of which those from `end` on are not written.
    DEVICE void add_page(const u8 *head, u32 first, u32 end, const Column (&columns)[N][2], float scale, float soft_cap, u32 lane) {
        u32 g = lane >> 2, t = lane & 3;
        float s[4][N][4];
#pragma unroll
        for (int b = 0; b < 4; b++) {
            for (int n = 0; n < N; n++) for (int i = 0; i < 4; i++) s[b][n][i] = 0.f;
            u32 low = 16 * (g >> 1) + 4 * b + (g & 1);
#if KV_TYPE == 1
            const u8 *keys = head + (low * D + t * (D / 4)) * 2;
            uint4 rows[2][D / 32];
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                rows[0][i] = *(const uint4 *)(keys + 16 * i);
                rows[1][i] = *(const uint4 *)(keys + 4 * D + 16 * i);
            }
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                u32 a0[4] = {rows[0][i].x, rows[1][i].x, rows[0][i].y, rows[1][i].y};
                u32 a1[4] = {rows[0][i].z, rows[1][i].z, rows[0][i].w, rows[1][i].w};
                for (int n = 0; n < N; n++) {
                    multiply_add(s[b][n], a0, q[2 * i][n][0], q[2 * i][n][1]);
                    multiply_add(s[b][n], a1, q[2 * i + 1][n][0], q[2 * i + 1][n][1]);
                }
            }
#else
            const u8 *keys = head + low * D + t * (D / 4);
            const u16 *scales = (const u16 *)(head + 128 * D) + low * (D / 32);
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                u32 block = (t * (D / 4) + 4 * i) / 32;
                u32 a[4];
                for (int r = 0; r < 2; r++) {
                    u32 x = *(const u32 *)(keys + 2 * D * r + 4 * i) ^ 0x80808080u;
                    u32 d = scales[2 * (D / 32) * r + block];
                    d |= d << 16;
                    // 1152 = 1024 + 128.
                    a[r] = mul_half2(add_half2(select_bytes(x, 0x64646464u, 0x4140), 0xe480e480u), d);
                    a[r + 2] = mul_half2(add_half2(select_bytes(x, 0x64646464u, 0x4342), 0xe480e480u), d);
                }
                for (int n = 0; n < N; n++) multiply_add(s[b][n], a, q[i][n][0], q[i][n][1]);
            }
#endif
        }
        u32 p[4][N][2];
#pragma unroll
        for (int n = 0; n < N; n++) {
            float top[2] = {largest[n][0], largest[n][1]};
#pragma unroll
            for (int b = 0; b < 4; b++) for (int i = 0; i < 4; i++) {
                const Column &column = columns[n][i & 1];
                u32 position = first + 16 * (g >> 1) + 4 * b + 2 * (i >> 1) + (g & 1);
                float x = s[b][n][i] * scale;
                if (soft_cap != 0.f) x = soft_cap * tanhf(x / soft_cap);
                x = fmaf(column.slope, (float)((int)position - (int)column.end + 1), x);
                bool is_visible = position >= column.start && position < column.end;
                x = is_visible ? x * LOG2E : -INFINITY;
                s[b][n][i] = x;
                top[i & 1] = fmaxf(top[i & 1], x);
            }
            float factor[2];
            for (int i = 0; i < 2; i++) {
                for (int k = 4; k < 32; k *= 2) top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffff, top[i], k));
                factor[i] = top[i] == -INFINITY ? 1.f : exp2f(largest[n][i] - top[i]);
                largest[n][i] = top[i];
                sum[n][i] *= factor[i];
                if (top[i] == -INFINITY) top[i] = 0.f;
            }
#pragma unroll
            for (int b = 0; b < 4; b++) {
                for (int i = 0; i < 4; i++) {
                    s[b][n][i] = exp2f(s[b][n][i] - top[i & 1]);
                    sum[n][i & 1] += s[b][n][i];
                }
                p[b][n][0] = transpose(pack_half(s[b][n][0], s[b][n][1]));
                p[b][n][1] = transpose(pack_half(s[b][n][2], s[b][n][3]));
            }
            for (int b = 0; b < D / 16; b++) for (int i = 0; i < 4; i++) o[b][n][i] *= factor[i & 1];
        }
        // Halves of positions that are not written may be NaN.
        u32 n_written = end > first ? end - first : 0;
        bool is_partial = n_written < PAGE_LEN;
#pragma unroll
        for (int b = 0; b < D / 16; b++) {
            u32 v[2][8];
#if KV_TYPE == 1
            const u8 *values = head + 128 * D + ((16 * b + g) * PAGE_LEN + 16 * t) * 2;
            for (int r = 0; r < 2; r++) for (int i = 0; i < 2; i++) {
                uint4 x = *(const uint4 *)(values + r * 16 * PAGE_LEN + 16 * i);
                v[r][4 * i] = x.x, v[r][4 * i + 1] = x.y, v[r][4 * i + 2] = x.z, v[r][4 * i + 3] = x.w;
            }
#else
            const u8 *values = head + 64 * D + (16 * b + g) * PAGE_LEN + 16 * t;
            const u8 *scales = head + 128 * D + 2 * PAGE_LEN * (D / 32) + (b / 2 * PAGE_LEN + 16 * t) * 2;
            uint4 d0 = *(const uint4 *)scales, d1 = *(const uint4 *)(scales + 16);
            u32 d[8] = {d0.x, d0.y, d0.z, d0.w, d1.x, d1.y, d1.z, d1.w};
            for (int r = 0; r < 2; r++) {
                uint4 x = *(const uint4 *)(values + r * 8 * PAGE_LEN);
                u32 w[4] = {x.x, x.y, x.z, x.w};
                for (int i = 0; i < 4; i++) {
                    u32 y = w[i] ^ 0x80808080u;
                    v[r][2 * i] = mul_half2(add_half2(select_bytes(y, 0x64646464u, 0x4140), 0xe480e480u), d[2 * i]);
                    v[r][2 * i + 1] = mul_half2(add_half2(select_bytes(y, 0x64646464u, 0x4342), 0xe480e480u), d[2 * i + 1]);
                }
            }
#endif
            if (is_partial) {
                for (int i = 0; i < 8; i++) {
                    u32 position = 16 * t + 2 * i;
                    u32 mask = position + 1 < n_written ? 0xffffffffu : position < n_written ? 0xffffu : 0u;
                    v[0][i] &= mask;
                    v[1][i] &= mask;
                }
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                u32 a[4] = {v[0][2 * k], v[1][2 * k], v[0][2 * k + 1], v[1][2 * k + 1]};
                for (int n = 0; n < N; n++) multiply_add(o[b][n], a, p[k][n][0], p[k][n][1]);
            }
        }
    }

    // Adds positions 16 k .. 16 k + 15 of a page. Row r of S is position 4 (r % 8 / 2) + 2 (r / 8) + r % 2, so that lane t has
    // positions 4 t .. of V.
    DEVICE void add_quarter(const u8 *head, u32 page_first, u32 k, u32 end, const Column (&columns)[N][2], float scale, float soft_cap, u32 lane) {
        u32 g = lane >> 2, t = lane & 3, low = 16 * k + 4 * (g >> 1) + (g & 1);
        // Values first: they arrive while scores are computed.
        u32 v[D / 16][4];
#pragma unroll
        for (int b = 0; b < D / 16; b++) {
#if KV_TYPE == 1
            const u8 *values = head + 128 * D + ((16 * b + g) * PAGE_LEN + 16 * k + 4 * t) * 2;
            uint2 x = *(const uint2 *)values, y = *(const uint2 *)(values + 16 * PAGE_LEN);
            v[b][0] = x.x, v[b][1] = y.x, v[b][2] = x.y, v[b][3] = y.y;
#else
            const u8 *values = head + 64 * D + (16 * b + g) * PAGE_LEN + 16 * k + 4 * t;
            v[b][0] = *(const u32 *)values, v[b][1] = *(const u32 *)(values + 8 * PAGE_LEN);
            uint2 d = *(const uint2 *)(head + 128 * D + 2 * PAGE_LEN * (D / 32) + (b / 2 * PAGE_LEN + 16 * k + 4 * t) * 2);
            v[b][2] = d.x, v[b][3] = d.y;
#endif
        }
        float s[N][4];
        for (int n = 0; n < N; n++) for (int i = 0; i < 4; i++) s[n][i] = 0.f;
#if KV_TYPE == 1
        const u8 *keys = head + (low * D + t * (D / 4)) * 2;
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            uint4 x = *(const uint4 *)(keys + 16 * i), y = *(const uint4 *)(keys + 4 * D + 16 * i);
            u32 a0[4] = {x.x, y.x, x.y, y.y}, a1[4] = {x.z, y.z, x.w, y.w};
            for (int n = 0; n < N; n++) {
                multiply_add(s[n], a0, q[2 * i][n][0], q[2 * i][n][1]);
                multiply_add(s[n], a1, q[2 * i + 1][n][0], q[2 * i + 1][n][1]);
            }
        }
#else
        const u8 *keys = head + low * D + t * (D / 4);
        const u16 *scales = (const u16 *)(head + 128 * D) + low * (D / 32);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            u32 a[4];
            for (int r = 0; r < 2; r++) {
                u32 x = *(const u32 *)(keys + 2 * D * r + 4 * i) ^ 0x80808080u;
                u32 d = scales[2 * (D / 32) * r + (t * (D / 4) + 4 * i) / 32];
                d |= d << 16;
                a[r] = mul_half2(add_half2(select_bytes(x, 0x64646464u, 0x4140), 0xe480e480u), d);
                a[r + 2] = mul_half2(add_half2(select_bytes(x, 0x64646464u, 0x4342), 0xe480e480u), d);
            }
            for (int n = 0; n < N; n++) multiply_add(s[n], a, q[i][n][0], q[i][n][1]);
        }
#endif
        u32 p[N][2];
#pragma unroll
        for (int n = 0; n < N; n++) {
            float top[2] = {largest[n][0], largest[n][1]}, factor[2];
            for (int i = 0; i < 4; i++) {
                const Column &column = columns[n][i & 1];
                u32 position = page_first + low + 2 * (i >> 1);
                float x = s[n][i] * scale;
                if (soft_cap != 0.f) x = soft_cap * tanhf(x / soft_cap);
                x = fmaf(column.slope, (float)((int)position - (int)column.end + 1), x);
                bool is_visible = position >= column.start && position < column.end;
                s[n][i] = is_visible ? x * LOG2E : -INFINITY;
                top[i & 1] = fmaxf(top[i & 1], s[n][i]);
            }
            for (int i = 0; i < 2; i++) {
                for (int l = 4; l < 32; l *= 2) top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffff, top[i], l));
                factor[i] = top[i] == -INFINITY ? 1.f : exp2f(largest[n][i] - top[i]);
                largest[n][i] = top[i];
                sum[n][i] *= factor[i];
                if (top[i] == -INFINITY) top[i] = 0.f;
            }
            for (int i = 0; i < 4; i++) {
                s[n][i] = exp2f(s[n][i] - top[i & 1]);
                sum[n][i & 1] += s[n][i];
            }
            p[n][0] = transpose(pack_half(s[n][0], s[n][1]));
            p[n][1] = transpose(pack_half(s[n][2], s[n][3]));
            for (int b = 0; b < D / 16; b++) for (int i = 0; i < 4; i++) o[b][n][i] *= factor[i & 1];
        }
        // Halves of positions that are not written may be NaN.
        u32 position = page_first + 16 * k + 4 * t, mask[2];
        for (int i = 0; i < 2; i++) mask[i] = position + 2 * i + 1 < end ? 0xffffffffu : position + 2 * i < end ? 0xffffu : 0u;
#pragma unroll
        for (int b = 0; b < D / 16; b++) {
#if KV_TYPE != 1
            u32 x = v[b][0] ^ 0x80808080u, y = v[b][1] ^ 0x80808080u, d0 = v[b][2], d1 = v[b][3];
            v[b][0] = mul_half2(add_half2(select_bytes(x, 0x64646464u, 0x4140), 0xe480e480u), d0);
            v[b][1] = mul_half2(add_half2(select_bytes(y, 0x64646464u, 0x4140), 0xe480e480u), d0);
            v[b][2] = mul_half2(add_half2(select_bytes(x, 0x64646464u, 0x4342), 0xe480e480u), d1);
            v[b][3] = mul_half2(add_half2(select_bytes(y, 0x64646464u, 0x4342), 0xe480e480u), d1);
#endif
            u32 a[4] = {v[b][0] & mask[0], v[b][1] & mask[0], v[b][2] & mask[1], v[b][3] & mask[1]};
            for (int n = 0; n < N; n++) multiply_add(o[b][n], a, p[n][0], p[n][1]);
        }
    }

    // Sums over the lanes of a column.
    DEVICE void finish() {
        for (int n = 0; n < N; n++) for (int i = 0; i < 2; i++)
            for (int k = 4; k < 32; k *= 2) sum[n][i] += __shfl_xor_sync(0xffffffff, sum[n][i], k);
    }
};

// Factor of values and sum of a column with a sink.
DEVICE void add_sink(const float *sinks, u32 head, float &largest, float &sum, float &factor) {
    factor = 1.f;
    if (!sinks) return;
    float sink = sinks[head] * LOG2E, top = fmaxf(largest, sink);
    factor = largest == -INFINITY ? 0.f : exp2f(largest - top);
    sum = sum * factor + exp2f(sink - top);
    largest = top;
}

// Pages of earlier positions of a split, to the L2 cache.
template <int D> DEVICE void prefetch_pages(const AttentionParams &p, u32 table, u32 head, u32 first_page, u32 end) {
    constexpr u32 LINES = (KV_TYPE == 1 ? 4 : 2) * D * PAGE_LEN / 128;
    for (u32 page = first_page; page < first_page + 4 && page * PAGE_LEN < end; page++) {
        const u8 *from = kv_head(p.kv, p.words[table + page], head);
        for (u32 i = threadIdx.x; i < LINES; i += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + 128 * i));
    }
}

// One row, 8 query heads of a KV head, 256 positions: a quarter of each page a warp. The last block of a row merges its splits.
// The only row of a step may come with `rope`: heads are normed and rotated first, and its key and value are written.
// Grid: (items, KV heads * blocks of heads, splits).
template <int D> DEVICE void decode(const AttentionParams &p, const RopeKvParams &rope) {
    launch_dependents();
    bool has_rope = rope.q.x;
    if (!has_rope) wait_for_inputs();
    __shared__ __align__(16) float values[4][D][8];
    __shared__ float largests[4][8], sums[4][8];
    __shared__ bool is_last;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
    const u32 *item = p.items + 4 * blockIdx.x;
    u32 row = item[0], table = item[1], start = item[2], end = item[3];
    u32 kv_head_index = blockIdx.y / p.n_head_blocks, block = blockIdx.y % p.n_head_blocks;
    u32 first_head = kv_head_index * p.group + block * p.heads_per_block;
    u32 n_heads = min(p.heads_per_block, p.group - block * p.heads_per_block);
    u32 first_split = start / 256, n_splits = end > start ? (end - 1) / 256 - first_split + 1 : 1;
    if (blockIdx.z >= n_splits) return;
    u32 dim = p.kv.head_dim;
    const float *q = p.q + (size_t)row * p.q_stride + (first_head + g) * dim;
    if (has_rope) {
        // Query heads, then the key and the value, then the angles; the memory is that of the results.
        float *heads = values[0][0];
        bool has_new = blockIdx.z + 1 == n_splits;
        u32 n = n_heads * dim, n_all = has_new ? n + 2 * dim : n;
        // Angles and earlier positions are there before the inputs.
        const float *angles = angles_of(rope, 0);
        float *own_angles = heads + 10 * D;
        if (angles) for (u32 i = threadIdx.x; i < rope.n_rot; i += 128) own_angles[i] = angles[i];
        prefetch_pages<D>(p, table, kv_head_index, (first_split + blockIdx.z) * 4, end);
        wait_for_inputs();
        const float *queries = rope.q.x + first_head * dim, *key = rope.k.x + kv_head_index * dim, *value = rope.v + kv_head_index * dim;
#pragma unroll
        for (u32 k = 0; k < 10 * D / 512 + 1; k++) {
            u32 i = 4 * (k * 128 + threadIdx.x);
            if (i >= n_all) break;
            *(float4 *)(heads + i) = *(const float4 *)(i < n ? queries + i : i < n + dim ? key + (i - n) : value + (i - n - dim));
        }
        __syncthreads();
        for (u32 i = warp; i < n_heads + has_new; i += 4) rotate_head(rope, i < n_heads ? rope.q : rope.k, angles ? own_angles : nullptr, heads + i * dim, lane);
        if (has_new && warp == n_heads % 4) write_key(p.kv, rope.slots[0], rope.slots[1], kv_head_index, heads + n, lane);
        if (has_new && warp == (n_heads + 1) % 4) write_value(p.kv, rope.slots[0], rope.slots[1], kv_head_index, heads + n + dim, lane);
        __syncthreads();
        q = heads + g * dim;
    }
    Warp<D, 1> w;
    w.load_query(0, q, g < n_heads, dim, t);
    w.clear();
    if (has_rope) __syncthreads();
    Column columns[1][2];
    for (int i = 0; i < 2; i++) {
        bool is_column = 2 * t + i < n_heads;
        columns[0][i] = {start, end, p.slopes && is_column ? p.slopes[first_head + 2 * t + i] : 0.f};
    }
    u32 first_page = max((first_split + blockIdx.z) * 4, start / PAGE_LEN);
    u32 end_page = min((first_split + blockIdx.z + 1) * 4, (end + PAGE_LEN - 1) / PAGE_LEN);
    for (u32 page = first_page; page < end_page; page++) {
        u32 first = page * PAGE_LEN + 16 * warp;
        if (first >= end || first + 16 <= start) continue;
        const u8 *head = kv_head(p.kv, p.words[table + page], kv_head_index);
        w.add_quarter(head, page * PAGE_LEN, warp, end, columns, p.scale, p.soft_cap, lane);
    }
    w.finish();
    for (int i = 0; i < 2; i++) {
        for (int b = 0; b < D / 16; b++) {
            values[warp][16 * b + g][2 * t + i] = w.o[b][0][i];
            values[warp][16 * b + g + 8][2 * t + i] = w.o[b][0][i + 2];
        }
        if (g == 0) largests[warp][2 * t + i] = w.largest[0][i], sums[warp][2 * t + i] = w.sum[0][i];
    }
    __syncthreads();
    bool is_whole = n_splits == 1;
    for (u32 i = threadIdx.x; i < n_heads * D; i += 128) {
        u32 column = i / D, c = i % D, head = first_head + column;
        float top = -INFINITY, sum = 0.f, y = 0.f, factor;
        for (int k = 0; k < 4; k++) top = fmaxf(top, largests[k][column]);
        if (top > -INFINITY) for (int k = 0; k < 4; k++) {
            float f = exp2f(largests[k][column] - top);
            sum = fmaf(sums[k][column], f, sum);
            y = fmaf(values[k][c][column], f, y);
        }
        if (is_whole) {
            add_sink(p.sinks, head, top, sum, factor);
            if (c < p.kv.head_dim)
                store(p.out, ((size_t)row * p.n_heads + head) * p.kv.head_dim + c, sum > 0.f ? y * factor / sum : 0.f);
        } else {
            float *partial = p.partials + (((size_t)blockIdx.x * p.n_heads + head) * p.n_splits + blockIdx.z) * (D + 2);
            partial[c] = y;
            if (c == 0) partial[D] = top, partial[D + 1] = sum;
        }
    }
    if (is_whole) return;
    __threadfence();
    __syncthreads();
    u32 *count = p.counts + blockIdx.x * gridDim.y + blockIdx.y;
    if (threadIdx.x == 0) is_last = atomicAdd(count, 1) + 1 == n_splits;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) *count = 0;
    for (u32 i = threadIdx.x; i < n_heads * D; i += 128) {
        u32 column = i / D, c = i % D, head = first_head + column;
        const float *partial = p.partials + ((size_t)blockIdx.x * p.n_heads + head) * p.n_splits * (D + 2);
        float top = -INFINITY, sum = 0.f, y = 0.f, factor;
        for (u32 k = 0; k < n_splits; k++) top = fmaxf(top, __ldcg(partial + k * (D + 2) + D));
        if (top > -INFINITY) for (u32 k = 0; k < n_splits; k++) {
            const float *split = partial + k * (D + 2);
            float f = exp2f(__ldcg(split + D) - top);
            sum = fmaf(__ldcg(split + D + 1), f, sum);
            y = fmaf(__ldcg(split + c), f, y);
        }
        add_sink(p.sinks, head, top, sum, factor);
        if (c < p.kv.head_dim)
            store(p.out, ((size_t)row * p.n_heads + head) * p.kv.head_dim + c, sum > 0.f ? y * factor / sum : 0.f);
    }
}

// Adjacent rows of a sequence: 64 N columns, 8 N a warp; all warps read the same pages.
// Grid: (items, KV heads * blocks of heads).
template <int D, int N> DEVICE void prefill(const AttentionParams &p) {
    begin_kernel();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
    const u32 *item = p.items + 4 * blockIdx.x;
    u32 first_row = item[0], n_rows = item[1], table = item[2], end = item[3];
    u32 kv_head_index = blockIdx.y / p.n_head_blocks, block = blockIdx.y % p.n_head_blocks;
    u32 n_heads = min(p.heads_per_block, p.group - block * p.heads_per_block);
    u32 first_head = kv_head_index * p.group + block * p.heads_per_block, dim = p.kv.head_dim;
    u32 n_columns = n_rows * n_heads;
    if (warp * 8 * N >= n_columns) return;
    Warp<D, N> w;
    Column columns[N][2];
    u32 warp_start = 0xffffffffu, warp_end = 0;
    for (int n = 0; n < N; n++) {
        u32 column = warp * 8 * N + 8 * n + g;
        u32 row = first_row + column / n_heads, head = first_head + column % n_heads;
        w.load_query(n, p.q + (size_t)row * p.q_stride + head * dim, column < n_columns, dim, t);
        for (int i = 0; i < 2; i++) {
            column = warp * 8 * N + 8 * n + 2 * t + i;
            Column &c = columns[n][i];
            c = {0, 0, 0.f};
            if (column < n_columns) {
                row = first_row + column / n_heads;
                c.start = p.ranges[2 * row], c.end = p.ranges[2 * row + 1];
                if (p.slopes) c.slope = p.slopes[first_head + column % n_heads];
                if (c.end > c.start) warp_start = min(warp_start, c.start), warp_end = max(warp_end, c.end);
            }
        }
    }
    for (int k = 1; k < 4; k *= 2) {
        warp_start = min(warp_start, __shfl_xor_sync(0xffffffff, warp_start, k));
        warp_end = max(warp_end, __shfl_xor_sync(0xffffffff, warp_end, k));
    }
    w.clear();
    for (u32 page = warp_start / PAGE_LEN; page * PAGE_LEN < warp_end; page++) {
        const u8 *head = kv_head(p.kv, p.words[table + page], kv_head_index);
        w.add_page(head, page * PAGE_LEN, end, columns, p.scale, p.soft_cap, lane);
    }
    w.finish();
    for (int n = 0; n < N; n++) for (int i = 0; i < 2; i++) {
        u32 column = warp * 8 * N + 8 * n + 2 * t + i;
        if (column >= n_columns) continue;
        u32 row = first_row + column / n_heads, head = first_head + column % n_heads;
        float factor;
        add_sink(p.sinks, head, w.largest[n][i], w.sum[n][i], factor);
        factor = w.sum[n][i] > 0.f ? factor / w.sum[n][i] : 0.f;
        size_t at = ((size_t)row * p.n_heads + head) * dim;
        for (int b = 0; b < D / 16; b++) {
            u32 c = 16 * b + g;
            if (c < dim) store(p.out, at + c, w.o[b][n][i] * factor);
            if (c + 8 < dim) store(p.out, at + c + 8, w.o[b][n][i + 2] * factor);
        }
    }
}

#if KV_TYPE == 1 && defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The same by matrix instructions of warpgroups (Hopper): two of 64 columns, which are rows here. Keys and values of a page are
// factors in shared memory as they are in the pool, both in rows of 128 bytes.
//
//   stages   copies of pages i + 1 and i + 2 are under way while scores of page i are computed
//   S        Q K^T     Q in shared memory, too [64, 64 positions]
//   P        exp2(scale S - reference) of page i, while the products of page i - 1 are computed
//   O       += P V     values are transposed   [64, D]
//
// The reference of a column becomes the largest score when that exceeds it by more than 8 powers of two. Until then O need not be
// multiplied, and weights are at most 2^8. Q is not in registers, since ptxas 12.9 gives them to P: it takes the factors of all
// pages for one.
struct WarpgroupParams {
    TensorMap keys, values; // Keys: D columns, boxes of 64 positions. Values: 64 columns, boxes of D channels.
    AttentionParams attention;
};

template <int D> struct WarpgroupPrefill {
    static constexpr u32 STAGES = 5, PANEL_BYTES = PAGE_LEN * 128, KEY_BYTES = PAGE_LEN * D * 2, STAGE_BYTES = 2 * KEY_BYTES;
    static constexpr u32 QUERY_BYTES = 128 * 128, WARP_COLUMNS = 16; // Queries [D / 64][128][64] behind the stages.
    static constexpr float LARGEST_RISE = 8.f;                       // Of scores over their reference, in powers of two.

    // Addresses of stages and of their barriers.
    struct Stages {
        u32 base, barriers;

        DEVICE u32 keys(u32 stage) const { return base + stage * STAGE_BYTES; }
        DEVICE u32 is_full(u32 stage) const { return barriers + 8 * stage; }
        DEVICE u32 is_free(u32 stage) const { return barriers + 8 * (STAGES + stage); }
    };

    // Starts the copies of a head of a page by one thread.
    static DEVICE void copy_head(const WarpgroupParams &p, const Stages &stages, u32 stage, u32 head) {
        u32 barrier = stages.is_full(stage), keys = stages.keys(stage);
        expect_copies(barrier, STAGE_BYTES);
#pragma unroll
        for (u32 i = 0; i < D / 64; i++) copy_box(keys + i * PANEL_BYTES, p.keys, 64 * i, head * (2 * PAGE_LEN), barrier);
        copy_box(keys + KEY_BYTES, p.values, 0, (2 * head + 1) * D, barrier);
    }

    // Positions from n_written on of a page are not written: their values become zeros.
    static DEVICE void clear_values(u32 values, u32 n_written) {
        for (u32 i = threadIdx.x; i < D * 8; i += 256) {
            u32 row = i / 8, part = i % 8, at = values + row * 128 + ((part ^ row) & 7) * 16;
            for (u32 e = max(n_written, 8 * part); e < 8 * part + 8; e++) asm volatile("st.shared.u16 [%0], %1;" ::"r"(at + e % 8 * 2), "h"((u16)0) : "memory");
        }
        publish_shared();
        __syncthreads();
    }

    static DEVICE float exp2_of(float x) {
        float y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }

    // Two columns of a lane, and the positions that all columns of its warp see.
    struct Columns {
        Column two[2];
        u32 all_low, all_high;
    };

    struct Softmax {
        float reference[2], sum[2], factor[2];
    };

    static DEVICE bool is_plain(const AttentionParams &p) { return p.soft_cap == 0.f && !p.slopes && p.scale > 0.f; }

    // Of scores, in powers of two.
    static DEVICE float unit(const AttentionParams &p) { return is_plain(p) ? p.scale * LOG2E : LOG2E; }

    // Scores of a page, whose first position is `position`, become weights; `factor` is that of the weights before.
    static DEVICE void weigh(float (&s)[32], Softmax &softmax, const AttentionParams &p, const Columns &columns, u32 position, u32 t) {
        if (!is_plain(p)) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const Column &c = columns.two[i >> 1 & 1];
                float x = s[i] * p.scale;
                if (p.soft_cap != 0.f) x = p.soft_cap * tanhf(x / p.soft_cap);
                s[i] = fmaf(c.slope, (float)((int)(position + i / 4 * 8 + 2 * t + (i & 1)) - (int)c.end + 1), x);
            }
        }
        if (position < columns.all_low || position + PAGE_LEN > columns.all_high) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const Column &c = columns.two[i >> 1 & 1];
                u32 at = position + i / 4 * 8 + 2 * t + (i & 1);
                if (at < c.start || at >= c.end) s[i] = -INFINITY;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float reference = softmax.reference[r], top = reference;
#pragma unroll
            for (int b = 0; b < 8; b++) top = fmaxf(top, fmaxf(s[4 * b + 2 * r], s[4 * b + 2 * r + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
            bool rises = (top - reference) * unit(p) > LARGEST_RISE; // Not if both are infinite.
            softmax.factor[r] = rises ? exp2_of((reference - top) * unit(p)) : 1.f;
            softmax.reference[r] = rises ? top : reference;
            float offset = softmax.reference[r] == -INFINITY ? 0.f : softmax.reference[r] * unit(p), page_sum = 0.f;
#pragma unroll
            for (int b = 0; b < 8; b++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &x = s[4 * b + 2 * r + i];
                    x = exp2_of(fmaf(x, unit(p), -offset));
                    page_sum += x;
                }
            softmax.sum[r] = fmaf(softmax.sum[r], softmax.factor[r], page_sum);
        }
    }

    // Grid: (items, KV heads * blocks of heads).
    static DEVICE void run(const WarpgroupParams &params) {
        const AttentionParams &p = params.attention;
        extern __shared__ uint4 shared[];
        __shared__ u32 starts[8], ends[8];
        __shared__ u64 barriers[2 * STAGES];
        launch_dependents();
        u32 lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32), g = lane >> 2, t = lane & 3;
        Stages stages = {(shared_address(shared) + 1023) & ~1023u, shared_address(barriers)};
        if (threadIdx.x < 2 * STAGES) init_barrier(stages.barriers + 8 * threadIdx.x, threadIdx.x < STAGES ? 1 : 8);
        publish_shared();
        const u32 *item = p.items + 4 * blockIdx.x;
        u32 first_row = item[0], n_rows = item[1], item_end = item[3];
        const u32 *table = p.words + item[2];
        u32 kv_head_index = blockIdx.y / p.n_head_blocks, block = blockIdx.y % p.n_head_blocks;
        u32 n_heads = min(p.heads_per_block, p.group - block * p.heads_per_block);
        u32 first_head = kv_head_index * p.group + block * p.heads_per_block, dim = p.kv.head_dim;
        u32 n_columns = n_rows * n_heads;
        Columns columns = {{}, 0, 0xffffffffu};
        u32 rows[2], heads[2], low = 0xffffffffu, high = 0; // Seen by a column of the warp.
        for (int r = 0; r < 2; r++) {
            u32 column = warp * WARP_COLUMNS + g + 8 * r;
            bool is_column = column < n_columns;
            rows[r] = first_row + (is_column ? column / n_heads : 0), heads[r] = first_head + (is_column ? column % n_heads : 0);
            columns.two[r] = {0, 0, 0.f};
            if (!is_column) continue;
            u32 start = p.ranges[2 * rows[r]], end = p.ranges[2 * rows[r] + 1];
            columns.two[r] = {start, end, p.slopes ? p.slopes[heads[r]] : 0.f};
            if (end > start) low = min(low, start), high = max(high, end);
            columns.all_low = max(columns.all_low, start), columns.all_high = min(columns.all_high, end);
        }
        for (int k = 4; k < 32; k *= 2) {
            low = min(low, __shfl_xor_sync(0xffffffff, low, k)), high = max(high, __shfl_xor_sync(0xffffffff, high, k));
            columns.all_low = max(columns.all_low, __shfl_xor_sync(0xffffffff, columns.all_low, k));
            columns.all_high = min(columns.all_high, __shfl_xor_sync(0xffffffff, columns.all_high, k));
        }
        if (lane == 0) starts[warp] = low, ends[warp] = high;
        __syncthreads();
        u32 first = 0xffffffffu, last = 0; // Pages of the block.
#pragma unroll
        for (int i = 0; i < 8; i++) first = min(first, starts[i]), last = max(last, ends[i]);
        first = first == 0xffffffffu ? 0 : first / PAGE_LEN, last = (last + PAGE_LEN - 1) / PAGE_LEN;
        u32 queries = stages.base + STAGES * STAGE_BYTES;
        bool copies = warp == 0 && is_elected();
        u32 next = copies && first < last ? table[first] : 0; // Loaded before it is needed.
        auto copy = [&](u32 page, u32 stage) {
            copy_head(params, stages, stage, next * p.kv.n_heads + kv_head_index);
            if (page + 1 < last) next = table[page + 1];
        };
        wait_for_inputs();
        if (copies) for (u32 i = 0; i < 3 && first + i < last; i++) copy(first + i, i);
        // Queries of the warp: four channels a lane.
        u32 offsets[2] = {rows[0] * p.q_stride + heads[0] * dim, rows[1] * p.q_stride + heads[1] * dim};
        constexpr u32 LOADS = 8;
#pragma unroll 1
        for (u32 first_load = 0; first_load < WARP_COLUMNS * D / 128; first_load += LOADS) {
            float4 x[LOADS];
            auto column = [&](u32 i) { return (32 * (first_load + i) + lane) / (D / 4); };
            u32 c = 4 * (lane % (D / 4));
            auto load_all = [&](auto load) {
#pragma unroll
                for (u32 i = 0; i < LOADS; i++) {
                    u32 offset = __shfl_sync(0xffffffff, column(i) < 8 ? offsets[0] : offsets[1], 4 * (column(i) % 8));
                    bool is_column = warp * WARP_COLUMNS + column(i) < n_columns;
                    x[i] = is_column ? load(p.q + offset) : make_float4(0.f, 0.f, 0.f, 0.f);
                }
            };
            if (((dim | p.q_stride) & 3) == 0 && ((u64)p.q & 15) == 0)
                load_all([&](const float *q) { return c < dim ? *(const float4 *)(q + c) : make_float4(0.f, 0.f, 0.f, 0.f); });
            else load_all([&](const float *q) { return load4(q, c, dim); });
#pragma unroll
            for (u32 i = 0; i < LOADS; i++) {
                u32 at = warp * WARP_COLUMNS + column(i), to = queries + c / 64 * QUERY_BYTES + at * 128 + (((c % 64 / 8) ^ at) & 7) * 16 + c % 8 * 2;
                asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(pack_half(x[i].x, x[i].y)), "r"(pack_half(x[i].z, x[i].w)) : "memory");
            }
        }
        float s[32], o[D / 2];
        Softmax softmax = {{-INFINITY, -INFINITY}};
        Stage stage;
        u32 weights[4][4], query_matrix = uniform(matrix_at(queries + warp / 4 * (64 * 128)));
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] = 0.f;
        auto start_scores = [&](u32 page) {
            wait_for_barrier(stages.is_full(stage.index), stage.phase);
            __syncwarp();
            if ((page + 1) * PAGE_LEN > item_end) clear_values(stages.keys(stage.index) + KEY_BYTES, item_end - page * PAGE_LEN);
            u32 keys = uniform(matrix_at(stages.keys(stage.index)));
            begin_warpgroup();
#pragma unroll
            for (int k = 0; k < D / 16; k++)
                multiply_add_warpgroup(s, query_matrix + k / 4 * (QUERY_BYTES / 16) + 2 * (k % 4), keys + k / 4 * (PANEL_BYTES / 16) + 2 * (k % 4), k > 0);
            commit_warpgroup();
        };
        auto pack_weights = [&] {
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int i = 0; i < 4; i++) weights[k][i] = pack_half(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
        };
        auto start_products = [&](u32 stage) {
            u32 values = uniform(matrix_at(stages.keys(stage) + KEY_BYTES));
            fence_registers(o);
            fence_registers(weights);
            begin_warpgroup();
#pragma unroll
            for (int k = 0; k < 4; k++) multiply_add_warpgroup(o, weights[k], values + 2 * k);
            commit_warpgroup();
        };
        publish_shared();
        __syncthreads();
        if (first < last) {
            start_scores(first);
            wait_for_warpgroup<0>();
            fence_registers(s);
            weigh(s, softmax, p, columns, first * PAGE_LEN, t);
            pack_weights();
            u32 before = 0; // Stage of the page before.
#pragma unroll 1
            for (u32 page = first + 1; page < last; page++) {
                stage.next(STAGES);
                // Into the stage of page - 3.
                if (copies && page + 2 < last) {
                    Stage to = stage;
                    to.next(STAGES);
                    to.next(STAGES);
                    if (page + 2 >= first + STAGES) wait_for_barrier(stages.is_free(to.index), to.phase ^ 1);
                    copy(page + 2, to.index);
                }
                __syncwarp();
                start_scores(page);
                start_products(before);
                wait_for_warpgroup<1>();
                fence_registers(s);
                weigh(s, softmax, p, columns, page * PAGE_LEN, t);
                wait_for_warpgroup<0>();
                fence_registers(o);
                if (lane == 0) arrive(stages.is_free(before));
                before = stage.index;
                if (__any_sync(0xffffffff, softmax.factor[0] != 1.f || softmax.factor[1] != 1.f)) {
#pragma unroll
                    for (int i = 0; i < D / 2; i++) o[i] *= softmax.factor[i >> 1 & 1];
                }
                pack_weights();
            }
            start_products(before);
            wait_for_warpgroup<0>();
            fence_registers(o);
        }
        for (int r = 0; r < 2; r++) {
            float &sum = softmax.sum[r], factor, top = softmax.reference[r] * unit(p);
            for (int k = 1; k < 4; k *= 2) sum += __shfl_xor_sync(0xffffffff, sum, k);
            if (warp * WARP_COLUMNS + g + 8 * r >= n_columns) continue;
            add_sink(p.sinks, heads[r], top, sum, factor);
            factor = sum > 0.f ? factor / sum : 0.f;
            size_t at = ((size_t)rows[r] * p.n_heads + heads[r]) * dim;
            if (dim % 16 == 0) {
                float2 y[D / 8];
#pragma unroll
                for (int b = 0; b < D / 8; b++) y[b] = make_float2(o[4 * b + 2 * r] * factor, o[4 * b + 2 * r + 1] * factor);
                if (p.out.values) {
                    float *to = p.out.values + at + 2 * t;
#pragma unroll
                    for (int b = 0; b < D / 8; b++) if (8 * b < dim) *(float2 *)(to + 8 * b) = y[b];
                }
                if (p.out.operand) {
                    // Columns 2 t + 8 of an operand are 4 behind columns 2 t.
                    u16 *to = p.out.operand + operand_index(at + 2 * t);
#pragma unroll
                    for (int b = 0; b < D / 8; b++) if (8 * b < dim) *(u32 *)(to + b / 2 * 16 + b % 2 * 4) = pack_half(y[b].x, y[b].y);
                }
                continue;
            }
#pragma unroll
            for (int i = 0; i < D / 4; i++) {
                u32 c = i / 2 * 8 + 2 * t + i % 2;
                if (c < dim) store(p.out, at + c, o[i / 2 * 4 + 2 * r + i % 2] * factor);
            }
        }
    }
};
#endif

struct DecodeParams {
    AttentionParams attention;
    RopeKvParams rope; // q.x null: none.
};

#define DECODE(D) KERNEL(128) decode_##D(const __grid_constant__ DecodeParams p) { decode<D>(p.attention, p.rope); }
#define PREFILL(D, N) KERNEL(256) prefill_##D(const __grid_constant__ AttentionParams p) { prefill<D, N>(p); }

DECODE(64)
DECODE(96)
DECODE(128)
DECODE(256)
PREFILL(96, 2)
PREFILL(256, 1)
#if KV_TYPE == 1 && defined(__CUDA_ARCH_FEAT_SM90_ALL)
extern "C" __global__ void __launch_bounds__(256, 2) prefill_64(const __grid_constant__ WarpgroupParams p) { WarpgroupPrefill<64>::run(p); }
KERNEL(256) prefill_128(const __grid_constant__ WarpgroupParams p) { WarpgroupPrefill<128>::run(p); }
#else
PREFILL(64, 2)
PREFILL(128, 2)
#endif
