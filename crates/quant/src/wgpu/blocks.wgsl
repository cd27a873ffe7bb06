// How formats read their planes. A row starts at a multiple of p.w_stride vectors and has p.w_blocks blocks.

@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;

alias Sixteen = array<vec4<f32>, 4>;

// Word `i` of the matrix.
fn word(i: u32) -> u32 {
    return w[i >> 2u][i & 3u];
}

// The f16 at `index` behind word `first`.
fn half_at(first: u32, index: u32) -> f32 {
    let pair = unpack2x16float(word(first + (index >> 1u)));
    return select(pair.x, pair.y, (index & 1u) != 0u);
}

// The byte at `index` behind word `first`.
fn byte_at(first: u32, index: u32) -> u32 {
    return (word(first + (index >> 2u)) >> (8u * (index & 3u))) & 0xffu;
}

fn bytes(x: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(x) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(0xffu));
}

fn signed_bytes(x: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(x) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

// scale * byte + offset of the bytes of four words.
fn scaled(q: vec4<u32>, scale: f32, offset: f32) -> Sixteen {
    let add = vec4<f32>(offset);
    return Sixteen(
        fma(bytes(q.x), vec4<f32>(scale), add),
        fma(bytes(q.y), vec4<f32>(scale), add),
        fma(bytes(q.z), vec4<f32>(scale), add),
        fma(bytes(q.w), vec4<f32>(scale), add),
    );
}
