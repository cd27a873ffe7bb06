// Weights of f16 on their way to a tile: as they are.

alias Weights = Moved;

fn read_weights(n0: u32, step: u32, lid: u32) -> Weights {
    var all: Weights;
    for (var i = 0u; i < 4u; i++) {
        let at = place(i, lid);
        all[i] = vector(min(n0 + at.x, p.part_rows - 1u) * p.w_stride + 8u * step + at.y);
    }
    return all;
}

fn store_weights(all: Weights, lid: u32) {
    for (var i = 0u; i < 4u; i++) {
        let at = place(i, lid);
        w_tile[at.x * ROW + 2u * at.y] = four(all[i].xy);
        w_tile[at.x * ROW + 2u * at.y + 1u] = four(all[i].zw);
    }
}
