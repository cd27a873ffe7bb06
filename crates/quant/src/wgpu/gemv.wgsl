// GEMV with one matrix, see gemv.rs: a team of LANES invocations takes TEAM_ROWS rows of the matrix and X_ROWS of activations.
//
//   prepare activations (fused norm)
//   sums[r][t] = partial dot products of row r and activations t, over the steps of this invocation
//   reduce the sums over the team
//   invocation i of the team: out[t][r] = activate(sum i + bias) (+ out)
//   finish the workgroup (q8)
//
// BY_EXPERT: workgroup (x, i) multiplies with the matrix of the expert of route i.

const TEAMS: u32 = WG / LANES;
const SUMS: u32 = TEAM_ROWS * X_ROWS;
const GROUP_ROWS: u32 = TEAMS * TEAM_ROWS;

fn last_row() -> u32 {
    return p.slice_rows - 1u;
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    prepare(group_index(group, groups) == 0u, lid);
    let team_row = (lid / LANES) * TEAM_ROWS;
    var first = group_index(group, groups) * GROUP_ROWS + team_row;
    // First row of the team in the slice, its column of the output; first rows of activations and output.
    var column = p.slice_first + first;
    var x_row = 0u;
    var out_row = 0u;
    var bias_at = column;
    if BY_EXPERT != 0u {
        let expert = routes[2u * group.y];
        column = group.x * GROUP_ROWS + team_row;
        bias_at = expert * p.n + column;
        // Wraps around for rows before the slice.
        first = bias_at - p.slice_first;
        x_row = group.y / p.routes_per_row;
        out_row = group.y;
    }
    var sums: array<f32, SUMS>;
    for (var i = 0u; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    // Invocation i of a team stores sum i. Bias and previous output are prefetched.
    let lane = lid % LANES;
    let r = lane / X_ROWS;
    let t = lane % X_ROWS;
    let owns_sum = lane < SUMS && first + r < p.slice_rows && t < p.rows && column + r < p.n;
    let at = (out_row + t) * p.n + column + r;
    var bias_value = 0.0;
    var previous = 0.0;
    if owns_sum {
        if p.has_bias != 0u {
            bias_value = bias[bias_at + r];
        }
        if p.accumulate != 0u {
            previous = out[at];
        }
    }
    multiply(&sums, first, x_row, lane);
    reduce_teams(&sums, lid);
    if owns_sum {
        let y = previous + activate(sum_at(&sums, lane) + bias_value, p.activation);
        keep_output(t * GROUP_ROWS + team_row + r, at, y);
    }
    finish_group(column - team_row, lid);
}
