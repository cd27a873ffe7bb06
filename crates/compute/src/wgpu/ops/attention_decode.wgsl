// Decode attention: one query row, one query head and one split of the positions per workgroup; see attention_decode.rs.
//
//   q = query * scale                                         in workgroup memory
//   m, l, acc = LOWEST, 0, 0                                  online softmax (Dao et al. 2022, algorithm 1)
//   for each page of the split with visible positions:
//       s[pos] = q . keys[pos]                                KEY_SLICES invocations a position, a slice of the key each
//       m' = max(m, max s); w[pos] = exp(s[pos] - m'); l = l * exp(m - m') + sum w
//       acc = acc * exp(m - m') + sum_pos w[pos] * values[pos]
//                                                             LANES invocations a position, LANE_WORDS words each;
//                                                             POSITION_SLICES such teams share the positions
//   out = acc / l, after adding up acc of the teams; with splits acc, m and l for attention_merge.wgsl

@group(0) @binding(3) var<storage, read> pool: array<u32>;
@group(0) @binding(7) var<storage, read_write> out_operand: array<u32>;

// Positions of a page.
const TILE: u32 = 64u;
// Words of a key slice, loaded in batches of BATCH.
const SLICE_WORDS: u32 = ROW_WORDS / KEY_SLICES;
// Slices of the positions of a tile, and positions of a slice.
const POSITION_SLICES: u32 = WG / LANES;
const SLICE_POSITIONS: u32 = TILE / POSITION_SLICES;

var<workgroup> queries: array<Values, ROW_WORDS>;
var<workgroup> score_partials: array<f32, KEY_SLICES * TILE>;
var<workgroup> weights: array<f32, TILE>;
var<workgroup> partials: array<Values, WG * LANE_WORDS>;
var<workgroup> result: array<f32, LANES * LANE_WORDS * ELEMENTS>;

// Dot product of words first .. first + SLICE_WORDS of the query and of the key at `slot` of the page at `base`. Loads of a
// batch are independent, so that all are in flight together.
fn slice_score(base: u32, first: u32, slot: u32) -> f32 {
    var sum = 0.0;
    for (var batch = first; batch < first + SLICE_WORDS; batch += BATCH) {
        var keys: array<u32, BATCH>;
        for (var i = 0u; i < BATCH; i++) {
            keys[i] = pool[base + (batch + i) * TILE + slot];
        }
        for (var i = 0u; i < BATCH; i++) {
            var product = dot_elements(queries[batch + i], unpack(keys[i]));
            if HAS_SCALES != 0u {
                product *= key_scale(pool[base + 2u * TILE * ROW_WORDS + (batch + i) / 8u * TILE + slot]);
            }
            sum += product;
        }
    }
    return sum;
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group.x;
    let head = group.y;
    let row = p.rows + 3u * t;
    let table = data[row];
    let split_from = group.z * p.per_split;
    let first_visible = max(data[row + 1u], split_from);
    let end_visible = min(data[row + 2u], split_from + p.per_split);
    let head_at = head / p.group * p.head_words;

    for (var word = lid; word < ROW_WORDS; word += WG) {
        var v = vec4<f32>(0.0);
        for (var e = 0u; e < ELEMENTS; e++) {
            let c = word * ELEMENTS + e;
            if c < p.head_dim {
                v[e] = q[p.q_offset + t * p.q_stride + head * p.head_dim + c] * p.scale;
            }
        }
        queries[word] = query(v);
    }
    workgroupBarrier();

    let slot = lid % TILE;
    let key_slice = lid / TILE;
    let lane = lid % LANES;
    let slice = lid / LANES;
    var sums: array<Values, LANE_WORDS>;
    for (var j = 0u; j < LANE_WORDS; j++) {
        sums[j] = Values();
    }
    var running_max = LOWEST;
    // Sum of the weights of this invocation's positions.
    var running_sum = 0.0;
    // Start of the first visible page.
    let start = first_visible & ~(TILE - 1u);
    var page = 0u;
    if start < end_visible {
        page = data[table + start / TILE];
    }
    for (var tile = start; tile < end_visible; tile += TILE) {
        let base = page * p.page_words + head_at;
        // Prefetched: the next keys depend on it.
        page = data[table + min(tile + TILE, end_visible - 1u) / TILE];
        let position = tile + slot;
        let is_visible = position >= first_visible && position < end_visible;
        if is_visible && key_slice < KEY_SLICES {
            score_partials[key_slice * TILE + slot] = slice_score(base, key_slice * SLICE_WORDS, slot);
        }
        workgroupBarrier();
        var score = LOWEST;
        if is_visible {
            score = 0.0;
            for (var i = 0u; i < KEY_SLICES; i++) {
                score += score_partials[i * TILE + slot];
            }
            if (p.flags & HAS_SOFT_CAP) != 0u {
                score = p.soft_cap * tanh_exact(score / p.soft_cap);
            }
            if (p.flags & HAS_SLOPES) != 0u {
                score += slopes[head] * (f32(position) - f32(data[row + 2u]) + 1.0);
            }
        }
        let new_max = max(running_max, reduce_max(score, lid));
        let weight = select(exp_exact(score - new_max), 0.0, score == LOWEST);
        let rescale = select(exp_exact(running_max - new_max), 1.0, running_max == new_max);
        running_max = new_max;
        running_sum = running_sum * rescale + weight;
        if key_slice == 0u {
            weights[slot] = weight;
        }
        workgroupBarrier();

        // Invisible positions may hold NaN: a visible one is read in their place, with weight 0.
        let low = max(first_visible, tile) - tile;
        let high = min(end_visible - tile, TILE) - 1u;
        for (var j = 0u; j < LANE_WORDS; j++) {
            sums[j] *= rescale;
            let word = min(lane + LANES * j, ROW_WORDS - 1u);
            var values: array<u32, SLICE_POSITIONS>;
            for (var i = 0u; i < SLICE_POSITIONS; i++) {
                let visible = clamp(slice * SLICE_POSITIONS + i, low, high);
                values[i] = pool[base + (TILE + visible) * ROW_WORDS + word];
            }
            for (var i = 0u; i < SLICE_POSITIONS; i++) {
                var value = unpack(values[i]);
                if HAS_SCALES != 0u {
                    let visible = clamp(slice * SLICE_POSITIONS + i, low, high);
                    value *= value_scale(pool[base + 2u * TILE * ROW_WORDS + word / 8u * TILE + visible]);
                }
                sums[j] += weights[slice * SLICE_POSITIONS + i] * value;
            }
        }
    }
    // WG / TILE invocations hold the weight of each position.
    running_sum = reduce_add(running_sum, lid) / f32(WG / TILE);

    for (var j = 0u; j < LANE_WORDS; j++) {
        partials[j * WG + lid] = sums[j];
    }
    workgroupBarrier();
    let index = t * p.n_heads + head;
    var at = index * p.head_dim;
    var rescale = 1.0;
    if p.n_splits > 1u {
        at = (index * p.n_splits + group.z) * (p.head_dim + 2u);
        if lid == 0u {
            out[at + p.head_dim] = running_max;
            out[at + p.head_dim + 1u] = running_sum;
        }
    } else {
        if (p.flags & HAS_SINKS) != 0u {
            let sink = sinks[head];
            let new_max = max(running_max, sink);
            rescale = select(exp_exact(running_max - new_max), 0.0, running_max == LOWEST);
            running_sum = running_sum * rescale + exp_exact(sink - new_max);
        }
        rescale = select(0.0, rescale / running_sum, running_sum > 0.0);
    }
    if slice == 0u {
        for (var j = 0u; j < LANE_WORDS; j++) {
            var sum = Values();
            for (var i = 0u; i < POSITION_SLICES; i++) {
                sum += partials[j * WG + i * LANES + lane];
            }
            for (var e = 0u; e < ELEMENTS; e++) {
                let c = (lane + LANES * j) * ELEMENTS + e;
                let y = component(sum, e) * rescale;
                result[c] = y;
                if c < p.head_dim && (p.flags & HAS_OPERAND) == 0u {
                    out[at + c] = y;
                }
            }
        }
    }
    if (p.flags & HAS_OPERAND) != 0u {
        workgroupBarrier();
        let c = min(4u * lid, LANES * LANE_WORDS * ELEMENTS - 4u);
        let v = vec4<f32>(result[c], result[c + 1u], result[c + 2u], result[c + 3u]);
        quantize4(v, t, head * p.head_dim + 4u * lid, p.n_heads * p.head_dim, 4u * lid < p.head_dim, lid);
    }
}
