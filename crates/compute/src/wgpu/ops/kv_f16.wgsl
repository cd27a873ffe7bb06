// Keys and values in f16, two channels per word.

const ELEMENTS: u32 = 2u;
alias Values = vec2<f32>;

fn unpack(word: u32) -> Values {
    return unpack2x16float(word);
}

fn pack(values: array<f32, 4>) -> u32 {
    return half_bits(values[0]) | (half_bits(values[1]) << 16u);
}

fn dot_elements(a: Values, b: Values) -> f32 {
    return dot(a, b);
}

fn component(v: Values, e: u32) -> f32 {
    return select(v.y, v.x, e == 0u);
}

fn query(v: vec4<f32>) -> Values {
    return v.xy;
}

fn key_scale(scales: u32) -> f32 {
    return 1.0;
}

fn value_scale(scales: u32) -> f32 {
    return 1.0;
}
