//! The first half of a gated MLP: `act(x * gate^T) * (x * up^T)`, stored as the activations of the down projection.
//!
//! ```text
//! for each task of 32 or 64 columns:
//!     g = x * gate[cols]^T + bias          [M, cols], scratch in the second-level cache
//!     u = x * up[cols]^T + bias
//!     out[:, cols] = quantize(act(g) * u)  in the layout of x
//! ```

use std::ops::Range;

use stonechat_compute::cpu::{Epilogue, MatMut, MatRef};
use stonechat_compute::op::GatedActivation;
use stonechat_compute::{Cpu, with_scratch};
use stonechat_compute::{check_at_most, check_eq};

use super::matmul::panels_per_task;
use super::matrix::PackedMatrix;
use super::panel::PANEL_ROWS;
use super::task::PanelTask;
use crate::activation::{ActivationBuffer, QBLOCK_LEN};

/// Panels of the columns of a q8 block.
const PANELS_PER_QBLOCK: usize = QBLOCK_LEN / PANEL_ROWS;

/// Q8 blocks of a task: both products for all rows should stay in the second-level cache.
const MAX_QBLOCKS_PER_TASK: usize = 2;

/// Rows of a packed matrix and their bias.
#[derive(Clone, Debug)]
pub struct PackedRows<'a> {
    /// The matrix.
    pub w: &'a PackedMatrix,
    /// Rows of `w`.
    pub rows: Range<usize>,
    /// `[rows.len()]`, added to the products.
    pub bias: Option<&'a [f32]>,
}

impl PackedRows<'_> {
    /// Whether [`gated_packed`] supports them: a multiple of 32 rows, from a panel's first on.
    #[must_use]
    pub fn are_whole_qblocks(&self) -> bool {
        self.rows.start.is_multiple_of(PANEL_ROWS) && self.rows.len().is_multiple_of(QBLOCK_LEN)
    }

    #[track_caller]
    fn check(&self, x: &ActivationBuffer, n: usize) {
        let k = x.cols();
        check_eq!(self.w.k, k, "gated: K of the weights");
        check_at_most!(self.rows.end, self.w.n, "gated: end of the rows");
        check_eq!(self.rows.len(), n, "gated: rows");
        assert!(self.are_whole_qblocks(), "gated: expected q8 blocks, got rows {:?}", self.rows);
        let n_bias = self.bias.map_or(n, <[f32]>::len);
        check_eq!(n_bias, n, "gated: values of the bias");
    }

    /// `out[m] = w[rows[part]] * x[m] + bias[part]`, packed.
    fn multiply(&self, x: &ActivationBuffer, part: Range<usize>, out: &mut [f32]) {
        let rows = self.rows.start + part.start..self.rows.start + part.end;
        let out = MatMut::packed(out, x.rows(), part.len()).shared();
        let epilogue = Epilogue { bias: self.bias.map(|b| &b[part]), ..Epilogue::default() };
        let panels = rows.start / PANEL_ROWS..rows.end / PANEL_ROWS;
        let multiply = self.w.kernels().of(x.layout());
        multiply(&PanelTask { w: self.w.panels(), x, panels, rows, out, epilogue });
    }
}

/// `out = act(x * gate^T + bias) * (x * up^T + bias)` as activations in the layout of `x`.
///
/// Shapes: `x` is `[M, K]`, `gate` and `up` have `N` rows of `K`, `out` becomes `[M, N]`. Numerics: as
/// [`matmul_packed`](super::matmul::matmul_packed), then as `GatedActivation` and [`ActivationBuffer::quantize`].
///
/// # Panics
/// If shapes do not agree, rows are not supported ([`PackedRows::are_whole_qblocks`]), or `x` is in the layout
/// of another instruction set.
#[track_caller]
pub fn gated_packed(
    cpu: &Cpu,
    out: &mut ActivationBuffer,
    x: &ActivationBuffer,
    [gate, up]: [PackedRows<'_>; 2],
    activation: GatedActivation,
) {
    let (m, n) = (x.rows(), gate.rows.len());
    gate.check(x, n);
    up.check(x, n);
    let writer = out.writer(m, n, x.layout());
    let n_panels = n / PANEL_ROWS;
    let panel_len = gate.w.panel_len() + up.w.panel_len();
    let per_task = panels_per_task(cpu, x, n_panels, panel_len) / PANELS_PER_QBLOCK;
    let per_task = per_task.clamp(1, MAX_QBLOCKS_PER_TASK) * QBLOCK_LEN;
    cpu.threads.run(n.div_ceil(per_task), |task| {
        let cols = task * per_task..n.min((task + 1) * per_task);
        let len = m * cols.len();
        with_scratch(3 * len, |scratch| {
            let (gate_out, rest) = scratch.split_at_mut(len);
            let (up_out, hidden) = rest.split_at_mut(len);
            gate.multiply(x, cols.clone(), gate_out);
            up.multiply(x, cols.clone(), up_out);
            activation.combine(cpu.isa, hidden, gate_out, up_out);
            let hidden = MatRef::packed(hidden, m, cols.len());
            // SAFETY: each column is of one task, and tasks run once.
            unsafe { writer.store(cpu.isa, cols.start / QBLOCK_LEN, hidden) };
        });
    });
}
