var<workgroup> greatest_of: array<u32, WG>;
var<workgroup> sum_of: array<i32, WG>;

// Eight adjacent invocations have a group of 32 values; every invocation of the workgroup comes here.
fn quantize4(v: vec4<f32>, t: u32, c: u32, cols: u32, is_stored: bool, lid: u32) {
    // Whoever still reads those of the last call.
    workgroupBarrier();
    greatest_of[lid] = greatest_bits(v);
    workgroupBarrier();
    let first = lid & ~7u;
    var greatest = 0u;
    for (var i = 0u; i < 8u; i++) {
        greatest = max(greatest, greatest_of[first + i]);
    }
    let scale = code_scale(greatest);
    let q = codes_of(v, scale);
    sum_of[lid] = q.x + q.y + q.z + q.w;
    workgroupBarrier();
    var sums = vec2<i32>(0, 0);
    for (var i = 0u; i < 4u; i++) {
        sums += vec2<i32>(sum_of[first + i], sum_of[first + 4u + i]);
    }
    if is_stored {
        store4(packed(q), scale, sums, t, c, cols);
    }
}
