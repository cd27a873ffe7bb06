// Sum `place` of the sums of an invocation, which stay in registers: their indices are constants.
fn sum_at(sums: ptr<function, array<f32, SUMS>>, place: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < SUMS; i++) {
        if place == i {
            sum = (*sums)[i];
        }
    }
    return sum;
}
