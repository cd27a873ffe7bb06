//! Matmuls with one matrix, a group of matrices, a gated pair.

use stonechat_compute::cuda::ops::Output;
use stonechat_compute::cuda::{CommandList, Gpu};
use stonechat_compute::op::{Epilogue, GatedActivation};

use super::dense::dense;
use super::format::Formats;
use super::gemm::{has_gemm, launch_gemm};
use super::gemv::{GemvWork, MAX_GEMV_ROWS, launch_gemv};
use super::matrix::CudaMatrix;
use super::params::{MatmulParams, MatrixParams, Operand, Scratch};

/// Formats of a group of matrices; `None` if no kernel multiplies with all of them.
pub(super) fn formats_of(all: &[&CudaMatrix]) -> Option<Formats> {
    Formats::of(&all.iter().map(|w| w.format()).collect::<Option<Vec<_>>>()?)
}

/// Whether GEMV multiplies `rows` rows; else GEMM.
fn uses_gemv(gpu: &Gpu, rows: usize) -> bool {
    rows <= MAX_GEMV_ROWS || !has_gemm(gpu.device())
}

/// `act(x·Wᵀ + bias)` of any number of rows.
pub fn matmul(
    list: &mut CommandList,
    scratch: &mut dyn Scratch,
    out: Output,
    x: Operand,
    w: &CudaMatrix,
    epilogue: Epilogue<u64>,
) {
    let Epilogue { bias, activation, accumulate } = epilogue;
    let Some(format) = w.format() else {
        return dense(list, out, x, w, epilogue);
    };
    let mut params = MatmulParams::new(w, format, x);
    params.matrices[0] = MatrixParams::new(w, out, bias.unwrap_or(0));
    params.n_matrices = 1;
    params.activation = activation.code();
    params.accumulate = u32::from(accumulate);
    let formats = Formats::one(format);
    if uses_gemv(list.gpu(), x.rows) {
        launch_gemv(list, scratch, formats, params, GemvWork::of_rows(x.rows, w.k, w.n_panels()));
    } else {
        launch_gemm(list, formats, params);
    }
}

/// Multiplies one operand with several matrices. `all`: matrix, output and bias.
///
/// # Panics
/// If no kernel reads all of their types.
pub fn matmul_group(
    list: &mut CommandList,
    scratch: &mut dyn Scratch,
    x: Operand,
    all: &[(&CudaMatrix, Output, u64)],
) {
    let matrices: Vec<_> = all.iter().map(|(w, ..)| *w).collect();
    let formats = formats_of(&matrices).expect("a group with a kernel");
    let mut params = MatmulParams::new(all[0].0, formats.first, x);
    params.n_matrices = all.len() as u32;
    let is_first = |w: &CudaMatrix| w.dtype() == formats.first.dtype;
    let (first, second): (Vec<_>, Vec<_>) = all.iter().partition(|(w, ..)| is_first(w));
    params.n_first_matrices = if second.is_empty() { 0 } else { first.len() as u32 };
    for (to, (w, out, bias)) in params.matrices.iter_mut().zip(first.into_iter().chain(second)) {
        *to = MatrixParams::new(w, out, bias);
    }
    if uses_gemv(list.gpu(), x.rows) {
        let panels = all.iter().map(|(w, ..)| w.n_panels()).sum();
        let work = GemvWork::of_rows(x.rows, all[0].0.k, panels);
        launch_gemv(list, scratch, formats, params, work);
    } else {
        launch_gemm(list, formats, params);
    }
}

/// `act(gate · x) * (up · x)` of at most [`MAX_GEMV_ROWS`] rows.
///
/// # Panics
/// If the weights are f32.
pub fn matmul_gated(
    list: &mut CommandList,
    scratch: &mut dyn Scratch,
    out: Output,
    x: Operand,
    [gate, up]: [&CudaMatrix; 2],
    activation: GatedActivation,
) {
    let Some(format) = gate.format() else { panic!("a pair of f32 weights") };
    let mut params = MatmulParams::new(gate, format, x);
    params.n_matrices = 2;
    params.is_gated = 1;
    params.matrices[0] = MatrixParams::new(gate, out, 0);
    params.matrices[1] = MatrixParams::new(up, out, 0);
    (params.activation, params.alpha, params.limit) = activation.code();
    let work = GemvWork::of_rows(x.rows, gate.k, gate.n_panels());
    let work = GemvWork { is_gated: true, ..work };
    launch_gemv(list, scratch, Formats::one(format), params, work);
}
