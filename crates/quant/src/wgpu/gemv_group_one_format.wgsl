// A group whose last matrix has the format of the others.

fn multiply_last(sums: ptr<function, array<f32, SUMS>>, first: u32, x_row: u32, lane: u32) {
    multiply(sums, first, x_row, lane);
}
