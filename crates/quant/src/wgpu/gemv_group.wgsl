// GEMV with up to three matrices, see gemv.wgsl and gemv/group.rs; the last may have another format. One kernel, since a
// device may insert a barrier between two. Workgroups 0 .. belong to matrix 0, the next to matrix 1, the rest to matrix 2.

const TEAMS: u32 = WG / LANES;
const SUMS: u32 = TEAM_ROWS * X_ROWS;
const GROUP_ROWS: u32 = TEAMS * TEAM_ROWS;

@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;
// Binding 2: activations.
@group(0) @binding(3) var<storage, read> w_words: array<u32>;
@group(0) @binding(4) var<storage, read> w1: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> w1_words: array<u32>;
@group(0) @binding(6) var<storage, read> w2: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read> w2_words: array<u32>;
@group(0) @binding(8) var<storage, read> bias: array<f32>;
@group(0) @binding(9) var<storage, read> bias1: array<f32>;
@group(0) @binding(10) var<storage, read> bias2: array<f32>;
@group(0) @binding(11) var<storage, read_write> out: array<f32>;
@group(0) @binding(12) var<storage, read_write> out1: array<f32>;
@group(0) @binding(13) var<storage, read_write> out2: array<f32>;

// Matrix of this workgroup, and its rows.
var<private> matrix: u32;
var<private> matrix_rows: u32;

fn vector(i: u32) -> vec4<u32> {
    switch matrix {
        case 0u: { return w[i]; }
        case 1u: { return w1[i]; }
        default: { return w2[i]; }
    }
}

fn word(i: u32) -> u32 {
    switch matrix {
        case 0u: { return w_words[i]; }
        case 1u: { return w1_words[i]; }
        default: { return w2_words[i]; }
    }
}

fn last_row() -> u32 {
    return matrix_rows - 1u;
}

fn bias_of(row: u32) -> f32 {
    if (p.has_bias & (1u << matrix)) == 0u {
        return 0.0;
    }
    switch matrix {
        case 0u: { return bias[row]; }
        case 1u: { return bias1[row]; }
        default: { return bias2[row]; }
    }
}

fn store(at: u32, y: f32) {
    switch matrix {
        case 0u: { out[at] = y; }
        case 1u: { out1[at] = y; }
        default: { out2[at] = y; }
    }
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let index = group_index(group, groups);
    prepare(index == 0u, lid);
    let team_row = (lid / LANES) * TEAM_ROWS;
    let n_groups = (p.n.xy + vec2<u32>(GROUP_ROWS - 1u)) / vec2<u32>(GROUP_ROWS);
    var first = team_row;
    var sums: array<f32, SUMS>;
    for (var i = 0u; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    // `matrix` is a constant in each branch, so that the compiler can resolve `vector` and `word`.
    if index < n_groups.x {
        matrix = 0u;
        matrix_rows = p.n.x;
        first += index * GROUP_ROWS;
        multiply(&sums, first, 0u, lid % LANES);
    } else if index < n_groups.x + n_groups.y {
        matrix = 1u;
        matrix_rows = p.n.y;
        first += (index - n_groups.x) * GROUP_ROWS;
        multiply(&sums, first, 0u, lid % LANES);
    } else {
        matrix = 2u;
        matrix_rows = p.n.z;
        first += (index - n_groups.x - n_groups.y) * GROUP_ROWS;
        multiply_last(&sums, first, 0u, lid % LANES);
    }
    reduce_teams(&sums, lid);
    let lane = lid % LANES;
    let r = lane / X_ROWS;
    let t = lane % X_ROWS;
    if lane < SUMS && first + r < matrix_rows && t < p.rows {
        store(t * matrix_rows + first + r, sum_at(&sums, lane) + bias_of(first + r));
    }
}
