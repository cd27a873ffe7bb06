// Ops on rows: copies, norms, elementwise ops, conversions. `stride`: elements between rows.
#include "row_norm.cuh"

struct CopyParams {
    const float *from;
    float *to;
    const u32 *rows; // Source row of each output row; null: the same row.
    u32 n_rows, cols, stride, out_stride, n_copies, unused;
};

// to[i, r] = from[rows[r]] for i in 0 .. n_copies.
KERNEL(256) copy_rows(const __grid_constant__ CopyParams p) {
    begin_kernel();
    size_t n = (size_t)p.n_rows * p.n_copies * p.cols;
    for (size_t i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
        size_t row = i / p.cols, col = i % p.cols, from = row % p.n_rows;
        if (p.rows) from = p.rows[from];
        p.to[row * p.out_stride + col] = p.from[from * p.stride + col];
    }
}

struct NormParams {
    const float *x;
    const float *weight;
    const float *bias;
    Output out;
    u32 n_rows, cols, stride, is_layer_norm, accumulate;
    float eps;
};

// WHOLE: see NormRow; output rows and the bias are aligned as well. `sum`: see NormRow::load.
template <bool WHOLE, u32 THREADS, typename Sum> DEVICE void norm_row(const NormParams &p, u32 index, u32 thread, Sum sum) {
    NormRow<WHOLE, THREADS> row;
    row.load_weights(p.weight, p.cols, thread);
    wait_for_inputs();
    const float *x = p.x + (size_t)index * p.stride;
    row.load(x, p.eps, p.is_layer_norm, sum);
    row.write(x, p.weight, [&](u32 first, float4 y) {
        size_t at = (size_t)index * p.cols + first;
        if (WHOLE) {
            auto add = [&](const float *from) {
                float4 z = *(const float4 *)from;
                y = make_float4(y.x + z.x, y.y + z.y, y.z + z.z, y.w + z.w);
            };
            if (p.bias) add(p.bias + first);
            if (p.accumulate) add(p.out.values + at);
            store4(p.out, at, y);
            return;
        }
        float four[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            if (first + e >= p.cols) break;
            if (p.bias) four[e] += p.bias[first + e];
            if (p.accumulate) four[e] += p.out.values[at + e];
            store(p.out, at + e, four[e]);
        }
    });
}

// out (+)= norm(x) * weight + bias. One block per row.
KERNEL(256) norm_rows(const __grid_constant__ NormParams p) {
    launch_dependents();
    bool is_whole = ((p.cols | p.stride) & 3) == 0 && (((u64)p.x | (u64)p.weight | (u64)p.bias | (u64)p.out.values) & 15) == 0;
    auto sum = [](float y) { return block_sum(y); };
    if (is_whole) norm_row<true, 256>(p, blockIdx.x, threadIdx.x, sum);
    else norm_row<false, 256>(p, blockIdx.x, threadIdx.x, sum);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// As above with one warp per row: whole rows of at most 2,048 columns. Faster on Hopper; left out of other archives to keep them small.
KERNEL(128) norm_rows_by_warps(const __grid_constant__ NormParams p) {
    launch_dependents();
    u32 index = blockIdx.x * 4 + threadIdx.x / 32;
    if (index >= p.n_rows) return;
    norm_row<true, 32>(p, index, threadIdx.x % 32, [](float (&sums)[8]) {
        float y = 0.f;
#pragma unroll
        for (int k = 0; k < 8; k++) y += warp_sum(sums[k]);
        return y;
    });
}
#endif

struct ElementParams {
    const float *x;
    const float *y;
    Output out;
    u32 n_rows, cols, x_stride, y_stride, op, activation;
    float alpha, limit;
};

enum ElementOp { ELEMENT_ADD, ELEMENT_SOFT_CAP, ELEMENT_GATED };

DEVICE float element(const ElementParams &p, float x, float y) {
    switch (p.op) {
    case ELEMENT_ADD: return x + y;
    case ELEMENT_SOFT_CAP: return p.alpha * tanhf(x / p.alpha);
    default: return gated_activation(x, y, p.activation, p.alpha, p.limit);
    }
}

// out = op(x, y), packed. Grid: (threads of four columns, rows).
KERNEL(256) elementwise(const __grid_constant__ ElementParams p) {
    begin_kernel();
    u32 col = 4 * (blockIdx.x * 256 + threadIdx.x);
    if (col >= p.cols) return;
    bool is_whole = ((p.cols | p.x_stride | p.y_stride) & 3) == 0 && (((u64)p.x | (u64)p.y | (u64)p.out.values) & 15) == 0;
    for (size_t row = blockIdx.y; row < p.n_rows; row += gridDim.y) {
        const float *xs = p.x + row * p.x_stride + col, *ys = p.y + row * p.y_stride + col;
        size_t at = row * p.cols + col;
        if (is_whole) {
            float4 x = *(const float4 *)xs, y = *(const float4 *)ys;
            store4(p.out, at, make_float4(element(p, x.x, y.x), element(p, x.y, y.y), element(p, x.z, y.z), element(p, x.w, y.w)));
        } else {
            for (u32 c = 0; c < min(4u, p.cols - col); c++) store(p.out, at + c, element(p, xs[c], ys[c]));
        }
    }
}

struct ConvertParams {
    const float *x;
    u16 *out;
    u32 n_rows, cols, stride, out_stride;
};

// Converts rows to a matmul operand: f16, padded with zeros to out_stride.
KERNEL(256) convert(const __grid_constant__ ConvertParams p) {
    begin_kernel();
    u32 pairs = p.out_stride / 2;
    size_t n = (size_t)p.n_rows * pairs;
    for (size_t i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
        size_t row = i / pairs;
        u32 col = (u32)(i % pairs) * 2;
        const float *x = p.x + row * p.stride;
        float low = col < p.cols ? x[col] : 0.f, high = col + 1 < p.cols ? x[col + 1] : 0.f;
        ((u32 *)p.out)[operand_index(2 * i) / 2] = pack_half(low, high);
    }
}

struct WindowsParams {
    const float *x;
    void *out;
    u32 n_rows, in_rows, cols, x_stride, stride, out_stride, is_f32, n_groups;
};

// im2col of a convolution of size 3 with padding 1: out[g, t] = x[g, t * stride - 1 .. t * stride + 2], as f16 operand or f32.
// g: groups of in_rows rows of x, n_rows rows of out.
KERNEL(256) windows(const __grid_constant__ WindowsParams p) {
    begin_kernel();
    size_t n = (size_t)p.n_groups * p.n_rows * p.out_stride;
    for (size_t i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
        u32 col = (u32)(i % p.out_stride), row = (u32)(i / p.out_stride);
        u32 group = row / p.n_rows, tap = col / p.cols;
        int from = (int)(row % p.n_rows * p.stride + tap) - 1;
        float x = 0.f;
        if (tap < 3 && from >= 0 && from < (int)p.in_rows)
            x = p.x[((size_t)group * p.in_rows + from) * p.x_stride + col % p.cols];
        if (p.is_f32) ((float *)p.out)[i] = x;
        else ((u16 *)p.out)[operand_index(i)] = to_half(x);
    }
}

struct ConvStateParams {
    const float *x;
    float *out;
    const float *weight; // [cols, kernel].
    const float *bias;   // Null: none.
    float *states;       // [slots, kernel - 1, cols].
    const u32 *runs;     // [rows, 4]: first row and end of the row's run, slot before it, ~0 without one, slot after it.
    u32 n_rows, cols, stride, kernel, has_silu, unused;
};

// Causal convolution of each channel over the rows of a run, which the last inputs of its state precede. A thread has a channel of a
// row; that of a run's first row convolves all rows that read the state, then replaces it. Grid: (threads of a channel, rows).
KERNEL(256) conv_state(const __grid_constant__ ConvStateParams p) {
    launch_dependents();
    u32 c = blockIdx.x * 256 + threadIdx.x;
    if (c >= p.cols) return;
    // The last taps and inputs of four: shorter kernels begin with zeros.
    u32 kept = p.kernel - 1, skipped = 4 - p.kernel;
    float w[4];
#pragma unroll
    for (u32 tap = 0; tap < 4; tap++) w[tap] = tap >= skipped ? p.weight[(size_t)c * p.kernel + tap - skipped] : 0.f;
    float bias = p.bias ? p.bias[c] : 0.f;
    wait_for_inputs();
    auto input = [&](u32 row) { return p.x[(size_t)row * p.stride + c]; };
    auto state = [&](u32 slot, u32 i) -> float & { return p.states[((size_t)slot * kept + i) * p.cols + c]; };
    for (u32 t = blockIdx.y; t < p.n_rows; t += gridDim.y) {
        const u32 *run = p.runs + 4 * (size_t)t;
        u32 first = run[0], end = run[1], from = run[2], to = run[3];
        if (t > first && t < first + kept) continue;
        float before[3];
#pragma unroll
        for (u32 i = 0; i < 3; i++) {
            if (i < skipped) before[i] = 0.f;
            else if (t > first) before[i] = input(t + i - 3);
            else before[i] = from != ~0u ? state(from, i - skipped) : 0.f;
        }
        u32 last = t > first ? t + 1 : min(t + kept, end);
        for (u32 row = t; row < last; row++) {
            float x = input(row);
            float y = fmaf(w[3], x, fmaf(w[2], before[2], fmaf(w[1], before[1], fmaf(w[0], before[0], bias))));
            p.out[(size_t)row * p.cols + c] = p.has_silu ? y * sigmoid(y) : y;
            before[0] = before[1], before[1] = before[2], before[2] = x;
        }
        if (t > first) continue;
#pragma unroll
        for (u32 i = 0; i < 3; i++)
            // Runs of more rows than the state end in other threads.
            if (i >= skipped) state(to, i - skipped) = end - first > kept ? input(end + i - 3) : before[i];
    }
}

struct LogSumExpParams {
    const float *x;
    float *out;
    u32 n_rows, cols, stride, unused;
};

// Log-sum-exp of a row. One block per row.
KERNEL(1024) log_sum_exp(const __grid_constant__ LogSumExpParams p) {
    begin_kernel();
    const float *x = p.x + (size_t)blockIdx.x * p.stride;
    float largest = -INFINITY;
    for (u32 c = threadIdx.x; c < p.cols; c += 1024) largest = fmaxf(largest, x[c]);
    largest = block_max(largest);
    float sum = 0.f;
    if (largest > -INFINITY)
        for (u32 c = threadIdx.x; c < p.cols; c += 1024) sum += expf(x[c] - largest);
    sum = block_sum(sum);
    if (threadIdx.x == 0) p.out[blockIdx.x] = largest > -INFINITY ? largest + logf(sum) : largest;
}

struct LogitFilterParams {
    float *x;           // Packed.
    const u32 *words;   // Inputs of the step.
    const u32 *filters; // [rows, 8]: start, end of four ranges: text, timestamps, words of two token lists.
    u32 n_rows, cols;
};

// Sets logits of forbidden tokens to -inf: tokens outside of both ranges or in a list; then all text if the log-sum-exp of timestamps
// exceeds the maximum text logit. One block per row.
KERNEL(1024) logit_filter(const __grid_constant__ LogitFilterParams p) {
    begin_kernel();
    u32 tid = threadIdx.x;
    const u32 *filter = p.filters + 8 * blockIdx.x;
    float *x = p.x + (size_t)blockIdx.x * p.cols;
    u32 text = filter[0], text_end = filter[1], first = filter[2], end = filter[3];
    for (int list = 4; list < 8; list += 2)
        for (u32 i = filter[list] + tid; i < filter[list + 1]; i += 1024) x[p.words[i]] = -INFINITY;
    for (u32 c = tid; c < text; c += 1024) x[c] = -INFINITY;
    for (u32 c = text_end + tid; c < first; c += 1024) x[c] = -INFINITY;
    for (u32 c = end + tid; c < p.cols; c += 1024) x[c] = -INFINITY;
    if (text == text_end || first == end) return;
    __syncthreads();
    float largest_text = -INFINITY, largest = -INFINITY, sum = 0.f;
    for (u32 c = text + tid; c < text_end; c += 1024) largest_text = fmaxf(largest_text, x[c]);
    for (u32 c = first + tid; c < end; c += 1024) largest = fmaxf(largest, x[c]);
    largest_text = block_max(largest_text);
    largest = block_max(largest);
    if (largest == -INFINITY) return;
    for (u32 c = first + tid; c < end; c += 1024) sum += expf(x[c] - largest);
    if (largest + logf(block_sum(sum)) > largest_text)
        for (u32 c = text + tid; c < text_end; c += 1024) x[c] = -INFINITY;
}
