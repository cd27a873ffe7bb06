// Few rows of activations times the same rows of two matrices, a gate and what it lets through: what each gives,
// their gated product, and that in 8 bits. Half of a workgroup takes the one matrix, half the other, a multiple
// of 32 rows of both.

const HALF: u32 = WG / 2u;
const SUMS: u32 = R * T;
const ROWS: u32 = HALF / L * R;

var<workgroup> results: array<array<f32, T * ROWS>, 2>;

fn last_row() -> u32 {
    return p.part_rows - 1u;
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    prepare(group_index(group, groups) == 0u, lid);
    let start = group_index(group, groups) * ROWS;
    let half = lid / HALF;
    let place = lid % L;
    let of_group = (lid % HALF / L) * R;
    var sums: array<f32, SUMS>;
    for (var i = 0u; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    // Each with a matrix that the compiler knows.
    if half == 0u {
        matrix = 0u;
        multiply(&sums, start + of_group, 0u, place);
    } else {
        matrix = 1u;
        multiply(&sums, start + of_group, 0u, place);
    }
    add_teams(&sums, lid);
    for (var r = 0u; r < R; r++) {
        for (var t = 0u; t < T; t++) {
            if place == (r * T + t) % L {
                results[half][t * ROWS + of_group + r] = sums[r * T + t];
            }
        }
    }
    workgroupBarrier();
    for (var first = 0u; first < T * ROWS; first += 4u * WG) {
        let i = min(first + 4u * lid, T * ROWS - 4u);
        let t = i / ROWS;
        let c = start + i % ROWS;
        let is_stored = first + 4u * lid < T * ROWS && t < p.rows && c < p.n;
        var y = vec4<f32>(0.0);
        for (var j = 0u; j < 4u; j++) {
            let gate = results[0][i + j];
            let up = results[1][i + j];
            y[j] = gated_by(gate, up, p.gate, p.alpha, p.limit);
            if is_stored {
                let at = t * p.n + c + j;
                gate_out[at] = gate;
                up_out[at] = up;
                out[at] = y[j];
            }
        }
        if p.has_codes != 0u {
            quantize4(y, t, c, p.n, is_stored, lid);
        }
    }
}
