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
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<u32>;
@group(0) @binding(2) var<storage, read_write> dst: array<u32>;

const PIECE: u32 = 1024u;

var<workgroup> keys: array<u32, PIECE>;
var<workgroup> columns: array<u32, PIECE>;

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

// Whether item `a` of the piece belongs before item `b`.
fn is_before(a: u32, b: u32) -> bool {
    return keys[a] > keys[b] || (keys[a] == keys[b] && columns[a] < columns[b]);
}

fn run(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let piece = group_index(group, groups);
    let row = piece / p.pieces;
    if row >= p.rows {
        return;
    }
    let first = (piece % p.pieces) * PIECE;
    for (var i = lid; i < PIECE; i += WG) {
        let at = first + i;
        // Less than the key of any value.
        var key = 0u;
        var column = 0xffffffffu;
        if at < p.n {
            if p.is_first != 0u {
                key = key_of(src[p.offset + row * p.stride + at]);
                column = at;
            } else {
                key = src[2u * (row * p.n + at)];
                column = src[2u * (row * p.n + at) + 1u];
            }
        }
        keys[i] = key;
        columns[i] = column;
    }
    workgroupBarrier();

    // Batcher's bitonic sort: runs of `size` become ordered, every other one backwards.
    for (var size = 2u; size <= PIECE; size = size * 2u) {
        for (var step = size / 2u; step > 0u; step = step / 2u) {
            for (var i = lid; i < PIECE / 2u; i += WG) {
                let low = 2u * i - i % step;
                let high = low + step;
                let is_forwards = (low & size) == 0u;
                if is_before(high, low) == is_forwards {
                    let key = keys[low];
                    let column = columns[low];
                    keys[low] = keys[high];
                    columns[low] = columns[high];
                    keys[high] = key;
                    columns[high] = column;
                }
            }
            workgroupBarrier();
        }
    }

    for (var i = lid; i < p.k; i += WG) {
        if p.is_last != 0u {
            let at = 2u * p.k * row + i;
            dst[at] = bits_of(keys[i]);
            dst[at + p.k] = bitcast<u32>(f32(columns[i]));
        } else {
            let at = 2u * (piece * p.k + i);
            dst[at] = keys[i];
            dst[at + 1u] = columns[i];
        }
    }
}
