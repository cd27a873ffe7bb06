// Sum `index` of an invocation, by constant indices, which keep the sums in registers.
fn sum_at(sums: ptr<function, array<f32, SUMS>>, index: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < SUMS; i++) {
        if index == i {
            sum = (*sums)[i];
        }
    }
    return sum;
}
