// Prefill attention: ROWS query rows and one query head per workgroup, over f16 pages, STEP positions per step, by cooperative
// matrices of SIDE rows; see attention_prefill.rs. A subgroup owns SIDE rows, LANES invocations each.
//
//   Q = query rows [ROWS, C] as f16                           N_CHANNELS matrices A a subgroup, in registers
//   m, l, acc = LOWEST, 0, 0                                  acc: N_CHANNELS matrices C a subgroup, in registers
//   K, V = keys, values of the first step                     in registers
//   for each step with visible positions:
//       store K, V to `tile`; load K, V of the next step      prefetched during the products
//       S = Q K^T; store S to `scores`                        scale, soft cap, slope, mask by row
//       for each row: if max S > m + SLACK: acc, l *= exp(m - max S); m = max S
//       P = exp(S - m) as f16; store P to `weights`; l += row sums of P
//       acc += P V
//   out = acc / l
//
// m may lag behind the maximum by SLACK: matrices give no access to their rows, so scaling acc costs a trip through
// workgroup memory, which this saves in most steps.

// Bound as vectors of four words.
@group(0) @binding(3) var<storage, read> pool: array<vec4<u32>>;
// The output in f16, in place of `out`.
@group(0) @binding(7) var<storage, read_write> out_operand: array<vec2<u32>>;

// Maximum excess of a score over the running maximum without rescaled sums: e^8 is well below the largest f16.
const SLACK: f32 = 8.0;
const LANES: u32 = SUBGROUP / SIDE;
const ROWS: u32 = WG / LANES;
// Words of a row of keys or values, and of a row of one matrix of queries. Row strides in workgroup memory are padded by 4
// words, which puts the rows of a matrix on different banks.
const WORDS: u32 = CHANNELS / 2u;
const TILE_ROW: u32 = WORDS + 4u;
const QUERY_WORDS: u32 = SIDE / 2u;
const QUERY_ROW: u32 = QUERY_WORDS + 4u;
const VALUES_AT: u32 = STEP * TILE_ROW;
// vec4s in the keys (or values) of a step, and vec4s that one invocation loads.
const VECTORS: u32 = STEP * WORDS / 4u;
const LANE_VECTORS: u32 = (VECTORS + WG - 1u) / WG;
// Row strides of scores and weights, in vectors.
const SCORE_ROW: u32 = STEP / 4u + 1u;
const WEIGHT_ROW: u32 = STEP / 4u + 2u;
const LANE_SCORES: u32 = STEP / 4u / LANES;
const N_CHANNELS: u32 = CHANNELS / SIDE;
const N_POSITIONS: u32 = STEP / SIDE;

alias LaneVectors = array<vec4<u32>, LANE_VECTORS>;

// Sizes are multiples of 16 bytes, so that matrices are aligned. `tile` holds SIDE channels of the queries at first, then
// keys followed by values.
var<workgroup> tile: array<vec2<f16>, max(ROWS * QUERY_ROW, 2u * STEP * TILE_ROW)>;
var<workgroup> scores: array<vec4<f32>, ROWS * SCORE_ROW>;
var<workgroup> weights: array<vec4<f16>, ROWS * WEIGHT_ROW>;
// Not 0 if the running maximum of any row grew, so that sums are to be scaled.
var<workgroup> grown: vec4<u32>;

fn unpack_f16(word: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(word));
}

// First position (of four) and word of vector i of the keys. Adjacent invocations read 64 adjacent bytes and
// write to different banks.
fn key_position(i: u32) -> vec2<u32> {
    let rest = i / 32u;
    return vec2<u32>((rest % (STEP / 16u) * 4u + i % 4u) * 4u, rest / (STEP / 16u) * 8u + i / 4u % 8u);
}

// Stores channels matrix * SIDE .. + SIDE of the query rows to `tile`.
fn store_queries(first: u32, n_rows: u32, head: u32, matrix: u32, lid: u32) {
    for (var i = lid; i < ROWS * QUERY_WORDS; i += WG) {
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

fn read_keys(page: u32, start: u32, lid: u32) -> LaneVectors {
    var all: LaneVectors;
    for (var j = 0u; j < LANE_VECTORS; j++) {
        let position = key_position(lid + j * WG);
        if position.y < p.row_words {
            all[j] = pool[page + (position.y * PAGE + start % PAGE + position.x) / 4u];
        }
    }
    return all;
}

// Loads values; zeros for positions outside of `visible`, which may hold NaN.
fn read_values(page: u32, start: u32, visible: vec2<u32>, lid: u32) -> LaneVectors {
    var all: LaneVectors;
    for (var j = 0u; j < LANE_VECTORS; j++) {
        let i = lid + j * WG;
        let position = start + i / (WORDS / 4u);
        let vector = i % (WORDS / 4u);
        if vector < (p.row_words / 4u) && position >= visible.x && position < visible.y {
            all[j] = pool[page + (PAGE + position % PAGE) * (p.row_words / 4u) + vector];
        }
    }
    return all;
}

// Scales each row of a matrix by `rescale` of its invocations. In `scores`, `own` is the first vector of the invocation,
// `block` that of its subgroup.
fn scale_rows(sum: MatrixC, rescale: f32, own: u32, block: u32) -> MatrixC {
    coopStoreT(sum, &scores[block], SCORE_ROW);
    workgroupBarrier();
    for (var i = 0u; i < SIDE / 4u; i += LANES) {
        scores[own + i] *= rescale;
    }
    workgroupBarrier();
    let result = coopLoadT<MatrixC>(&scores[block], SCORE_ROW);
    workgroupBarrier();
    return result;
}

// Stores a matrix with each row scaled by `rescale`: channels below `channels` from `first` on, of the head at `to`.
fn store_output(sum: MatrixC, channels: u32, to: u32, first: u32, rescale: f32, own: u32, block: u32) {
    coopStoreT(sum, &scores[block], SCORE_ROW);
    workgroupBarrier();
    for (var i = 0u; i < SIDE / 4u; i += LANES) {
        let channel = first + 4u * i;
        if channel < channels {
            let y = scores[own + i] * rescale;
            if (p.flags & HAS_OPERAND) != 0u {
                out_operand[(to + channel) / 4u] = pack_f16x4(y);
            } else {
                out[to + channel] = y.x;
                out[to + channel + 1u] = y.y;
                out[to + channel + 2u] = y.z;
                out[to + channel + 3u] = y.w;
            }
        }
    }
    workgroupBarrier();
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let block = p.blocks + 5u * group.x;
    let first = data[block];
    let n_rows = data[block + 1u];
    let table = data[block + 2u];
    let visible = vec2<u32>(data[block + 3u], data[block + 4u]);
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
    queries[@] = coopLoadT<MatrixA>(&tile[subgroup.id * SIDE * QUERY_ROW], QUERY_ROW);
    workgroupBarrier();
    //@ end

    // Row of this invocation.
    let row = lid / LANES;
    let lane = lid % LANES;
    let score_row = row * SCORE_ROW;
    let score_block = subgroup.id * SIDE * SCORE_ROW;
    var range = vec2<u32>(0u);
    if row < n_rows {
        range = vec2<u32>(data[p.rows + 2u * (first + row)], data[p.rows + 2u * (first + row) + 1u]);
    }
    var slope = 0.0;
    if (p.flags & HAS_SLOPES) != 0u {
        slope = slopes[head];
    }
    var running_max = LOWEST;
    var running_sum = 0.0;

    let steps = (visible.y + STEP - 1u) / STEP;
    var start = visible.x / STEP * STEP;
    let page_vectors = p.page_words / 4u;
    let page = data[table + start / PAGE] * page_vectors + head_at;
    var keys = read_keys(page, start, lid);
    var values = read_values(page, start, visible, lid);
    // Page of the next step, prefetched a step before its loads.
    start = min(start + STEP, (steps - 1u) * STEP);
    var next_page = data[table + start / PAGE];
    for (var step = visible.x / STEP; step < steps; step++) {
        // Reads of `tile` in the last step are done.
        workgroupBarrier();
        for (var j = 0u; j < LANE_VECTORS; j++) {
            let i = lid + j * WG;
            if i < VECTORS {
                let position = key_position(i);
                let to = position.x * TILE_ROW + position.y;
                tile[to] = unpack_f16(keys[j].x);
                tile[to + TILE_ROW] = unpack_f16(keys[j].y);
                tile[to + 2u * TILE_ROW] = unpack_f16(keys[j].z);
                tile[to + 3u * TILE_ROW] = unpack_f16(keys[j].w);
                let at = VALUES_AT + i / (WORDS / 4u) * TILE_ROW + i % (WORDS / 4u) * 4u;
                tile[at] = unpack_f16(values[j].x);
                tile[at + 1u] = unpack_f16(values[j].y);
                tile[at + 2u] = unpack_f16(values[j].z);
                tile[at + 3u] = unpack_f16(values[j].w);
            }
        }
        workgroupBarrier();
        let first_position = step * STEP;
        let page = next_page * page_vectors + head_at;
        keys = read_keys(page, start, lid);
        values = read_values(page, start, visible, lid);
        start = min(start + STEP, (steps - 1u) * STEP);
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

        // Whether no position of this step needs a mask or a slope.
        let is_unmasked = first_position >= range.x && first_position + STEP <= range.y && (p.flags & HAS_SLOPES) == 0u;
        var own: array<vec4<f32>, LANE_SCORES>;
        var new_max = LOWEST;
        for (var j = 0u; j < LANE_SCORES; j++) {
            let i = lane + j * LANES;
            var score = scores[score_row + i] * p.scale;
            if (p.flags & HAS_SOFT_CAP) != 0u {
                score = vec4<f32>(
                    soft_capped(score.x),
                    soft_capped(score.y),
                    soft_capped(score.z),
                    soft_capped(score.w),
                );
            }
            if !is_unmasked {
                let position = vec4<u32>(first_position + 4u * i) + vec4<u32>(0u, 1u, 2u, 3u);
                score += slope * (vec4<f32>(position) - f32(range.y) + 1.0);
                let is_visible = (position >= vec4<u32>(range.x)) & (position < vec4<u32>(range.y));
                score = select(vec4<f32>(LOWEST), score, is_visible);
            }
            own[j] = score;
            new_max = max(new_max, max(max(score.x, score.y), max(score.z, score.w)));
        }
        for (var mask = 1u; mask < LANES; mask *= 2u) {
            new_max = max(new_max, subgroupShuffleXor(new_max, mask));
        }
        var rescale = 1.0;
        if new_max > running_max + SLACK {
            if running_sum > 0.0 {
                rescale = exp(running_max - new_max);
                grown = vec4<u32>(1u);
            }
            running_max = new_max;
        }
        // Without visible positions so far, e^LOWEST is 0.
        let reference = select(running_max, 0.0, running_max == LOWEST);
        var sum = vec4<f32>(0.0);
        for (var j = 0u; j < LANE_SCORES; j++) {
            let weight = vec4<f16>(exp(own[j] - reference));
            weights[row * WEIGHT_ROW + lane + j * LANES] = weight;
            sum += vec4<f32>(weight);
        }
        var row_sum = sum.x + sum.y + sum.z + sum.w;
        for (var mask = 1u; mask < LANES; mask *= 2u) {
            row_sum += subgroupShuffleXor(row_sum, mask);
        }
        running_sum = running_sum * rescale + row_sum;
        let has_grown = workgroupUniformLoad(&grown);
        if has_grown.x != 0u {
            //@ repeat CHANNELS
            sums[@] = scale_rows(sums[@], rescale, score_row + lane, score_block);
            //@ end
            if lid == 0u {
                grown = vec4<u32>(0u);
            }
        }

        for (var j = 0u; j < N_POSITIONS; j++) {
            let weight = coopLoadT<MatrixA>(&weights[subgroup.id * SIDE * WEIGHT_ROW + j * SIDE / 4u], WEIGHT_ROW);
            //@ repeat CHANNELS
            let values@ = coopLoadT<MatrixB>(&tile[VALUES_AT + j * SIDE * TILE_ROW + @u * SIDE / 2u], TILE_ROW);
            sums[@] = coopMultiplyAdd(weight, values@, sums[@]);
            //@ end
        }
    }

    var rescale = 1.0;
    if (p.flags & HAS_SINKS) != 0u {
        let new_max = max(running_max, sinks[head]);
        rescale = exp(running_max - new_max);
        running_sum = running_sum * rescale + exp(sinks[head] - new_max);
    }
    rescale = select(0.0, rescale / running_sum, running_sum > 0.0);
    let to = ((first + row) * p.n_heads + head) * p.head_dim;
    workgroupBarrier();
    let channels = select(0u, p.head_dim, row < n_rows);
    //@ repeat CHANNELS
    store_output(sums[@], channels, to, @u * SIDE + 4u * lane, rescale, score_row + lane, score_block);
    //@ end
}

fn soft_capped(score: f32) -> f32 {
    return p.soft_cap * tanh_exact(score / p.soft_cap);
}
