// out[t] = ln(sum_c exp(x[t, c])); one workgroup per row.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

// Below every finite f32 but one; compilers may assume that there is no infinity.
const LOWEST: f32 = -3.4e38;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let t = group_index(group, groups);
    if t >= p.rows {
        return;
    }
    let row = p.offset + t * p.stride;
    var largest = LOWEST;
    for (var c = lid; c < p.cols; c += WG) {
        largest = max(largest, x[row + c]);
    }
    largest = reduce_max(largest, lid);
    var sum = 0.0;
    for (var c = lid; c < p.cols; c += WG) {
        sum += exp(max(x[row + c], LOWEST) - largest);
    }
    sum = reduce_add(sum, lid);
    if lid == 0u {
        // A row of -inf alone. Browsers refuse constants that are no finite number.
        var infinity = 0xff800000u;
        let is_empty = largest == LOWEST;
        out[t] = select(largest + log(sum), bitcast<f32>(infinity), is_empty);
    }
}
