//! Ops that wait for the one after them, since both together are one kernel.
//!
//! A model asks for the products of a gate and of what it lets through, then for the gated activation. For few
//! rows that is one pass over both matrices. So the products wait until the next op: if it is the activation,
//! both become one kernel, which still writes what each product gives; any other op first records them
//! as they are.

use std::sync::{Mutex, MutexGuard, PoisonError};

use stonechat_compute::cpu::GatedActivation;
use stonechat_compute::wgpu::ops::GpuRows;
use stonechat_compute::wgpu::{Gpu, GpuBuffer};
use stonechat_quant::wgpu::{GatedOutput, GpuEpilogue, GpuMatrix, gated_product, is_pair, matmul};

use crate::Rows;

/// The products of a gate and of what it lets through.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) x: GpuBuffer,
    pub(super) x_rows: Rows,
    pub(super) out: [GpuBuffer; 2],
    pub(super) w: [GpuMatrix; 2],
}

impl Pair {
    fn x(&self) -> GpuRows<'_> {
        super::part(&self.x, self.x_rows)
    }

    /// Whether these two products, without anything after them, may wait.
    pub(super) fn may_wait(
        x_rows: Rows,
        w: [&GpuMatrix; 2],
        epilogues: [GpuEpilogue<'_>; 2],
    ) -> bool {
        let is_plain = |e: GpuEpilogue<'_>| e.is_plain();
        is_pair(w[0], w[1], x_rows.rows) && epilogues.into_iter().all(is_plain)
    }

    fn record(&self, gpu: &Gpu) {
        for (out, w) in self.out.iter().zip(&self.w) {
            matmul(gpu, out, self.x(), w, GpuEpilogue::PLAIN);
        }
    }
}

/// At most one pair that waits.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    pair: Mutex<Option<Pair>>,
}

impl Deferred {
    fn lock(&self) -> MutexGuard<'_, Option<Pair>> {
        self.pair.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a pair wait; nothing waits before.
    pub(super) fn put(&self, pair: Pair) {
        *self.lock() = Some(pair);
    }

    /// Records what waits.
    pub(super) fn settle(&self, gpu: &Gpu) {
        let pair = self.lock().take();
        if let Some(pair) = pair {
            pair.record(gpu);
        }
    }

    /// Records the pair that waits together with its gated activation, if `gate` and `up` are what it gives;
    /// returns whether that was so.
    pub(super) fn gate(
        &self,
        gpu: &Gpu,
        out: &GpuBuffer,
        (gate, up): (GpuRows<'_>, GpuRows<'_>),
        activation: GatedActivation,
    ) -> bool {
        let Some(pair) = self.lock().take() else { return false };
        let shape = [pair.x_rows.rows, pair.w[0].n()];
        let is_whole = |rows: GpuRows<'_>, buffer: &GpuBuffer| {
            let is_packed = rows.offset == 0 && (rows.stride == rows.cols || rows.rows == 1);
            rows.buffer.is(buffer) && is_packed && [rows.rows, rows.cols] == shape
        };
        if !is_whole(gate, &pair.out[0]) || !is_whole(up, &pair.out[1]) {
            pair.record(gpu);
            return false;
        }
        let to = GatedOutput { gate: &pair.out[0], up: &pair.out[1], out };
        gated_product(gpu, to, pair.x(), [&pair.w[0], &pair.w[1]], activation);
        true
    }
}
