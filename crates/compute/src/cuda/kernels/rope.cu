// QK norm, rotary embedding and KV write. One warp per head of a row.
#include "rope.cuh"

// Heads: queries, then keys, then values. Grid: (rows, heads / 8).
KERNEL(256) rope_kv(const __grid_constant__ RopeKvParams p) {
    begin_kernel();
    __shared__ float heads[8][1024];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x, dim = p.head_dim;
    u32 index = blockIdx.y * 8 + warp, n_q = p.q.n_heads, n_k = p.has_k ? p.k.n_heads : 0;
    u32 n_v = p.slots ? p.k.n_heads : 0;
    if (index >= n_q + n_k + n_v) return;
    float *head = heads[warp];
    if (index >= n_q + n_k) {
        u32 g = index - n_q - n_k;
        const float *v = p.v + (size_t)row * p.v_stride + g * dim;
        for (u32 c = lane; c < dim; c += 32) head[c] = v[c];
        __syncwarp();
        write_value(p.kv, p.slots[2 * row], p.slots[2 * row + 1], g, head, lane);
        return;
    }
    const HeadsParams &h = index < n_q ? p.q : p.k;
    u32 g = index < n_q ? index : index - n_q;
    const float *x = h.x + (size_t)row * h.stride + g * dim;
    for (u32 c = lane; c < dim; c += 32) head[c] = x[c];
    __syncwarp();
    rotate_head(p, h, angles_of(p, row), head, lane);
    if (h.out)
        for (u32 c = lane; c < dim; c += 32) h.out[(size_t)row * h.out_stride + g * dim + c] = head[c];
    if (index >= n_q && p.slots)
        write_key(p.kv, p.slots[2 * row], p.slots[2 * row + 1], g, head, lane);
}

// Writes keys and values of 64 rows and one head, unchanged, to f16 pages. Rows are whole vectors of 16 bytes. Values are transposed in
// shared memory: a lane writes eight adjacent positions at once where slots are adjacent. Grid: (blocks of 64 rows, KV heads).
KERNEL(256) write_kv(const __grid_constant__ RopeKvParams p) {
    constexpr u32 LOADS = 4;
    __shared__ u16 values[64][130];
    __shared__ u32 slots[64][2];
    __shared__ bool is_run[8]; // Eight rows have adjacent slots, the first a multiple of 8.
    launch_dependents();
    u32 first = blockIdx.x * 64, g = blockIdx.y, n = min(64, p.n_rows - first), padded = p.kv.padded_dim;
    if (threadIdx.x < 2 * n) slots[threadIdx.x / 2][threadIdx.x % 2] = p.slots[2 * first + threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 8) {
        u32 r = 8 * threadIdx.x;
        bool is = r + 8 <= n && slots[r][1] % 8 == 0;
        for (u32 e = 1; e < 8 && is; e++) is = slots[r + e][0] == slots[r][0] && slots[r + e][1] == slots[r][1] + e;
        is_run[threadIdx.x] = is;
    }
    wait_for_inputs();
    const float *keys = p.k.x + (size_t)first * p.k.stride + g * p.head_dim, *v = p.v + (size_t)first * p.v_stride + g * p.head_dim;
    u32 n_vectors = n * (padded / 4);
    for (u32 at = threadIdx.x; at < n_vectors; at += 256 * LOADS) {
        float4 x[2][LOADS];
        u32 places[LOADS][2];
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            u32 r = (at + 256 * i) / (padded / 4), c = 4 * ((at + 256 * i) % (padded / 4));
            places[i][0] = r, places[i][1] = c;
            if (r >= n) continue;
            auto load = [&](const float *row) { return c < p.head_dim ? *(const float4 *)(row + c) : make_float4(0.f, 0.f, 0.f, 0.f); };
            x[0][i] = load(keys + (size_t)r * p.k.stride), x[1][i] = load(v + (size_t)r * p.v_stride);
        }
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            u32 r = places[i][0], c = places[i][1];
            if (r >= n) continue;
            auto halves = [](float x, float y) { return plain_half(x) | (u32)plain_half(y) << 16; };
            u16 *key = (u16 *)kv_head(p.kv, slots[r][0], g) + slots[r][1] * padded + c;
            *(uint2 *)key = make_uint2(halves(x[0][i].x, x[0][i].y), halves(x[0][i].z, x[0][i].w));
            *(u32 *)&values[r][c] = halves(x[1][i].x, x[1][i].y), *(u32 *)&values[r][c + 2] = halves(x[1][i].z, x[1][i].w);
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < padded * 8; i += 256) {
        u32 c = i / 8, r = i % 8 * 8;
        auto place = [&](u32 r) { return (u16 *)kv_head(p.kv, slots[r][0], g) + PAGE_LEN * (padded + c) + slots[r][1]; };
        if (is_run[i % 8]) {
            auto pair = [&](u32 e) { return values[r + e][c] | (u32)values[r + e + 1][c] << 16; };
            *(uint4 *)place(r) = make_uint4(pair(0), pair(2), pair(4), pair(6));
        } else {
            for (u32 e = r; e < min(r + 8, n); e++) *place(e) = values[e][c];
        }
    }
}

struct CopyPagesParams {
    Kv kv;
    const u32 *pairs;
    u32 n, unused;
};

// Copies page pairs[2i] to pairs[2i + 1] in vectors of 16 bytes; grid row i has pair i. A pair of equal pages pads the list.
KERNEL(256) copy_pages(const __grid_constant__ CopyPagesParams p) {
    begin_kernel();
    u32 first = p.pairs[2 * blockIdx.y], second = p.pairs[2 * blockIdx.y + 1];
    if (first == second) return;
    const uint4 *from = (const uint4 *)(p.kv.pages + first * p.kv.page_bytes);
    uint4 *to = (uint4 *)(p.kv.pages + second * p.kv.page_bytes);
    for (u64 i = blockIdx.x * 256ull + threadIdx.x; i < p.kv.page_bytes / 16; i += gridDim.x * 256ull) to[i] = from[i];
}

// Copy of [heads][rows][cols] elements. Strides are in bytes.
struct Strides {
    u32 head, row, col;
};

struct CopyElementsParams {
    const u8 *from;
    u8 *to;
    Strides from_strides, to_strides;
    u32 n_rows, n_cols, element_bytes, unused;
};

template <class T> DEVICE void copy_element(const u8 *from, u8 *to) { *(T *)to = *(const T *)from; }

// Grid: (blocks of elements, heads).
KERNEL(256) copy_elements(const __grid_constant__ CopyElementsParams p) {
    begin_kernel();
    u32 i = blockIdx.x * 256 + threadIdx.x, row = i / p.n_cols, col = i % p.n_cols;
    if (row >= p.n_rows) return;
    auto offset = [&](const Strides &strides) { return (size_t)blockIdx.y * strides.head + row * strides.row + col * strides.col; };
    const u8 *from = p.from + offset(p.from_strides);
    u8 *to = p.to + offset(p.to_strides);
    if (p.element_bytes == 1) copy_element<u8>(from, to);
    else if (p.element_bytes == 2) copy_element<u16>(from, to);
    else copy_element<u32>(from, to);
}
