// Values as f16, see halves.rs.

// Four of them in two words; what is beyond the largest f16 becomes that.
fn halves_of(v: vec4<f32>) -> vec2<u32> {
    let within = clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0));
    return vec2<u32>(pack2x16float(within.xy), pack2x16float(within.zw));
}
