// Sorts each piece of a row and keeps the k greatest; a workgroup a piece.

struct Params {
    rows: u32,
    // Of a row.
    pieces: u32,
    // Items of a row: in the first round 32-bit values from `offset` on, `stride` between rows; in later ones what
    // the pieces of the round before kept, keys with their columns.
    n: u32,
    k: u32,
    offset: u32,
    stride: u32,
    is_first: u32,
    // The last round writes values, then the numbers of their columns.
    is_last: u32,
    // Items of a piece that there may be: a power of two.
    sorted: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<u32>;
@group(0) @binding(2) var<storage, read_write> dst: array<u32>;

// An invocation keeps four adjacent items.
const PIECE: u32 = 4u * WG;

// A number that compares as the value of these bits does: NaN as -inf, +inf as the greatest finite value, both zeros
// alike. Comparisons of integers stay right where a compiler takes it that there is no NaN.
fn key_of(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u {
        return 0x007fffffu;
    }
    if magnitude == 0u {
        return 0x80000000u;
    }
    if magnitude != bits {
        return ~bits;
    }
    return min(bits, 0x7f7fffffu) | 0x80000000u;
}

// The bits of a key's value.
fn bits_of(key: u32) -> u32 {
    if key >= 0x80000000u {
        return key & 0x7fffffffu;
    }
    return ~key;
}

// Which of `mine` belong before `others`, whose columns follow.
fn are_before(mine: vec4<u32>, columns: vec4<u32>, others: vec4<u32>, other_columns: vec4<u32>) -> vec4<bool> {
    return (mine > others) | ((mine == others) & (columns < other_columns));
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let piece = group_index(group, groups);
    let row = piece / p.pieces;
    if row >= p.rows {
        return;
    }
    let first = (piece % p.pieces) * PIECE;
    let item = vec4<u32>(4u * lid) + vec4<u32>(0u, 1u, 2u, 3u);
    // Less than the key of any value.
    var keys = vec4<u32>(0u);
    var columns = vec4<u32>(0xffffffffu);
    for (var j = 0u; j < 4u; j++) {
        let at = first + item[j];
        if at < p.n {
            if p.is_first != 0u {
                keys[j] = key_of(src[p.offset + row * p.stride + at]);
                columns[j] = at;
            } else {
                keys[j] = src[2u * (row * p.n + at)];
                columns[j] = src[2u * (row * p.n + at) + 1u];
            }
        }
    }

    // Batcher's bitonic sort: runs of `size` become ordered, every other one backwards.
    for (var size = 2u; size <= p.sorted; size = size * 2u) {
        for (var step = size / 2u; step > 0u; step = step / 2u) {
            var others = keys.yxwz;
            var other_columns = columns.yxwz;
            if step == 2u {
                others = keys.zwxy;
                other_columns = columns.zwxy;
            } else if step > 2u {
                others = across(keys, step / 4u, lid);
                other_columns = across(columns, step / 4u, lid);
            }
            let is_low = (item & vec4<u32>(step)) == vec4<u32>(0u);
            let is_forwards = (item & vec4<u32>(size)) == vec4<u32>(0u);
            let stays = are_before(keys, columns, others, other_columns) == (is_low == is_forwards);
            keys = select(others, keys, stays);
            columns = select(other_columns, columns, stays);
        }
    }

    for (var j = 0u; j < 4u; j++) {
        let i = item[j];
        if i < p.k {
            if p.is_last != 0u {
                let at = 2u * p.k * row + i;
                dst[at] = bits_of(keys[j]);
                dst[at + p.k] = bitcast<u32>(f32(columns[j]));
            } else {
                let at = 2u * (piece * p.k + i);
                dst[at] = keys[j];
                dst[at + 1u] = columns[j];
            }
        }
    }
}
