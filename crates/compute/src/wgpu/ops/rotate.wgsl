// Norm and rotation of a head. A kernel says where the head is: `head_value` and `head_weight` give the value of a
// channel and its weight in the norm.

var<workgroup> head: array<f32, 1024>;

// Of every head of a kind; 16 bytes, since uniform structs stand at multiples of that.
struct Rotation {
    n_rot: u32,
    is_adjacent: u32,
    has_norm: u32,
    eps: f32,
}

// Takes the head into workgroup memory, normed.
fn take_head(head_dim: u32, r: Rotation, lid: u32) {
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

// Channel `c` of the head after the rotation by the angles from `angles` on.
fn rotated(c: u32, r: Rotation, angles: u32) -> f32 {
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
