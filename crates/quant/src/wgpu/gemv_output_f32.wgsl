// Output of gemv.wgsl in f32.
fn keep_output(i: u32, at: u32, y: f32) {
    out[at] = y;
}

fn finish_group(start: u32, lid: u32) {}
