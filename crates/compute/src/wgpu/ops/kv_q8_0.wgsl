// Keys and values in int8, four channels per word, with f16 scales of blocks of 32 channels: a word holds the scale of the
// key (low half) and of the value (high half).

const ELEMENTS: u32 = 4u;
alias Values = vec4<f32>;

fn unpack(word: u32) -> Values {
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn dot_elements(a: Values, b: Values) -> f32 {
    return dot(a, b);
}

fn component(v: Values, e: u32) -> f32 {
    return v[e];
}

fn query(v: vec4<f32>) -> Values {
    return v;
}

fn key_scale(scales: u32) -> f32 {
    return unpack2x16float(scales).x;
}

fn value_scale(scales: u32) -> f32 {
    return unpack2x16float(scales).y;
}
