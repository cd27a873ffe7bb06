// Eight adjacent invocations have a group of 32 values; every invocation of the workgroup comes here.
fn quantize4(v: vec4<f32>, t: u32, c: u32, cols: u32, is_stored: bool, lid: u32) {
    var greatest = greatest_bits(v);
    greatest = max(greatest, subgroupShuffleXor(greatest, 1u));
    greatest = max(greatest, subgroupShuffleXor(greatest, 2u));
    greatest = max(greatest, subgroupShuffleXor(greatest, 4u));
    let scale = code_scale(greatest);
    let q = codes_of(v, scale);
    var sum = q.x + q.y + q.z + q.w;
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    let other = subgroupShuffleXor(sum, 4u);
    if is_stored {
        store4(packed(q), scale, vec2<i32>(sum, other), t, c, cols);
    }
}
