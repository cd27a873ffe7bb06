// A square tile of rows of activations times rows of the matrix by cooperative matrices, 64 columns of both at a
// time; see gemm.rs. Activations and weights are f16, sums f32.
//
// Values of the next columns are read into registers while those in workgroup memory are multiplied.

@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
// The output as f16, if p.twin is not 0: beside that as f32, or if it is 2 instead.
@group(0) @binding(7) var<storage, read_write> twin: array<vec2<u32>>;

// Rows and columns of a tile, whose rows have 8 vectors of 16 bytes, of which an invocation moves 4.
const TILE: u32 = WG / 2u;
// Vectors of four values from one row to the next: two more than there are, so that the rows of a matrix fall on
// different banks.
const ROW: u32 = 18u;
// Vectors of a row of a matrix of sums, of a matrix, and of as many as lie beside each other in a tile.
const MATRIX_ROW: u32 = SIDE / 4u;
const MATRIX: u32 = SIDE * MATRIX_ROW;
const TILE_ROW: u32 = TILE / 4u;
// Down and across a tile: matrices of a subgroup, see gemm.rs, and subgroups.
const SUBGROUPS_DOWN: u32 = TILE / (SIDE * DOWN);
const MATRICES: u32 = DOWN * ACROSS;

var<workgroup> x_tile: array<vec4<f16>, TILE * ROW>;
var<workgroup> w_tile: array<vec4<f16>, TILE * ROW>;
// The bias that sums begin with, a row of matrices; at last one matrix of each subgroup.
var<workgroup> results: array<vec4<f32>, max(SIDE * TILE_ROW, WG / SUBGROUP * MATRIX)>;

// What an invocation moves: every (WG / 8)th row from its own on.
alias Moved = array<vec4<u32>, 4>;

// The row of a tile and the vector of it that `i` is. Adjacent invocations move adjacent vectors.
fn place(i: u32, lid: u32) -> vec2<u32> {
    return vec2<u32>(lid / 8u + i * (WG / 8u), lid % 8u);
}

fn four(bits: vec2<u32>) -> vec4<f16> {
    return vec4<f16>(vec2<f16>(unpack2x16float(bits.x)), vec2<f16>(unpack2x16float(bits.y)));
}

fn read_activations(t0: u32, step: u32, lid: u32) -> Moved {
    var all: Moved;
    for (var i = 0u; i < 4u; i++) {
        let at = place(i, lid);
        all[i] = x[min(t0 + at.x, p.rows - 1u) * p.x_stride + 8u * step + at.y];
    }
    return all;
}

fn store_activations(all: Moved, lid: u32) {
    for (var i = 0u; i < 4u; i++) {
        let at = place(i, lid);
        x_tile[at.x * ROW + 2u * at.y] = four(all[i].xy);
        x_tile[at.x * ROW + 2u * at.y + 1u] = four(all[i].zw);
    }
}

fn bias_at(n: u32) -> f32 {
    return bias[p.first + min(n, p.part_rows - 1u)];
}

// Stores or adds a matrix as it is.
fn store_whole(sum: MatrixC, to: u32) {
    let stride = p.n;
    if p.accumulate != 0u {
        let result = sum + coopLoadT<MatrixC>(&out[to], stride);
        coopStoreT(result, &out[to], stride);
    } else {
        coopStoreT(sum, &out[to], stride);
    }
}

// Stores four adjacent values of row t from column n of the part on as f16 too, where they are wanted so.
fn store_twin(t: u32, n: u32, y: vec4<f32>) {
    if p.twin != 0u {
        twin[(t * p.n + p.first + n) / 4u] = halves_of(y);
    }
}

// Stores the matrix of `results` that begins at `own`.
fn store_finished(own: u32, to: u32) {
    store_whole(coopLoadT<MatrixC>(&results[own], MATRIX_ROW), to);
}

// Stores or adds a value, and returns what is there.
fn store(t: u32, n: u32, value: f32) -> f32 {
    var y = value;
    if n < p.part_rows && p.twin != 2u {
        let to = t * p.n + p.first + n;
        if p.accumulate != 0u {
            y += out[to];
        }
        out[to] = y;
    }
    return y;
}

// The epilogue of the subgroup's matrix in `results`, whose first value is of row t0 of the activations and n0 of the
// weights: of all of it, or of what is inside of the output.
fn finish(is_whole: bool, t0: u32, n0: u32) {
    let own = subgroup.x * MATRIX;
    for (var at = subgroup.z; at < MATRIX; at += SUBGROUP) {
        let t = t0 + at / MATRIX_ROW;
        let n = n0 + at % MATRIX_ROW * 4u;
        if t < p.rows && n < p.part_rows {
            var y = activate4(results[own + at], p.activation);
            if is_whole {
                results[own + at] = y;
            } else {
                y = vec4<f32>(
                    store(t, n, y.x),
                    store(t, n + 1u, y.y),
                    store(t, n + 2u, y.z),
                    store(t, n + 3u, y.w),
                );
            }
            store_twin(t, n, y);
        }
    }
    workgroupBarrier();
    if is_whole && p.twin != 2u {
        store_finished(own, t0 * p.n + p.first + n0);
    }
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t0 = group.x * TILE;
    let n0 = group.y * TILE;
    // Where the matrices of the subgroup begin in the tile.
    let down = subgroup.x % SUBGROUPS_DOWN * DOWN * SIDE;
    let across = subgroup.x / SUBGROUPS_DOWN * ACROSS * SIDE;

    var xs = read_activations(t0, 0u, lid);
    var weights = read_weights(n0, 0u, lid);
    var sums: array<MatrixC, MATRICES>;
    if p.has_bias != 0u {
        for (var at = lid; at < SIDE * TILE_ROW; at += WG) {
            let n = n0 + at % TILE_ROW * 4u;
            results[at] = vec4<f32>(bias_at(n), bias_at(n + 1u), bias_at(n + 2u), bias_at(n + 3u));
        }
        workgroupBarrier();
        //@ repeat MATRICES
        sums[@] = coopLoadT<MatrixC>(&results[(across + @u % ACROSS * SIDE) / 4u], TILE_ROW);
        //@ end
    }

    let steps = p.chunks / 4u;
    for (var step = 0u; step < steps; step++) {
        // Whoever still multiplies.
        workgroupBarrier();
        store_activations(xs, lid);
        store_weights(weights, lid);
        workgroupBarrier();
        let next = min(step + 1u, steps - 1u);
        xs = read_activations(t0, next, lid);
        weights = read_weights(n0, next, lid);
        //@ repeat COLUMNS
        {
            let column = @u * (SIDE / 4u);
            var columns: array<MatrixB, ACROSS>;
            for (var j = 0u; j < ACROSS; j++) {
                columns[j] = coopLoad<MatrixB>(&w_tile[(across + j * SIDE) * ROW + column], ROW);
            }
            for (var i = 0u; i < DOWN; i++) {
                let rows = coopLoadT<MatrixA>(&x_tile[(down + i * SIDE) * ROW + column], ROW);
                for (var j = 0u; j < ACROSS; j++) {
                    let at = i * ACROSS + j;
                    sums[at] = coopMultiplyAdd(rows, columns[j], sums[at]);
                }
            }
        }
        //@ end
    }

    let is_inside = t0 + TILE <= p.rows && n0 + TILE <= p.part_rows && (p.n | p.first) % 4u == 0u;
    if is_inside && p.activation == 0u && p.twin == 0u {
        let at = (t0 + down) * p.n + p.first + n0 + across;
        //@ repeat MATRICES
        store_whole(sums[@], at + @u / ACROSS * SIDE * p.n + @u % ACROSS * SIDE);
        //@ end
        return;
    }
    // One epilogue for all matrices: one for each made the kernel three times as large, and its products slower.
    for (var m = 0u; m < MATRICES; m++) {
        //@ repeat MATRICES
        if m == @u {
            coopStoreT(sums[@], &results[subgroup.x * MATRIX], MATRIX_ROW);
        }
        //@ end
        workgroupBarrier();
        finish(is_inside && p.accumulate == 0u, t0 + down + m / ACROSS * SIDE, n0 + across + m % ACROSS * SIDE);
        workgroupBarrier();
    }
}
