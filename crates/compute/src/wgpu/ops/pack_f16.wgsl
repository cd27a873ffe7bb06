// Packs four values as f16 into two words, clamped to the largest f16.
fn pack_f16x4(v: vec4<f32>) -> vec2<u32> {
    let within = clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0));
    return vec2<u32>(pack2x16float(within.xy), pack2x16float(within.zw));
}
