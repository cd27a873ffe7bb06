//! Matmuls of packed weights, as one loop of tasks.

use std::ops::Range;

use stonechat_compute::Cpu;
use stonechat_compute::cpu::{Epilogue, MatMut};
use stonechat_compute::{check_at_most, check_eq};

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::gemm;
use super::kernels::PanelKernel;
use super::matrix::PackedMatrix;
use super::panel::{PANEL_ROWS, U32x16};
use super::task::PanelTask;
use crate::activation::{ActivationBuffer, ActivationLayout};

/// Weight bytes of a GEMV task for up to 8 rows of `x`: large beside the cost of claiming it, small beside a
/// core's share.
const TASK_BYTES: usize = 64 * 1024;
/// Weight bytes of a GEMV task for more rows: they stay in the second-level cache while all rows of `x` pass.
const TASK_BYTES_MANY_ROWS: usize = 192 * 1024;

/// Tasks of a matrix that each thread should have at least, for an even share.
const MIN_TASKS_PER_THREAD: usize = 3;

/// A matmul with rows of packed weights: `out = epilogue(x * w[rows]^T)`.
#[derive(Debug)]
pub struct PackedMatmul<'a> {
    /// `[M, rows.len()]`.
    pub out: MatMut<'a>,
    /// The matrix.
    pub w: &'a PackedMatrix,
    /// Rows of `w`.
    pub rows: Range<usize>,
    /// Applied to the sums.
    pub epilogue: Epilogue<'a>,
}

impl PackedMatmul<'_> {
    #[track_caller]
    fn check(&self, x: &ActivationBuffer) {
        let Self { out, w, rows, epilogue } = self;
        let (n, k) = (w.n, w.k);
        check_eq!(x.cols(), k, "matmul: K of the activations");
        check_at_most!(rows.end, n, "matmul: end of the rows");
        check_eq!((out.rows, out.cols), (x.rows(), rows.len()), "matmul: shape of the output");
        let n_bias = epilogue.bias.map_or(rows.len(), <[f32]>::len);
        check_eq!(n_bias, rows.len(), "matmul: values of the bias");
    }

    /// The panels of the rows.
    fn panels(&self) -> Range<usize> {
        let first = self.rows.start / PANEL_ROWS;
        let end = if self.rows.is_empty() { first } else { self.rows.end.div_ceil(PANEL_ROWS) };
        first..end
    }
}

/// Matmuls of one input as one loop of tasks: threads that find nothing left of one take from the next. `None` is
/// skipped. Allocates nothing.
///
/// Numerics: as [`gemv_blocks`](crate::gemv_blocks); the order of the f32 sums differs.
///
/// # Panics
/// If `x` is `[M, K]`, rows not inside their matrix and outputs not `[M, rows.len()]`, or a bias has another
/// length, or `x` is in the layout of another instruction set.
#[track_caller]
pub fn matmul_packed<const N: usize>(
    cpu: &Cpu,
    x: &ActivationBuffer,
    products: [Option<PackedMatmul<'_>>; N],
) {
    let n_panels = products.iter().flatten().map(|product| product.panels().len()).sum();
    let shares = products.map(|product| {
        let product = product?;
        product.check(x);
        let panels = product.panels();
        let per_task = panels_per_task(cpu, x, n_panels, product.w.panel_len());
        let PackedMatmul { out, w, rows, epilogue } = product;
        let kernel = w.kernels().of(x.layout());
        let task = PanelTask { w: w.panels(), x, panels, rows, out: out.shared(), epilogue };
        Some((kernel, task, per_task))
    });
    if x.rows() == 0 {
        return;
    }
    let shares = shares.iter().flatten();
    let n_tasks = |(_, all, per_task): &(&PanelKernel, PanelTask<'_>, usize)| {
        all.panels.len().div_ceil(*per_task)
    };
    cpu.threads.run(shares.clone().map(n_tasks).sum(), |mut task| {
        for share in shares.clone() {
            let n = n_tasks(share);
            if task < n {
                let (kernel, all, per_task) = share;
                let first = all.panels.start + task * per_task;
                let panels = first..all.panels.end.min(first + per_task);
                return kernel(&PanelTask { panels, rows: all.rows.clone(), ..*all });
            }
            task -= n;
        }
    });
}

/// Panels of a task. `n_panels` and `panel_len`, in vectors, are those of all matrices together.
pub(super) fn panels_per_task(
    cpu: &Cpu,
    x: &ActivationBuffer,
    n_panels: usize,
    panel_len: usize,
) -> usize {
    let n_threads = cpu.threads.n_threads();
    let limit = n_panels / (MIN_TASKS_PER_THREAD * n_threads);
    match x.layout() {
        ActivationLayout::RowMajor => {}
        #[cfg(target_arch = "x86_64")]
        ActivationLayout::AmxBf16 => return amx::panels_per_task(limit),
        ActivationLayout::Interleaved4 | ActivationLayout::Interleaved6 => {
            return gemm::panels_per_task(limit);
        }
    }
    let task_bytes = if x.rows() > 8 { TASK_BYTES_MANY_ROWS } else { TASK_BYTES };
    (task_bytes / (panel_len * size_of::<U32x16>()).max(1)).min(limit).max(1)
}
