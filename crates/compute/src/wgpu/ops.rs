//! Dense kernels: a `.rs` file checks shapes and records the dispatch, a `.wgsl` file of the same stem computes.
//!
//! A kernel's WGSL defines `kernel_main(group, groups, lid)`: workgroup id, number of workgroups, index of the
//! invocation. [`kernel_source`] prepends the entry point and the workgroup reductions of the [`Variant`].

pub mod attention;
mod attention_decode;
mod attention_prefill;
pub mod copy;
pub mod elementwise;
pub mod f16;
pub mod gated;
pub mod kv;
pub mod log_sum_exp;
pub mod moe;
pub mod norm;
pub mod operand;
pub mod q8;
pub mod rope;
pub mod top_k;

use std::sync::Arc;

use super::{Access, CoopMatrices, Gpu, GpuBuffer, Kernel, ParamLayout, Source, Variant};
use crate::cpu::Activation;

/// Strided view of `[rows, cols]` f32 values: row `r` starts at value `offset + r * stride`.
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
    /// Values between the starts of two rows.
    pub stride: usize,
}

impl<'a> GpuRows<'a> {
    /// Packed `[rows, cols]` values at the start of `buffer`.
    #[must_use]
    pub fn packed(buffer: &'a GpuBuffer, rows: usize, cols: usize) -> Self {
        Self { buffer, offset: 0, rows, cols, stride: cols }
    }

    /// Asserts that the rows are inside the buffer.
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

/// Asserts that `buffer` has room for `len` f32 values.
///
/// # Panics
/// If it is smaller.
#[track_caller]
pub fn check_len(what: &str, buffer: &GpuBuffer, len: usize) {
    assert!(4 * len <= buffer.bytes(), "{what}: {} bytes for {len} values", buffer.bytes());
}

/// Begins a kernel: constant `WG` (invocations in a workgroup), entry point and reductions. The kernel's files follow.
#[must_use]
pub fn kernel_source(
    name: String,
    params: ParamLayout,
    access: &'static [Access],
    variant: Variant,
    workgroup: u32,
) -> Source {
    let source = Source::new(name, params, access);
    let (source, entry) = match variant {
        Variant::Portable => (source, include_str!("ops/entry.portable.wgsl")),
        Variant::Subgroups => (source.with_subgroups(), include_str!("ops/entry.subgroups.wgsl")),
    };
    source.constant("WG", workgroup).file(entry)
}

/// WGSL of `exp`, `tanh`, `erf` and of `activate`, for epilogues.
pub const ACTIVATIONS: &str = include_str!("ops/activation.wgsl");

/// Code of an activation, equal to the `ACTIVATION_*` constants of `activation.wgsl`.
#[must_use]
pub fn activation_code(activation: Activation) -> u32 {
    match activation {
        Activation::None => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
    }
}

/// Kernel without compile-time constants of its own.
#[derive(Debug, Clone, Copy)]
struct KernelSpec {
    name: &'static str,
    params: ParamLayout,
    access: &'static [Access],
    workgroup: u32,
    files: &'static [&'static str],
    operand_writer: OperandWriter,
}

/// Function with which a kernel writes an operand, to the binding `out_operand`.
#[derive(Debug, Clone, Copy)]
enum OperandWriter {
    None,
    /// `quantize4`: q8.
    Q8,
    /// `write_operand4`: the format of a parameter.
    Any,
}

impl KernelSpec {
    fn source(&self, variant: Variant) -> Source {
        let name = format!("{}-{}", self.name, variant.name());
        let source = kernel_source(name, self.params, self.access, variant, self.workgroup);
        let source = match self.operand_writer {
            OperandWriter::None => source,
            OperandWriter::Q8 => q8::with_quantize4(source, variant),
            OperandWriter::Any => operand::with_write_operand4(source, variant),
        };
        self.files.iter().fold(source, |source, file| source.file(file))
    }

    fn kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        gpu.kernel((self.name, [0; 4]), || self.source(gpu.variant()))
    }
}

/// Every shader of this crate for `variant` but those with cooperative matrices, for tests.
#[must_use]
pub fn sources(variant: Variant) -> Vec<Source> {
    let specs = [
        elementwise::SPEC,
        copy::SPEC,
        copy::GATHER,
        rope::SPEC,
        gated::SPEC,
        log_sum_exp::SPEC,
        moe::ROUTE,
        moe::COMBINE,
        q8::SPEC,
        f16::SPEC,
        attention::MERGE,
    ];
    let mut all: Vec<_> = specs.iter().map(|spec| spec.source(variant)).collect();
    all.push(copy::im2col_source(variant));
    all.extend(norm::sources(variant));
    all.extend(kv::sources(variant));
    all.extend(rope::sources(variant));
    all.extend(attention::sources(variant));
    all.extend(attention_decode::sources(variant));
    all.push(top_k::source(variant));
    all
}

/// Every shader of this crate with cooperative matrices, for tests.
#[must_use]
pub fn coop_sources(matrices: CoopMatrices) -> Vec<Source> {
    attention_prefill::sources(matrices)
}
