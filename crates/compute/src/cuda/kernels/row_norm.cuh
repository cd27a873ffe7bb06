// RMS norm and layer norm of a row by 256 threads. Thread v has columns 4 (v + 256 i) .. + 3; the first 4,096 columns stay in
// registers. The sums are the same in every kernel.
#pragma once
#include "common.cuh"

#define NORM_VECTORS 4

DEVICE float4 load4(const float *p, u32 c, u32 cols) {
    if (c + 3 < cols && ((u64)p & 15) == 0) return *(const float4 *)(p + c);
    return make_float4(c < cols ? p[c] : 0.f, c + 1 < cols ? p[c + 1] : 0.f, c + 2 < cols ? p[c + 2] : 0.f, c + 3 < cols ? p[c + 3] : 0.f);
}

struct NormRow {
    float4 weights[NORM_VECTORS], values[NORM_VECTORS];
    float mean, scale;
    u32 cols;

    DEVICE u32 column(u32 i) { return 4 * (i * 256 + threadIdx.x); }

    // Before the inputs of the kernel are there.
    DEVICE void load_weights(const float *weight, u32 n) {
        cols = n;
#pragma unroll
        for (int i = 0; i < NORM_VECTORS; i++) weights[i] = load4(weight, column(i), cols);
    }

    DEVICE void load(const float *x, float eps, bool is_layer_norm) {
#pragma unroll
        for (int i = 0; i < NORM_VECTORS; i++) values[i] = load4(x, column(i), cols);
        mean = 0.f;
        if (is_layer_norm) {
            float sum = 0.f;
            for_each(x, [&](u32, float value, float) { sum += value; });
            mean = block_sum(sum) / cols;
        }
        float squares = 0.f;
        for_each(x, [&](u32, float value, float) { squares = fmaf(value - mean, value - mean, squares); });
        scale = 1.f / sqrtf(block_sum(squares) / cols + eps);
    }

    // Calls f(column, value, weight), with a weight of 0 behind the registers.
    template <typename F> DEVICE void for_each(const float *x, F f) {
#pragma unroll
        for (int i = 0; i < NORM_VECTORS; i++) {
            u32 c = column(i);
            if (c < cols) f(c, values[i].x, weights[i].x);
            if (c + 1 < cols) f(c + 1, values[i].y, weights[i].y);
            if (c + 2 < cols) f(c + 2, values[i].z, weights[i].z);
            if (c + 3 < cols) f(c + 3, values[i].w, weights[i].w);
        }
        for (u32 i = NORM_VECTORS; column(i) < cols; i++)
            for (u32 c = column(i); c < min(column(i) + 4, cols); c++) f(c, x[c], 0.f);
    }

    // Calls f(column, norm * weight).
    template <typename F> DEVICE void write(const float *x, const float *weight, F f) {
        for_each(x, [&](u32 c, float value, float w) {
            f(c, (value - mean) * scale * (c < 1024 * NORM_VECTORS ? w : weight[c]));
        });
    }
};
