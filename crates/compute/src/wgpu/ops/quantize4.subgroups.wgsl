// Quantizes four values per invocation, the columns from `c` on of row `t`; eight adjacent invocations hold a group of 32. In
// uniform control flow.
fn quantize4(v: vec4<f32>, t: u32, c: u32, cols: u32, is_stored: bool, lid: u32) {
    var max_abs = max_abs_bits(v);
    max_abs = max(max_abs, subgroupShuffleXor(max_abs, 1u));
    max_abs = max(max_abs, subgroupShuffleXor(max_abs, 2u));
    max_abs = max(max_abs, subgroupShuffleXor(max_abs, 4u));
    let scale = q8_scale(max_abs);
    let q = q8_values(v, scale);
    var sum = q.x + q.y + q.z + q.w;
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    let other_half = subgroupShuffleXor(sum, 4u);
    if is_stored {
        store_q8x4(pack_bytes(q), scale, vec2<i32>(sum, other_half), t, c, cols);
    }
}
