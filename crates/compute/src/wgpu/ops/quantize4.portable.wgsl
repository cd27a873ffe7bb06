var<workgroup> group_max: array<u32, WG>;
var<workgroup> group_sums: array<i32, WG>;

// Quantizes four values per invocation, the columns from `c` on of row `t`; eight adjacent invocations hold a group of 32. In
// uniform control flow.
fn quantize4(v: vec4<f32>, t: u32, c: u32, cols: u32, is_stored: bool, lid: u32) {
    // Reads of the last call are done.
    workgroupBarrier();
    group_max[lid] = max_abs_bits(v);
    workgroupBarrier();
    let first = lid & ~7u;
    var max_abs = 0u;
    for (var i = 0u; i < 8u; i++) {
        max_abs = max(max_abs, group_max[first + i]);
    }
    let scale = q8_scale(max_abs);
    let q = q8_values(v, scale);
    group_sums[lid] = q.x + q.y + q.z + q.w;
    workgroupBarrier();
    var sums = vec2<i32>(0, 0);
    for (var i = 0u; i < 4u; i++) {
        sums += vec2<i32>(group_sums[first + i], group_sums[first + 4u + i]);
    }
    if is_stored {
        store_q8x4(pack_bytes(q), scale, sums, t, c, cols);
    }
}
