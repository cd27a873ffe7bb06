// Sorts each chunk of candidates and keeps k of them; one workgroup per chunk, see top_k.rs.

@group(0) @binding(1) var<storage, read> src: array<u32>;
@group(0) @binding(2) var<storage, read_write> dst: array<u32>;

// Four adjacent candidates per invocation.
const CHUNK: u32 = 4u * WG;

// Integer key with the order of the f32 of these bits: NaN as -inf, +inf as the largest finite value, both zeros equal.
// Integer comparisons hold even where a compiler assumes that there is no NaN.
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

// Bits of the f32 of a key.
fn bits_of(key: u32) -> u32 {
    if key >= 0x80000000u {
        return key & 0x7fffffffu;
    }
    return ~key;
}

// Elementwise sort order of candidates: keys descending, columns ascending among equal keys.
fn are_before(keys: vec4<u32>, columns: vec4<u32>, others: vec4<u32>, other_columns: vec4<u32>) -> vec4<bool> {
    return (keys > others) | ((keys == others) & (columns < other_columns));
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let chunk = group_index(group, groups);
    let row = chunk / p.chunks;
    if row >= p.rows {
        return;
    }
    let first = (chunk % p.chunks) * CHUNK;
    let item = vec4<u32>(4u * lid) + vec4<u32>(0u, 1u, 2u, 3u);
    // Empty candidates: below the key of any value.
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

    let scope = shuffle_scope(lid);
    // Bitonic sort (Batcher 1968): sorts runs of `size`, every other one in reverse.
    for (var size = 2u; size <= p.sort_len; size = size * 2u) {
        for (var step = size / 2u; step > 0u; step = step / 2u) {
            var others = keys.yxwz;
            var other_columns = columns.yxwz;
            if step == 2u {
                others = keys.zwxy;
                other_columns = columns.zwxy;
            } else if step > 2u {
                others = shuffle_xor(keys, step / 4u, scope, lid);
                other_columns = shuffle_xor(columns, step / 4u, scope, lid);
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
                let at = 2u * (chunk * p.k + i);
                dst[at] = keys[j];
                dst[at + 1u] = columns[j];
            }
        }
    }
}
