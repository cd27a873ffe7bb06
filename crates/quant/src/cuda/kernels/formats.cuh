// Formats of weights, generated from the table in crates/quant/src/block.rs. Do not edit: run the tests of
// crates/quant/src/cuda/format.rs with UPDATE_SNAPSHOTS=1.
#pragma once
#include "common.cuh"

// GGML's ids.
#define Q4_0 2
#define Q4_1 3
#define Q5_0 6
#define Q5_1 7
#define Q8_0 8
#define IQ4_NL 20
#define MXFP4 39
#define Q2_K 10
#define Q3_K 11
#define Q4_K 12
#define Q5_K 13
#define Q6_K 14
#define IQ4_XS 23
#define F16 1

// Header of a chunk, see format.cuh.
enum Header { NONE, SCALE, SCALE_MIN, Q4K, S8, S4 };

struct FormatInfo {
    Header header;
    int bits, zero;             // Bits of a code, code of 0.
    int block_len, block_bytes; // GGML block: elements, bytes.
    int low_at, high_at, d_at;  // Its low bits of codes, high bits of codes, scale d.
};

constexpr FormatInfo format_info(int format) {
    switch (format) {
    case Q4_0: return {SCALE, 4, 8, 32, 18, 2, 0, 0};
    case Q4_1: return {SCALE_MIN, 4, 0, 32, 20, 4, 0, 0};
    case Q5_0: return {SCALE, 5, 16, 32, 22, 6, 2, 0};
    case Q5_1: return {SCALE_MIN, 5, 0, 32, 24, 8, 4, 0};
    case Q8_0: return {SCALE, 8, 128, 32, 34, 2, 0, 0};
    case IQ4_NL: return {SCALE, 4, 0, 32, 18, 2, 0, 0};
    case MXFP4: return {SCALE, 4, 0, 32, 17, 1, 0, 0};
    case Q2_K: return {S4, 2, 0, 256, 84, 16, 0, 80};
    case Q3_K: return {S8, 3, 4, 256, 110, 32, 0, 108};
    case Q4_K: return {Q4K, 4, 0, 256, 144, 16, 0, 0};
    case Q5_K: return {Q4K, 5, 0, 256, 176, 48, 16, 0};
    case Q6_K: return {S8, 6, 32, 256, 210, 0, 128, 208};
    case IQ4_XS: return {S8, 4, 0, 256, 136, 8, 0, 0};
    default: return {NONE, 16, 0, 1, 2, 0, 0, 0};
    }
}

// Whether codes are indices of a codebook.
#define IS_CODEBOOK(format) ((format) == IQ4_NL || (format) == MXFP4 || (format) == IQ4_XS)

DEVICE float codebook_value(int format, u32 code) {
    constexpr i8 E2M1_TWICE[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    constexpr i8 LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    switch (format) {
    case IQ4_NL: return LEVELS[code];
    case MXFP4: return E2M1_TWICE[code];
    case IQ4_XS: return LEVELS[code];
    default: return 0.f;
    }
}
