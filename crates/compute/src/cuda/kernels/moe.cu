// Mixture of experts: routing, assignments sorted by expert, weighted sum of results.
#include "common.cuh"

struct RouteParams {
    const float *logits;
    u32 *assignments; // [rows, n_used]: expert, weight.
    u32 n_rows, stride, n_experts, n_used, normalize_top_k, unused;
};

#define LOWEST -3.0e38f

// One warp per row. Takes n_used times the expert with the largest remaining logit; of equal logits the lower expert.
KERNEL(32) moe_route(const __grid_constant__ RouteParams p) {
    begin_kernel();
    __shared__ float remaining[1024];
    u32 lane = threadIdx.x, row = blockIdx.x;
    const float *logits = p.logits + (size_t)row * p.stride;
    for (u32 e = lane; e < p.n_experts; e += 32) remaining[e] = fmaxf(logits[e], LOWEST);
    __syncwarp();
    float largest = 0.f, sum = 0.f;
    u32 *assignments = p.assignments + 2ull * row * p.n_used;
    for (u32 i = 0; i < p.n_used; i++) {
        float best = -3.2e38f;
        u32 expert = 0;
        for (u32 e = lane; e < p.n_experts; e += 32) if (remaining[e] > best) best = remaining[e], expert = e;
        for (int k = 16; k > 0; k >>= 1) {
            float other = __shfl_xor_sync(0xffffffff, best, k);
            u32 other_expert = __shfl_xor_sync(0xffffffff, expert, k);
            if (other > best || (other == best && other_expert < expert)) best = other, expert = other_expert;
        }
        if (i == 0) largest = best;
        float weight = expf(best - largest);
        sum += weight;
        if (lane == 0) remaining[expert] = -3.3e38f, assignments[2 * i] = expert, assignments[2 * i + 1] = __float_as_uint(weight);
        __syncwarp();
    }
    if (!p.normalize_top_k) {
        sum = 0.f;
        for (u32 e = lane; e < p.n_experts; e += 32) sum += expf(fmaxf(logits[e], LOWEST) - largest);
        sum = warp_sum(sum);
    }
    for (u32 i = lane; i < p.n_used; i += 32) assignments[2 * i + 1] = __float_as_uint(__uint_as_float(assignments[2 * i + 1]) / sum);
}

struct SortParams {
    const u32 *assignments;
    u32 *order;  // [n_assignments]: assignments sorted by expert, ascending.
    u32 *blocks; // [n_blocks]: expert, first index in `order`, count; count 0: unused.
    u32 n_assignments, n_experts, block_len, n_blocks;
};

// One thread block. Output blocks hold at most block_len assignments of one expert.
KERNEL(1024) moe_sort(const __grid_constant__ SortParams p) {
    begin_kernel();
    __shared__ u32 first[1025], first_block[1025];
    u32 tid = threadIdx.x;
    if (tid < p.n_experts) {
        u32 n = 0;
        for (u32 i = 0; i < p.n_assignments; i++) n += p.assignments[2 * i] == tid;
        first[tid + 1] = n;
    }
    for (u32 i = tid; i < p.n_blocks; i += 1024) p.blocks[3 * i + 2] = 0;
    __syncthreads();
    if (tid == 0) {
        first[0] = first_block[0] = 0;
        for (u32 e = 0; e < p.n_experts; e++) {
            first_block[e + 1] = first_block[e] + (first[e + 1] + p.block_len - 1) / p.block_len;
            first[e + 1] += first[e];
        }
    }
    __syncthreads();
    if (tid >= p.n_experts) return;
    u32 next = first[tid];
    for (u32 i = 0; i < p.n_assignments; i++) if (p.assignments[2 * i] == tid) p.order[next++] = i;
    u32 n = first[tid + 1] - first[tid];
    for (u32 b = 0; b * p.block_len < n; b++) {
        u32 *block = p.blocks + 3 * (first_block[tid] + b);
        block[0] = tid, block[1] = first[tid] + b * p.block_len, block[2] = min(p.block_len, n - b * p.block_len);
    }
}

struct CombineParams {
    const u32 *assignments;
    const float *results;
    float *out;
    u32 n_rows, cols, n_used, accumulate;
};

// out[t] (+)= sum_i weight[t, i] * results[t, i].
KERNEL(256) moe_combine(const __grid_constant__ CombineParams p) {
    begin_kernel();
    size_t n = (size_t)p.n_rows * p.cols;
    for (size_t i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
        u32 row = (u32)(i / p.cols), col = (u32)(i % p.cols);
        float sum = p.accumulate ? p.out[i] : 0.f;
        for (u32 k = 0; k < p.n_used; k++) {
            u32 assignment = row * p.n_used + k;
            sum = fmaf(__uint_as_float(p.assignments[2 * assignment + 1]), p.results[(size_t)assignment * p.cols + col], sum);
        }
        p.out[i] = sum;
    }
}
