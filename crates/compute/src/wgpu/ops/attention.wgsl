// Attention of a block of query rows, one KV head and one split of the pages per workgroup; see attention.rs.
//
//   queries[slot] of all slots (row, query head)              in workgroup memory
//   for each page of the split:
//       s[slot][pos] = queries[slot] . keys[pos]              one invocation a position, all slots
//       online softmax of each slot                           SLOT_LANES invocations per slot
//       acc[slot] = acc[slot] * rescale + sum_pos w[pos] * values[pos]
//                                                             LANE_WORDS words of channels per invocation, all slots
//   out = acc / l; with splits acc, m and l for attention_merge.wgsl

@group(0) @binding(3) var<storage, read> pool: array<u32>;

const SLOT_LANES: u32 = 64u / SLOTS;
const SLOT_WORDS: u32 = 64u * LANE_WORDS;

var<workgroup> queries: array<Values, SLOTS * SLOT_WORDS>;
var<workgroup> weights: array<f32, SLOTS * 64u>;
var<workgroup> partials: array<f32, 64>;
var<workgroup> rescales: array<f32, SLOTS>;
var<workgroup> ranges: array<vec2<u32>, SLOTS>;
var<workgroup> steps: array<f32, SLOTS>;

// Row and head of a slot; the row of an unused slot is 0xffffffff.
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

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let block = p.blocks + 5u * group.x;
    let blocks_per_group = (p.group + p.heads_per_block - 1u) / p.heads_per_block;
    let head_at = group.y / blocks_per_group * p.head_words;
    let split = group.z;

    // Queries and visible ranges of the slots.
    for (var slot = 0u; slot < SLOTS; slot++) {
        let at = row_and_head(block, group.y, slot);
        let is_used = at.x != 0xffffffffu;
        for (var word = lid; word < SLOT_WORDS; word += 64u) {
            var v = vec4<f32>(0.0);
            for (var e = 0u; e < ELEMENTS; e++) {
                let c = word * ELEMENTS + e;
                if is_used && c < p.head_dim {
                    v[e] = q[p.q_offset + at.x * p.q_stride + at.y * p.head_dim + c];
                }
            }
            queries[slot * SLOT_WORDS + word] = query(v);
        }
        if lid == slot {
            var range = vec2<u32>(0u, 0u);
            var step = 0.0;
            if is_used {
                range = vec2<u32>(data[p.rows + 2u * at.x], data[p.rows + 2u * at.x + 1u]);
                if (p.flags & HAS_SLOPES) != 0u {
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

    var sums: array<Values, SLOTS * LANE_WORDS>;
    for (var i = 0u; i < SLOTS * LANE_WORDS; i++) {
        sums[i] = Values();
    }
    // Softmax state of the slot of this invocation.
    let slot = lid / SLOT_LANES;
    let slot_lane = lid % SLOT_LANES;
    var running_max = LOWEST;
    var running_sum = 0.0;
    workgroupBarrier();

    for (var entry = split_from; entry < split_to; entry++) {
        let base = data[entry] * p.page_words + head_at;
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
                scores[s] += dot_elements(key, queries[s * SLOT_WORDS + word]);
            }
        }
        for (var s = 0u; s < SLOTS; s++) {
            var score = scores[s] * p.scale;
            if (p.flags & HAS_SOFT_CAP) != 0u {
                score = p.soft_cap * tanh_exact(score / p.soft_cap);
            }
            let range = ranges[s];
            score += steps[s] * (f32(position) - f32(range.y) + 1.0);
            let is_visible = position >= range.x && position < range.y;
            weights[s * 64u + lid] = select(LOWEST, score, is_visible);
        }
        workgroupBarrier();

        // Online softmax.
        var new_max = LOWEST;
        for (var i = slot_lane; i < 64u; i += SLOT_LANES) {
            new_max = max(new_max, weights[slot * 64u + i]);
        }
        partials[lid] = new_max;
        workgroupBarrier();
        new_max = running_max;
        for (var i = 0u; i < SLOT_LANES; i++) {
            new_max = max(new_max, partials[slot * SLOT_LANES + i]);
        }
        var sum = 0.0;
        for (var i = slot_lane; i < 64u; i += SLOT_LANES) {
            let score = weights[slot * 64u + i];
            let weight = select(exp_exact(score - new_max), 0.0, score == LOWEST);
            weights[slot * 64u + i] = weight;
            sum += weight;
        }
        let rescale = select(exp_exact(running_max - new_max), 1.0, running_max == new_max);
        running_max = new_max;
        workgroupBarrier();
        partials[lid] = sum;
        if slot_lane == 0u {
            rescales[slot] = rescale;
        }
        workgroupBarrier();
        running_sum *= rescale;
        for (var i = 0u; i < SLOT_LANES; i++) {
            running_sum += partials[slot * SLOT_LANES + i];
        }

        // Sums of the values. Positions invisible to all rows are not read: they may hold NaN.
        for (var s = 0u; s < SLOTS; s++) {
            for (var j = 0u; j < LANE_WORDS; j++) {
                sums[s * LANE_WORDS + j] *= rescales[s];
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
        for (var j = 0u; j < LANE_WORDS; j++) {
            let word = lid + 64u * j;
            if word < p.row_words {
                for (var i = start; i < to; i++) {
                    var value = unpack(pool[base + (64u + i) * p.row_words + word]);
                    if HAS_SCALES != 0u {
                        value *= value_scale(pool[scales_at + word / 8u * 64u + i]);
                    }
                    for (var s = 0u; s < SLOTS; s++) {
                        sums[s * LANE_WORDS + j] += weights[s * 64u + i] * value;
                    }
                }
            }
        }
        position += 64u;
        workgroupBarrier();
    }

    let own = row_and_head(block, group.y, slot);
    if p.n_splits == 1u {
        if slot_lane == 0u {
            var rescale = 1.0;
            if (p.flags & HAS_SINKS) != 0u && own.x != 0xffffffffu {
                let sink = sinks[own.y];
                let new_max = max(running_max, sink);
                rescale = select(exp_exact(running_max - new_max), 0.0, running_max == LOWEST);
                running_sum = running_sum * rescale + exp_exact(sink - new_max);
            }
            rescales[slot] = select(0.0, rescale / running_sum, running_sum > 0.0);
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
        var rescale = rescales[s];
        if p.n_splits > 1u {
            to = (index * p.n_splits + split) * (p.head_dim + 2u);
            rescale = 1.0;
            if slot == s && slot_lane == 0u {
                out[to + p.head_dim] = running_max;
                out[to + p.head_dim + 1u] = running_sum;
            }
        }
        for (var j = 0u; j < LANE_WORDS; j++) {
            for (var e = 0u; e < ELEMENTS; e++) {
                let c = (lid + 64u * j) * ELEMENTS + e;
                if c < p.head_dim {
                    out[to + c] = component(sums[s * LANE_WORDS + j], e) * rescale;
                }
            }
        }
    }
}
