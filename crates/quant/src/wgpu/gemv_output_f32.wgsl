// Output of gemv.wgsl in f32 only.
fn keep_output(i: u32, y: f32) {}

fn finish_group(start: u32, lid: u32) {}
