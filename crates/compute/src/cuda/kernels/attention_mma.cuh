// Attention of a warp over pages of f16 or int8, by mma instructions. A column is a query head of a token. C channels of a head are
// padded to D. A warp multiplies a page of 64 positions with 8 N columns:
//
//   S = K Q^T     4 blocks of 16 positions, k: D channels       [64, 8 N]
//   P = softmax of the columns of S, online (Milakov & Gimelshein 2018): running maximum m, running sum l
//   O += V^T P    D / 16 blocks of channels, k: 64 positions    [D, 8 N]
//
// The order of k within an instruction is free as long as A and B agree. So lane t of 4 takes channels t D/4 .. of K and Q, and
// positions 16 t .. of V and P: it loads vectors of 16 bytes straight into fragments. Row r of block b of S is position
// 16 (r % 8 / 2) + 4 b + 2 (r / 8) + r % 2.
#pragma once
#include "attention.cuh"

#define LOG2E 1.44269504f

// Visible positions and ALiBi slope of a column.
struct Column {
    u32 start, end;
    float slope;
};

// Two int8 plus 128, chosen by the selector, times d in f16. 1152 = 1024 + 128.
DEVICE u32 scaled_int8(u32 x, u32 selector, u32 d) { return mul_half2(add_half2(select_bytes(x, 0x64646464u, selector), 0xe480e480u), d); }

// State of 8 N columns: queries, running maximum m, sum l and output o.
template <int D, int N> struct WarpAttention {
    u32 q[D / 16][N][2];
    float o[D / 16][N][4];
    float m[N][2], l[N][2];

    // Loads column `column` of block n from x; zeros if there is no such column.
    DEVICE void load_query(int n, const float *x, bool is_column, u32 dim, u32 t) {
        for (int s = 0; s < D / 16; s++) {
            float v[4];
            for (int e = 0; e < 4; e++) {
                u32 c = t * (D / 4) + 4 * s + e;
                v[e] = is_column && c < dim ? x[c] : 0.f;
            }
            q[s][n][0] = pack_half(v[0], v[1]);
            q[s][n][1] = pack_half(v[2], v[3]);
        }
    }

    DEVICE void clear() {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 2; i++) m[n][i] = -INFINITY, l[n][i] = 0.f;
            for (int b = 0; b < D / 16; b++) for (int i = 0; i < 4; i++) o[b][n][i] = 0.f;
        }
    }

    // Scores of 16 positions: K Q^T. Lane rows g and g + 8 are positions `low` and low + 2. LOADS_FIRST: f16 keys are loaded before the
    // first product, else one step ahead at most.
    template <bool LOADS_FIRST> DEVICE void score(float (&s)[N][4], const u8 *head, u32 low, u32 t) const {
        for (int n = 0; n < N; n++) for (int i = 0; i < 4; i++) s[n][i] = 0.f;
#if KV_TYPE == 1
        const u8 *keys = head + (low * D + t * (D / 4)) * 2;
        uint4 rows[2][D / 32];
        if (LOADS_FIRST)
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                rows[0][i] = *(const uint4 *)(keys + 16 * i);
                rows[1][i] = *(const uint4 *)(keys + 4 * D + 16 * i);
            }
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            if (!LOADS_FIRST) rows[0][i] = *(const uint4 *)(keys + 16 * i), rows[1][i] = *(const uint4 *)(keys + 4 * D + 16 * i);
            u32 a0[4] = {rows[0][i].x, rows[1][i].x, rows[0][i].y, rows[1][i].y};
            u32 a1[4] = {rows[0][i].z, rows[1][i].z, rows[0][i].w, rows[1][i].w};
            for (int n = 0; n < N; n++) {
                mma(s[n], a0, q[2 * i][n][0], q[2 * i][n][1]);
                mma(s[n], a1, q[2 * i + 1][n][0], q[2 * i + 1][n][1]);
            }
        }
#else
        const u8 *keys = head + low * D + t * (D / 4);
        const u16 *scales = (const u16 *)(head + 128 * D) + low * (D / 32);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            u32 block = (t * (D / 4) + 4 * i) / 32;
            u32 a[4];
            for (int r = 0; r < 2; r++) {
                u32 x = *(const u32 *)(keys + 2 * D * r + 4 * i) ^ 0x80808080u;
                u32 d = scales[2 * (D / 32) * r + block];
                d |= d << 16;
                a[r] = scaled_int8(x, 0x4140, d);
                a[r + 2] = scaled_int8(x, 0x4342, d);
            }
            for (int n = 0; n < N; n++) mma(s[n], a, q[i][n][0], q[i][n][1]);
        }
#endif
    }

    // Online softmax of columns n: scores s of positions first + 4 b, first + 4 b + 2 become weights p. Rescales l and o.
    template <int B>
    DEVICE void softmax(float (&s)[B][N][4], u32 (&p)[B][N][2], int n, u32 first, const Column (&columns)[N][2], float scale, float soft_cap) {
        float m_new[2] = {m[n][0], m[n][1]};
#pragma unroll
        for (int b = 0; b < B; b++) for (int i = 0; i < 4; i++) {
            const Column &column = columns[n][i & 1];
            u32 position = first + 4 * b + 2 * (i >> 1);
            float x = s[b][n][i] * scale;
            if (soft_cap != 0.f) x = soft_cap * tanhf(x / soft_cap);
            x = fmaf(column.slope, (float)((int)position - (int)column.end + 1), x);
            bool is_visible = position >= column.start && position < column.end;
            x = is_visible ? x * LOG2E : -INFINITY;
            s[b][n][i] = x;
            m_new[i & 1] = fmaxf(m_new[i & 1], x);
        }
        float rescale[2];
        for (int i = 0; i < 2; i++) {
            for (int k = 4; k < 32; k *= 2) m_new[i] = fmaxf(m_new[i], __shfl_xor_sync(0xffffffff, m_new[i], k));
            rescale[i] = m_new[i] == -INFINITY ? 1.f : exp2f(m[n][i] - m_new[i]);
            m[n][i] = m_new[i];
            l[n][i] *= rescale[i];
            if (m_new[i] == -INFINITY) m_new[i] = 0.f;
        }
#pragma unroll
        for (int b = 0; b < B; b++) {
            for (int i = 0; i < 4; i++) {
                s[b][n][i] = exp2f(s[b][n][i] - m_new[i & 1]);
                l[n][i & 1] += s[b][n][i];
            }
            p[b][n][0] = movmatrix_trans(pack_half(s[b][n][0], s[b][n][1]));
            p[b][n][1] = movmatrix_trans(pack_half(s[b][n][2], s[b][n][3]));
        }
        for (int b = 0; b < D / 16; b++) for (int i = 0; i < 4; i++) o[b][n][i] *= rescale[i & 1];
    }

    // Values of channels 16 b + g and 16 b + g + 8 at positions 16 t .. of a page.
    DEVICE void load_values(u32 (&v)[2][8], const u8 *head, int b, u32 g, u32 t) const {
#if KV_TYPE == 1
        const u8 *values = head + 128 * D + ((16 * b + g) * PAGE_LEN + 16 * t) * 2;
        for (int r = 0; r < 2; r++) for (int i = 0; i < 2; i++) {
            uint4 x = *(const uint4 *)(values + r * 16 * PAGE_LEN + 16 * i);
            v[r][4 * i] = x.x, v[r][4 * i + 1] = x.y, v[r][4 * i + 2] = x.z, v[r][4 * i + 3] = x.w;
        }
#else
        const u8 *values = head + 64 * D + (16 * b + g) * PAGE_LEN + 16 * t;
        const u8 *scales = head + 128 * D + 2 * PAGE_LEN * (D / 32) + (b / 2 * PAGE_LEN + 16 * t) * 2;
        uint4 d0 = *(const uint4 *)scales, d1 = *(const uint4 *)(scales + 16);
        u32 d[8] = {d0.x, d0.y, d0.z, d0.w, d1.x, d1.y, d1.z, d1.w};
        for (int r = 0; r < 2; r++) {
            uint4 x = *(const uint4 *)(values + r * 8 * PAGE_LEN);
            u32 w[4] = {x.x, x.y, x.z, x.w};
            for (int i = 0; i < 4; i++) {
                u32 y = w[i] ^ 0x80808080u;
                v[r][2 * i] = scaled_int8(y, 0x4140, d[2 * i]);
                v[r][2 * i + 1] = scaled_int8(y, 0x4342, d[2 * i + 1]);
            }
        }
#endif
    }

    // Adds the page with the positions from `first` on. Positions from `end` on are not written.
    DEVICE void add_page(const u8 *head, u32 first, u32 end, const Column (&columns)[N][2], float scale, float soft_cap, u32 lane) {
        u32 g = lane >> 2, t = lane & 3;
        float s[4][N][4];
#pragma unroll
        for (int b = 0; b < 4; b++) score<true>(s[b], head, 16 * (g >> 1) + 4 * b + (g & 1), t);
        u32 p[4][N][2];
#pragma unroll
        for (int n = 0; n < N; n++) softmax(s, p, n, first + 16 * (g >> 1) + (g & 1), columns, scale, soft_cap);
        // fp16 values of positions that are not written may be NaN.
        u32 n_written = end > first ? end - first : 0;
        bool is_partial = n_written < PAGE_LEN;
#pragma unroll
        for (int b = 0; b < D / 16; b++) {
            u32 v[2][8];
            load_values(v, head, b, g, t);
            if (is_partial) {
                for (int i = 0; i < 8; i++) {
                    u32 position = 16 * t + 2 * i;
                    u32 mask = position + 1 < n_written ? 0xffffffffu : position < n_written ? 0xffffu : 0u;
                    v[0][i] &= mask;
                    v[1][i] &= mask;
                }
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                u32 a[4] = {v[0][2 * k], v[1][2 * k], v[0][2 * k + 1], v[1][2 * k + 1]};
                for (int n = 0; n < N; n++) mma(o[b][n], a, p[k][n][0], p[k][n][1]);
            }
        }
    }

    // Raw values of a quarter of a page: f16, or int8 and their scales.
    DEVICE void load_quarter(u32 (&v)[D / 16][4], const u8 *head, u32 k, u32 g, u32 t) const {
#pragma unroll
        for (int b = 0; b < D / 16; b++) {
#if KV_TYPE == 1
            const u8 *values = head + 128 * D + ((16 * b + g) * PAGE_LEN + 16 * k + 4 * t) * 2;
            uint2 x = *(const uint2 *)values, y = *(const uint2 *)(values + 16 * PAGE_LEN);
            v[b][0] = x.x, v[b][1] = y.x, v[b][2] = x.y, v[b][3] = y.y;
#else
            const u8 *values = head + 64 * D + (16 * b + g) * PAGE_LEN + 16 * k + 4 * t;
            v[b][0] = *(const u32 *)values, v[b][1] = *(const u32 *)(values + 8 * PAGE_LEN);
            uint2 d = *(const uint2 *)(head + 128 * D + 2 * PAGE_LEN * (D / 32) + (b / 2 * PAGE_LEN + 16 * k + 4 * t) * 2);
            v[b][2] = d.x, v[b][3] = d.y;
#endif
        }
    }

    // Adds positions 16 k .. 16 k + 15 of a page. Row r of S is position 4 (r % 8 / 2) + 2 (r / 8) + r % 2, so that lane t has
    // positions 4 t .. of V.
    DEVICE void add_quarter(const u8 *head, u32 page_first, u32 k, u32 end, const Column (&columns)[N][2], float scale, float soft_cap, u32 lane) {
        u32 g = lane >> 2, t = lane & 3, low = 16 * k + 4 * (g >> 1) + (g & 1);
        // Values first: they arrive while scores are computed.
        u32 v[D / 16][4];
        load_quarter(v, head, k, g, t);
        float s[1][N][4];
        score<false>(s[0], head, low, t);
        u32 p[1][N][2];
#pragma unroll
        for (int n = 0; n < N; n++) softmax(s, p, n, page_first + low, columns, scale, soft_cap);
        // fp16 values of positions that are not written may be NaN.
        u32 position = page_first + 16 * k + 4 * t, mask[2];
        for (int i = 0; i < 2; i++) mask[i] = position + 2 * i + 1 < end ? 0xffffffffu : position + 2 * i < end ? 0xffffu : 0u;
#pragma unroll
        for (int b = 0; b < D / 16; b++) {
#if KV_TYPE != 1
            u32 x = v[b][0] ^ 0x80808080u, y = v[b][1] ^ 0x80808080u, d0 = v[b][2], d1 = v[b][3];
            v[b][0] = scaled_int8(x, 0x4140, d0);
            v[b][1] = scaled_int8(y, 0x4140, d0);
            v[b][2] = scaled_int8(x, 0x4342, d1);
            v[b][3] = scaled_int8(y, 0x4342, d1);
#endif
            u32 a[4] = {v[b][0] & mask[0], v[b][1] & mask[0], v[b][2] & mask[1], v[b][3] & mask[1]};
            for (int n = 0; n < N; n++) mma(o[b][n], a, p[0][n][0], p[0][n][1]);
        }
    }

    // Reduces l over the lanes of a column.
    DEVICE void finish() {
        for (int n = 0; n < N; n++) for (int i = 0; i < 2; i++)
            for (int k = 4; k < 32; k *= 2) l[n][i] += __shfl_xor_sync(0xffffffff, l[n][i], k);
    }
};

// Adds the sink of a head to m and l. `rescale`: scale of the output so far.
DEVICE void add_sink(const float *sinks, u32 head, float &m, float &l, float &rescale) {
    rescale = 1.f;
    if (!sinks) return;
    float sink = sinks[head] * LOG2E, m_new = fmaxf(m, sink);
    rescale = m == -INFINITY ? 0.f : exp2f(m - m_new);
    l = l * rescale + exp2f(sink - m_new);
    m = m_new;
}
