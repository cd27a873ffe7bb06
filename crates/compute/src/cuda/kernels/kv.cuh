// Pages of keys and values: 64 positions of all KV heads. Layout of a head, elements in f16, f32 or int8:
//
//   keys    [64][P]       P: channels C padded with zeros to a multiple of 32
//   values  [P][64]       transposed: P V reads adjacent positions of a channel
//   int8:   scales of keys f16 [64][P / 32], of values f16 [P / 32][64]
#pragma once
#include "common.cuh"

#define PAGE_LEN 64

enum KvType { KV_F32, KV_F16, KV_Q8 };

struct Kv {
    u8 *pages;
    u64 page_bytes, head_bytes;
    u32 n_heads, head_dim, padded_dim, dtype;
};

DEVICE u8 *kv_head(const Kv &kv, u32 page, u32 head) {
    return kv.pages + page * kv.page_bytes + head * kv.head_bytes;
}

DEVICE u32 element_bytes(const Kv &kv) { return kv.dtype == KV_F32 ? 4 : kv.dtype == KV_F16 ? 2 : 1; }

// Scale of 32 channels: max |x| / 127, rounded to f16; NaN if any x is.
DEVICE u16 block_scale(float x, bool &has_nan) {
    float absmax = warp_max(fabsf(x));
    has_nan = __any_sync(0xffffffff, x != x);
    u16 scale;
    absmax /= 127.f;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(scale) : "f"(absmax));
    return has_nan ? 0x7fff : scale;
}

DEVICE i8 quantize(float x, float scale) {
    if (scale == 0.f) return 0;
    return (i8)(int)fminf(fmaxf(rintf(x / scale), -127.f), 127.f);
}

DEVICE u16 plain_half(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

// Writes a key or value `x`: element c at first + c * stride, scale of block b at scales + b * scale_stride.
DEVICE void write_elements(const Kv &kv, u8 *elements, u64 first, u64 stride, u16 *scales, u64 scale_stride, const float *x, u32 lane) {
    for (u32 c = lane; c < kv.padded_dim; c += 32) {
        float value = c < kv.head_dim ? x[c] : 0.f;
        u64 at = first + c * stride;
        if (kv.dtype == KV_F32) ((float *)elements)[at] = value;
        else if (kv.dtype == KV_F16) ((u16 *)elements)[at] = plain_half(value);
        else {
            bool has_nan;
            u16 scale = block_scale(value, has_nan);
            elements[at] = (u8)quantize(value, has_nan ? 0.f : from_half(scale));
            if (lane == 0) scales[c / 32 * scale_stride] = scale;
        }
    }
}

DEVICE void write_key(const Kv &kv, u32 page, u32 slot, u32 head, const float *x, u32 lane) {
    u8 *start = kv_head(kv, page, head);
    u16 *scales = (u16 *)(start + 2ull * PAGE_LEN * kv.padded_dim) + slot * (kv.padded_dim / 32);
    write_elements(kv, start, (u64)slot * kv.padded_dim, 1, scales, 1, x, lane);
}

DEVICE void write_value(const Kv &kv, u32 page, u32 slot, u32 head, const float *x, u32 lane) {
    u8 *start = kv_head(kv, page, head);
    u16 *scales = (u16 *)(start + 2ull * PAGE_LEN * kv.padded_dim) + PAGE_LEN * (kv.padded_dim / 32) + slot;
    u8 *values = start + (u64)PAGE_LEN * kv.padded_dim * element_bytes(kv);
    write_elements(kv, values, slot, PAGE_LEN, scales, PAGE_LEN, x, lane);
}
