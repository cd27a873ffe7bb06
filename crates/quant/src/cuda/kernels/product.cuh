// Super-tiles of weights. Included after format.cuh and params.cuh.

constexpr int SUPER_TILE_LEN = FORMAT == F16 ? 2 : 4; // Tiles.
constexpr int SUPER_TILE_CHUNKS = SUPER_TILE_LEN / TILES > 0 ? SUPER_TILE_LEN / TILES : 1;
constexpr u32 SUPER_TILE_BYTES = SUPER_TILE_CHUNKS * CHUNK_BYTES;

// B fragment of block sums of x for the mma with minima: blocks 2 t and 2 t + 1 of a group of 8. Each sum is split into two f16, high and
// low; the A fragment holds the minima twice.
DEVICE uint2 split_sums(float first, float second) {
    u32 high = pack_half(first, second);
    return make_uint2(high, pack_half(first - low_half(high), second - high_half(high)));
}

constexpr u32 ONES[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};

// Adds a super-tile of integer weights to `sum`: d * c - dmin * mins. c: products with the weights; mins: products of minima and block
// sums.
DEVICE void add_scaled(float (&sum)[4], const float (&c)[4], const float (&mins)[4], const u32 (&header)[2][5]) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        u32 scales = d_and_dmin(header[e >> 1]);
        sum[e] = fmaf(low_half(scales) * (1.f / CODE_OF_ROW[e >> 1]), c[e], sum[e]);
        if (HAS_MIN) sum[e] = fmaf(-high_half(scales), mins[e], sum[e]);
    }
}

// Groups of 8 blocks of a super-tile; 0 for formats without integer minima.
constexpr int MIN_GROUPS = HAS_INTEGERS && HAS_MIN ? SUPER_TILE_LEN * TILE_BLOCKS / 8 : 0;
