// Keys and values in f32, one channel a word.

const ELEMENTS: u32 = 1u;
alias Values = f32;

fn unpack(word: u32) -> Values {
    return bitcast<f32>(word);
}

fn pack(values: array<f32, 4>) -> u32 {
    return bitcast<u32>(values[0]);
}

fn dot_elements(a: Values, b: Values) -> f32 {
    return a * b;
}

fn component(v: Values, e: u32) -> f32 {
    return v;
}

fn query(v: vec4<f32>) -> Values {
    return v.x;
}

fn key_scale(scales: u32) -> f32 {
    return 1.0;
}

fn value_scale(scales: u32) -> f32 {
    return 1.0;
}
