// A row of activations times the same rows of two matrices, a gate and what it lets through: what each gives,
// their gated product, and that in 8 bits. A workgroup takes a multiple of 32 rows.

const TEAMS: u32 = WG / L;
const SUMS: u32 = R * T;
const ROWS: u32 = TEAMS * R;

var<workgroup> hidden: array<f32, T * ROWS>;

fn last_row() -> u32 {
    return p.part_rows - 1u;
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let start = group_index(group, groups) * ROWS;
    let of_group = (lid / L) * R;
    var gates: array<f32, SUMS>;
    var ups: array<f32, SUMS>;
    for (var i = 0u; i < SUMS; i++) {
        gates[i] = 0.0;
        ups[i] = 0.0;
    }
    matrix = 0u;
    multiply(&gates, start + of_group, 0u, lid % L);
    matrix = 1u;
    multiply(&ups, start + of_group, 0u, lid % L);
    add_teams(&gates, lid);
    // Whoever still reads those of the gates.
    workgroupBarrier();
    add_teams(&ups, lid);
    for (var r = 0u; r < R; r++) {
        for (var t = 0u; t < T; t++) {
            if lid % L == (r * T + t) % L {
                let row = of_group + r;
                let gate = gates[r * T + t];
                let up = ups[r * T + t];
                let y = gated_by(gate, up, p.gate, p.alpha, p.limit);
                hidden[t * ROWS + row] = y;
                if start + row < p.n && t < p.rows {
                    let at = t * p.n + start + row;
                    gate_out[at] = gate;
                    up_out[at] = up;
                    out[at] = y;
                }
            }
        }
    }
    if p.has_codes != 0u {
        workgroupBarrier();
        for (var first = 0u; first < T * ROWS; first += 4u * WG) {
            let i = min(first + 4u * lid, T * ROWS - 4u);
            let v = vec4<f32>(hidden[i], hidden[i + 1u], hidden[i + 2u], hidden[i + 3u]);
            let t = i / ROWS;
            let c = start + i % ROWS;
            let is_stored = first + 4u * lid < T * ROWS && t < p.rows && c < p.n;
            quantize4(v, t, c, p.n, is_stored, lid);
        }
    }
}
