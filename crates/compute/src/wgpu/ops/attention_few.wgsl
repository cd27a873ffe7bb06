// Softmax attention of one row and one query head over some of its positions; see attention_few.rs.
//
// The workgroup takes a page at a time: first an invocation takes a quarter of the channels of a position for the
// scores, then a word of channels of some positions for the sums.

@group(0) @binding(3) var<storage, read> pool: array<u32>;
@group(0) @binding(7) var<storage, read_write> twin: array<u32>;

// Positions of a tile, which are a page.
const TILE: u32 = 64u;
// A position has W words, of which each of QUARTERS invocations takes WQ, B at a time.
const WQ: u32 = W / QUARTERS;
// LANES invocations beside each other have the words of a value, PARTS times in the workgroup; each part has
// SHARE positions of a tile.
const PARTS: u32 = WG / LANES;
const SHARE: u32 = TILE / PARTS;

var<workgroup> queries: array<Values, W>;
var<workgroup> score_parts: array<f32, QUARTERS * TILE>;
var<workgroup> weights: array<f32, TILE>;
var<workgroup> partials: array<Values, WG * WORDS>;
var<workgroup> result: array<f32, LANES * WORDS * E>;

// What words first .. first + WQ of the key at `slot` of the page at `base` give; all loads of a batch are
// underway at once.
fn score_of(base: u32, first: u32, slot: u32) -> f32 {
    var sum = 0.0;
    for (var batch = first; batch < first + WQ; batch += B) {
        var keys: array<u32, B>;
        for (var i = 0u; i < B; i++) {
            keys[i] = pool[base + (batch + i) * TILE + slot];
        }
        for (var i = 0u; i < B; i++) {
            var part = product(queries[batch + i], unpack(keys[i]));
            if HAS_SCALES != 0u {
                part *= key_scale(pool[base + 2u * TILE * W + (batch + i) / 8u * TILE + slot]);
            }
            sum += part;
        }
    }
    return sum;
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group.x;
    let head = group.y;
    let row = p.rows + 3u * t;
    let table = p.page_table + data[row];
    let split_from = group.z * p.per_split;
    let lower = max(data[row + 1u], split_from);
    let upper = min(data[row + 2u], split_from + p.per_split);
    let head_at = head / p.group * p.head_words;

    for (var word = lid; word < W; word += WG) {
        var v = vec4<f32>(0.0);
        for (var e = 0u; e < E; e++) {
            let c = word * E + e;
            if c < p.head_dim {
                v[e] = q[p.q_offset + t * p.q_stride + head * p.head_dim + c] * p.scale;
            }
        }
        queries[word] = query(v);
    }
    workgroupBarrier();

    let slot = lid % TILE;
    let quarter = lid / TILE;
    let lane = lid % LANES;
    let part = lid / LANES;
    var sums: array<Values, WORDS>;
    for (var j = 0u; j < WORDS; j++) {
        sums[j] = Values();
    }
    var greatest = LOWEST;
    // Of the weights of this invocation's positions.
    var total = 0.0;
    // Whole pages from the first on that is seen.
    let start = lower & ~(TILE - 1u);
    var page = 0u;
    if start < upper {
        page = data[table + start / TILE];
    }
    for (var tile = start; tile < upper; tile += TILE) {
        let base = page * p.page_words + head_at;
        // Early, since the next keys wait for it.
        page = data[table + min(tile + TILE, upper - 1u) / TILE];
        let position = tile + slot;
        let is_seen = position >= lower && position < upper;
        if is_seen && quarter < QUARTERS {
            score_parts[quarter * TILE + slot] = score_of(base, quarter * WQ, slot);
        }
        workgroupBarrier();
        var score = LOWEST;
        if is_seen {
            score = 0.0;
            for (var i = 0u; i < QUARTERS; i++) {
                score += score_parts[i * TILE + slot];
            }
            if (p.flags & 1u) != 0u {
                score = p.soft_cap * tanh_exact(score / p.soft_cap);
            }
            if (p.flags & 2u) != 0u {
                score += slopes[head] * (f32(position) - f32(data[row + 2u]) + 1.0);
            }
        }
        let best = max(greatest, reduce_max(score, lid));
        let weight = select(exp_exact(score - best), 0.0, score == LOWEST);
        let factor = select(exp_exact(greatest - best), 1.0, greatest == best);
        greatest = best;
        total = total * factor + weight;
        if quarter == 0u {
            weights[slot] = weight;
        }
        workgroupBarrier();

        // Positions that are not seen are not looked at: nothing may be there.
        let low = max(lower, tile) - tile;
        let high = min(upper - tile, TILE) - 1u;
        for (var j = 0u; j < WORDS; j++) {
            sums[j] *= factor;
            let word = min(lane + LANES * j, W - 1u);
            var values: array<u32, SHARE>;
            for (var i = 0u; i < SHARE; i++) {
                let seen = clamp(part * SHARE + i, low, high);
                values[i] = pool[base + (TILE + seen) * W + word];
            }
            for (var i = 0u; i < SHARE; i++) {
                var value = unpack(values[i]);
                if HAS_SCALES != 0u {
                    let seen = clamp(part * SHARE + i, low, high);
                    value *= value_scale(pool[base + 2u * TILE * W + word / 8u * TILE + seen]);
                }
                sums[j] += weights[part * SHARE + i] * value;
            }
        }
    }
    // Each of the WG / TILE invocations of a position has its weight.
    total = reduce_add(total, lid) / f32(WG / TILE);

    for (var j = 0u; j < WORDS; j++) {
        partials[j * WG + lid] = sums[j];
    }
    workgroupBarrier();
    let index = t * p.n_heads + head;
    var at = index * p.head_dim;
    var factor = 1.0;
    if p.n_splits > 1u {
        at = (index * p.n_splits + group.z) * (p.head_dim + 2u);
        if lid == 0u {
            out[at + p.head_dim] = greatest;
            out[at + p.head_dim + 1u] = total;
        }
    } else {
        if (p.flags & 4u) != 0u {
            let sink = sinks[head];
            let best = max(greatest, sink);
            factor = select(exp_exact(greatest - best), 0.0, greatest == LOWEST);
            total = total * factor + exp_exact(sink - best);
        }
        factor = select(0.0, factor / total, total > 0.0);
    }
    if part == 0u {
        for (var j = 0u; j < WORDS; j++) {
            var sum = Values();
            for (var i = 0u; i < PARTS; i++) {
                sum += partials[j * WG + i * LANES + lane];
            }
            for (var e = 0u; e < E; e++) {
                let c = (lane + LANES * j) * E + e;
                let y = component(sum, e) * factor;
                result[c] = y;
                if c < p.head_dim {
                    out[at + c] = y;
                }
            }
        }
    }
    if (p.flags & 8u) != 0u {
        workgroupBarrier();
        let c = min(4u * lid, LANES * WORDS * E - 4u);
        let v = vec4<f32>(result[c], result[c + 1u], result[c + 2u], result[c + 3u]);
        quantize4(v, t, head * p.head_dim + 4u * lid, p.n_heads * p.head_dim, 4u * lid < p.head_dim, lid);
    }
}
