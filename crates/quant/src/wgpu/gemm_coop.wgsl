// GEMM by cooperative matrices: a tile of TILE rows of activations x TILE rows of the matrix per workgroup, f16 operands, f32
// sums; see gemm.rs. A subgroup owns DOWN x ACROSS matrices of SIDE x SIDE outputs.
//
//   sums = bias or 0                                  DOWN x ACROSS matrices C a subgroup, in registers
//   xs, ws = the first 64 columns                     in registers
//   for each step of 64 columns:
//       store xs, ws to x_tile, w_tile
//       load xs, ws of the next step                  prefetched during the products
//       for each SIDE columns: sums[i][j] += x_tile matrix i * w_tile matrix j
//   without activation, in f32, inside the output: store or add the matrices directly
//   else: for each matrix: store it to `results`, apply the epilogue there, store it to the outputs

@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
// The output in f16, in place of `out`, see p.f16_output.
@group(0) @binding(7) var<storage, read_write> out_operand: array<vec2<u32>>;

// Rows and columns of the tile. A row of 64 columns is 8 vectors of 16 bytes; an invocation moves 4 of each operand.
const TILE: u32 = WG / 2u;
// Row stride of x_tile and w_tile in vec4: 16, padded by 2, which puts the rows of a matrix on different banks.
const ROW: u32 = 18u;
// Sizes in `results` in vec4: a row of a matrix, a matrix, a row of the tile.
const MATRIX_ROW: u32 = SIDE / 4u;
const MATRIX: u32 = SIDE * MATRIX_ROW;
const TILE_ROW: u32 = TILE / 4u;
// Subgroups down the tile, and matrices of a subgroup.
const SUBGROUPS_DOWN: u32 = TILE / (SIDE * DOWN);
const MATRICES: u32 = DOWN * ACROSS;

var<workgroup> x_tile: array<vec4<f16>, TILE * ROW>;
var<workgroup> w_tile: array<vec4<f16>, TILE * ROW>;
// At first the bias, as a row of matrices; in the epilogue one matrix of each subgroup.
var<workgroup> results: array<vec4<f32>, max(SIDE * TILE_ROW, WG / SUBGROUP * MATRIX)>;

// Vectors of one operand that an invocation moves.
alias LaneVectors = array<vec4<u32>, 4>;

// Row and vector of the tile of an invocation's vector `i`. Adjacent invocations move adjacent vectors.
fn tile_position(i: u32, lid: u32) -> vec2<u32> {
    return vec2<u32>(lid / 8u + i * (WG / 8u), lid % 8u);
}

fn unpack_f16x4(bits: vec2<u32>) -> vec4<f16> {
    return vec4<f16>(vec2<f16>(unpack2x16float(bits.x)), vec2<f16>(unpack2x16float(bits.y)));
}

fn read_activations(t0: u32, step: u32, lid: u32) -> LaneVectors {
    var all: LaneVectors;
    for (var i = 0u; i < 4u; i++) {
        let at = tile_position(i, lid);
        all[i] = x[min(t0 + at.x, p.rows - 1u) * p.x_stride + 8u * step + at.y];
    }
    return all;
}

fn store_activations(all: LaneVectors, lid: u32) {
    for (var i = 0u; i < 4u; i++) {
        let at = tile_position(i, lid);
        x_tile[at.x * ROW + 2u * at.y] = unpack_f16x4(all[i].xy);
        x_tile[at.x * ROW + 2u * at.y + 1u] = unpack_f16x4(all[i].zw);
    }
}

fn bias_at(n: u32) -> f32 {
    return bias[p.slice_first + min(n, p.slice_rows - 1u)];
}

// Stores or adds a matrix without epilogue.
fn store_whole(sum: MatrixC, to: u32) {
    let stride = p.n;
    if p.accumulate != 0u {
        let result = sum + coopLoadT<MatrixC>(&out[to], stride);
        coopStoreT(result, &out[to], stride);
    } else {
        coopStoreT(sum, &out[to], stride);
    }
}

// Stores four adjacent outputs of row t, from row n of the slice on, in f16.
fn store_f16(t: u32, n: u32, y: vec4<f32>) {
    if p.f16_output != 0u {
        out_operand[(t * p.n + p.slice_first + n) / 4u] = pack_f16x4(y);
    }
}

// Stores the matrix at `own` in `results`.
fn store_finished(own: u32, to: u32) {
    store_whole(coopLoadT<MatrixC>(&results[own], MATRIX_ROW), to);
}

// Stores or adds an output; returns the sum.
fn store(t: u32, n: u32, value: f32) -> f32 {
    var y = value;
    if n < p.slice_rows && p.f16_output == 0u {
        let to = t * p.n + p.slice_first + n;
        if p.accumulate != 0u {
            y += out[to];
        }
        out[to] = y;
    }
    return y;
}

// Epilogue of the subgroup's matrix in `results`, at row t0 of the activations and n0 of the slice. `is_whole`: the matrix is
// inside the output and nothing is accumulated.
fn finish(is_whole: bool, t0: u32, n0: u32) {
    let own = subgroup.id * MATRIX;
    for (var at = subgroup.lane; at < MATRIX; at += SUBGROUP) {
        let t = t0 + at / MATRIX_ROW;
        let n = n0 + at % MATRIX_ROW * 4u;
        if t < p.rows && n < p.slice_rows {
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
            store_f16(t, n, y);
        }
    }
    workgroupBarrier();
    if is_whole && p.f16_output == 0u {
        store_finished(own, t0 * p.n + p.slice_first + n0);
    }
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t0 = group.x * TILE;
    let n0 = group.y * TILE;
    // First row and column of the subgroup in the tile.
    let down = subgroup.id % SUBGROUPS_DOWN * DOWN * SIDE;
    let across = subgroup.id / SUBGROUPS_DOWN * ACROSS * SIDE;

    var xs = read_activations(t0, 0u, lid);
    var ws = read_weights(n0, 0u, lid);
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
        // Products of the last step are done.
        workgroupBarrier();
        store_activations(xs, lid);
        store_weights(ws, lid);
        workgroupBarrier();
        let next = min(step + 1u, steps - 1u);
        xs = read_activations(t0, next, lid);
        ws = read_weights(n0, next, lid);
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

    let is_inside = t0 + TILE <= p.rows && n0 + TILE <= p.slice_rows && (p.n | p.slice_first) % 4u == 0u;
    if is_inside && p.activation == ACTIVATION_NONE && p.f16_output == 0u {
        let at = (t0 + down) * p.n + p.slice_first + n0 + across;
        //@ repeat MATRICES
        store_whole(sums[@], at + @u / ACROSS * SIDE * p.n + @u % ACROSS * SIDE);
        //@ end
        return;
    }
    // A loop with one epilogue: unrolled, it triples the kernel and slows the products.
    for (var m = 0u; m < MATRICES; m++) {
        //@ repeat MATRICES
        if m == @u {
            coopStoreT(sums[@], &results[subgroup.id * MATRIX], MATRIX_ROW);
        }
        //@ end
        workgroupBarrier();
        finish(is_inside && p.accumulate == 0u, t0 + down + m / ACROSS * SIDE, n0 + across + m % ACROSS * SIDE);
        workgroupBarrier();
    }
}
