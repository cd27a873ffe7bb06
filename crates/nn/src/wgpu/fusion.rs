//! Fusion window: an op that is pending until the next op, with which it may become one kernel (few rows only).
//!
//! | pending op | next op | fused kernel |
//! |---|---|---|
//! | RMS norm of one row | matmuls of its output | GEMV, every workgroup computes the norm |
//! | gate and up matmuls, with a norm that was pending before | gated activation | GEMV with both matrices |
//! | `RoPE` of queries, then of keys | KV write of the keys | `RoPE` and KV write, one workgroup a head |
//!
//! Fused kernels still write the output of each op. Any other op flushes the window: the pending op is recorded as a
//! kernel of its own.

use std::sync::{Mutex, MutexGuard, PoisonError};

use stonechat_compute::cpu::{GatedActivation, KvRow, RopePairs};
use stonechat_compute::wgpu::ops::kv::GpuKvPool;
use stonechat_compute::wgpu::ops::{GpuRows, rope};
use stonechat_compute::wgpu::{Gpu, GpuBuffer};
use stonechat_quant::wgpu::{
    GateUpOutput, GpuEpilogue, GpuMatrix, InputNorm, MAX_GEMV_ROWS, can_fuse_gate_up, matmul_all,
    matmul_gated,
};

use crate::Rows;

/// RMS norm of one row.
#[derive(Debug)]
pub(super) struct PendingNorm {
    x: GpuBuffer,
    rows: Rows,
    weight: GpuBuffer,
    eps: f32,
    out: GpuBuffer,
}

impl PendingNorm {
    pub(super) fn new(out: &GpuBuffer, x: GpuRows<'_>, weight: &GpuBuffer, eps: f32) -> Self {
        let GpuRows { buffer, offset, rows, cols, stride } = x;
        let rows = Rows { offset, rows, cols, stride };
        Self { x: buffer.clone(), rows, weight: weight.clone(), eps, out: out.clone() }
    }

    /// Whether a later kernel may fuse it.
    pub(super) fn can_fuse(&self) -> bool {
        self.rows.rows == 1 && !self.out.is(&self.x)
    }

    /// Whether `x` is its output.
    fn produces(&self, x: GpuRows<'_>) -> bool {
        let GpuRows { buffer, offset, rows, cols, .. } = x;
        buffer.is(&self.out) && (offset, rows, cols) == (0, 1, self.rows.cols)
    }

    pub(super) fn args(&self) -> InputNorm<'_> {
        InputNorm { x: super::gpu_rows(&self.x, self.rows), weight: &self.weight, eps: self.eps }
    }
}

/// Gate and up matmuls of a gated MLP.
#[derive(Debug)]
pub(super) struct PendingGateUp {
    /// Pending norm whose output is `x`.
    pub(super) norm: Option<PendingNorm>,
    pub(super) x: GpuBuffer,
    pub(super) x_rows: Rows,
    pub(super) out: [GpuBuffer; 2],
    pub(super) w: [GpuMatrix; 2],
}

impl PendingGateUp {
    /// Whether a later kernel may fuse two matmuls.
    pub(super) fn can_fuse(
        gpu: &Gpu,
        x_rows: Rows,
        w: [&GpuMatrix; 2],
        epilogues: [GpuEpilogue<'_>; 2],
    ) -> bool {
        can_fuse_gate_up(gpu, w[0], w[1], x_rows.rows)
            && epilogues.iter().all(GpuEpilogue::is_plain)
    }

    fn x(&self) -> GpuRows<'_> {
        super::gpu_rows(&self.x, self.x_rows)
    }

    fn record(&self, gpu: &Gpu) {
        let matmuls = self.out.iter().zip(&self.w).map(|(out, w)| (out, w, GpuEpilogue::PLAIN));
        matmul_all(gpu, self.x(), self.norm.as_ref().map(PendingNorm::args), matmuls);
    }

    /// Whether `gate` and `up` are its outputs.
    fn produces(&self, gate: GpuRows<'_>, up: GpuRows<'_>) -> bool {
        let shape = [self.x_rows.rows, self.w[0].n()];
        [gate, up].into_iter().zip(&self.out).all(|(rows, out)| {
            let is_packed = rows.offset == 0 && (rows.stride == rows.cols || rows.rows == 1);
            rows.buffer.is(out) && is_packed && [rows.rows, rows.cols] == shape
        })
    }
}

/// QK norm and `RoPE` of heads.
#[derive(Debug, Clone)]
pub(super) struct PendingRope {
    x: GpuBuffer,
    rows: Rows,
    head_dim: usize,
    norm: Option<(GpuBuffer, f32)>,
    rotation: Option<PendingRotation>,
}

#[derive(Debug, Clone)]
struct PendingRotation {
    table: GpuBuffer,
    positions: Vec<u32>,
    n_rot: usize,
    pairs: RopePairs,
}

impl PendingRope {
    pub(super) fn new(x: GpuRows<'_>, args: rope::Rope<'_>) -> Self {
        let GpuRows { buffer, offset, rows, cols, stride } = x;
        let rotation = args.rotation.map(|rotation| PendingRotation {
            table: rotation.table.clone(),
            positions: rotation.positions.to_vec(),
            n_rot: rotation.n_rot,
            pairs: rotation.pairs,
        });
        Self {
            x: buffer.clone(),
            rows: Rows { offset, rows, cols, stride },
            head_dim: args.head_dim,
            norm: args.norm.map(|(weight, eps)| (weight.clone(), eps)),
            rotation,
        }
    }

    /// Whether a later kernel may fuse `RoPE` of `x`.
    pub(super) fn can_fuse(x: GpuRows<'_>) -> bool {
        x.rows <= MAX_GEMV_ROWS
    }

    fn args(&self) -> (GpuRows<'_>, rope::Rope<'_>) {
        let norm = self.norm.as_ref().map(|(weight, eps)| (weight, *eps));
        let rotation = self.rotation.as_ref().map(|rotation| rope::Rotation {
            table: &rotation.table,
            positions: &rotation.positions,
            n_rot: rotation.n_rot,
            pairs: rotation.pairs,
        });
        (
            super::gpu_rows(&self.x, self.rows),
            rope::Rope { head_dim: self.head_dim, norm, rotation },
        )
    }

    fn record(&self, gpu: &Gpu) {
        let (x, args) = self.args();
        rope::rope(gpu, x, args);
    }
}

#[derive(Debug, Default)]
enum PendingOp {
    #[default]
    None,
    RmsNorm(PendingNorm),
    GateUp(PendingGateUp),
    /// Of queries.
    RopeQ(PendingRope),
    /// Of queries and keys.
    RopeQk([PendingRope; 2]),
}

/// Holds the pending op.
#[derive(Debug, Default)]
pub(super) struct FusionWindow {
    pending: Mutex<PendingOp>,
}

impl FusionWindow {
    fn lock(&self) -> MutexGuard<'_, PendingOp> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> PendingOp {
        std::mem::take(&mut *self.lock())
    }

    /// Records the pending op as a kernel of its own.
    pub(super) fn flush(&self, gpu: &Gpu) {
        Self::record(gpu, self.take());
    }

    fn record(gpu: &Gpu, pending: PendingOp) {
        match pending {
            PendingOp::None => {}
            PendingOp::RmsNorm(norm) => norm.args().record(gpu, &norm.out),
            PendingOp::GateUp(pair) => pair.record(gpu),
            PendingOp::RopeQ(rope) => rope.record(gpu),
            PendingOp::RopeQk(both) => both.iter().for_each(|rope| rope.record(gpu)),
        }
    }

    /// Flushes the window, then makes a norm the pending op.
    pub(super) fn push_norm(&self, gpu: &Gpu, norm: PendingNorm) {
        self.flush(gpu);
        *self.lock() = PendingOp::RmsNorm(norm);
    }

    /// Takes the pending norm whose output is `x`; flushes any other op.
    pub(super) fn take_norm(&self, gpu: &Gpu, x: GpuRows<'_>) -> Option<PendingNorm> {
        match self.take() {
            PendingOp::RmsNorm(norm) if norm.produces(x) => Some(norm),
            other => {
                Self::record(gpu, other);
                None
            }
        }
    }

    /// Makes gate and up matmuls the pending op. [`take_norm`](Self::take_norm) emptied the window before.
    pub(super) fn push_gate_up(&self, pair: PendingGateUp) {
        *self.lock() = PendingOp::GateUp(pair);
    }

    /// Adds a `RoPE` to a pending one of another buffer; else flushes the window and makes it the pending op.
    pub(super) fn push_rope(&self, gpu: &Gpu, rope: PendingRope) {
        let next = match self.take() {
            PendingOp::RopeQ(first) if !first.x.is(&rope.x) => PendingOp::RopeQk([first, rope]),
            other => {
                Self::record(gpu, other);
                PendingOp::RopeQ(rope)
            }
        };
        *self.lock() = next;
    }

    /// Records pending gate and up matmuls together with their gated activation; returns false, after flushing the window,
    /// if they are not pending.
    pub(super) fn fuse_gated(
        &self,
        gpu: &Gpu,
        out: &GpuBuffer,
        (gate, up): (GpuRows<'_>, GpuRows<'_>),
        activation: GatedActivation,
    ) -> bool {
        match self.take() {
            PendingOp::GateUp(pending) if pending.produces(gate, up) => {
                let PendingGateUp { norm, out: [gate, up], w: [w_gate, w_up], .. } = &pending;
                let outputs = GateUpOutput { gate, up, out };
                let input = (pending.x(), norm.as_ref().map(PendingNorm::args));
                matmul_gated(gpu, outputs, input, [w_gate, w_up], activation);
                true
            }
            other => {
                Self::record(gpu, other);
                false
            }
        }
    }

    /// Records pending `RoPE` of queries and keys together with the KV write of the keys; returns false, after flushing the
    /// window, if they are not pending.
    pub(super) fn fuse_kv_write(
        &self,
        gpu: &Gpu,
        pool: &GpuKvPool,
        (k, v): (GpuRows<'_>, GpuRows<'_>),
        rows: &[KvRow],
    ) -> bool {
        match self.take() {
            PendingOp::RopeQk([q_rope, k_rope])
                if k_rope.x.is(k.buffer)
                    && k_rope.rows
                        == Rows {
                            offset: k.offset,
                            rows: k.rows,
                            cols: k.cols,
                            stride: k.stride,
                        }
                    && q_rope.rows.rows == k.rows
                    && q_rope.args().1.is_compatible(&k_rope.args().1)
                    && !v.buffer.is(&q_rope.x)
                    && !v.buffer.is(&k_rope.x) =>
            {
                rope::rope_and_write(gpu, q_rope.args(), k_rope.args(), v, (pool, rows));
                true
            }
            other => {
                Self::record(gpu, other);
                false
            }
        }
    }
}
