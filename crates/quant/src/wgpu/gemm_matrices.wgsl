// A square tile of rows of activations times rows of the matrix by cooperative matrices, 64 columns of both at a
// time; see gemm.rs. Activations and weights are f16, sums f32.
//
// Values of the next columns are read into registers while those in workgroup memory are multiplied.

@group(0) @binding(2) var<storage, read> x: array<vec4<f16>>;

// Rows and columns of a tile, whose 16 vectors of four a row an invocation moves 8 of, and 2 of its 4 chunks.
const TILE: u32 = WG / 2u;
// Vectors of four from one row to the next: two more than there are, so that the rows of a matrix fall on
// different banks.
const ROW: u32 = 18u;
// Values of a subgroup's part of `results`.
const RESULTS: u32 = SIDE * SIDE;
// Down and across a tile: matrices of a subgroup, see gemm.rs, and subgroups.
const SUBGROUPS_DOWN: u32 = TILE / (SIDE * DOWN);
const MATRICES: u32 = DOWN * ACROSS;

var<workgroup> x_tile: array<vec4<f16>, TILE * ROW>;
var<workgroup> w_tile: array<vec4<f16>, TILE * ROW>;
var<workgroup> results: array<f32, RESULTS * WG / SUBGROUP>;
// Whether matrices can be stored where they belong; as large as keeps the others aligned.
var<workgroup> is_whole: vec4<u32>;

// What is beyond the last chunk is multiplied by zeros.
fn weights(row: u32, chunk: u32) -> Sixteen {
    return dequantize16(min(row, p.part_rows - 1u), min(chunk, p.chunks - 1u));
}

fn store_weights(row: u32, quarter: u32, values: Sixteen) {
    let at = row * ROW + 4u * quarter;
    w_tile[at] = vec4<f16>(values[0]);
    w_tile[at + 1u] = vec4<f16>(values[1]);
    w_tile[at + 2u] = vec4<f16>(values[2]);
    w_tile[at + 3u] = vec4<f16>(values[3]);
}

alias Activations = array<vec4<f16>, 8>;

// Every (WG / 16)th row from `row` on.
fn activations(row: u32, column: u32) -> Activations {
    var all: Activations;
    for (var i = 0u; i < 8u; i++) {
        all[i] = x[min(row + i * (WG / 16u), p.rows - 1u) * p.x_stride + column];
    }
    return all;
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

// Stores the matrix whose first value is of row t0 of the activations and n0 of the weights, with the epilogue.
fn finish(sum: MatrixC, t0: u32, n0: u32) {
    let results_at = subgroup.x * RESULTS;
    coopStoreT(sum, &results[results_at], SIDE);
    workgroupBarrier();
    for (var at = subgroup.z; at < RESULTS; at += SUBGROUP) {
        let t = t0 + at / SIDE;
        let n = n0 + at % SIDE;
        if t < p.rows && n < p.part_rows {
            let column = p.first + n;
            var y = results[results_at + at];
            if p.has_bias != 0u {
                y += bias[column];
            }
            y = activate(y, p.activation);
            if p.accumulate != 0u {
                y += out[t * p.n + column];
            }
            out[t * p.n + column] = y;
        }
    }
    workgroupBarrier();
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t0 = group.x * TILE;
    let n0 = group.y * TILE;
    // Where the matrices of the subgroup begin in the tile.
    let down = subgroup.x % SUBGROUPS_DOWN * DOWN * SIDE;
    let across = subgroup.x / SUBGROUPS_DOWN * ACROSS * SIDE;

    // Adjacent invocations move adjacent vectors of activations and adjacent chunks of weights.
    let x_column = lid % 16u;
    let x_row = lid / 16u;
    let quarter = lid % 4u;
    let w_row = lid / 4u;
    if lid == 0u {
        let is_inside = t0 + TILE <= p.rows && n0 + TILE <= p.part_rows && (p.n | p.first) % 4u == 0u;
        let is_plain = p.has_bias == 0u && p.activation == 0u;
        is_whole = vec4<u32>(select(0u, 1u, is_inside && is_plain));
    }
    var sums: array<MatrixC, MATRICES>;
    var xs = activations(t0 + x_row, x_column);
    var weights0 = weights(n0 + w_row, quarter);
    var weights1 = weights(n0 + w_row + WG / 4u, quarter);
    let steps = (p.chunks + 3u) / 4u;
    for (var step = 0u; step < steps; step++) {
        // Whoever still multiplies.
        workgroupBarrier();
        for (var i = 0u; i < 8u; i++) {
            x_tile[(x_row + i * (WG / 16u)) * ROW + x_column] = xs[i];
        }
        store_weights(w_row, quarter, weights0);
        store_weights(w_row + WG / 4u, quarter, weights1);
        workgroupBarrier();
        let next = min(step + 1u, steps - 1u);
        xs = activations(t0 + x_row, 16u * next + x_column);
        weights0 = weights(n0 + w_row, 4u * next + quarter);
        weights1 = weights(n0 + w_row + WG / 4u, 4u * next + quarter);
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

    if workgroupUniformLoad(&is_whole).x != 0u {
        let at = (t0 + down) * p.n + p.first + n0 + across;
        //@ repeat MATRICES
        store_whole(sums[@], at + @u / ACROSS * SIDE * p.n + @u % ACROSS * SIDE);
        //@ end
    } else {
        //@ repeat MATRICES
        finish(sums[@], t0 + down + @u / ACROSS * SIDE, n0 + across + @u % ACROSS * SIDE);
        //@ end
    }
}
