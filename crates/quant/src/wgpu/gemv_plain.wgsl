// Products that are stored and nothing else.
fn keep(i: u32, y: f32) {}

fn finish(start: u32, lid: u32) {}
