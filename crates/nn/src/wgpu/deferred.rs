//! Ops that wait for the one after them, since both together are one kernel where rows are few.
//!
//! | waits | for | together |
//! |---|---|---|
//! | the products of a gate and of what it lets through | the gated activation | one pass over both matrices |
//! | the RMS norm of one row | the products of it | every workgroup makes the norm |
//! | the rotations of queries and of keys | the keys being stored | a workgroup a head |
//!
//! The kernels still write what each op gives, and any other op first records what waits as it is.

use std::sync::{Mutex, MutexGuard, PoisonError};

use stonechat_compute::cpu::{GatedActivation, KvRow, RopePairs};
use stonechat_compute::wgpu::ops::kv::GpuKvPool;
use stonechat_compute::wgpu::ops::{GpuRows, rope};
use stonechat_compute::wgpu::{Gpu, GpuBuffer};
use stonechat_quant::wgpu::{
    GatedOutput, GpuEpilogue, GpuMatrix, MAX_GEMV_ROWS, Normed, gated_product, is_pair, matmul_all,
};

use crate::Rows;

/// The RMS norm of one row.
#[derive(Debug)]
pub(super) struct Norm {
    x: GpuBuffer,
    rows: Rows,
    weight: GpuBuffer,
    eps: f32,
    out: GpuBuffer,
}

impl Norm {
    pub(super) fn new(out: &GpuBuffer, x: GpuRows<'_>, weight: &GpuBuffer, eps: f32) -> Self {
        let GpuRows { buffer, offset, rows, cols, stride } = x;
        let rows = Rows { offset, rows, cols, stride };
        Self { x: buffer.clone(), rows, weight: weight.clone(), eps, out: out.clone() }
    }

    /// Whether it may wait.
    pub(super) fn may_wait(&self) -> bool {
        self.rows.rows == 1 && !self.out.is(&self.x)
    }

    /// Whether `x` is what it gives.
    fn gives(&self, x: GpuRows<'_>) -> bool {
        let GpuRows { buffer, offset, rows, cols, .. } = x;
        buffer.is(&self.out) && (offset, rows, cols) == (0, 1, self.rows.cols)
    }

    pub(super) fn args(&self) -> Normed<'_> {
        Normed { x: super::part(&self.x, self.rows), weight: &self.weight, eps: self.eps }
    }
}

/// Products of a gate and of what it lets through.
#[derive(Debug)]
pub(super) struct Pair {
    /// What makes `x`, if that waits too.
    pub(super) norm: Option<Norm>,
    pub(super) x: GpuBuffer,
    pub(super) x_rows: Rows,
    pub(super) out: [GpuBuffer; 2],
    pub(super) w: [GpuMatrix; 2],
}

impl Pair {
    /// Whether two products may wait.
    pub(super) fn may_wait(
        gpu: &Gpu,
        x_rows: Rows,
        w: [&GpuMatrix; 2],
        epilogues: [GpuEpilogue<'_>; 2],
    ) -> bool {
        is_pair(gpu, w[0], w[1], x_rows.rows) && epilogues.iter().all(GpuEpilogue::is_plain)
    }

    fn x(&self) -> GpuRows<'_> {
        super::part(&self.x, self.x_rows)
    }

    fn record(&self, gpu: &Gpu) {
        let products = self.out.iter().zip(&self.w).map(|(out, w)| (out, w, GpuEpilogue::PLAIN));
        matmul_all(gpu, self.x(), self.norm.as_ref().map(Norm::args), products);
    }

    /// Whether `gate` and `up` are what the products give.
    fn gives(&self, gate: GpuRows<'_>, up: GpuRows<'_>) -> bool {
        let shape = [self.x_rows.rows, self.w[0].n()];
        [gate, up].into_iter().zip(&self.out).all(|(rows, out)| {
            let is_packed = rows.offset == 0 && (rows.stride == rows.cols || rows.rows == 1);
            rows.buffer.is(out) && is_packed && [rows.rows, rows.cols] == shape
        })
    }
}

/// Norm and rotation of heads, with buffers of its own.
#[derive(Debug, Clone)]
pub(super) struct Rotation {
    x: GpuBuffer,
    rows: Rows,
    head_dim: usize,
    norm: Option<(GpuBuffer, f32)>,
    rotation: Option<(GpuBuffer, usize, RopePairs)>,
}

impl Rotation {
    pub(super) fn new(x: GpuRows<'_>, args: rope::Rope<'_>) -> Self {
        let GpuRows { buffer, offset, rows, cols, stride } = x;
        Self {
            x: buffer.clone(),
            rows: Rows { offset, rows, cols, stride },
            head_dim: args.head_dim,
            norm: args.norm.map(|(weight, eps)| (weight.clone(), eps)),
            rotation: args.rotation.map(|(angles, n, pairs)| (angles.clone(), n, pairs)),
        }
    }

    /// Whether it may wait.
    pub(super) fn may_wait(&self) -> bool {
        self.rows.rows <= MAX_GEMV_ROWS
    }

    fn args(&self) -> (GpuRows<'_>, rope::Rope<'_>) {
        let norm = self.norm.as_ref().map(|(weight, eps)| (weight, *eps));
        let rotation = self.rotation.as_ref().map(|(angles, n, pairs)| (angles, *n, *pairs));
        (super::part(&self.x, self.rows), rope::Rope { head_dim: self.head_dim, norm, rotation })
    }

    fn record(&self, gpu: &Gpu) {
        let (x, args) = self.args();
        rope::rope(gpu, x, args);
    }
}

#[derive(Debug, Default)]
enum Waiting {
    #[default]
    Nothing,
    Norm(Norm),
    Products(Pair),
    /// Of queries.
    Rotation(Rotation),
    /// Of queries and of keys.
    Rotations([Rotation; 2]),
}

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    waiting: Mutex<Waiting>,
}

impl Deferred {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Waiting {
        std::mem::take(&mut *self.lock())
    }

    /// Records what waits.
    pub(super) fn settle(&self, gpu: &Gpu) {
        Self::record(gpu, self.take());
    }

    fn record(gpu: &Gpu, waiting: Waiting) {
        match waiting {
            Waiting::Nothing => {}
            Waiting::Norm(norm) => norm.args().record(gpu, &norm.out),
            Waiting::Products(pair) => pair.record(gpu),
            Waiting::Rotation(rotation) => rotation.record(gpu),
            Waiting::Rotations(both) => both.iter().for_each(|rotation| rotation.record(gpu)),
        }
    }

    /// Has a norm wait, after what waited was recorded.
    pub(super) fn put_norm(&self, gpu: &Gpu, norm: Norm) {
        self.settle(gpu);
        *self.lock() = Waiting::Norm(norm);
    }

    /// The norm that waits and gives `x`; anything else that waits is recorded.
    pub(super) fn take_norm(&self, gpu: &Gpu, x: GpuRows<'_>) -> Option<Norm> {
        match self.take() {
            Waiting::Norm(norm) if norm.gives(x) => Some(norm),
            other => {
                Self::record(gpu, other);
                None
            }
        }
    }

    /// Has products wait, after what waited was recorded.
    pub(super) fn put_pair(&self, pair: Pair) {
        *self.lock() = Waiting::Products(pair);
    }

    /// Has a rotation wait, beside the one that does already if it is another buffer's.
    pub(super) fn put_rotation(&self, gpu: &Gpu, rotation: Rotation) {
        let next = match self.take() {
            Waiting::Rotation(first) if !first.x.is(&rotation.x) => {
                Waiting::Rotations([first, rotation])
            }
            other => {
                Self::record(gpu, other);
                Waiting::Rotation(rotation)
            }
        };
        *self.lock() = next;
    }

    /// Records the products that wait together with their gated activation; returns whether they did wait.
    pub(super) fn gate(
        &self,
        gpu: &Gpu,
        out: &GpuBuffer,
        (gate, up): (GpuRows<'_>, GpuRows<'_>),
        activation: GatedActivation,
    ) -> bool {
        match self.take() {
            Waiting::Products(pair) if pair.gives(gate, up) => {
                let to = GatedOutput { gate: &pair.out[0], up: &pair.out[1], out };
                let input = (pair.x(), pair.norm.as_ref().map(Norm::args));
                gated_product(gpu, to, input, [&pair.w[0], &pair.w[1]], activation);
                true
            }
            other => {
                Self::record(gpu, other);
                false
            }
        }
    }

    /// Records the rotations that wait together with the storing of keys and values; returns whether they
    /// did wait.
    pub(super) fn store(
        &self,
        gpu: &Gpu,
        pool: &GpuKvPool,
        (k, v): (GpuRows<'_>, GpuRows<'_>),
        rows: &[KvRow],
    ) -> bool {
        match self.take() {
            Waiting::Rotations([of_q, of_k])
                if of_k.x.is(k.buffer)
                    && of_k.rows
                        == Rows {
                            offset: k.offset,
                            rows: k.rows,
                            cols: k.cols,
                            stride: k.stride,
                        }
                    && of_q.rows.rows == k.rows
                    && of_q.args().1.is_like(&of_k.args().1)
                    && !v.buffer.is(&of_q.x)
                    && !v.buffer.is(&of_k.x) =>
            {
                rope::rope_and_write(gpu, of_q.args(), of_k.args(), v, (pool, rows));
                true
            }
            other => {
                Self::record(gpu, other);
                false
            }
        }
    }
}
