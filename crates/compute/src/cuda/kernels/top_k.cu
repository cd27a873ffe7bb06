// Top-k of rows in descending order; of equal values the lower column first.
#include "common.cuh"

struct TopKParams {
    const float *x;
    float *out;  // [rows, 2k]: values, then columns.
    u64 *best;   // [rows]: scratch of `arg_max`, zeros before and after.
    u32 *counts; // [rows]: finished blocks; zeros before and after.
    u64 *found;  // [rows, chunks, k]: candidates of `top_k_chunks`.
    u32 n_rows, cols, stride, k, n_chunks, unused;
};

// Columns of a chunk.
#define CHUNK 4096

// Sort key: integer key, then complement of the column.
DEVICE u64 candidate(u32 key, u32 column) { return (u64)key << 32 | (u32)~column; }

// Integer key with the order of the f32 of these bits: NaN as -inf, +inf as the largest finite value, both zeros equal.
DEVICE u32 key_of(float x) {
    u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x007fffffu;
    if (magnitude == 0) return 0x80000000u;
    if (magnitude != bits) return ~bits;
    return min(bits, 0x7f7fffffu) | 0x80000000u;
}

DEVICE float value_of(u32 key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// k = 1. Grid: (chunks of columns, rows); the last block of a row writes the result.
KERNEL(256) arg_max(const __grid_constant__ TopKParams p) {
    begin_kernel();
    u32 row = blockIdx.y;
    const float *x = p.x + (size_t)row * p.stride;
    u64 best = 0;
    for (u32 c = blockIdx.x * 256 + threadIdx.x; c < p.cols; c += gridDim.x * 256) {
        u64 key = (u64)key_of(x[c]) << 32 | (u32)~c;
        best = key > best ? key : best;
    }
    for (int i = 16; i > 0; i >>= 1) {
        u64 other = __shfl_xor_sync(0xffffffff, best, i);
        best = other > best ? other : best;
    }
    __shared__ u64 bests[8];
    if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < 8; i++) best = bests[i] > best ? bests[i] : best;
    atomicMax(&p.best[row], best);
    __threadfence();
    if (atomicAdd(&p.counts[row], 1) + 1 < gridDim.x) return;
    best = atomicExch(&p.best[row], 0ull);
    p.counts[row] = 0;
    p.out[2 * row] = value_of((u32)(best >> 32));
    p.out[2 * row + 1] = (float)~(u32)best;
}

// Passes the k largest of n candidates to `put(rank, candidate)` in order; 0 if there are fewer. `get(i)`: candidates by ascending column.
// Radix select finds the key of rank k byte by byte, from the highest; then the keys not below it are sorted.
template <typename Get, typename Put> DEVICE void select(u32 n, u32 k, Get get, Put put) {
    __shared__ u32 histogram[256];
    __shared__ u32 prefix, rank, n_above, n_equal;
    __shared__ u32 ballots[32];
    __shared__ u64 found[128], equal[128];
    u32 tid = threadIdx.x, wanted = min(k, n);
    if (tid == 0) prefix = 0, rank = wanted, n_above = 0, n_equal = 0;
    if (tid < 128) found[tid] = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (tid < 256) histogram[tid] = 0;
        __syncthreads();
        u32 high = shift == 24 ? 0u : ~0u << (shift + 8);
        for (u32 i = tid; i < n; i += 1024) {
            u32 key = (u32)(get(i) >> 32);
            if ((key & high) == prefix) atomicAdd(&histogram[key >> shift & 255], 1);
        }
        __syncthreads();
        // Warp 0: suffix sums of the histogram of 8 bytes a lane, then the byte of rank k.
        if (tid < 32) {
            u32 counts[8], sum = 0;
            for (int i = 0; i < 8; i++) sum += counts[i] = histogram[8 * tid + i];
            u32 above = 0;
            for (int other = 31; other > 0; other--) {
                u32 count = __shfl_sync(0xffffffff, sum, other);
                if (other > tid) above += count;
            }
            for (int i = 7; i >= 0; i--) {
                if (above < rank && above + counts[i] >= rank) found[127] = (u64)(8 * tid + i) << 32 | (rank - above);
                above += counts[i];
            }
        }
        __syncthreads();
        if (tid == 0) prefix |= (u32)(found[127] >> 32) << shift, rank = (u32)found[127], found[127] = 0;
        __syncthreads();
    }
    // `prefix` is the key of rank k; the first `rank` of the equal ones belong to the result.
    u32 limit = prefix, n_wanted_equal = rank;
    for (u32 first = 0; first < n; first += 1024) {
        u32 i = first + tid;
        u64 x = i < n ? get(i) : 0;
        u32 key = (u32)(x >> 32);
        bool is_equal = i < n && key == limit;
        if (i < n && key > limit) found[atomicAdd(&n_above, 1)] = x;
        // Keeps the order of the candidates: ballots, warp after warp.
        u32 votes = __ballot_sync(0xffffffff, is_equal);
        if (tid % 32 == 0) ballots[tid / 32] = votes;
        __syncthreads();
        u32 before = n_equal;
        for (u32 w = 0; w < tid / 32; w++) before += __popc(ballots[w]);
        before += __popc(votes & ((1u << tid % 32) - 1));
        if (is_equal && before < n_wanted_equal) equal[before] = x;
        __syncthreads();
        if (tid == 0) for (u32 w = 0; w < 32; w++) n_equal += __popc(ballots[w]);
        __syncthreads();
    }
    if (tid < n_wanted_equal) found[n_above + tid] = equal[tid];
    __syncthreads();
    // Bitonic sort (Batcher 1968) of 128, descending.
    for (u32 size = 2; size <= 128; size *= 2) {
        for (u32 step = size / 2; step > 0; step /= 2) {
            u32 other = tid ^ step;
            if (tid < 128 && other > tid) {
                u64 a = found[tid], b = found[other];
                bool descending = (tid & size) == 0;
                if ((a < b) == descending) found[tid] = b, found[other] = a;
            }
            __syncthreads();
        }
    }
    if (tid < k) put(tid, found[tid]);
}

// k up to 128: top-k of each chunk of columns. Grid: (chunks, rows).
KERNEL(1024) top_k_chunks(const __grid_constant__ TopKParams p) {
    begin_kernel();
    u32 first = blockIdx.x * CHUNK, row = blockIdx.y;
    const float *x = p.x + (size_t)row * p.stride + first;
    u64 *found = p.found + ((size_t)row * p.n_chunks + blockIdx.x) * p.k;
    select(min(CHUNK, p.cols - first), p.k,
        [&](u32 i) { return candidate(key_of(x[i]), first + i); },
        [&](u32 rank, u64 c) { found[rank] = c; });
}

// Top-k of the candidates of all chunks. Empty candidates are below any key.
KERNEL(1024) top_k(const __grid_constant__ TopKParams p) {
    begin_kernel();
    const u64 *found = p.found + (size_t)blockIdx.x * p.n_chunks * p.k;
    float *out = p.out + (size_t)blockIdx.x * 2 * p.k;
    select(p.n_chunks * p.k, p.k,
        [&](u32 i) { return found[i]; },
        [&](u32 rank, u64 c) { out[rank] = value_of((u32)(c >> 32)), out[p.k + rank] = (float)~(u32)c; });
}
