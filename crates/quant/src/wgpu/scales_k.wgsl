// Scale and min of group g of Q4_K and Q5_K from the head of a block: d with dmin, then 12 bytes.
fn scale_and_min(head: vec4<u32>, g: u32) -> vec2<f32> {
    let shift = 8u * (g & 3u);
    let a = head.y >> shift;
    let b = head.z >> shift;
    let c = head.w >> shift;
    var both = vec2<u32>(a & 63u, b & 63u);
    if g >= 4u {
        both = vec2<u32>((c & 15u) | (((a >> 6u) & 3u) << 4u), ((c >> 4u) & 15u) | (((b >> 6u) & 3u) << 4u));
    }
    return unpack2x16float(head.x) * vec2<f32>(both);
}
