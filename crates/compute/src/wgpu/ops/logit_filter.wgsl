// Sets the logits of columns that may not be chosen to -inf; one workgroup per row.
//
//     x[c] = -inf                  for c in neither range, then of both lists
//     x[c] = -inf of all of first  if max(second) + log(sum(exp(second - max))) > max(first)

@group(0) @binding(1) var<storage, read> data: array<u32>;
// Bits of f32: compilers may assume that there is no infinity.
@group(0) @binding(2) var<storage, read_write> x: array<u32>;

const SUPPRESSED: u32 = 0xff800000u;
// Below every finite f32 but one.
const LOWEST: f32 = -3.4e38;

fn logit(i: u32) -> f32 {
    return max(bitcast<f32>(x[i]), LOWEST);
}

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group_index(group, groups);
    if t >= p.rows {
        return;
    }
    let row = t * p.cols;
    let filter_word = p.filters + 8u * t;
    let first = vec2<u32>(data[filter_word], data[filter_word + 1u]);
    let second = vec2<u32>(data[filter_word + 2u], data[filter_word + 3u]);
    for (var list = 4u; list < 8u; list += 2u) {
        let end = data[filter_word + list + 1u];
        for (var i = data[filter_word + list] + lid; i < end; i += WG) {
            x[row + data[i]] = SUPPRESSED;
        }
    }
    for (var c = lid; c < first.x; c += WG) {
        x[row + c] = SUPPRESSED;
    }
    for (var c = first.y + lid; c < second.x; c += WG) {
        x[row + c] = SUPPRESSED;
    }
    for (var c = second.y + lid; c < p.cols; c += WG) {
        x[row + c] = SUPPRESSED;
    }
    if first.x == first.y || second.x == second.y {
        return;
    }
    // Writes of suppressed columns are done.
    storageBarrier();
    var largest_first = LOWEST;
    for (var c = first.x + lid; c < first.y; c += WG) {
        largest_first = max(largest_first, logit(row + c));
    }
    var largest_second = LOWEST;
    for (var c = second.x + lid; c < second.y; c += WG) {
        largest_second = max(largest_second, logit(row + c));
    }
    largest_first = reduce_max(largest_first, lid);
    largest_second = reduce_max(largest_second, lid);
    var sum = 0.0;
    for (var c = second.x + lid; c < second.y; c += WG) {
        sum += exp(logit(row + c) - largest_second);
    }
    sum = reduce_add(sum, lid);
    // The second range may be suppressed as a whole.
    if largest_second > LOWEST && largest_second + log(sum) > largest_first {
        for (var c = first.x + lid; c < first.y; c += WG) {
            x[row + c] = SUPPRESSED;
        }
    }
}
