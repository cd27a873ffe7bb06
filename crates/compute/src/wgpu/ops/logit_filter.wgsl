// Sets the logits of tokens that may not follow to -inf; one workgroup a row.
//
//     x[c] = -inf                  for c in neither range, then of both lists
//     x[c] = -inf of all text      if max(timestamps) + log(sum(exp(timestamps - max))) > max(text)

struct Params {
    rows: u32,
    cols: u32,
    // First word of the filters of the rows, of 8 words: start and end of the range of text, of the range of timestamps, and of
    // the words of two lists of suppressed tokens.
    filters: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
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
    let text = vec2<u32>(data[filter_word], data[filter_word + 1u]);
    let timestamps = vec2<u32>(data[filter_word + 2u], data[filter_word + 3u]);
    for (var list = 4u; list < 8u; list += 2u) {
        let end = data[filter_word + list + 1u];
        for (var i = data[filter_word + list] + lid; i < end; i += WG) {
            x[row + data[i]] = SUPPRESSED;
        }
    }
    for (var c = lid; c < text.x; c += WG) {
        x[row + c] = SUPPRESSED;
    }
    for (var c = text.y + lid; c < timestamps.x; c += WG) {
        x[row + c] = SUPPRESSED;
    }
    for (var c = timestamps.y + lid; c < p.cols; c += WG) {
        x[row + c] = SUPPRESSED;
    }
    if text.x == text.y || timestamps.x == timestamps.y {
        return;
    }
    // Writes of suppressed tokens are done.
    storageBarrier();
    var largest_text = LOWEST;
    for (var c = text.x + lid; c < text.y; c += WG) {
        largest_text = max(largest_text, logit(row + c));
    }
    var largest = LOWEST;
    for (var c = timestamps.x + lid; c < timestamps.y; c += WG) {
        largest = max(largest, logit(row + c));
    }
    largest_text = reduce_max(largest_text, lid);
    largest = reduce_max(largest, lid);
    var sum = 0.0;
    for (var c = timestamps.x + lid; c < timestamps.y; c += WG) {
        sum += exp(logit(row + c) - largest);
    }
    sum = reduce_add(sum, lid);
    // Timestamps may all be suppressed.
    if largest > LOWEST && largest + log(sum) > largest_text {
        for (var c = text.x + lid; c < text.y; c += WG) {
            x[row + c] = SUPPRESSED;
        }
    }
}
