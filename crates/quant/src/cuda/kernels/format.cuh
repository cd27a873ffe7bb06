// Weights on the device, in the order in which matrix instructions read them.
//
// A matrix [N, K] is strips of 16 rows; a strip is chunks of TILES * 64 columns, one behind the other:
//
//   strip = chunk 0 | chunk 1 | ...      chunk = header | codes of tile 0 .. TILES - 1, plane by plane
//   tile  = 16 rows x 64 columns         step s of 4: columns 16 s .. 16 s + 15, the factor of one instruction
//   step                                 lane l = 4 g + t holds columns 4 t + e, e in 0..4, of rows g and g + 8, in registers
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
// Headers, of 16 rows. A scale is that of a block of 32 columns, or of 16 (S8, S4). Block h of tile j:
//
//   SCALE, SCALE_MIN          f16 [16][h]; with minima: [16][h][scale, minimum]
//   q4_k, q5_k (Q4K)          [16][d dmin | A | B | C] words. Scales s_h and minima m_h of 6 bits are in byte j:
//                             A: s_0, bits 6, 7: s_1 & 3    B: m_0, bits 6, 7: m_1 & 3    C: s_1 >> 2, bits 4..8: m_1 >> 2
//   q6_k, q3_k, iq4_xs (S8)   scales i8 [16][j % 2][h / 2][j / 2][h % 2], then d f16 [16]
//   q2_k (S4)                 scale and minimum nibbles in the same order, then d and dmin f16 [16][2]
//
// A source with two formats includes it, product.cuh and kernels in a namespace for each.
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
constexpr bool HAS_MIN = header_of(FORMAT) == SCALE_MIN || header_of(FORMAT) == Q4K || header_of(FORMAT) == S4;
// Columns of a scale; steps of them; blocks of a tile.
constexpr int BLOCK = header_of(FORMAT) == S8 || header_of(FORMAT) == S4 ? 16 : 32;
constexpr int BLOCK_STEPS = BLOCK / 16;
constexpr int TILE_BLOCKS = 64 / BLOCK;
// Codes of 0.
constexpr int OFFSET = FORMAT == Q4_0 ? 8 : FORMAT == Q5_0 ? 16 : FORMAT == Q6_K ? 32 : FORMAT == Q3_K ? 4 : FORMAT == Q8_0 ? 128 : 0;

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

// Codes of a lane and tile, as loaded.
struct Codes {
    u32 code4[plane4(FORMAT) ? 4 : 1];
    u32 code2[plane2(FORMAT) ? 2 : 1];
    u32 code1;
    u32 wide[FORMAT == F16 ? 16 : FORMAT == Q8_0 ? 8 : 1];
};

// A chunk of a lane.
struct Raw {
    Codes tiles[TILES];
    u32 header[2][5]; // Of rows g, g + 8.
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

// Header of a row.
template <typename From> DEVICE void load_header(u32 (&h)[5], const u8 *chunk, u32 row) {
    if (header_of(FORMAT) == SCALE) h[0] = From::load4(chunk + 4 * row);
    if (header_of(FORMAT) == SCALE_MIN) {
        uint2 x = From::load8(chunk + 8 * row);
        h[0] = x.x, h[1] = x.y;
    }
    if (header_of(FORMAT) >= Q4K) {
        uint4 x = From::load16(chunk + 16 * row);
        h[0] = x.x, h[1] = x.y, h[2] = x.z, h[3] = x.w;
    }
    if (header_of(FORMAT) == S8) h[4] = From::load2(chunk + 256 + 2 * row);
    if (header_of(FORMAT) == S4) h[4] = From::load4(chunk + 256 + 4 * row);
}

template <typename From> DEVICE void load_codes(Codes &x, const u8 *chunk, u32 tile, u32 lane) {
    const u8 *codes = chunk + header_bytes(FORMAT);
    if (plane4(FORMAT)) {
        constexpr int LEN = plane4(FORMAT) ? 4 : 1;
        uint4 w = From::load16(codes + 512 * tile + 16 * lane);
        x.code4[0] = w.x, x.code4[1 % LEN] = w.y, x.code4[2 % LEN] = w.z, x.code4[3 % LEN] = w.w;
    }
    codes += 512 * plane4(FORMAT) * TILES;
    if (plane2(FORMAT)) {
        uint2 w = From::load8(codes + 256 * tile + 8 * lane);
        x.code2[0] = w.x, x.code2[1 % (plane2(FORMAT) ? 2 : 1)] = w.y;
    }
    codes += 256 * plane2(FORMAT) * TILES;
    if (plane1(FORMAT)) x.code1 = From::load4(codes + 128 * tile + 4 * lane);
    constexpr int WIDE = FORMAT == F16 ? 4 : FORMAT == Q8_0 ? 2 : 0;
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        constexpr int LEN = WIDE ? 4 * WIDE : 1;
        uint4 w = From::load16(codes + 512 * i + 16 * lane);
        x.wide[4 * i % LEN] = w.x, x.wide[(4 * i + 1) % LEN] = w.y, x.wide[(4 * i + 2) % LEN] = w.z, x.wide[(4 * i + 3) % LEN] = w.w;
    }
}

template <typename From> DEVICE void load_raw(Raw &x, const u8 *chunk, u32 lane) {
    for (int r = 0; r < 2; r++) load_header<From>(x.header[r], chunk, (lane >> 2) + 8 * r);
#pragma unroll
    for (int j = 0; j < TILES; j++) load_codes<From>(x.tiles[j], chunk, j, lane);
}

DEVICE u32 twice(u32 x) { return select_bytes(x, x, 0x1010); }
DEVICE u32 twice_high(u32 x) { return select_bytes(x, x, 0x3232); }

// Word and byte of the scale of block h of tile j in the headers S8 and S4.
constexpr int word_of(int j, int h) { return 2 * (j & 1) + (h >> 1); }
constexpr int byte_of(int j, int h) { return (j & 2) + (h & 1); }

// ---- Weights in f16: x = scale * code - minimum, each rounded.

// Scale and minus the minimum of a block of rows g, g + 8, each twice.
struct Scales {
    u32 scale[2], min[2];
};

#define HALF_1024 0xe400e400u
#define HALF_1152 0xe480e480u

// f16 of byte j of x, twice: bytes are unsigned, their value is minus `offset`.
DEVICE u32 half_of_byte(u32 x, int j, u32 offset) {
    u32 y = select_bytes(x, 0x64646464u, 0x4040u | 0x0101u * j);
    return add_half2(y, offset);
}

// Of block h of tile j.
DEVICE Scales scales_of(const u32 (&header)[2][5], int j, int h) {
    Scales y;
    for (int r = 0; r < 2; r++) {
        const u32(&w)[5] = header[r];
        if (header_of(FORMAT) == SCALE) y.scale[r] = h ? twice_high(w[0]) : twice(w[0]), y.min[r] = 0;
        if (header_of(FORMAT) == SCALE_MIN) y.scale[r] = twice(w[h & 1]), y.min[r] = twice_high(w[h & 1]);
        if (header_of(FORMAT) == Q4K) {
            u32 s = h ? (w[1] >> 6 & 0x03030303u) | (w[3] << 2 & 0x3c3c3c3cu) : w[1] & 0x3f3f3f3fu;
            u32 m = h ? (w[2] >> 6 & 0x03030303u) | (w[3] >> 2 & 0x3c3c3c3cu) : w[2] & 0x3f3f3f3fu;
            y.scale[r] = mul_half2(half_of_byte(s, j, HALF_1024), twice(w[0]));
            y.min[r] = mul_half2(half_of_byte(m, j, HALF_1024), twice_high(w[0]) ^ 0x80008000u);
        }
        if (header_of(FORMAT) == S8) {
            y.scale[r] = mul_half2(half_of_byte(w[word_of(j, h)] ^ 0x80808080u, byte_of(j, h), HALF_1152), twice(w[4]));
            y.min[r] = 0;
        }
        if (header_of(FORMAT) == S4) {
            u32 s = w[word_of(j, h)];
            y.scale[r] = mul_half2(half_of_byte(s & 0x0f0f0f0fu, byte_of(j, h), HALF_1024), twice(w[4]));
            y.min[r] = mul_half2(half_of_byte(s >> 4 & 0x0f0f0f0fu, byte_of(j, h), HALF_1024), twice_high(w[4]) ^ 0x80008000u);
        }
    }
    return y;
}

// Shifts left by n, or right by -n.
DEVICE u32 shift(u32 x, int n) { return n >= 0 ? x << n : x >> -n; }

// Weights of step s of tile j as the factor of an instruction.
DEVICE void scaled_weights(const Codes &codes, const u32 (&header)[2][5], int j, int s, u32 (&a)[4]) {
    if (FORMAT == F16) {
        constexpr int LEN = FORMAT == F16 ? 16 : 1;
        for (int r = 0; r < 4; r++) a[r] = codes.wide[(4 * s + r) % LEN];
        return;
    }
    Scales scales = scales_of(header, j, s / BLOCK_STEPS);
    if (HAS_CODEBOOK) {
        nibbles(codes.code4[s % (plane4(FORMAT) ? 4 : 1)], a);
        for (int r = 0; r < 4; r++) a[r] = mul_half2(a[r], scales.scale[r & 1]);
        return;
    }
    // 1024 + offset, negated.
    constexpr u32 MINUS = HALF_1024 + OFFSET * 0x10001u;
    // The same plus 15 / 16 of 1024, of codes in bits 4..8: x / 16 - 64 - offset.
    constexpr u32 MINUS_HIGH = FORMAT == Q4_0 ? 0xd480d480u : 0xd400d400u;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        u32 q;
        if (FORMAT == Q8_0) {
            constexpr int LEN = FORMAT == Q8_0 ? 8 : 1;
            u32 w = codes.wide[(2 * s + (r & 1)) % LEN];
            q = add_half2(select_bytes(w, 0x64646464u, r < 2 ? 0x4140 : 0x4342), MINUS);
        } else if (plane4(FORMAT)) {
            u32 w = codes.code4[s % (plane4(FORMAT) ? 4 : 1)];
            if (!plane2(FORMAT) && !plane1(FORMAT)) {
                w = r < 2 ? w : w >> 8;
                q = r & 1 ? fma_half2(mask_or<0x00f000f0u, 0x64006400u>(w), 0x2c002c00u, MINUS_HIGH)
                          : add_half2(mask_or<0x000f000fu, 0x64006400u>(w), MINUS);
            } else {
                u32 low = (w >> 4 * r) & 0x000f000fu, high;
                if (plane2(FORMAT)) high = shift(codes.code2[(s >> 1) % (plane2(FORMAT) ? 2 : 1)], 4 - 2 * (4 * (s & 1) + r)) & 0x00300030u;
                else high = shift(codes.code1, 4 - (4 * s + r)) & 0x00100010u;
                q = add_half2(low | high | 0x64006400u, MINUS);
            }
        } else {
            u32 low = shift(codes.code2[(s >> 1) % (plane2(FORMAT) ? 2 : 1)], -2 * (4 * (s & 1) + r)) & 0x00030003u;
            u32 high = plane1(FORMAT) ? shift(codes.code1, 2 - (4 * s + r)) & 0x00040004u : 0u;
            q = add_half2(low | high | 0x64006400u, MINUS);
        }
        a[r] = HAS_MIN ? fma_half2(q, scales.scale[r & 1], scales.min[r & 1]) : mul_half2(q, scales.scale[r & 1]);
    }
}

DEVICE void scaled_weights(const Raw &x, int j, int s, u32 (&a)[4]) { scaled_weights(x.tiles[j], x.header, j, s, a); }

// ---- Weights of formats with integer scales, for GEMV: integers, scaled by d of 256 columns in f32 behind the product.
//
// scale * code has at most 11 bits, or 12 in q6_k and iq4_xs, which round to 11; minima have 6 bits. Codes are subnormal numbers:
// code * 2^-24, or, in bits 4.. of a half, code * 2^-20.

constexpr bool HAS_INTEGERS = header_of(FORMAT) >= Q4K;
constexpr float UNIT_OF_CODE = HAS_CODEBOOK ? 1.f : 1.f / 16777216.f;
// Codes of row g + 8 are in bits 4.. .
constexpr float CODE_OF_ROW[2] = {UNIT_OF_CODE, plane4(FORMAT) && !HAS_CODEBOOK ? 16.f * UNIT_OF_CODE : UNIT_OF_CODE};

// Codes of step s of a tile as the factor of an instruction.
DEVICE void codes_of(const Codes &x, int s, u32 (&a)[4]) {
    if (HAS_CODEBOOK) return nibbles(x.code4[s % (plane4(FORMAT) ? 4 : 1)], a);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int bit2 = 2 * (4 * (s & 1) + r), bit1 = 4 * s + r, odd = 4 * (r & 1);
        u32 code2 = x.code2[(s >> 1) % (plane2(FORMAT) ? 2 : 1)], code1 = x.code1;
        if (plane4(FORMAT)) {
            u32 w = x.code4[s % (plane4(FORMAT) ? 4 : 1)];
            a[r] = (r < 2 ? w : w >> 8) & 0x000f000fu << odd;
            if (plane2(FORMAT)) a[r] |= shift(code2, 4 + odd - bit2) & 0x00300030u << odd;
            if (plane1(FORMAT)) a[r] |= shift(code1, 4 + odd - bit1) & 0x00100010u << odd;
        } else {
            a[r] = shift(code2, -bit2) & 0x00030003u;
            if (plane1(FORMAT)) a[r] |= shift(code1, 2 - bit1) & 0x00040004u;
        }
    }
}

// Integer scale of block h of tile j, twice.
DEVICE u32 integer_scale(const u32 (&w)[5], int j, int h) {
    if (header_of(FORMAT) == Q4K)
        return half_of_byte(h ? (w[1] >> 6 & 0x03030303u) | (w[3] << 2 & 0x3c3c3c3cu) : w[1] & 0x3f3f3f3fu, j, HALF_1024);
    if (header_of(FORMAT) == S8) return half_of_byte(w[word_of(j, h)] ^ 0x80808080u, byte_of(j, h), HALF_1152);
    return half_of_byte(w[word_of(j, h)] & 0x0f0f0f0fu, byte_of(j, h), HALF_1024);
}

// Weights of step s of tile j as the factor of an instruction, in units of d * CODE_OF_ROW.
DEVICE void integer_weights(const Codes &x, const u32 (&header)[2][5], int j, int s, u32 (&a)[4]) {
    codes_of(x, s, a);
    u32 scale[2];
    for (int r = 0; r < 2; r++) scale[r] = integer_scale(header[r], j, s / BLOCK_STEPS);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        // The offset in units of the row's codes.
        u32 offset = 0x80008000u | (u32)OFFSET * 0x10001u << (plane4(FORMAT) && r & 1 ? 4 : 0);
        u32 y = scale[r & 1];
        a[r] = OFFSET && !HAS_CODEBOOK ? fma_half2(a[r], y, mul_half2(y, offset)) : mul_half2(a[r], y);
    }
}

// Integer minima of the lane's blocks 2 t and 2 t + 1 of a group of 8.
DEVICE u32 integer_minima(const u32 (&w)[5], int group, u32 t) {
    u32 first, second;
    if (header_of(FORMAT) == Q4K) {
        u32 b = select_bytes(w[2], 0, 0x4440 | t), c = select_bytes(w[3], 0, 0x4440 | t);
        first = b & 63, second = (b >> 6 & 3) | (c >> 2 & 0x3c);
    } else {
        u32 word = t & 2 ? (t & 1 ? w[3] : w[2]) : (t & 1 ? w[1] : w[0]), bytes = word >> 16 * group;
        first = bytes >> 4 & 15, second = bytes >> 12 & 15;
    }
    return add_half2(first | second << 16 | 0x64006400u, HALF_1024);
}

// d and dmin of a row's 256 columns.
DEVICE u32 factors_of(const u32 (&w)[5]) { return header_of(FORMAT) == Q4K ? w[0] : w[4]; }
