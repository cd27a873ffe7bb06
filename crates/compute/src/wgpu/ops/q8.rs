//! Operands in q8, for GEMV: int8 with one f32 scale per group of 32, as the CPU quantizes them.
//!
//! ```text
//! row    = quants | headers                       padded to 16 bytes
//! quants = i8 x cols
//! header = scale (f32) | sum of quants 0..16 (i16) | sum of quants 16..32 (i16)     one per group
//! ```
//!
//! The sums multiply the offsets (mins) of weight formats.

use crate::wgpu::{Source, Variant};

/// Values that share a scale.
pub const GROUP_LEN: usize = 32;
/// Invocations in a workgroup, each with four values of a row.
pub(super) const WORKGROUP: u32 = 256;

/// WGSL functions that quantize values.
pub const PACK: &str = include_str!("pack_q8.wgsl");

/// Appends [`PACK`] and `quantize4`, with which kernels write a q8 operand.
#[must_use]
pub fn with_quantize4(source: Source, variant: Variant) -> Source {
    let source = source.file(PACK).file(include_str!("store_q8.wgsl"));
    source.file(match variant {
        Variant::Portable => include_str!("quantize4.portable.wgsl"),
        Variant::Subgroups => include_str!("quantize4.subgroups.wgsl"),
    })
}

/// Row length in vectors of 16 bytes, for `cols` values.
#[must_use]
pub fn row_vectors(cols: usize) -> usize {
    let n_groups = cols.div_ceil(GROUP_LEN);
    2 * n_groups + n_groups.div_ceil(2)
}
