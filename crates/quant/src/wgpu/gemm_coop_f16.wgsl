// Loads f16 weights for gemm_coop.wgsl.

alias Weights = LaneVectors;

fn read_weights(n0: u32, step: u32, lid: u32) -> Weights {
    var all: Weights;
    for (var i = 0u; i < 4u; i++) {
        let at = tile_position(i, lid);
        all[i] = vector(min(n0 + at.x, p.slice_rows - 1u) * p.w_stride + 8u * step + at.y);
    }
    return all;
}

fn store_weights(all: Weights, lid: u32) {
    for (var i = 0u; i < 4u; i++) {
        let at = tile_position(i, lid);
        w_tile[at.x * ROW + 2u * at.y] = unpack_f16x4(all[i].xy);
        w_tile[at.x * ROW + 2u * at.y + 1u] = unpack_f16x4(all[i].zw);
    }
}
