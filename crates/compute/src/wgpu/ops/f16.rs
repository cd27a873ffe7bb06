//! Operands in f16, for GEMM by cooperative matrices. Values beyond the largest f16 are clamped to it.

use super::operand::ConvertParams;
use super::{KernelSpec, OperandWriter};
use crate::wgpu::{Access, KernelParams, WORKGROUP};

/// WGSL of `pack_f16x4`.
pub const PACK: &str = include_str!("pack_f16.wgsl");

/// Eight values an invocation.
pub(super) const SPEC: KernelSpec = KernelSpec {
    name: "convert_f16",
    params: ConvertParams::LAYOUT,
    access: &[Access::Read, Access::Write],
    workgroup: WORKGROUP,
    files: &[PACK, include_str!("convert_f16.wgsl")],
    operand_writer: OperandWriter::None,
};
