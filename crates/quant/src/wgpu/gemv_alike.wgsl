// A group whose last matrix is of the same format as the others.

fn multiply_last(sums: ptr<function, array<f32, SUMS>>, first: u32, x_row: u32, place: u32) {
    multiply(sums, first, x_row, place);
}
