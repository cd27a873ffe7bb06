//! 8-bit dot products of row kernels: the instructions that do not generalise over instruction sets.

mod i8dot;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
use stonechat_compute::{Isa, simd::Avx2};

pub use i8dot::I8Dot;

/// The AVX2 token of any tier that has one.
#[cfg(target_arch = "x86_64")]
pub(crate) fn avx2(isa: Isa) -> Option<Avx2> {
    Some(match isa {
        Isa::Scalar(_) => return None,
        Isa::Avx2(token) => token,
        Isa::AvxVnni(token) => token.avx2(),
        Isa::Avx512(token) => token.avx2(),
        Isa::Avx512Vnni(token) => token.avx512().avx2(),
        Isa::Avx512Bf16(token) => token.vnni().avx512().avx2(),
        Isa::Amx(token) => token.vectors().avx512().avx2(),
    })
}
