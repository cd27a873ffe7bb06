// Weights on the device, in the order in which matrix instructions read them.
//
// A matrix [N, K] is strips of 16 rows; a strip is chunks of TILES * 64 columns, one behind the other:
//
//   strip = chunk 0 | chunk 1 | ...      chunk = header | codes of tile 0 .. TILES - 1, plane by plane
//   tile  = 16 rows x 64 columns         lane l = 4 g + t holds rows g and g + 8, columns 16 t .. 16 t + 15
//   step s of 4 in a tile                columns 16 t + 4 s + e, e in 0..4: the factor of one instruction, in registers
//                                        a[0], a[1]: e = 0, 1 of rows g, g + 8    a[2], a[3]: e = 2, 3
//
// Code planes, of a lane and tile (r: register of a step, p: parity of e):
//
//   4 bits   16 bytes   word s                 bits 4 r + 16 p
//   2 bits    8 bytes   word s / 2             bits 2 (4 (s % 2) + r) + 16 p
//   1 bit     4 bytes                          bit 4 s + r + 16 p
//   8 bits   32 bytes   word 2 s + r % 2       byte e; words 0..3 of all lanes, then words 4..7
//   f16      64 bytes   word 4 s + r           half p; words 4 s .. of all lanes for each s
//
// Headers, of 16 rows:
//
//   32-column blocks          scales f16 [16][2]; with minima: [16][2][scale, minimum]
//   q4_k, q5_k (Q4K)          [16][d dmin | A0 | A1 | H] words. Half t / 2 of a tile j has scale s and minimum m of 6 bits:
//                             A: nibbles 8 j: s, 8 j + 4: m    H, bits 8 j + 4 half: high bits of s, then m
//   q6_k, q3_k, iq4_xs (S8)   scales i8 [16][t][j] of 16 columns, then d f16 [16]
//   q2_k (S4)                 scale and minimum nibbles [16][t][j], then d and dmin f16 [16][2]
//
// The product of two lanes' columns with the same lanes of the activations needs no exchange: an activation row is in natural
// order, and lane t reads its 16 columns of a tile as 32 bytes.
#pragma once
#include "common.cuh"

enum FormatId { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, F16 };

#ifndef FORMAT
#define FORMAT F16
#endif

// Bits of planes, kind of header, columns of a chunk.
enum Header { NONE, SCALE, SCALE_MIN, Q4K, S8, S4 };

constexpr int plane4(int f) { return f != Q8_0 && f != Q2_K && f != Q3_K && f != F16; }
constexpr int plane2(int f) { return f == Q2_K || f == Q3_K || f == Q6_K; }
constexpr int plane1(int f) { return f == Q5_0 || f == Q5_1 || f == Q5_K || f == Q3_K; }
constexpr int header_of(int f) {
    return f == F16 ? NONE : f == Q4_1 || f == Q5_1 ? SCALE_MIN : f == Q4_K || f == Q5_K ? Q4K
        : f == Q6_K || f == Q3_K || f == IQ4_XS ? S8 : f == Q2_K ? S4 : SCALE;
}
constexpr int tiles_of(int f) { return header_of(f) >= Q4K ? 4 : 1; }
constexpr int header_bytes(int f) {
    return header_of(f) == NONE ? 0 : header_of(f) == SCALE ? 64 : header_of(f) == SCALE_MIN ? 128 : header_of(f) == Q4K ? 256
        : header_of(f) == S8 ? 288 : 320;
}
constexpr int tile_bytes(int f) {
    return f == F16 ? 2048 : f == Q8_0 ? 1024 : 512 * plane4(f) + 256 * plane2(f) + 128 * plane1(f);
}
constexpr int chunk_bytes(int f) { return header_bytes(f) + tiles_of(f) * tile_bytes(f); }

constexpr int TILES = tiles_of(FORMAT);
constexpr int CHUNK_BYTES = chunk_bytes(FORMAT);
constexpr bool HAS_CODEBOOK = FORMAT == IQ4_NL || FORMAT == IQ4_XS || FORMAT == MXFP4;

// Values of the codes of a byte as f16: low nibble, high nibble.
#if FORMAT == 10 || FORMAT == 11 || FORMAT == 12
__shared__ u32 codebook[256];
#endif

DEVICE float level(u32 code) {
    constexpr i8 IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    constexpr i8 E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return FORMAT == MXFP4 ? E2M1[code] : IQ4[code];
}

// Fills the codebook; the block synchronizes.
DEVICE void load_codebook() {
#if FORMAT == 10 || FORMAT == 11 || FORMAT == 12
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) codebook[i] = pack_half(level(i & 15), level(i >> 4));
    __syncthreads();
#endif
}

// Four words of a nibble plane: registers of one step.
DEVICE void nibbles(u32 w, u32 (&a)[4]) {
#if FORMAT == 10 || FORMAT == 11 || FORMAT == 12
    // Bytes: registers 0 and 1 of p = 0, 2 and 3 of p = 0, then of p = 1.
    u32 x0 = codebook[w & 255], x1 = codebook[w >> 8 & 255], x2 = codebook[w >> 16 & 255], x3 = codebook[w >> 24];
    a[0] = select_bytes(x0, x2, 0x5410);
    a[1] = select_bytes(x0, x2, 0x7632);
    a[2] = select_bytes(x1, x3, 0x5410);
    a[3] = select_bytes(x1, x3, 0x7632);
#endif
}

// Codes and header of a lane, as loaded.
struct Raw {
    u32 code4[TILES][plane4(FORMAT) ? 4 : 1];
    u32 code2[TILES][plane2(FORMAT) ? 2 : 1];
    u32 code1[TILES][1];
    u32 wide[TILES][FORMAT == F16 ? 16 : FORMAT == Q8_0 ? 8 : 1];
    u32 header[2][3];
};

// Reads memory that weights were copied to.
struct FromShared {
    static DEVICE uint4 load16(const u8 *p) { return *(const uint4 *)p; }
    static DEVICE uint2 load8(const u8 *p) { return *(const uint2 *)p; }
    static DEVICE u32 load4(const u8 *p) { return *(const u32 *)p; }
    static DEVICE u16 load2(const u8 *p) { return *(const u16 *)p; }
};

struct FromGlobal {
    static DEVICE uint4 load16(const u8 *p) { return load_weights16(p); }
    static DEVICE uint2 load8(const u8 *p) { return load_weights8(p); }
    static DEVICE u32 load4(const u8 *p) { return load_weights4(p); }
    static DEVICE u16 load2(const u8 *p) { return load_weights2(p); }
};

template <typename From> DEVICE void load_raw(Raw &x, const u8 *chunk, u32 lane) {
    u32 g = lane >> 2, t = lane & 3;
    const u8 *codes = chunk + header_bytes(FORMAT);
    for (int r = 0; r < 2; r++) {
        u32 row = g + 8 * r;
        if (header_of(FORMAT) == SCALE) x.header[r][0] = From::load2(chunk + 4 * row + 2 * (t >> 1));
        if (header_of(FORMAT) == SCALE_MIN) x.header[r][0] = From::load4(chunk + 8 * row + 4 * (t >> 1));
        if (header_of(FORMAT) == Q4K) {
            uint4 h = From::load16(chunk + 16 * row);
            x.header[r][0] = h.x;
            x.header[r][1] = t >> 1 ? h.z : h.y;
            x.header[r][2] = t >> 1 ? h.w >> 4 : h.w;
        }
        if (header_of(FORMAT) == S8) {
            x.header[r][0] = From::load4(chunk + 16 * row + 4 * t);
            x.header[r][1] = From::load2(chunk + 256 + 2 * row);
        }
        if (header_of(FORMAT) == S4) {
            x.header[r][0] = From::load4(chunk + 16 * row + 4 * t);
            x.header[r][1] = From::load4(chunk + 256 + 4 * row);
        }
    }
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        if (plane4(FORMAT)) {
            uint4 w = From::load16(codes + 512 * j + 16 * lane);
            x.code4[j][0] = w.x, x.code4[j][1 % (plane4(FORMAT) ? 4 : 1)] = w.y;
            x.code4[j][2 % (plane4(FORMAT) ? 4 : 1)] = w.z, x.code4[j][3 % (plane4(FORMAT) ? 4 : 1)] = w.w;
        }
        const u8 *next = codes + 512 * plane4(FORMAT) * TILES;
        if (plane2(FORMAT)) {
            uint2 w = From::load8(next + 256 * j + 8 * lane);
            x.code2[j][0] = w.x, x.code2[j][1 % (plane2(FORMAT) ? 2 : 1)] = w.y;
        }
        next += 256 * plane2(FORMAT) * TILES;
        if (plane1(FORMAT)) x.code1[j][0] = From::load4(next + 128 * j + 4 * lane);
        constexpr int WIDE = FORMAT == F16 ? 4 : FORMAT == Q8_0 ? 2 : 0;
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            uint4 w = From::load16(codes + 512 * i + 16 * lane);
            constexpr int LEN = WIDE ? 4 * WIDE : 1;
            x.wide[j][4 * i % LEN] = w.x, x.wide[j][(4 * i + 1) % LEN] = w.y;
            x.wide[j][(4 * i + 2) % LEN] = w.z, x.wide[j][(4 * i + 3) % LEN] = w.w;
        }
    }
}

// Scale and minimum of the lane's two rows in tile j, each twice, as f16: x = scale * code + minimum.
struct Scales {
    u32 scale[2], min[2];
};

DEVICE u32 twice(u32 x) { return select_bytes(x, x, 0x1010); }
DEVICE u32 twice_high(u32 x) { return select_bytes(x, x, 0x3232); }

// f16 of byte j of x, twice: bytes are unsigned, their value is minus `offset`.
DEVICE u32 half_of_byte(u32 x, int j, u32 offset) {
    u32 y = select_bytes(x, 0x64646464u, 0x4040u | 0x0101u * j);
    return add_half2(y, offset);
}

#define HALF_1024 0xe400e400u
#define HALF_1152 0xe480e480u

DEVICE Scales scales_of(const Raw &x, int j) {
    Scales y;
    for (int r = 0; r < 2; r++) {
        u32 h0 = x.header[r][0], h1 = x.header[r][1], h2 = x.header[r][2];
        if (header_of(FORMAT) == SCALE) y.scale[r] = twice(h0), y.min[r] = 0;
        if (header_of(FORMAT) == SCALE_MIN) y.scale[r] = twice(h0), y.min[r] = twice_high(h0);
        if (header_of(FORMAT) == Q4K) {
            u32 s = (h1 & 0x0f0f0f0fu) | (h2 << 4 & 0x30303030u), m = (h1 >> 4 & 0x0f0f0f0fu) | (h2 << 2 & 0x30303030u);
            y.scale[r] = mul_half2(half_of_byte(s, j, HALF_1024), twice(h0));
            y.min[r] = mul_half2(half_of_byte(m, j, HALF_1024), twice_high(h0) ^ 0x80008000u);
        }
        if (header_of(FORMAT) == S8) {
            y.scale[r] = mul_half2(half_of_byte(h0 ^ 0x80808080u, j, HALF_1152), twice(h1));
            y.min[r] = 0;
        }
        if (header_of(FORMAT) == S4) {
            y.scale[r] = mul_half2(half_of_byte(h0 & 0x0f0f0f0fu, j, HALF_1024), twice(h1));
            y.min[r] = mul_half2(half_of_byte(h0 >> 4 & 0x0f0f0f0fu, j, HALF_1024), twice_high(h1) ^ 0x80008000u);
        }
    }
    return y;
}

// Shifts left by n, or right by -n.
DEVICE u32 shift(u32 x, int n) { return n >= 0 ? x << n : x >> -n; }

// Weights of step s of tile j as the factor of an instruction. Codes have offsets: q4_0: 8, q5_0: 16, q6_k: 32, q3_k: 4.
DEVICE void weights_of(const Raw &x, const Scales &scales, int j, int s, u32 (&a)[4]) {
    if (FORMAT == F16) {
        constexpr int LEN = FORMAT == F16 ? 16 : 1;
        for (int r = 0; r < 4; r++) a[r] = x.wide[j][(4 * s + r) % LEN];
        return;
    }
    if (HAS_CODEBOOK) {
        nibbles(x.code4[j][s % (plane4(FORMAT) ? 4 : 1)], a);
        for (int r = 0; r < 4; r++) a[r] = mul_half2(a[r], scales.scale[r & 1]);
        return;
    }
    // 1024 + offset, negated.
    constexpr u32 OFFSET = FORMAT == Q4_0 ? 0xe408e408u : FORMAT == Q5_0 ? 0xe410e410u : FORMAT == Q6_K ? 0xe420e420u
        : FORMAT == Q3_K ? 0xe404e404u : FORMAT == Q8_0 ? HALF_1152 : HALF_1024;
    // The same plus 15 / 16 of 1024, of codes in bits 4..8: x / 16 - 64 - offset.
    constexpr u32 OFFSET_HIGH = FORMAT == Q4_0 ? 0xd480d480u : 0xd400d400u;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        u32 q;
        if (FORMAT == Q8_0) {
            constexpr int LEN = FORMAT == Q8_0 ? 8 : 1;
            u32 w = x.wide[j][(2 * s + (r & 1)) % LEN];
            q = add_half2(select_bytes(w, 0x64646464u, r < 2 ? 0x4140 : 0x4342), OFFSET);
        } else if (plane4(FORMAT)) {
            u32 w = x.code4[j][s % (plane4(FORMAT) ? 4 : 1)];
            if (!plane2(FORMAT) && !plane1(FORMAT)) {
                w = r < 2 ? w : w >> 8;
                q = r & 1 ? fma_half2(mask_or<0x00f000f0u, 0x64006400u>(w), 0x2c002c00u, OFFSET_HIGH)
                          : add_half2(mask_or<0x000f000fu, 0x64006400u>(w), OFFSET);
            } else {
                u32 low = (w >> 4 * r) & 0x000f000fu, high;
                if (plane2(FORMAT)) high = shift(x.code2[j][(s >> 1) % (plane2(FORMAT) ? 2 : 1)], 4 - 2 * (4 * (s & 1) + r)) & 0x00300030u;
                else high = shift(x.code1[j][0], 4 - (4 * s + r)) & 0x00100010u;
                q = add_half2(low | high | 0x64006400u, OFFSET);
            }
        } else {
            u32 low = shift(x.code2[j][(s >> 1) % (plane2(FORMAT) ? 2 : 1)], -2 * (4 * (s & 1) + r)) & 0x00030003u;
            u32 high = plane1(FORMAT) ? shift(x.code1[j][0], 2 - (4 * s + r)) & 0x00040004u : 0u;
            q = add_half2(low | high | 0x64006400u, OFFSET);
        }
        constexpr bool HAS_MIN = header_of(FORMAT) == SCALE_MIN || header_of(FORMAT) == Q4K || header_of(FORMAT) == S4;
        a[r] = HAS_MIN ? fma_half2(q, scales.scale[r & 1], scales.min[r & 1]) : mul_half2(q, scales.scale[r & 1]);
    }
}
