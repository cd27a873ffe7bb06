// Softmax attention of BQ rows and one query head over pages of f16, POS positions at a time, by cooperative
// matrices of SIDE rows; see attention_blocks.rs.

// Words are seen in vectors of four.
@group(0) @binding(3) var<storage, read> pool: array<vec4<u32>>;
// The result as f16.
@group(0) @binding(7) var<storage, read_write> twin: array<vec2<u32>>;

// By how much a score may exceed the maximum that weights refer to before sums are scaled: e^8 is far from
// the largest f16.
const SLACK: f32 = 8.0;
// A subgroup has SIDE rows, each row LANES invocations.
const LANES: u32 = SUBGROUP / SIDE;
const BQ: u32 = WG / LANES;
// Words of a row of keys or values, and of one matrix of queries, and the distance of rows in workgroup memory, which
// keeps those of a matrix on different banks.
const WORDS: u32 = CHANNELS / 2u;
const TILE_ROW: u32 = WORDS + 4u;
const QUERY_WORDS: u32 = SIDE / 2u;
const QUERY_ROW: u32 = QUERY_WORDS + 4u;
const VALUES: u32 = POS * TILE_ROW;
// Vectors of the keys or values of a step, and those that an invocation moves.
const VECTORS: u32 = POS * WORDS / 4u;
const MOVES: u32 = (VECTORS + WG - 1u) / WG;
// Vectors of a row of scores and of weights.
const SCORE_ROW: u32 = POS / 4u + 1u;
const WEIGHT_ROW: u32 = POS / 4u + 2u;
const SHARE: u32 = POS / 4u / LANES;
const N_CHANNELS: u32 = CHANNELS / SIDE;
const N_POSITIONS: u32 = POS / SIDE;

alias Moved = array<vec4<u32>, MOVES>;

// All are multiples of 16 bytes, so that matrices are aligned wherever they lie. Some channels of the queries at first,
// then keys and behind them values:
var<workgroup> tile: array<vec2<f16>, max(BQ * QUERY_ROW, 2u * POS * TILE_ROW)>;
var<workgroup> scores: array<vec4<f32>, BQ * SCORE_ROW>;
var<workgroup> weights: array<vec4<f16>, BQ * WEIGHT_ROW>;
// Whether the maximum of any row has grown by more than the slack.
var<workgroup> grown: vec4<u32>;

fn halves(word: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(word));
}

// Of vector i of the keys: the first of its four positions, and its word. Invocations that follow each other read
// 64 adjacent bytes and write to different banks.
fn key_place(i: u32) -> vec2<u32> {
    let rest = i / 32u;
    return vec2<u32>((rest % (POS / 16u) * 4u + i % 4u) * 4u, rest / (POS / 16u) * 8u + i / 4u % 8u);
}

// Stores the channels of `matrix` of the rows from `first` on.
fn store_queries(first: u32, n_rows: u32, head: u32, matrix: u32, lid: u32) {
    for (var i = lid; i < BQ * QUERY_WORDS; i += WG) {
        let row = i / QUERY_WORDS;
        let word = i % QUERY_WORDS;
        let c = matrix * SIDE + 2u * word;
        var pair = vec2<f32>(0.0);
        if row < n_rows && c < p.head_dim {
            let at = p.q_offset + (first + row) * p.q_stride + head * p.head_dim + c;
            pair = clamp(vec2<f32>(q[at], q[at + 1u]), vec2<f32>(-65504.0), vec2<f32>(65504.0));
        }
        tile[row * QUERY_ROW + word] = vec2<f16>(pair);
    }
}

fn read_keys(page: u32, start: u32, lid: u32) -> Moved {
    var all: Moved;
    for (var j = 0u; j < MOVES; j++) {
        let place = key_place(lid + j * WG);
        if place.y < p.row_words {
            all[j] = pool[page + (place.y * PAGE + start % PAGE + place.x) / 4u];
        }
    }
    return all;
}

// Zeros for positions outside of `seen`, whatever is there.
fn read_values(page: u32, start: u32, seen: vec2<u32>, lid: u32) -> Moved {
    var all: Moved;
    for (var j = 0u; j < MOVES; j++) {
        let i = lid + j * WG;
        let position = start + i / (WORDS / 4u);
        let vector = i % (WORDS / 4u);
        if vector < (p.row_words / 4u) && position >= seen.x && position < seen.y {
            all[j] = pool[page + (PAGE + position % PAGE) * (p.row_words / 4u) + vector];
        }
    }
    return all;
}

// The matrix with each row multiplied by the factor that its invocations give; `mine` is the first vector of an
// invocation in `scores`, `block` that of its matrix.
fn scaled(sum: MatrixC, factor: f32, mine: u32, block: u32) -> MatrixC {
    coopStoreT(sum, &scores[block], SCORE_ROW);
    workgroupBarrier();
    for (var i = 0u; i < SIDE / 4u; i += LANES) {
        scores[mine + i] *= factor;
    }
    workgroupBarrier();
    let result = coopLoadT<MatrixC>(&scores[block], SCORE_ROW);
    workgroupBarrier();
    return result;
}

// Stores the matrix with each row multiplied by its factor: an invocation's channels from `first` on that are below
// `channels`, of a head that begins at `to`.
fn finish(sum: MatrixC, channels: u32, to: u32, first: u32, factor: f32, mine: u32, block: u32) {
    coopStoreT(sum, &scores[block], SCORE_ROW);
    workgroupBarrier();
    for (var i = 0u; i < SIDE / 4u; i += LANES) {
        let channel = first + 4u * i;
        if channel < channels {
            let y = scores[mine + i] * factor;
            out[to + channel] = y.x;
            out[to + channel + 1u] = y.y;
            out[to + channel + 2u] = y.z;
            out[to + channel + 3u] = y.w;
            if (p.flags & 8u) != 0u {
                twin[(to + channel) / 4u] = halves_of(y);
            }
        }
    }
    workgroupBarrier();
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let block = p.blocks + 5u * group.x;
    let first = data[block];
    let n_rows = data[block + 1u];
    let table = p.page_table + data[block + 2u];
    let seen = vec2<u32>(data[block + 3u], data[block + 4u]);
    let head = group.y;
    let head_at = head / p.group * (p.head_words / 4u);

    if lid == 0u {
        grown = vec4<u32>(0u);
    }
    var queries: array<MatrixA, N_CHANNELS>;
    var sums: array<MatrixC, N_CHANNELS>;
    //@ repeat CHANNELS
    store_queries(first, n_rows, head, @u, lid);
    workgroupBarrier();
    queries[@] = coopLoadT<MatrixA>(&tile[subgroup.x * SIDE * QUERY_ROW], QUERY_ROW);
    workgroupBarrier();
    //@ end

    // The row that this invocation shares in.
    let row = lid / LANES;
    let lane = lid % LANES;
    let score_row = row * SCORE_ROW;
    let score_block = subgroup.x * SIDE * SCORE_ROW;
    var range = vec2<u32>(0u);
    if row < n_rows {
        range = vec2<u32>(data[p.rows + 2u * (first + row)], data[p.rows + 2u * (first + row) + 1u]);
    }
    var slope = 0.0;
    if (p.flags & 2u) != 0u {
        slope = slopes[head];
    }
    var greatest = LOWEST;
    var total = 0.0;

    let steps = (seen.y + POS - 1u) / POS;
    var start = seen.x / POS * POS;
    let page_vectors = p.page_words / 4u;
    let page = data[table + start / PAGE] * page_vectors + head_at;
    var keys = read_keys(page, start, lid);
    var values = read_values(page, start, seen, lid);
    // Known a step before it is read from, which then waits for nothing.
    start = min(start + POS, (steps - 1u) * POS);
    var next_page = data[table + start / PAGE];
    for (var step = seen.x / POS; step < steps; step++) {
        // Whoever still reads the tiles.
        workgroupBarrier();
        for (var j = 0u; j < MOVES; j++) {
            let i = lid + j * WG;
            if i < VECTORS {
                let place = key_place(i);
                let to = place.x * TILE_ROW + place.y;
                tile[to] = halves(keys[j].x);
                tile[to + TILE_ROW] = halves(keys[j].y);
                tile[to + 2u * TILE_ROW] = halves(keys[j].z);
                tile[to + 3u * TILE_ROW] = halves(keys[j].w);
                let at = VALUES + i / (WORDS / 4u) * TILE_ROW + i % (WORDS / 4u) * 4u;
                tile[at] = halves(values[j].x);
                tile[at + 1u] = halves(values[j].y);
                tile[at + 2u] = halves(values[j].z);
                tile[at + 3u] = halves(values[j].w);
            }
        }
        workgroupBarrier();
        let position0 = step * POS;
        let page = next_page * page_vectors + head_at;
        keys = read_keys(page, start, lid);
        values = read_values(page, start, seen, lid);
        start = min(start + POS, (steps - 1u) * POS);
        next_page = data[table + start / PAGE];

        for (var j = 0u; j < N_POSITIONS; j++) {
            var sum = MatrixC();
            //@ repeat CHANNELS
            let keys@ = coopLoad<MatrixB>(&tile[j * SIDE * TILE_ROW + @u * SIDE / 2u], TILE_ROW);
            sum = coopMultiplyAdd(queries[@], keys@, sum);
            //@ end
            let result = sum;
            let at = score_block + j * SIDE / 4u;
            coopStoreT(result, &scores[at], SCORE_ROW);
        }
        workgroupBarrier();

        // Whether the row sees every position of this step, all alike.
        let is_open = position0 >= range.x && position0 + POS <= range.y && (p.flags & 2u) == 0u;
        var mine: array<vec4<f32>, SHARE>;
        var best = LOWEST;
        for (var j = 0u; j < SHARE; j++) {
            let i = lane + j * LANES;
            var score = scores[score_row + i] * p.scale;
            if (p.flags & 1u) != 0u {
                score = vec4<f32>(
                    capped(score.x),
                    capped(score.y),
                    capped(score.z),
                    capped(score.w),
                );
            }
            if !is_open {
                let position = vec4<u32>(position0 + 4u * i) + vec4<u32>(0u, 1u, 2u, 3u);
                score += slope * (vec4<f32>(position) - f32(range.y) + 1.0);
                let is_seen = (position >= vec4<u32>(range.x)) & (position < vec4<u32>(range.y));
                score = select(vec4<f32>(LOWEST), score, is_seen);
            }
            mine[j] = score;
            best = max(best, max(max(score.x, score.y), max(score.z, score.w)));
        }
        for (var mask = 1u; mask < LANES; mask *= 2u) {
            best = max(best, subgroupShuffleXor(best, mask));
        }
        var factor = 1.0;
        if best > greatest + SLACK {
            if total > 0.0 {
                factor = exp(greatest - best);
                grown = vec4<u32>(1u);
            }
            greatest = best;
        }
        // Where nothing was seen yet, e^LOWEST is 0.
        let reference = select(greatest, 0.0, greatest == LOWEST);
        var sum = vec4<f32>(0.0);
        for (var j = 0u; j < SHARE; j++) {
            let weight = vec4<f16>(exp(mine[j] - reference));
            weights[row * WEIGHT_ROW + lane + j * LANES] = weight;
            sum += vec4<f32>(weight);
        }
        var row_sum = sum.x + sum.y + sum.z + sum.w;
        for (var mask = 1u; mask < LANES; mask *= 2u) {
            row_sum += subgroupShuffleXor(row_sum, mask);
        }
        total = total * factor + row_sum;
        let has_grown = workgroupUniformLoad(&grown);
        if has_grown.x != 0u {
            //@ repeat CHANNELS
            sums[@] = scaled(sums[@], factor, score_row + lane, score_block);
            //@ end
            if lid == 0u {
                grown = vec4<u32>(0u);
            }
        }

        for (var j = 0u; j < N_POSITIONS; j++) {
            let weight = coopLoadT<MatrixA>(&weights[subgroup.x * SIDE * WEIGHT_ROW + j * SIDE / 4u], WEIGHT_ROW);
            //@ repeat CHANNELS
            let values@ = coopLoadT<MatrixB>(&tile[VALUES + j * SIDE * TILE_ROW + @u * SIDE / 2u], TILE_ROW);
            sums[@] = coopMultiplyAdd(weight, values@, sums[@]);
            //@ end
        }
    }

    var factor = 1.0;
    if (p.flags & 4u) != 0u {
        let best = max(greatest, sinks[head]);
        factor = exp(greatest - best);
        total = total * factor + exp(sinks[head] - best);
    }
    factor = select(0.0, factor / total, total > 0.0);
    let to = ((first + row) * p.n_heads + head) * p.head_dim;
    workgroupBarrier();
    let channels = select(0u, p.head_dim, row < n_rows);
    //@ repeat CHANNELS
    finish(sums[@], channels, to, @u * SIDE + 4u * lane, factor, score_row + lane, score_block);
    //@ end
}

fn capped(score: f32) -> f32 {
    return p.soft_cap * tanh_exact(score / p.soft_cap);
}
