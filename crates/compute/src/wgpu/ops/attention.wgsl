// Softmax attention of a block of rows and one KV head over some pages; see attention.rs.

@group(0) @binding(3) var<storage, read> pool: array<u32>;

const SHARE: u32 = 64u / SLOTS;
const WIDTH: u32 = 64u * WORDS;

var<workgroup> queries: array<Values, SLOTS * WIDTH>;
var<workgroup> weights: array<f32, SLOTS * 64u>;
var<workgroup> partials: array<f32, 64>;
var<workgroup> factors: array<f32, SLOTS>;
var<workgroup> ranges: array<vec2<u32>, SLOTS>;
var<workgroup> steps: array<f32, SLOTS>;

// Row and head of a slot; the row is past the end where the slot is empty.
fn row_and_head(block: u32, heads: u32, slot: u32) -> vec2<u32> {
    let first = data[block];
    let n_rows = data[block + 1u];
    let blocks_per_group = (p.group + p.heads_per_block - 1u) / p.heads_per_block;
    let in_group = heads % blocks_per_group * p.heads_per_block + slot % p.heads_per_block;
    let row = slot / p.heads_per_block;
    let is_used = row < n_rows && in_group < p.group;
    let head = heads / blocks_per_group * p.group + in_group;
    return vec2<u32>(select(0xffffffffu, first + row, is_used), head);
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let block = p.blocks + 5u * group.x;
    let blocks_per_group = (p.group + p.heads_per_block - 1u) / p.heads_per_block;
    let head_at = group.y / blocks_per_group * p.head_words;
    let split = group.z;

    // What the slots ask for.
    for (var slot = 0u; slot < SLOTS; slot++) {
        let at = row_and_head(block, group.y, slot);
        let is_used = at.x != 0xffffffffu;
        for (var word = lid; word < WIDTH; word += 64u) {
            var v = vec4<f32>(0.0);
            for (var e = 0u; e < E; e++) {
                let c = word * E + e;
                if is_used && c < p.head_dim {
                    v[e] = q[p.q_offset + at.x * p.q_stride + at.y * p.head_dim + c];
                }
            }
            queries[slot * WIDTH + word] = query(v);
        }
        if lid == slot {
            var range = vec2<u32>(0u, 0u);
            var step = 0.0;
            if is_used {
                range = vec2<u32>(data[p.rows + 2u * at.x], data[p.rows + 2u * at.x + 1u]);
                if (p.flags & 2u) != 0u {
                    step = slopes[at.y];
                }
            }
            ranges[slot] = range;
            steps[slot] = step;
        }
    }

    let table_end = data[block + 3u];
    let split_from = data[block + 2u] + split * p.per_split;
    let split_to = min(split_from + p.per_split, table_end);
    var position = (data[block + 4u] + split * p.per_split) * 64u + lid;

    var sums: array<Values, SLOTS * WORDS>;
    for (var i = 0u; i < SLOTS * WORDS; i++) {
        sums[i] = Values();
    }
    // Of the slot that this invocation shares in.
    let slot = lid / SHARE;
    let share = lid % SHARE;
    var greatest = LOWEST;
    var total = 0.0;
    workgroupBarrier();

    for (var entry = split_from; entry < split_to; entry++) {
        let base = data[p.page_table + entry] * p.page_words + head_at;
        let scales_at = base + 128u * p.row_words;

        var scores: array<f32, SLOTS>;
        for (var s = 0u; s < SLOTS; s++) {
            scores[s] = 0.0;
        }
        for (var word = 0u; word < p.row_words; word++) {
            var key = unpack(pool[base + word * 64u + lid]);
            if HAS_SCALES != 0u {
                key *= key_scale(pool[scales_at + word / 8u * 64u + lid]);
            }
            for (var s = 0u; s < SLOTS; s++) {
                scores[s] += product(key, queries[s * WIDTH + word]);
            }
        }
        for (var s = 0u; s < SLOTS; s++) {
            var score = scores[s] * p.scale;
            if (p.flags & 1u) != 0u {
                score = p.soft_cap * tanh_exact(score / p.soft_cap);
            }
            let range = ranges[s];
            score += steps[s] * (f32(position) - f32(range.y) + 1.0);
            let is_seen = position >= range.x && position < range.y;
            weights[s * 64u + lid] = select(LOWEST, score, is_seen);
        }
        workgroupBarrier();

        // Softmax with a running maximum, SHARE invocations a slot.
        var best = LOWEST;
        for (var i = share; i < 64u; i += SHARE) {
            best = max(best, weights[slot * 64u + i]);
        }
        partials[lid] = best;
        workgroupBarrier();
        best = greatest;
        for (var i = 0u; i < SHARE; i++) {
            best = max(best, partials[slot * SHARE + i]);
        }
        var sum = 0.0;
        for (var i = share; i < 64u; i += SHARE) {
            let score = weights[slot * 64u + i];
            let weight = select(exp_exact(score - best), 0.0, score == LOWEST);
            weights[slot * 64u + i] = weight;
            sum += weight;
        }
        let factor = select(exp_exact(greatest - best), 1.0, greatest == best);
        greatest = best;
        workgroupBarrier();
        partials[lid] = sum;
        if share == 0u {
            factors[slot] = factor;
        }
        workgroupBarrier();
        total *= factor;
        for (var i = 0u; i < SHARE; i++) {
            total += partials[slot * SHARE + i];
        }

        // Sums of the values; positions that no row sees are not looked at.
        for (var s = 0u; s < SLOTS; s++) {
            for (var j = 0u; j < WORDS; j++) {
                sums[s * WORDS + j] *= factors[s];
            }
        }
        let page_from = position - lid;
        var low = 0xffffffffu;
        var high = 0u;
        for (var s = 0u; s < SLOTS; s++) {
            if ranges[s].y > ranges[s].x {
                low = min(low, ranges[s].x);
                high = max(high, ranges[s].y);
            }
        }
        let start = max(low, page_from) - page_from;
        let to = clamp(high, page_from, page_from + 64u) - page_from;
        for (var j = 0u; j < WORDS; j++) {
            let word = lid + 64u * j;
            if word < p.row_words {
                for (var i = start; i < to; i++) {
                    var value = unpack(pool[base + (64u + i) * p.row_words + word]);
                    if HAS_SCALES != 0u {
                        value *= value_scale(pool[scales_at + word / 8u * 64u + i]);
                    }
                    for (var s = 0u; s < SLOTS; s++) {
                        sums[s * WORDS + j] += weights[s * 64u + i] * value;
                    }
                }
            }
        }
        position += 64u;
        workgroupBarrier();
    }

    let mine = row_and_head(block, group.y, slot);
    if p.n_splits == 1u {
        if share == 0u {
            var factor = 1.0;
            if (p.flags & 4u) != 0u && mine.x != 0xffffffffu {
                let sink = sinks[mine.y];
                let best = max(greatest, sink);
                factor = select(exp_exact(greatest - best), 0.0, greatest == LOWEST);
                total = total * factor + exp_exact(sink - best);
            }
            factors[slot] = select(0.0, factor / total, total > 0.0);
        }
        workgroupBarrier();
    }
    for (var s = 0u; s < SLOTS; s++) {
        let at = row_and_head(block, group.y, s);
        if at.x == 0xffffffffu {
            continue;
        }
        let index = at.x * p.n_heads + at.y;
        var to = index * p.head_dim;
        var factor = factors[s];
        if p.n_splits > 1u {
            to = (index * p.n_splits + split) * (p.head_dim + 2u);
            factor = 1.0;
            if slot == s && share == 0u {
                out[to + p.head_dim] = greatest;
                out[to + p.head_dim + 1u] = total;
            }
        }
        for (var j = 0u; j < WORDS; j++) {
            for (var e = 0u; e < E; e++) {
                let c = (lid + 64u * j) * E + e;
                if c < p.head_dim {
                    out[to + c] = component(sums[s * WORDS + j], e) * factor;
                }
            }
        }
    }
}
