// modules: repack_q4_0 -DFORMAT=0; repack_q4_1 -DFORMAT=1; repack_q5_0 -DFORMAT=2; repack_q5_1 -DFORMAT=3;
//   repack_q8_0 -DFORMAT=4; repack_q2_k -DFORMAT=5; repack_q3_k -DFORMAT=6; repack_q4_k -DFORMAT=7;
//   repack_q5_k -DFORMAT=8; repack_q6_k -DFORMAT=9; repack_iq4_nl -DFORMAT=10; repack_iq4_xs -DFORMAT=11;
//   repack_mxfp4 -DFORMAT=12; repack_f16 -DFORMAT=13
//
// Weights from GGML's blocks, see crates/quant/src/block, to strips, see format.cuh. A warp a chunk.
#include "format.cuh"

struct RepackParams {
    const u8 *from; // Rows from `first_row` on.
    u8 *to;         // The matrix.
    u64 row_bytes;
    u32 n_rows, n_strips, n_chunks, k, first_strip, unused;
};

constexpr int BLOCK_LEN = TILES == 4 ? 256 : FORMAT == F16 ? 1 : 32;
constexpr int BLOCK_BYTES = FORMAT == Q4_0 ? 18 : FORMAT == Q4_1 ? 20 : FORMAT == Q5_0 ? 22 : FORMAT == Q5_1 ? 24 : FORMAT == Q8_0 ? 34
    : FORMAT == Q2_K ? 84 : FORMAT == Q3_K ? 110 : FORMAT == Q4_K ? 144 : FORMAT == Q5_K ? 176 : FORMAT == Q6_K ? 210
    : FORMAT == IQ4_NL ? 18 : FORMAT == IQ4_XS ? 136 : FORMAT == MXFP4 ? 17 : 2;

DEVICE u32 half_at(const u8 *p) { return p[0] | p[1] << 8; }

// Code of element i of a block.
DEVICE u32 code_of(const u8 *b, u32 i) {
    u32 nibble = i < 16 ? 0 : 4, half = i & 15;
    u32 quarter = i / 64, part = i / 32 % 2, l = i % 32;
    switch (FORMAT) {
    case Q4_0: case IQ4_NL: return b[2 + half] >> nibble & 15;
    case Q4_1: return b[4 + half] >> nibble & 15;
    case Q5_0: return (b[6 + half] >> nibble & 15) | (b[2 + i / 8] >> i % 8 & 1) << 4;
    case Q5_1: return (b[8 + half] >> nibble & 15) | (b[4 + i / 8] >> i % 8 & 1) << 4;
    case Q8_0: return b[2 + i] ^ 0x80;
    case MXFP4: return b[1 + half] >> nibble & 15;
    case Q4_K: return b[16 + 32 * quarter + l] >> 4 * part & 15;
    case Q5_K: return (b[48 + 32 * quarter + l] >> 4 * part & 15) | (b[16 + l] >> i / 32 & 1) << 4;
    case IQ4_XS: return b[8 + 16 * (i / 32) + (l & 15)] >> (l < 16 ? 0 : 4) & 15;
    case Q6_K: {
        u32 h = i / 128, r = i % 128;
        return (b[64 * h + r % 64] >> 4 * (r / 64) & 15) | (b[128 + 32 * h + r % 32] >> 2 * (r / 32) & 3) << 4;
    }
    case Q2_K: return b[16 + 32 * (i / 128) + l] >> 2 * (i / 32 % 4) & 3;
    case Q3_K: return (b[32 + 32 * (i / 128) + l] >> 2 * (i / 32 % 4) & 3) | (b[l] >> i / 32 & 1) << 2;
    default: return half_at(b);
    }
}

// 6-bit scale and minimum of group i of q4_k and q5_k; `b` from the scales on.
DEVICE void scale_min(const u8 *b, u32 i, u32 &scale, u32 &min) {
    if (i < 4) scale = b[i] & 63, min = b[i + 4] & 63;
    else scale = (b[i + 4] & 15) | b[i - 4] >> 6 << 4, min = b[i + 4] >> 4 | b[i] >> 6 << 4;
}

// Scale of 16 columns as an integer: q6_k, q3_k; of 32: iq4_xs.
DEVICE int scale_of(const u8 *b, u32 group) {
    if (FORMAT == Q6_K) return (i8)b[192 + group];
    if (FORMAT == IQ4_XS) {
        u32 i = group / 2;
        return (int)((b[4 + i / 2] >> 4 * (i % 2) & 15) | (half_at(b + 2) >> 2 * i & 3) << 4) - 32;
    }
    u32 low = b[96 + group % 8] >> 4 * (group / 8) & 15, high = b[104 + group % 4] >> 2 * (group / 4) & 3;
    return (int)(low | high << 4) - 32;
}

// 2^(e - 128) as f16.
DEVICE u32 power_of_two(u32 e) { return to_half(exp2f((float)(int)e - 128.f)); }

KERNEL(256) repack(const __grid_constant__ RepackParams p) {
    begin_kernel();
    u32 lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
    u64 index = blockIdx.x * 8ull + threadIdx.x / 32;
    if (index >= (u64)p.n_strips * p.n_chunks) return;
    u32 strip = (u32)(index / p.n_chunks), chunk = (u32)(index % p.n_chunks);
    u8 *to = p.to + ((u64)(p.first_strip + strip) * p.n_chunks + chunk) * CHUNK_BYTES;
    // Block of element `column` of row `row` of the strip, and its index; null outside of the matrix.
    auto block = [&](u32 row, u32 column, u32 &i) -> const u8 * {
        row += strip * 16;
        column += chunk * 64 * TILES;
        i = column % BLOCK_LEN;
        if (row >= p.n_rows || column >= p.k) return nullptr;
        return p.from + row * p.row_bytes + (u64)(column / BLOCK_LEN) * BLOCK_BYTES;
    };
    // Code that is worth nothing: with scale 0 any one, but not a NaN.
    auto code = [&](u32 row, u32 column) -> u32 {
        u32 i;
        const u8 *b = block(row, column, i);
        return b ? code_of(b, i) : 0u;
    };
    if (lane < 16) {
        u32 i, row = lane;
        u16 *halves = (u16 *)to;
        const u8 *b = block(row, 0, i);
        if (header_of(FORMAT) == SCALE || header_of(FORMAT) == SCALE_MIN) for (u32 part = 0; part < 2; part++) {
            const u8 *b = block(row, 32 * part, i);
            u32 d = !b ? 0u : FORMAT == MXFP4 ? power_of_two(b[0]) : half_at(b);
            if (header_of(FORMAT) == SCALE) halves[2 * row + part] = (u16)d;
            else halves[4 * row + 2 * part] = (u16)d, halves[4 * row + 2 * part + 1] = (u16)(b ? half_at(b + 2) : 0u);
        }
        if (header_of(FORMAT) == Q4K) {
            u32 words[4] = {0, 0, 0, 0};
            if (b) {
                words[0] = half_at(b) | half_at(b + 2) << 16;
                for (u32 group = 0; group < 8; group++) {
                    u32 scale, min, j = group / 2, h = group % 2;
                    scale_min(b + 4, group, scale, min);
                    words[1] |= (h ? (scale & 3) << 6 : scale) << 8 * j;
                    words[2] |= (h ? (min & 3) << 6 : min) << 8 * j;
                    if (h) words[3] |= (scale >> 2 | min >> 2 << 4) << 8 * j;
                }
            }
            ((uint4 *)to)[row] = make_uint4(words[0], words[1], words[2], words[3]);
        }
        if (header_of(FORMAT) == S8 || header_of(FORMAT) == S4) {
            for (u32 group = 0; group < 16; group++) {
                u32 j = group / 4, h = group % 4, at = 16 * row + 4 * word_of(j, h) + byte_of(j, h);
                if (header_of(FORMAT) == S8) to[at] = b ? (u8)scale_of(b, group) : 0;
                else to[at] = b ? b[group] : 0;
            }
            constexpr int D = FORMAT == Q6_K ? 208 : FORMAT == Q3_K ? 108 : FORMAT == Q2_K ? 80 : 0;
            if (header_of(FORMAT) == S8) ((u16 *)(to + 256))[row] = (u16)(b ? half_at(b + D) : 0u);
            else ((u32 *)(to + 256))[row] = b ? half_at(b + D) | half_at(b + D + 2) << 16 : 0u;
        }
    }
    u8 *codes = to + header_bytes(FORMAT);
    for (u32 j = 0; j < TILES; j++) {
        u32 code4[4] = {}, code2[2] = {}, code1 = 0, wide[16] = {};
        for (u32 s = 0; s < 4; s++) for (u32 r = 0; r < 4; r++) for (u32 parity = 0; parity < 2; parity++) {
            u32 e = 2 * (r / 2) + parity, q = code(g + 8 * (r & 1), 64 * j + 16 * s + 4 * t + e);
            if (FORMAT == F16) wide[4 * s + r] |= q << 16 * parity;
            else if (FORMAT == Q8_0) wide[2 * s + (r & 1)] |= q << 8 * e;
            else {
                u32 i = s % 2 * 4 + r;
                if (plane4(FORMAT)) {
                    code4[s] |= (q & 15) << (4 * r + 16 * parity);
                    q >>= 4;
                }
                if (plane2(FORMAT)) {
                    code2[s / 2] |= (q & 3) << (2 * i + 16 * parity);
                    q >>= 2;
                }
                if (plane1(FORMAT)) code1 |= (q & 1) << (4 * s + r + 16 * parity);
            }
        }
        constexpr u32 WIDE = FORMAT == F16 ? 4 : FORMAT == Q8_0 ? 2 : 0;
        for (int i = 0; i < (int)WIDE; i++)
            *(uint4 *)(codes + 512 * i + 16 * lane) = make_uint4(wide[4 * i], wide[4 * i + 1], wide[4 * i + 2], wide[4 * i + 3]);
        u8 *next = codes;
        if (plane4(FORMAT)) *(uint4 *)(next + 512 * j + 16 * lane) = make_uint4(code4[0], code4[1], code4[2], code4[3]);
        next += 512 * plane4(FORMAT) * TILES;
        if (plane2(FORMAT)) *(uint2 *)(next + 256 * j + 8 * lane) = make_uint2(code2[0], code2[1]);
        next += 256 * plane2(FORMAT) * TILES;
        if (plane1(FORMAT)) *(u32 *)(next + 128 * j + 4 * lane) = code1;
    }
}
