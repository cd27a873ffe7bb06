// RMS norm and layer norm of a row by 256 threads, or by a warp. Thread v of 256 has columns 4 (v + 256 i) .. + 3; the first 4,096
// columns stay in registers. A warp has at most 2,048 columns: lane v has those of threads v + 32 k, in separate sums. So the sums are
// the same in every kernel.
#pragma once
#include "common.cuh"

// WHOLE: the number of columns is a multiple of 4; rows and weights are aligned to 16 bytes.
template <bool WHOLE, u32 THREADS = 256> struct NormRow {
    static constexpr u32 VECTORS = THREADS == 256 ? 4 : 16, SUMS = 256 / THREADS;
    float4 weights[VECTORS], values[VECTORS];
    float mean, scale;
    u32 cols, thread;

    DEVICE u32 column(u32 i) { return 4 * (i * THREADS + thread); }

    DEVICE float4 at(const float *p, u32 c) {
        if (!WHOLE) return load4(p, c, cols);
        return c < cols ? *(const float4 *)(p + c) : make_float4(0.f, 0.f, 0.f, 0.f);
    }

    // Does not depend on the kernel before: called before `wait_for_inputs`.
    DEVICE void load_weights(const float *weight, u32 n, u32 v) {
        cols = n, thread = v;
#pragma unroll
        for (u32 i = 0; i < VECTORS; i++) weights[i] = at(weight, column(i));
    }

    // `sum`: reduction over the 256 threads; takes the sum of a thread, or the array of sums of a lane.
    template <typename Sum> DEVICE void load(const float *x, float eps, bool is_layer_norm, Sum sum) {
#pragma unroll
        for (u32 i = 0; i < VECTORS; i++) values[i] = at(x, column(i));
        mean = 0.f;
        if (is_layer_norm) {
            mean = sum_of(x, sum, [](float total, float value) { return total + value; }) / cols;
        }
        auto add_square = [&](float squares, float value) { return fmaf(value - mean, value - mean, squares); };
        scale = 1.f / sqrtf(sum_of(x, sum, add_square) / cols + eps);
    }

    template <typename Sum, typename Add> DEVICE float sum_of(const float *x, Sum sum, Add add) {
        float sums[SUMS] = {};
        for_each(x, [&](u32 k, float value) { sums[k] = add(sums[k], value); });
        if constexpr (SUMS == 1) return sum(sums[0]);
        else return sum(sums);
    }

    template <typename F> DEVICE void for_vector(u32 c, u32 k, float4 x, F f) {
        if (WHOLE ? c < cols : c + 3 < cols) f(k, x.x), f(k, x.y), f(k, x.z), f(k, x.w);
        else if (!WHOLE && c < cols) {
            f(k, x.x);
            if (c + 1 < cols) f(k, x.y);
            if (c + 2 < cols) f(k, x.z);
        }
    }

    // Calls f(index of the sum, value) for each value of the thread.
    template <typename F> DEVICE void for_each(const float *x, F f) {
#pragma unroll
        for (u32 i = 0; i < VECTORS; i++) for_vector(column(i), i % SUMS, values[i], f);
        if constexpr (SUMS == 1) {
#pragma unroll 1
            for (u32 i = VECTORS; column(i) < cols; i++) for_vector(column(i), 0, at(x, column(i)), f);
        }
    }

    DEVICE float4 normed(float4 x, float4 w) {
        return make_float4((x.x - mean) * scale * w.x, (x.y - mean) * scale * w.y, (x.z - mean) * scale * w.z, (x.w - mean) * scale * w.w);
    }

    // Calls f(column, norm * weight) for each vector of four columns of the thread; past the last column values are unspecified.
    template <typename F> DEVICE void write(const float *x, const float *weight, F f) {
#pragma unroll
        for (u32 i = 0; i < VECTORS; i++) if (column(i) < cols) f(column(i), normed(values[i], weights[i]));
        if constexpr (SUMS == 1) {
#pragma unroll 1
            for (u32 i = VECTORS; column(i) < cols; i++) f(column(i), normed(at(x, column(i)), at(weight, column(i))));
        }
    }
};
