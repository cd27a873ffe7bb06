// Units of weights, behind format.cuh and params.cuh.

constexpr int UNIT = FORMAT == F16 ? 2 : 4; // Tiles.
constexpr int UNIT_CHUNKS = UNIT / TILES > 0 ? UNIT / TILES : 1;
constexpr u32 UNIT_BYTES = UNIT_CHUNKS * CHUNK_BYTES;

// Sums of blocks of x for minima: of a group of 8 blocks, the lane's 2 t and 2 t + 1, as the second factor of an instruction whose
// first one has the minima twice. A sum is that of two f16.
DEVICE uint2 split_sums(float first, float second) {
    u32 high = pack_half(first, second);
    return make_uint2(high, pack_half(first - low_half(high), second - high_half(high)));
}

constexpr u32 ONES[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};

// Adds the products of a unit with integer weights, c, to sums: d * c - dmin * (minima * sums of blocks). `mins`: products with
// minima.
DEVICE void add_scaled(float (&sum)[4], const float (&c)[4], const float (&mins)[4], const u32 (&header)[2][5]) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        u32 factors = factors_of(header[e >> 1]);
        sum[e] = fmaf(low_half(factors) * (1.f / CODE_OF_ROW[e >> 1]), c[e], sum[e]);
        if (HAS_MIN) sum[e] = fmaf(-high_half(factors), mins[e], sum[e]);
    }
}

// Groups of 8 blocks of a unit, which have minima.
constexpr int MIN_GROUPS = HAS_INTEGERS && HAS_MIN ? UNIT * TILE_BLOCKS / 8 : 0;
