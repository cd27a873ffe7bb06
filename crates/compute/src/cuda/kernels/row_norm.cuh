// RMS norm and layer norm of a row by 256 threads. Thread v has columns 4 (v + 256 i) .. + 3; the first 4,096 columns stay in
// registers. The sums are the same in every kernel.
#pragma once
#include "common.cuh"

#define NORM_VECTORS 4

// Four values from column c on; behind the last one zeros.
DEVICE float4 load4(const float *p, u32 c, u32 cols) {
    if (c + 3 < cols && ((u64)p & 15) == 0) return *(const float4 *)(p + c);
    return make_float4(c < cols ? p[c] : 0.f, c + 1 < cols ? p[c + 1] : 0.f, c + 2 < cols ? p[c + 2] : 0.f, c + 3 < cols ? p[c + 3] : 0.f);
}

// WHOLE: the columns are a multiple of 4, rows and weights begin at multiples of 16 bytes.
template <bool WHOLE> struct NormRow {
    float4 weights[NORM_VECTORS], values[NORM_VECTORS];
    float mean, scale;
    u32 cols, thread;

    DEVICE u32 column(u32 i) { return 4 * (i * 256 + thread); }

    DEVICE float4 at(const float *p, u32 c) {
        if (!WHOLE) return load4(p, c, cols);
        return c < cols ? *(const float4 *)(p + c) : make_float4(0.f, 0.f, 0.f, 0.f);
    }

    // Before the inputs of the kernel are there.
    DEVICE void load_weights(const float *weight, u32 n, u32 v) {
        cols = n, thread = v;
#pragma unroll
        for (int i = 0; i < NORM_VECTORS; i++) weights[i] = at(weight, column(i));
    }

    // `sum` is that over the 256 threads.
    template <typename Sum> DEVICE void load(const float *x, float eps, bool is_layer_norm, Sum sum) {
#pragma unroll
        for (int i = 0; i < NORM_VECTORS; i++) values[i] = at(x, column(i));
        mean = 0.f;
        if (is_layer_norm) {
            float total = 0.f;
            for_each(x, [&](float value) { total += value; });
            mean = sum(total) / cols;
        }
        float squares = 0.f;
        for_each(x, [&](float value) { squares = fmaf(value - mean, value - mean, squares); });
        scale = 1.f / sqrtf(sum(squares) / cols + eps);
    }

    template <typename F> DEVICE void for_vector(u32 c, float4 x, F f) {
        if (WHOLE ? c < cols : c + 3 < cols) f(x.x), f(x.y), f(x.z), f(x.w);
        else if (!WHOLE && c < cols) {
            f(x.x);
            if (c + 1 < cols) f(x.y);
            if (c + 2 < cols) f(x.z);
        }
    }

    template <typename F> DEVICE void for_each(const float *x, F f) {
#pragma unroll
        for (int i = 0; i < NORM_VECTORS; i++) for_vector(column(i), values[i], f);
#pragma unroll 1
        for (u32 i = NORM_VECTORS; column(i) < cols; i++) for_vector(column(i), at(x, column(i)), f);
    }

    DEVICE float4 normed(float4 x, float4 w) {
        return make_float4((x.x - mean) * scale * w.x, (x.y - mean) * scale * w.y, (x.z - mean) * scale * w.z, (x.w - mean) * scale * w.w);
    }

    // Calls f(column, norm * weight) for the thread's vectors of four columns; behind the last one anything.
    template <typename F> DEVICE void write(const float *x, const float *weight, F f) {
#pragma unroll
        for (int i = 0; i < NORM_VECTORS; i++) if (column(i) < cols) f(column(i), normed(values[i], weights[i]));
#pragma unroll 1
        for (u32 i = NORM_VECTORS; column(i) < cols; i++) f(column(i), normed(at(x, column(i)), at(weight, column(i))));
    }
};
