// RMS norm and RoPE of a head. A kernel binds `cos_sin`, the table of angles, and `data`, and defines `head_value`,
// `head_weight` and `store_value`: value of a channel, its norm weight, and what to do with the result.

var<workgroup> head: array<f32, 1024>;

// Parameters of a head; 16 bytes, the alignment of nested uniform structs.
struct RotationParams {
    n_rot: u32,
    is_adjacent: u32,
    has_norm: u32,
    eps: f32,
}

// Loads the head into workgroup memory and normalizes it.
fn load_head(head_dim: u32, r: RotationParams, lid: u32) {
    var squares = 0.0;
    for (var c = lid; c < head_dim; c += WG) {
        let v = head_value(c);
        squares = fma(v, v, squares);
        head[c] = v;
    }
    if r.has_norm != 0u {
        let scale = 1.0 / sqrt(reduce_add(squares, lid) / f32(head_dim) + r.eps);
        for (var c = lid; c < head_dim; c += WG) {
            head[c] *= scale * head_weight(c);
        }
    }
    workgroupBarrier();
}

// First value of the table row of row `t`.
fn table_row(t: u32, r: RotationParams) -> u32 {
    if r.n_rot == 0u {
        return 0u;
    }
    return data[p.positions + t] * r.n_rot;
}

// Cosine and sine of a pair of channels.
fn angle(pair: u32, r: RotationParams, angles: u32) -> vec2<f32> {
    let half = r.n_rot / 2u;
    if pair >= half {
        return vec2<f32>(0.0);
    }
    return vec2<f32>(cos_sin[angles + pair], cos_sin[angles + half + pair]);
}

// Rotates and stores the head; `first` is the angle of pair `lid`, which a kernel loads ahead of the head.
fn store_rotated(head_dim: u32, r: RotationParams, angles: u32, first: vec2<f32>, lid: u32) {
    let half = r.n_rot / 2u;
    let is_adjacent = r.is_adjacent != 0u;
    for (var pair = lid; pair < half; pair += WG) {
        var cos_and_sin = first;
        if pair != lid {
            cos_and_sin = angle(pair, r, angles);
        }
        let u = select(pair, 2u * pair, is_adjacent);
        let v = select(pair + half, 2u * pair + 1u, is_adjacent);
        let a = head[u];
        let b = head[v];
        store_value(u, a * cos_and_sin.x - b * cos_and_sin.y);
        store_value(v, a * cos_and_sin.y + b * cos_and_sin.x);
    }
    for (var c = 2u * half + lid; c < head_dim; c += WG) {
        store_value(c, head[c]);
    }
}
