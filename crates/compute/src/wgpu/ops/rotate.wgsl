// RMS norm and RoPE of a head. A kernel binds `cos_sin`, the table of angles, and `data`, and defines `head_value` and
// `head_weight`: value of a channel and its norm weight.

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

// First value of the table row of row `t`. The position of a single row is a parameter: read from the data, it would
// precede the read of the table.
fn table_row(t: u32, r: RotationParams) -> u32 {
    if p.rows == 1u || r.n_rot == 0u {
        return p.only_position * r.n_rot;
    }
    return data[p.positions + t] * r.n_rot;
}

// Channel `c` of the head, rotated by the cosines and sines at `angles`.
fn rotated(c: u32, r: RotationParams, angles: u32) -> f32 {
    if c >= r.n_rot {
        return head[c];
    }
    let half = r.n_rot / 2u;
    let is_adjacent = r.is_adjacent != 0u;
    let pair = select(c % half, c / 2u, is_adjacent);
    let is_second = select(c >= half, (c & 1u) != 0u, is_adjacent);
    let a = head[select(pair, 2u * pair, is_adjacent)];
    let b = head[select(pair + half, 2u * pair + 1u, is_adjacent)];
    let cosine = cos_sin[angles + pair];
    let sine = cos_sin[angles + half + pair];
    return select(a * cosine - b * sine, a * sine + b * cosine, is_second);
}
