//! The copy that kernels leave beside what they write, for the products that read it.

use super::{GpuRows, halves, quantize};
use crate::Result;
use crate::wgpu::{Gpu, GpuBuffer, Source, TwinKind, Variant};

/// A copy of an output.
#[derive(Debug)]
pub(super) struct Twin {
    kind: TwinKind,
    pub(super) buffer: GpuBuffer,
}

impl Twin {
    /// What products want beside `rows × cols` values of `out`: f16 of many rows, 8 bits of few.
    pub(super) fn wanted(out: &GpuBuffer, rows: usize, cols: usize) -> Option<Self> {
        let halves = halves::wanted(out, rows, cols);
        halves.map(|buffer| Self { kind: TwinKind::Halves, buffer }).or_else(|| {
            let codes = quantize::wanted(out, rows, cols)?;
            Some(Self { kind: TwinKind::Codes, buffer: codes })
        })
    }

    /// How `twin4.wgsl` calls it.
    pub(super) fn code(twin: Option<&Self>) -> u32 {
        match twin.map(|twin| twin.kind) {
            None => 0,
            Some(TwinKind::Codes) => 1,
            Some(TwinKind::Halves) => 2,
        }
    }

    /// Notes that it holds `rows × cols` values of `out`, once the dispatch of them is recorded.
    pub(super) fn written(&self, out: &GpuBuffer, rows: usize, cols: usize) {
        out.set_twin(self.kind, [rows, cols]);
    }
}

/// Where a copy of `x` of some bytes and shape goes, beside its buffer if that holds nothing else, and whether it is
/// there already.
///
/// # Errors
/// If there is no room for it.
pub(super) fn place(
    gpu: &Gpu,
    kind: TwinKind,
    x: GpuRows<'_>,
    (bytes, shape): (usize, [usize; 2]),
) -> Result<(GpuBuffer, bool)> {
    if x.is_packed() {
        return x.buffer.twin_for(gpu, kind, bytes, shape);
    }
    let name = match kind {
        TwinKind::Codes => "quantized",
        TwinKind::Halves => "halves",
    };
    Ok((gpu.scratch(name, bytes)?, false))
}

/// Appends `leave4`, which kernels write a copy with.
pub(super) fn writer(source: Source, variant: Variant) -> Source {
    let source = quantize::writer(source, variant).file(halves::VALUES);
    source.file(include_str!("twin4.wgsl"))
}
