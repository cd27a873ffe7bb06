// Weights on the device, in the order of mma fragments.
//
// A matrix [N, K] is panels of 16 rows; a panel is a sequence of chunks of TILES * 64 columns:
//
//   panel = chunk 0 | chunk 1 | ...      chunk = header | codes of tile 0 .. TILES - 1, plane by plane
//   tile  = 16 rows x 64 columns         step s of 4: columns 16 s .. 16 s + 15, the A fragment of one mma
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
// Headers of 16 rows. A scale belongs to a block of 32 columns, or of 16 (S8, S4). Block h of tile j:
//
//   SCALE, SCALE_MIN          f16 [16][h]; with minima: [16][h][scale, minimum]
//   q4_k, q5_k (Q4K)          [16][d dmin | A | B | C] words. Scales s_h and minima m_h of 6 bits are in byte j:
//                             A: s_0, bits 6, 7: s_1 & 3    B: m_0, bits 6, 7: m_1 & 3    C: s_1 >> 2, bits 4..8: m_1 >> 2
//   q6_k, q3_k, iq4_xs (S8)   scales i8 [16][j % 2][h / 2][j / 2][h % 2], then d f16 [16]
//   q2_k (S4)                 scale and minimum nibbles in the same order, then d and dmin f16 [16][2]
//
// A source with two formats includes formats.cuh, then this file, product.cuh and the kernels in one namespace per format.
#include "formats.cuh"

#ifndef FORMAT
#define FORMAT F16
#endif

constexpr FormatInfo INFO = format_info(FORMAT);
constexpr Header HEADER = INFO.header;
constexpr int BITS = INFO.bits;
// Planes of codes. Codes of 8 and 16 bits have words of their own.
constexpr bool PLANE4 = BITS >= 4 && BITS <= 6, PLANE2 = BITS == 2 || BITS == 3 || BITS == 6, PLANE1 = BITS == 3 || BITS == 5;
constexpr int WIDE_WORDS = BITS > 6 ? BITS : 0; // 32-bit words of a lane in a tile.

constexpr int TILES = HEADER >= Q4K ? 4 : 1;
constexpr int HEADER_BYTES = HEADER == NONE ? 0 : HEADER == SCALE ? 64 : HEADER == SCALE_MIN ? 128 : HEADER == Q4K ? 256 : HEADER == S8 ? 288 : 320;
constexpr int CHUNK_BYTES = HEADER_BYTES + TILES * 128 * BITS;
constexpr bool HAS_CODEBOOK = IS_CODEBOOK(FORMAT);
constexpr bool HAS_MIN = HEADER == SCALE_MIN || HEADER == Q4K || HEADER == S4;
// Columns of a scale; mma steps of these; blocks of a tile.
constexpr int BLOCK = HEADER == S8 || HEADER == S4 ? 16 : 32;
constexpr int BLOCK_STEPS = BLOCK / 16;
constexpr int TILE_BLOCKS = 64 / BLOCK;
// Code of 0.
constexpr int OFFSET = INFO.zero;

// Values of the two codes of a byte in f16: low nibble, high nibble.
#if IS_CODEBOOK(FORMAT)
__shared__ u32 codebook[256];
#endif

// Fills the codebook. Synchronizes the block.
DEVICE void load_codebook() {
#if IS_CODEBOOK(FORMAT)
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) codebook[i] = pack_half(codebook_value(FORMAT, i & 15), codebook_value(FORMAT, i >> 4));
    __syncthreads();
#endif
}

// Looks up the word of a nibble plane: A fragment of one step.
DEVICE void nibbles(u32 w, u32 (&a)[4]) {
#if IS_CODEBOOK(FORMAT)
    // Bytes of w: registers 0 and 1 of p = 0, registers 2 and 3 of p = 0, then the same of p = 1.
    u32 x0 = codebook[w & 255], x1 = codebook[w >> 8 & 255], x2 = codebook[w >> 16 & 255], x3 = codebook[w >> 24];
    a[0] = select_bytes(x0, x2, 0x5410);
    a[1] = select_bytes(x0, x2, 0x7632);
    a[2] = select_bytes(x1, x3, 0x5410);
    a[3] = select_bytes(x1, x3, 0x7632);
#endif
}

// Codes of a lane and tile, as loaded.
struct Codes {
    u32 code4[PLANE4 ? 4 : 1];
    u32 code2[PLANE2 ? 2 : 1];
    u32 code1;
    u32 wide[WIDE_WORDS ? WIDE_WORDS : 1];
};

// Part of a lane in a chunk.
struct Raw {
    Codes tiles[TILES];
    u32 header[2][5]; // Rows g, g + 8.
};

// Loads weights from shared memory.
struct FromShared {
    static DEVICE uint4 load16(const u8 *p) { return *(const uint4 *)p; }
    static DEVICE uint2 load8(const u8 *p) { return *(const uint2 *)p; }
    static DEVICE u32 load4(const u8 *p) { return *(const u32 *)p; }
    static DEVICE u16 load2(const u8 *p) { return *(const u16 *)p; }
};

// Loads weights from global memory.
struct FromGlobal {
    static DEVICE uint4 load16(const u8 *p) { return load_weights16(p); }
    static DEVICE uint2 load8(const u8 *p) { return load_weights8(p); }
    static DEVICE u32 load4(const u8 *p) { return load_weights4(p); }
    static DEVICE u16 load2(const u8 *p) { return load_weights2(p); }
};

// Loads the header of a row.
template <typename From> DEVICE void load_header(u32 (&h)[5], const u8 *chunk, u32 row) {
    if (HEADER == SCALE) h[0] = From::load4(chunk + 4 * row);
    if (HEADER == SCALE_MIN) {
        uint2 x = From::load8(chunk + 8 * row);
        h[0] = x.x, h[1] = x.y;
    }
    if (HEADER >= Q4K) {
        uint4 x = From::load16(chunk + 16 * row);
        h[0] = x.x, h[1] = x.y, h[2] = x.z, h[3] = x.w;
    }
    if (HEADER == S8) h[4] = From::load2(chunk + 256 + 2 * row);
    if (HEADER == S4) h[4] = From::load4(chunk + 256 + 4 * row);
}

template <typename From> DEVICE void load_codes(Codes &x, const u8 *chunk, u32 tile, u32 lane) {
    const u8 *codes = chunk + HEADER_BYTES;
    if (PLANE4) {
        constexpr int LEN = PLANE4 ? 4 : 1;
        uint4 w = From::load16(codes + 512 * tile + 16 * lane);
        x.code4[0] = w.x, x.code4[1 % LEN] = w.y, x.code4[2 % LEN] = w.z, x.code4[3 % LEN] = w.w;
    }
    codes += 512 * PLANE4 * TILES;
    if (PLANE2) {
        uint2 w = From::load8(codes + 256 * tile + 8 * lane);
        x.code2[0] = w.x, x.code2[1 % (PLANE2 ? 2 : 1)] = w.y;
    }
    codes += 256 * PLANE2 * TILES;
    if (PLANE1) x.code1 = From::load4(codes + 128 * tile + 4 * lane);
#pragma unroll
    for (int i = 0; i < WIDE_WORDS / 4; i++) {
        constexpr int LEN = WIDE_WORDS ? WIDE_WORDS : 1;
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

// Scale and negated minimum of a block in rows g, g + 8, in both halves of a word.
struct Scales {
    u32 scale[2], min[2];
};

#define HALF_1024 0xe400e400u
#define HALF_1152 0xe480e480u

// Byte j of x, unsigned, plus `offset` in f16, in both halves.
DEVICE u32 half_of_byte(u32 x, int j, u32 offset) {
    u32 y = select_bytes(x, 0x64646464u, 0x4040u | 0x0101u * j);
    return add_half2(y, offset);
}

// Scales of block h of tile j.
DEVICE Scales scales_of(const u32 (&header)[2][5], int j, int h) {
    Scales y;
    for (int r = 0; r < 2; r++) {
        const u32(&w)[5] = header[r];
        if (HEADER == SCALE) y.scale[r] = h ? twice_high(w[0]) : twice(w[0]), y.min[r] = 0;
        if (HEADER == SCALE_MIN) y.scale[r] = twice(w[h & 1]), y.min[r] = twice_high(w[h & 1]);
        if (HEADER == Q4K) {
            u32 s = h ? (w[1] >> 6 & 0x03030303u) | (w[3] << 2 & 0x3c3c3c3cu) : w[1] & 0x3f3f3f3fu;
            u32 m = h ? (w[2] >> 6 & 0x03030303u) | (w[3] >> 2 & 0x3c3c3c3cu) : w[2] & 0x3f3f3f3fu;
            y.scale[r] = mul_half2(half_of_byte(s, j, HALF_1024), twice(w[0]));
            y.min[r] = mul_half2(half_of_byte(m, j, HALF_1024), twice_high(w[0]) ^ 0x80008000u);
        }
        if (HEADER == S8) {
            y.scale[r] = mul_half2(half_of_byte(w[word_of(j, h)] ^ 0x80808080u, byte_of(j, h), HALF_1152), twice(w[4]));
            y.min[r] = 0;
        }
        if (HEADER == S4) {
            u32 s = w[word_of(j, h)];
            y.scale[r] = mul_half2(half_of_byte(s & 0x0f0f0f0fu, byte_of(j, h), HALF_1024), twice(w[4]));
            y.min[r] = mul_half2(half_of_byte(s >> 4 & 0x0f0f0f0fu, byte_of(j, h), HALF_1024), twice_high(w[4]) ^ 0x80008000u);
        }
    }
    return y;
}

// Shifts left by n, or right by -n.
DEVICE u32 shift(u32 x, int n) { return n >= 0 ? x << n : x >> -n; }

// A fragment (mma operand) of K step s in tile j.
DEVICE void scaled_weights(const Codes &codes, const u32 (&header)[2][5], int j, int s, u32 (&a)[4]) {
    if (FORMAT == F16) {
        constexpr int LEN = FORMAT == F16 ? 16 : 1;
        for (int r = 0; r < 4; r++) a[r] = codes.wide[(4 * s + r) % LEN];
        return;
    }
    Scales scales = scales_of(header, j, s / BLOCK_STEPS);
    if (HAS_CODEBOOK) {
        nibbles(codes.code4[s % (PLANE4 ? 4 : 1)], a);
        for (int r = 0; r < 4; r++) a[r] = mul_half2(a[r], scales.scale[r & 1]);
        return;
    }
    // 1024 + offset, negated.
    constexpr u32 MINUS = HALF_1024 + OFFSET * 0x10001u;
    // For codes in bits 4..8, scaled by 1 / 16: minus 64, minus the offset.
    constexpr u32 MINUS_HIGH = FORMAT == Q4_0 ? 0xd480d480u : 0xd400d400u;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        u32 q;
        if (FORMAT == Q8_0) {
            constexpr int LEN = FORMAT == Q8_0 ? 8 : 1;
            u32 w = codes.wide[(2 * s + (r & 1)) % LEN];
            q = add_half2(select_bytes(w, 0x64646464u, r < 2 ? 0x4140 : 0x4342), MINUS);
        } else if (PLANE4) {
            u32 w = codes.code4[s % (PLANE4 ? 4 : 1)];
            if (!PLANE2 && !PLANE1) {
                w = r < 2 ? w : w >> 8;
                q = r & 1 ? fma_half2(mask_or<0x00f000f0u, 0x64006400u>(w), 0x2c002c00u, MINUS_HIGH)
                          : add_half2(mask_or<0x000f000fu, 0x64006400u>(w), MINUS);
            } else {
                u32 low = (w >> 4 * r) & 0x000f000fu, high;
                if (PLANE2) high = shift(codes.code2[(s >> 1) % (PLANE2 ? 2 : 1)], 4 - 2 * (4 * (s & 1) + r)) & 0x00300030u;
                else high = shift(codes.code1, 4 - (4 * s + r)) & 0x00100010u;
                q = add_half2(low | high | 0x64006400u, MINUS);
            }
        } else {
            u32 low = shift(codes.code2[(s >> 1) % (PLANE2 ? 2 : 1)], -2 * (4 * (s & 1) + r)) & 0x00030003u;
            u32 high = PLANE1 ? shift(codes.code1, 2 - (4 * s + r)) & 0x00040004u : 0u;
            q = add_half2(low | high | 0x64006400u, MINUS);
        }
        a[r] = HAS_MIN ? fma_half2(q, scales.scale[r & 1], scales.min[r & 1]) : mul_half2(q, scales.scale[r & 1]);
    }
}

DEVICE void scaled_weights(const Raw &x, int j, int s, u32 (&a)[4]) { scaled_weights(x.tiles[j], x.header, j, s, a); }

// ---- Weights of formats with integer scales, for GEMV: integers; the product is scaled by d of 256 columns in f32.
//
// scale * code has at most 11 bits, or 12 in q6_k and iq4_xs, which round to 11; minima have 6 bits. Codes are subnormal numbers:
// code * 2^-24, or, in bits 4.. of a half, code * 2^-20.

constexpr bool HAS_INTEGERS = HEADER >= Q4K;
constexpr float CODE_STEP = HAS_CODEBOOK ? 1.f : 1.f / 16777216.f;
// Value of code 1 in rows g and g + 8. Codes of row g + 8 are in bits 4.. of a half.
constexpr float CODE_OF_ROW[2] = {CODE_STEP, PLANE4 && !HAS_CODEBOOK ? 16.f * CODE_STEP : CODE_STEP};

// A fragment of the codes of K step s in a tile.
DEVICE void codes_of(const Codes &x, int s, u32 (&a)[4]) {
    if (HAS_CODEBOOK) return nibbles(x.code4[s % (PLANE4 ? 4 : 1)], a);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int bit2 = 2 * (4 * (s & 1) + r), bit1 = 4 * s + r, odd = 4 * (r & 1);
        u32 code2 = x.code2[(s >> 1) % (PLANE2 ? 2 : 1)], code1 = x.code1;
        if (PLANE4) {
            u32 w = x.code4[s % (PLANE4 ? 4 : 1)];
            a[r] = (r < 2 ? w : w >> 8) & 0x000f000fu << odd;
            if (PLANE2) a[r] |= shift(code2, 4 + odd - bit2) & 0x00300030u << odd;
            if (PLANE1) a[r] |= shift(code1, 4 + odd - bit1) & 0x00100010u << odd;
        } else {
            a[r] = shift(code2, -bit2) & 0x00030003u;
            if (PLANE1) a[r] |= shift(code1, 2 - bit1) & 0x00040004u;
        }
    }
}

// Integer scale of block h of tile j, in both halves.
DEVICE u32 integer_scale(const u32 (&w)[5], int j, int h) {
    if (HEADER == Q4K)
        return half_of_byte(h ? (w[1] >> 6 & 0x03030303u) | (w[3] << 2 & 0x3c3c3c3cu) : w[1] & 0x3f3f3f3fu, j, HALF_1024);
    if (HEADER == S8) return half_of_byte(w[word_of(j, h)] ^ 0x80808080u, byte_of(j, h), HALF_1152);
    return half_of_byte(w[word_of(j, h)] & 0x0f0f0f0fu, byte_of(j, h), HALF_1024);
}

// A fragment of the integer weights of K step s in tile j: weight / (d * CODE_OF_ROW).
DEVICE void integer_weights(const Codes &x, const u32 (&header)[2][5], int j, int s, u32 (&a)[4]) {
    codes_of(x, s, a);
    u32 scale[2];
    for (int r = 0; r < 2; r++) scale[r] = integer_scale(header[r], j, s / BLOCK_STEPS);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        // The offset, shifted like the codes of the row.
        u32 offset = 0x80008000u | (u32)OFFSET * 0x10001u << (PLANE4 && r & 1 ? 4 : 0);
        u32 y = scale[r & 1];
        a[r] = OFFSET && !HAS_CODEBOOK ? fma_half2(a[r], y, mul_half2(y, offset)) : mul_half2(a[r], y);
    }
}

// Integer minima of blocks 2 t and 2 t + 1 of a group of 8.
DEVICE u32 integer_minima(const u32 (&w)[5], int group, u32 t) {
    u32 first, second;
    if (HEADER == Q4K) {
        u32 b = select_bytes(w[2], 0, 0x4440 | t), c = select_bytes(w[3], 0, 0x4440 | t);
        first = b & 63, second = (b >> 6 & 3) | (c >> 2 & 0x3c);
    } else {
        u32 word = t & 2 ? (t & 1 ? w[3] : w[2]) : (t & 1 ? w[1] : w[0]), bytes = word >> 16 * group;
        first = bytes >> 4 & 15, second = bytes >> 12 & 15;
    }
    return add_half2(first | second << 16 | 0x64006400u, HALF_1024);
}

// d and dmin of 256 columns of a row.
DEVICE u32 d_and_dmin(const u32 (&w)[5]) { return HEADER == Q4K ? w[0] : w[4]; }
