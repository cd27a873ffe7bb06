//! Matmuls with one matrix, a group of matrices, a gated pair.

use std::ops::RangeInclusive;

use stonechat_compute::cuda::ops::Output;
use stonechat_compute::cuda::ops::rows::gated_code;
use stonechat_compute::cuda::{CommandList, Gpu};
use stonechat_compute::op::GatedActivation;

use super::dense::dense;
use super::format::Formats;
use super::gemm::{has_gemm, launch_gemm};
use super::gemv::{GemvWork, MAX_GEMV_ROWS, has_row_kernel, launch_gemv};
use super::matrix::CudaMatrix;
use super::params::{
    CudaEpilogue, MAX_GROUP, MatmulParams, MatrixParams, Operand, Scratch, activation_code,
};

/// Formats of a group of matrices; `None` if no kernel multiplies with all of them.
fn formats_of(all: &[&CudaMatrix]) -> Option<Formats> {
    Formats::of(&all.iter().map(|w| w.format()).collect::<Option<Vec<_>>>()?)
}

/// Whether GEMV multiplies `rows` rows; else GEMM.
fn uses_gemv(gpu: &Gpu, rows: usize) -> bool {
    rows <= MAX_GEMV_ROWS || !has_gemm(gpu.device())
}

/// Whether a matmul of one row of `k` columns can apply an RMS norm to it.
#[must_use]
pub fn fuses_norm(gpu: &Gpu, k: usize) -> bool {
    has_row_kernel(gpu, k) && k.is_multiple_of(4)
}

/// Whether one launch can multiply `n_rows` rows with all of these matrices.
#[must_use]
pub fn can_group(gpu: &Gpu, all: &[&CudaMatrix], n_rows: RangeInclusive<usize>) -> bool {
    let k = all[0].k();
    let has_pairs = if *n_rows.start() > MAX_GEMV_ROWS {
        gpu.device().has_warpgroups()
    } else {
        *n_rows.end() == 1 && has_row_kernel(gpu, k)
    };
    all.len() <= MAX_GROUP
        && all.iter().all(|w| w.k() == k)
        && formats_of(all).is_some_and(|formats| formats.second.is_none() || has_pairs)
}

/// Whether one launch can multiply with gate and up.
#[must_use]
pub fn can_pair(gate: &CudaMatrix, up: &CudaMatrix) -> bool {
    let is_like = (gate.dtype(), gate.k(), gate.n()) == (up.dtype(), up.k(), up.n());
    is_like && gate.reads_operand()
}

/// `act(x·Wᵀ + bias)` of any number of rows.
pub fn matmul(
    list: &mut CommandList,
    scratch: &mut dyn Scratch,
    out: Output,
    x: Operand,
    w: &CudaMatrix,
    epilogue: CudaEpilogue,
) {
    let CudaEpilogue { bias, activation, accumulate } = epilogue;
    let Some(format) = w.format() else {
        return dense(list, out, x, w, epilogue);
    };
    let mut params = MatmulParams::new(w, format, x);
    params.matrices[0] = MatrixParams::new(w, out, bias);
    params.n_matrices = 1;
    params.activation = activation_code(activation);
    params.accumulate = u32::from(accumulate);
    let formats = Formats::one(format);
    if uses_gemv(list.gpu(), x.rows) {
        launch_gemv(list, scratch, formats, params, GemvWork::of_rows(x.rows, w.k(), w.n_panels()));
    } else {
        launch_gemm(list, formats, params);
    }
}

/// Multiplies one operand with several matrices. `all`: matrix, output and bias.
///
/// # Panics
/// If the matrices cannot be [grouped](can_group).
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
        let work = GemvWork::of_rows(x.rows, all[0].0.k(), panels);
        launch_gemv(list, scratch, formats, params, work);
    } else {
        launch_gemm(list, formats, params);
    }
}

/// `act(gate · x) * (up · x)` of at most [`MAX_GEMV_ROWS`] rows.
///
/// # Panics
/// If the matrices cannot be [paired](can_pair).
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
    (params.activation, params.alpha, params.limit) = gated_code(activation);
    let work = GemvWork::of_rows(x.rows, gate.k(), gate.n_panels());
    let work = GemvWork { is_gated: true, ..work };
    launch_gemv(list, scratch, Formats::one(format), params, work);
}
