// Norm and rotation of a head in workgroup memory.

var<workgroup> head: array<f32, 1024>;

// Of every head of a kind; 16 bytes, since uniform structs stand at multiples of that.
struct Rotation {
    n_rot: u32,
    is_adjacent: u32,
    has_norm: u32,
    eps: f32,
}

// The norm of the values whose squares the invocations have summed.
fn norm_scale(squares: f32, head_dim: u32, r: Rotation, lid: u32) -> f32 {
    return 1.0 / sqrt(reduce_add(squares, lid) / f32(head_dim) + r.eps);
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
