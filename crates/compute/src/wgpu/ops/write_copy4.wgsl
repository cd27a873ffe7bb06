// Writes four values of the cached copy of an output to `out_copy`, in the format `copy_format`: columns from `c` on of row
// `t`, of rows of `cols`. In uniform control flow.
fn write_copy4(copy_format: u32, v: vec4<f32>, t: u32, c: u32, cols: u32, is_stored: bool, lid: u32) {
    if copy_format == COPY_Q8 {
        quantize4(v, t, c, cols, is_stored, lid);
    } else if copy_format == COPY_F16 && is_stored {
        let words = pack_f16x4(v);
        let at = (t * cols + c) / 2u;
        out_copy[at] = words.x;
        out_copy[at + 1u] = words.y;
    }
}
