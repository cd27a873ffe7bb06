//! The dense kernels: one `.rs` file that checks shapes and records, one `.wgsl` file that computes.
//!
//! A kernel file has a function `run`; [`start`] puts the entry point and the sums over a workgroup of the
//! device's [`Variant`] around it.

pub mod attention;
mod attention_blocks;
mod attention_few;
pub mod copy;
pub mod gated;
pub mod halves;
pub mod kv;
pub mod moe;
pub mod norm;
pub mod quantize;
pub mod rope;
pub mod top_k;
mod twin;

use std::sync::Arc;

use super::{Access, Gpu, GpuBuffer, Kernel, Matrices, Source, Variant};
use crate::cpu::Activation;

/// `rows × cols` f32 values of a buffer: row `r` starts at value `offset + r * stride`.
#[derive(Debug, Clone, Copy)]
pub struct GpuRows<'a> {
    /// The buffer.
    pub buffer: &'a GpuBuffer,
    /// Index of the first value.
    pub offset: usize,
    /// Number of rows.
    pub rows: usize,
    /// Values in a row.
    pub cols: usize,
    /// Distance between the starts of two rows.
    pub stride: usize,
}

impl<'a> GpuRows<'a> {
    /// `rows × cols` values packed from the start of `buffer`.
    #[must_use]
    pub fn packed(buffer: &'a GpuBuffer, rows: usize, cols: usize) -> Self {
        Self { buffer, offset: 0, rows, cols, stride: cols }
    }

    /// Whether one row follows the other from the start of the buffer.
    #[must_use]
    pub fn is_packed(self) -> bool {
        self.offset == 0 && (self.stride == self.cols || self.rows <= 1)
    }

    /// Checks that the rows are inside the buffer.
    ///
    /// # Panics
    /// If they are not.
    #[must_use]
    #[track_caller]
    pub fn checked(self) -> Self {
        let end = if self.rows == 0 {
            0
        } else {
            self.offset + (self.rows - 1) * self.stride + self.cols
        };
        assert!(
            4 * end <= self.buffer.bytes(),
            "rows end at {end} of {} bytes",
            self.buffer.bytes()
        );
        self
    }
}

/// Panics unless `buffer` holds `len` f32 values.
///
/// # Panics
/// If it is smaller.
#[track_caller]
pub fn check_len(what: &str, buffer: &GpuBuffer, len: usize) {
    assert!(4 * len <= buffer.bytes(), "{what}: {} bytes for {len} values", buffer.bytes());
}

/// The start of a kernel of a workgroup of `workgroup` invocations, up to what its own files need.
#[must_use]
pub fn start(name: String, access: &'static [Access], variant: Variant, workgroup: u32) -> Source {
    let source = Source::new(name, access);
    let (source, entry) = match variant {
        Variant::Portable => (source, include_str!("ops/entry.portable.wgsl")),
        Variant::Subgroups => (source.with_subgroups(), include_str!("ops/entry.subgroups.wgsl")),
    };
    source.constant("WG", workgroup).file(entry)
}

/// The functions of activations, for epilogues.
pub const ACTIVATIONS: &str = include_str!("ops/activation.wgsl");

/// How `activation.wgsl` calls an activation.
#[must_use]
pub fn activation_code(activation: Activation) -> u32 {
    match activation {
        Activation::None => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
    }
}

/// A kernel that has no variants beyond those of the device.
#[derive(Debug, Clone, Copy)]
struct Spec {
    name: &'static str,
    access: &'static [Access],
    workgroup: u32,
    files: &'static [&'static str],
    beside: Beside,
}

/// What a kernel writes beside its output, to a buffer `twin`.
#[derive(Debug, Clone, Copy)]
enum Beside {
    Nothing,
    /// 8 bits, with `quantize4`.
    Codes,
    /// What is wanted, with `leave4`.
    Twin,
}

impl Spec {
    fn source(&self, variant: Variant) -> Source {
        let name = format!("{}-{}", self.name, variant.name());
        let source = start(name, self.access, variant, self.workgroup);
        let source = match self.beside {
            Beside::Nothing => source,
            Beside::Codes => quantize::writer(source, variant),
            Beside::Twin => twin::writer(source, variant),
        };
        self.files.iter().fold(source, |source, file| source.file(file))
    }

    fn kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        gpu.kernel((self.name, [0; 4]), || self.source(gpu.variant()))
    }
}

/// Every shader of this crate for `variant`, for tests.
#[must_use]
pub fn sources(variant: Variant) -> Vec<Source> {
    let specs = [
        copy::SPEC,
        rope::SPEC,
        gated::SPEC,
        moe::ROUTE,
        moe::COMBINE,
        quantize::SPEC,
        attention::MERGE,
    ];
    let mut all: Vec<_> = specs.iter().map(|spec| spec.source(variant)).collect();
    all.push(copy::im2col_source(variant));
    all.extend(norm::sources(variant));
    all.push(halves::source(variant));
    all.extend(kv::sources(variant));
    all.extend(rope::sources(variant));
    all.extend(attention::sources(variant));
    all.extend(attention_few::sources(variant));
    all.push(top_k::source(variant));
    all
}

/// Every shader of this crate that uses `matrices`, for tests.
#[must_use]
pub fn matrix_sources(matrices: Matrices) -> Vec<Source> {
    attention_blocks::sources(matrices)
}
