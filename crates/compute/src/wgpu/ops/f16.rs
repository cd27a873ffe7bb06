//! Operands in f16, for GEMM by cooperative matrices. Values beyond the largest f16 are clamped to it.

/// WGSL of `pack_f16x4`.
pub const PACK: &str = include_str!("pack_f16.wgsl");
