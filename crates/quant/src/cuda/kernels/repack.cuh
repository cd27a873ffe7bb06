// Repacks GGML blocks, see crates/quant/src/block, into panels, see format.cuh. One warp per chunk.

struct RepackParams {
    const u8 *from; // GGML blocks of the rows.
    u8 *to;         // Panels of the matrix.
    u64 row_bytes;
    u32 n_rows, n_panels, n_chunks, k, first_panel, unused;
};

constexpr int BLOCK_LEN = INFO.block_len, BLOCK_BYTES = INFO.block_bytes;

DEVICE u32 half_at(const u8 *p) { return p[0] | p[1] << 8; }

// Code of element i of a block.
DEVICE u32 code_of(const u8 *b, u32 i) {
    if (BITS == 16) return half_at(b);
    const u8 *low = b + INFO.low_at, *high = b + INFO.high_at;
    if (BLOCK_LEN == 32) {
        u32 nibble = i < 16 ? 0 : 4, half = i & 15;
        if (BITS == 8) return low[i] ^ 0x80;
        if (BITS == 5) return (low[half] >> nibble & 15) | (high[i / 8] >> i % 8 & 1) << 4;
        return low[half] >> nibble & 15;
    }
    u32 quarter = i / 64, part = i / 32 % 2, l = i % 32;
    switch (FORMAT) {
    case Q4_K: return low[32 * quarter + l] >> 4 * part & 15;
    case Q5_K: return (low[32 * quarter + l] >> 4 * part & 15) | (high[l] >> i / 32 & 1) << 4;
    case IQ4_XS: return low[16 * (i / 32) + (l & 15)] >> (l < 16 ? 0 : 4) & 15;
    case Q6_K: {
        u32 h = i / 128, r = i % 128;
        return (low[64 * h + r % 64] >> 4 * (r / 64) & 15) | (high[32 * h + r % 32] >> 2 * (r / 32) & 3) << 4;
    }
    case Q2_K: return low[32 * (i / 128) + l] >> 2 * (i / 32 % 4) & 3;
    case Q3_K: return (low[32 * (i / 128) + l] >> 2 * (i / 32 % 4) & 3) | (high[l] >> i / 32 & 1) << 2;
    default: return 0;
    }
}

// 6-bit scale and minimum of group i of q4_k and q5_k; `b`: address of the scales.
DEVICE void scale_min(const u8 *b, u32 i, u32 &scale, u32 &min) {
    if (i < 4) scale = b[i] & 63, min = b[i + 4] & 63;
    else scale = (b[i + 4] & 15) | b[i - 4] >> 6 << 4, min = b[i + 4] >> 4 | b[i] >> 6 << 4;
}

// Integer scale of 16 columns (q6_k, q3_k), or of 32 (iq4_xs).
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
    if (index >= (u64)p.n_panels * p.n_chunks) return;
    u32 panel = (u32)(index / p.n_chunks), chunk = (u32)(index % p.n_chunks);
    u8 *to = p.to + ((u64)(p.first_panel + panel) * p.n_chunks + chunk) * CHUNK_BYTES;
    // Block of an element of the panel, and the index `i` of the element in it; null outside of the matrix.
    auto block = [&](u32 row, u32 column, u32 &i) -> const u8 * {
        row += panel * 16;
        column += chunk * 64 * TILES;
        i = column % BLOCK_LEN;
        if (row >= p.n_rows || column >= p.k) return nullptr;
        return p.from + row * p.row_bytes + (u64)(column / BLOCK_LEN) * BLOCK_BYTES;
    };
    // Outside of the matrix the scale is 0: any code but a NaN will do.
    auto code = [&](u32 row, u32 column) -> u32 {
        u32 i;
        const u8 *b = block(row, column, i);
        return b ? code_of(b, i) : 0u;
    };
    if (lane < 16) {
        u32 i, row = lane;
        u16 *halves = (u16 *)to;
        const u8 *b = block(row, 0, i);
        if (HEADER == SCALE || HEADER == SCALE_MIN) for (u32 part = 0; part < 2; part++) {
            const u8 *b = block(row, 32 * part, i);
            u32 d = !b ? 0u : FORMAT == MXFP4 ? power_of_two(b[0]) : half_at(b);
            if (HEADER == SCALE) halves[2 * row + part] = (u16)d;
            else halves[4 * row + 2 * part] = (u16)d, halves[4 * row + 2 * part + 1] = (u16)(b ? half_at(b + 2) : 0u);
        }
        if (HEADER == Q4K) {
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
        if (HEADER == S8 || HEADER == S4) {
            for (u32 group = 0; group < 16; group++) {
                u32 j = group / 4, h = group % 4, at = 16 * row + 4 * word_of(j, h) + byte_of(j, h);
                if (HEADER == S8) to[at] = b ? (u8)scale_of(b, group) : 0;
                else to[at] = b ? b[group] : 0;
            }
            constexpr int D = INFO.d_at;
            if (HEADER == S8) ((u16 *)(to + 256))[row] = (u16)(b ? half_at(b + D) : 0u);
            else ((u32 *)(to + 256))[row] = b ? half_at(b + D) | half_at(b + D + 2) << 16 : 0u;
        }
    }
    u8 *codes = to + HEADER_BYTES;
    for (u32 j = 0; j < TILES; j++) {
        u32 code4[4] = {}, code2[2] = {}, code1 = 0, wide[16] = {};
        for (u32 s = 0; s < 4; s++) for (u32 r = 0; r < 4; r++) for (u32 parity = 0; parity < 2; parity++) {
            u32 e = 2 * (r / 2) + parity, q = code(g + 8 * (r & 1), 64 * j + 16 * s + 4 * t + e);
            if (FORMAT == F16) wide[4 * s + r] |= q << 16 * parity;
            else if (FORMAT == Q8_0) wide[2 * s + (r & 1)] |= q << 8 * e;
            else {
                u32 i = s % 2 * 4 + r;
                if (PLANE4) {
                    code4[s] |= (q & 15) << (4 * r + 16 * parity);
                    q >>= 4;
                }
                if (PLANE2) {
                    code2[s / 2] |= (q & 3) << (2 * i + 16 * parity);
                    q >>= 2;
                }
                if (PLANE1) code1 |= (q & 1) << (4 * s + r + 16 * parity);
            }
        }
        for (int i = 0; i < WIDE_WORDS / 4; i++)
            *(uint4 *)(codes + 512 * i + 16 * lane) = make_uint4(wide[4 * i], wide[4 * i + 1], wide[4 * i + 2], wide[4 * i + 3]);
        u8 *next = codes;
        if (PLANE4) *(uint4 *)(next + 512 * j + 16 * lane) = make_uint4(code4[0], code4[1], code4[2], code4[3]);
        next += 512 * PLANE4 * TILES;
        if (PLANE2) *(uint2 *)(next + 256 * j + 8 * lane) = make_uint2(code2[0], code2[1]);
        next += 256 * PLANE2 * TILES;
        if (PLANE1) *(u32 *)(next + 128 * j + 4 * lane) = code1;
    }
}
