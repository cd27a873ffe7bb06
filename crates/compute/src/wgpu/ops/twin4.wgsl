// Writing the copy that products want beside an output to `twin`, see twin.rs.

// Leaves the four values from `c` on of row `t`; every invocation of the workgroup comes here.
fn leave4(kind: u32, v: vec4<f32>, t: u32, c: u32, cols: u32, is_stored: bool, lid: u32) {
    if kind == 1u {
        quantize4(v, t, c, cols, is_stored, lid);
    } else if kind == 2u && is_stored {
        let halves = halves_of(v);
        let at = (t * cols + c) / 2u;
        twin[at] = halves.x;
        twin[at + 1u] = halves.y;
    }
}
