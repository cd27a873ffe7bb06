// Writes four values of an operand to `out_operand`, in the format `operand`: columns from `c` on of row `t`, of rows of
// `cols`. In uniform control flow.
fn write_operand4(operand: u32, v: vec4<f32>, t: u32, c: u32, cols: u32, is_stored: bool, lid: u32) {
    if operand == OPERAND_Q8 {
        quantize4(v, t, c, cols, is_stored, lid);
    } else if operand == OPERAND_F16 && is_stored {
        let words = pack_f16x4(v);
        let at = (t * cols + c) / 2u;
        out_operand[at] = words.x;
        out_operand[at + 1u] = words.y;
    }
}
