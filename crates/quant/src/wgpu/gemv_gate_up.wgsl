// GEMV with the same rows of the gate and up matrices, and the gated activation, see gemv/gate_up.rs. Half of a workgroup takes
// gate, half up, a multiple of 32 rows of both. Output: act(gate) * up.

const HALF: u32 = WG / 2u;
const SUMS: u32 = TEAM_ROWS * X_ROWS;
const GROUP_ROWS: u32 = HALF / LANES * TEAM_ROWS;

var<workgroup> results: array<array<f32, X_ROWS * GROUP_ROWS>, 2>;

fn last_row() -> u32 {
    return p.slice_rows - 1u;
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    prepare(group_index(group, groups) == 0u, lid);
    let start = group_index(group, groups) * GROUP_ROWS;
    let half = lid / HALF;
    let lane = lid % LANES;
    let team_row = (lid % HALF / LANES) * TEAM_ROWS;
    var sums: array<f32, SUMS>;
    for (var i = 0u; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    // `matrix` is a constant in each branch, so that the compiler can resolve `vector` and `word`.
    if half == 0u {
        matrix = 0u;
        multiply(&sums, start + team_row, 0u, lane);
    } else {
        matrix = 1u;
        multiply(&sums, start + team_row, 0u, lane);
    }
    reduce_teams(&sums, lid);
    for (var r = 0u; r < TEAM_ROWS; r++) {
        for (var t = 0u; t < X_ROWS; t++) {
            if lane == (r * X_ROWS + t) % LANES {
                results[half][t * GROUP_ROWS + team_row + r] = sums[r * X_ROWS + t];
            }
        }
    }
    workgroupBarrier();
    for (var first = 0u; first < X_ROWS * GROUP_ROWS; first += 4u * WG) {
        let i = min(first + 4u * lid, X_ROWS * GROUP_ROWS - 4u);
        let t = i / GROUP_ROWS;
        let c = start + i % GROUP_ROWS;
        let is_stored = first + 4u * lid < X_ROWS * GROUP_ROWS && t < p.rows && c < p.n;
        var y = vec4<f32>(0.0);
        for (var j = 0u; j < 4u; j++) {
            let gate = results[0][i + j];
            let up = results[1][i + j];
            y[j] = gated_activation(gate, up, p.activation, p.alpha, p.limit);
        }
        store_output(y, t, c, is_stored, lid);
    }
}
