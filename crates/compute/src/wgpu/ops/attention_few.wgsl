// Softmax attention of one row and one query head over some of its positions; see attention_few.rs.
//
// The workgroup takes as many positions at a time as it has invocations: first an invocation a position for the
// scores, then an invocation a word of channels and a part of the positions for the sums.

struct Params {
    n_rows: u32,
    n_heads: u32,
    group: u32,
    head_dim: u32,
    head_words: u32,
    page_words: u32,
    q_offset: u32,
    q_stride: u32,
    rows: u32,
    page_table: u32,
    n_splits: u32,
    positions_per_split: u32,
    flags: u32,
    scale: f32,
    soft_cap: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> pool: array<u32>;
@group(0) @binding(4) var<storage, read> slopes: array<f32>;
@group(0) @binding(5) var<storage, read> sinks: array<f32>;
// The result, or what each split has: sums of the channels, maximum, total.
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<storage, read_write> codes: array<u32>;

const LOWEST: f32 = -3.0e38;
// W words of a position; LANES invocations beside each other for them, PARTS times in the workgroup.
const PARTS: u32 = WG / LANES;
const PAGES: u32 = WG / 64u;

var<workgroup> queries: array<Values, W>;
var<workgroup> weights: array<f32, WG>;
var<workgroup> bases: array<u32, PAGES>;
var<workgroup> partials: array<Values, WG * WORDS>;
var<workgroup> result: array<f32, LANES * WORDS * E>;

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group.x;
    let head = group.y;
    let row = p.rows + 3u * t;
    let table = p.page_table + data[row];
    let split_from = group.z * p.positions_per_split;
    let lower = max(data[row + 1u], split_from);
    let upper = min(data[row + 2u], split_from + p.positions_per_split);
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

    let lane = lid % LANES;
    let part = lid / LANES;
    var sums: array<Values, WORDS>;
    for (var j = 0u; j < WORDS; j++) {
        sums[j] = Values();
    }
    var greatest = LOWEST;
    var total = 0.0;
    // Whole pages from the first on that is seen.
    for (var tile = lower & ~63u; tile < upper; tile += WG) {
        if lid < PAGES {
            let page = min(tile / 64u + lid, (upper - 1u) / 64u);
            bases[lid] = data[table + page] * p.page_words + head_at;
        }
        workgroupBarrier();
        let position = tile + lid;
        var score = LOWEST;
        if position >= lower && position < upper {
            let base = bases[lid / 64u];
            let slot = position % 64u;
            var sum = 0.0;
            if HAS_SCALES != 0u {
                let scales_at = base + 128u * W;
                for (var first = 0u; first < W; first += 8u) {
                    var part_sum = 0.0;
                    for (var word = first; word < min(first + 8u, W); word++) {
                        part_sum += product(queries[word], unpack(pool[base + word * 64u + slot]));
                    }
                    sum = fma(part_sum, key_scale(pool[scales_at + first * 8u + slot]), sum);
                }
            } else {
                for (var word = 0u; word < W; word++) {
                    sum += product(queries[word], unpack(pool[base + word * 64u + slot]));
                }
            }
            score = sum;
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
        weights[lid] = weight;
        total = total * factor + reduce_add(weight, lid);

        // Positions that are not seen are not looked at: nothing may be there.
        let low = max(lower, tile) - tile;
        let n = min(upper - tile, WG);
        for (var j = 0u; j < WORDS; j++) {
            sums[j] *= factor;
            let word = lane + LANES * j;
            if word < W {
                for (var i = low + part; i < n; i += PARTS) {
                    let base = bases[i / 64u];
                    let slot = i % 64u;
                    var value = unpack(pool[base + (64u + slot) * W + word]);
                    if HAS_SCALES != 0u {
                        value *= value_scale(pool[base + 128u * W + word / 8u * 64u + slot]);
                    }
                    sums[j] += weights[i] * value;
                }
            }
        }
        workgroupBarrier();
    }

    for (var j = 0u; j < WORDS; j++) {
        partials[j * WG + lid] = sums[j];
    }
    workgroupBarrier();
    let index = t * p.n_heads + head;
    var to_at = index * p.head_dim;
    var factor = 1.0;
    if p.n_splits > 1u {
        to_at = (index * p.n_splits + group.z) * (p.head_dim + 2u);
        if lid == 0u {
            out[to_at + p.head_dim] = greatest;
            out[to_at + p.head_dim + 1u] = total;
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
                    out[to_at + c] = y;
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
