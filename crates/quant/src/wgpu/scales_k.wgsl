// Scale and min of group g of Q4_K and Q5_K, from the block header: d with dmin, then 12 bytes of 6-bit scales and mins.
fn scale_and_min(header: vec4<u32>, g: u32) -> vec2<f32> {
    let shift = 8u * (g & 3u);
    let a = header.y >> shift;
    let b = header.z >> shift;
    let c = header.w >> shift;
    var both = vec2<u32>(a & 63u, b & 63u);
    if g >= 4u {
        both = vec2<u32>((c & 15u) | (((a >> 6u) & 3u) << 4u), ((c >> 4u) & 15u) | (((b >> 6u) & 3u) << 4u));
    }
    return unpack2x16float(header.x) * vec2<f32>(both);
}
