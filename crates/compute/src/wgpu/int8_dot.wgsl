
// Sum of the products of four signed bytes, for compilers without the built-in function, which this one shadows.
fn dot4I8Packed(a: u32, b: u32) -> i32 {
    let shifts = vec4<u32>(24u, 16u, 8u, 0u);
    let x = (vec4<i32>(bitcast<i32>(a)) << shifts) >> vec4<u32>(24u);
    let y = (vec4<i32>(bitcast<i32>(b)) << shifts) >> vec4<u32>(24u);
    return dot(x, y);
}
