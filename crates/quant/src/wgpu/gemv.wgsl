// Few rows of activations times the rows of a matrix: a team of L invocations takes R of its rows.

const TEAMS: u32 = WG / L;
const SUMS: u32 = R * T;
const ROWS: u32 = TEAMS * R;

fn last_row() -> u32 {
    return p.part_rows - 1u;
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    prepare(group_index(group, groups) == 0u, lid);
    let of_group = (lid / L) * R;
    var first = group_index(group, groups) * ROWS + of_group;
    // The first row in the part, in the columns of the output, and of the activations.
    var column = p.first + first;
    var x_row = 0u;
    var out_row = 0u;
    var bias_at = column;
    if BY_EXPERT != 0u {
        let expert = choices[2u * group.y];
        column = group.x * ROWS + of_group;
        bias_at = expert * p.n + column;
        // Wraps where the rows are before the part.
        first = bias_at - p.first;
        x_row = group.y / p.choices_per_row;
        out_row = group.y;
    }
    var sums: array<f32, SUMS>;
    for (var i = 0u; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    // Invocation i of a team stores sum i; what it is added to is asked for early.
    let place = lid % L;
    let r = place / T;
    let t = place % T;
    let is_mine = place < SUMS && first + r < p.part_rows && t < p.rows && column + r < p.n;
    let at = (out_row + t) * p.n + column + r;
    var offset = 0.0;
    var before = 0.0;
    if is_mine {
        if p.has_bias != 0u {
            offset = bias[bias_at + r];
        }
        if p.accumulate != 0u {
            before = out[at];
        }
    }
    multiply(&sums, first, x_row, place);
    add_teams(&sums, lid);
    if is_mine {
        let y = before + activate(sum_at(&sums, place) + offset, p.activation);
        out[at] = y;
        keep(t * ROWS + of_group + r, y);
    }
    finish(column - of_group, lid);
}
