//! SIMD: instruction-set tiers, their tokens and detection, and dispatch to kernels generic over the token.
//!
//! An f32 kernel is a [`Kernel`], generic over [`Simd`], a kernel of 8-bit integers an [`Int8Kernel`], generic over [`Int8`].
//! [`Isa::dispatch`] and [`Isa::dispatch_int8`] run them with the token of a tier. A tier is a row of `isa_tiers!` and a
//! file with its token, [`Simd`] and [`Int8`].
//!
//! WebAssembly has no detection at run time, since a module with unknown instructions does not load: a program for it has
//! one tier, that of its target features.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512bf16;
#[cfg(target_arch = "x86_64")]
mod avx512vnni;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
mod int8;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neondot;
#[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
mod relaxed;
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
mod scalar;
#[cfg(all(
    target_arch = "wasm32",
    target_feature = "simd128",
    not(target_feature = "relaxed-simd")
))]
mod simd128;
#[cfg(target_arch = "x86_64")]
mod sse42;
mod token;
mod vector;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm;

use std::fmt;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
pub use amx::{Tile, TileSums, Tiles};
pub use int8::{Int8, RowInt8};
pub use pulp::NullaryFnOnce;
pub use token::Token;
pub(crate) use vector::transposed;
pub use vector::{F32, Simd, U32};

use crate::aligned::CACHE_LINE;
use crate::config;
use crate::error::{Error, Result};

/// Declares [`Isa`] from one row per tier.
///
/// | column | holds |
/// |---|---|
/// | `$Token in $module` | the tier's token, which is the value of its variant, and its file |
/// | `$name` | value of `STONECHAT_ISA` |
/// | `found` | the token, if the CPU has the tier |
/// | `f32` | token of f32 kernels, from the tier's token |
/// | `int8` | token of integer kernels; tiers without a dot product of their own share one, as do the kernels |
/// | `bf16`, `tiles` | tokens of extensions of x86-64 |
macro_rules! isa_tiers {
    ($($(#[doc = $doc:literal])+ $(#[cfg($cfg:meta)])? $Token:ident in $module:ident, $name:expr; {
        found: $found:expr,
        |$token:ident| f32: $f32:expr, int8: $int8:expr, bf16: $bf16:expr, tiles: $tiles:expr
    })+) => {
        $($(#[cfg($cfg)])? pub use $module::$Token;)+

        /// Instruction-set tier, with the token that proves that this CPU has it.
        ///
        /// Variants are in rising order. A later tier includes the earlier ones, except for the 8-bit dot product of
        /// AVX-VNNI, which CPUs with AVX-512 may lack.
        #[derive(Clone, Copy, Debug)]
        pub enum Isa {
            $($(#[doc = $doc])+ $(#[cfg($cfg)])? $Token($Token),)+
        }

        impl Isa {
            /// Names of all tiers of this architecture, in rising order: the values of `STONECHAT_ISA`.
            pub const NAMES: &'static [&'static str] = &[$($(#[cfg($cfg)])? $name),+];

            /// Name of the tier, one of [`NAMES`](Self::NAMES).
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($(#[cfg($cfg)])? Self::$Token(_) => $name,)+
                }
            }

            /// All tiers of this CPU, in rising order, regardless of `STONECHAT_ISA`.
            #[must_use]
            pub fn available() -> Vec<Self> {
                let mut tiers = Vec::new();
                $($(#[cfg($cfg)])? tiers.extend($found.map(Self::$Token));)+
                tiers
            }

            /// Runs `kernel` in the feature context of the tier's vectors. Tiers that differ only in 8-bit or bf16
            /// products share a token, so that kernels are compiled once per vector width.
            pub fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
                match self {
                    $($(#[cfg($cfg)])? Self::$Token($token) => {
                        let token = $f32;
                        token.vectorize(InContext(kernel, token))
                    })+
                }
            }

            /// Runs `kernel` with the token of the tier's integer kernels, *outside* its feature context: kernels enter it
            /// with [`Token::vectorize`].
            pub fn dispatch_int8<K: Int8Kernel>(self, kernel: K) -> K::Output {
                match self {
                    $($(#[cfg($cfg)])? Self::$Token($token) => kernel.run($int8),)+
                }
            }

            /// The token of bf16 dot products, on tiers where they are faster than f32.
            #[cfg(target_arch = "x86_64")]
            pub(crate) fn bf16(self) -> Option<Avx512Bf16> {
                match self {
                    $($(#[cfg($cfg)])? Self::$Token($token) => { let _ = $token; $bf16 })+
                }
            }

            /// The token of bf16 matrix tiles, on tiers that have them.
            #[cfg(target_arch = "x86_64")]
            #[must_use]
            pub fn tiles(self) -> Option<Amx> {
                match self {
                    $($(#[cfg($cfg)])? Self::$Token($token) => { let _ = $token; $tiles })+
                }
            }
        }
    };
}

isa_tiers! {
    /// Plain Rust.
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    Scalar in scalar, "scalar"; {
        found: Scalar::try_new(),
        |t| f32: t, int8: t, bf16: None, tiles: None
    }
    /// SSE4.2.
    #[cfg(target_arch = "x86_64")]
    Sse42 in sse42, "sse42"; {
        found: Sse42::try_new(),
        |t| f32: t, int8: t, bf16: None, tiles: None
    }
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2 in avx2, "avx2"; {
        found: Avx2::try_new(),
        |t| f32: t, int8: t, bf16: None, tiles: None
    }
    /// AVX2 with AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni in avxvnni, "avxvnni"; {
        found: AvxVnni::try_new(),
        |t| f32: t.avx2(), int8: t, bf16: None, tiles: None
    }
    /// AVX-512 F, BW, CD, DQ, VL.
    #[cfg(target_arch = "x86_64")]
    Avx512 in avx512, "avx512"; {
        found: Avx512::try_new(),
        |t| f32: t, int8: t.avx2(), bf16: None, tiles: None
    }
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni in avx512vnni, "avx512vnni"; {
        found: Avx512Vnni::try_new(),
        |t| f32: t.avx512(), int8: t, bf16: None, tiles: None
    }
    /// AVX-512 with VNNI and BF16, on CPUs where bf16 dot products are faster than f32 ones.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16 in avx512bf16, "avx512bf16"; {
        found: Avx512Bf16::try_fast(),
        |t| f32: t.avx512(), int8: t.vnni(), bf16: Some(t), tiles: None
    }
    /// AVX-512 with VNNI, and AMX tiles with bf16 products.
    #[cfg(target_arch = "x86_64")]
    Amx in amx, Amx::NAME; {
        found: Amx::try_new(),
        |t| f32: t.vectors().avx512(), int8: t.vectors(), bf16: Some(t.bf16()), tiles: Some(t)
    }
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon in neon, "neon"; {
        found: Neon::try_new(),
        |t| f32: t, int8: t, bf16: None, tiles: None
    }
    /// NEON with `dotprod`.
    #[cfg(target_arch = "aarch64")]
    NeonDot in neondot, "neondot"; {
        found: NeonDot::try_new(),
        |t| f32: t.neon(), int8: t, bf16: None, tiles: None
    }
    /// WebAssembly `simd128`.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128", not(target_feature = "relaxed-simd")))]
    WasmSimd128 in simd128, "simd128"; {
        found: WasmSimd128::try_new(),
        |t| f32: t, int8: t, bf16: None, tiles: None
    }
    /// WebAssembly `simd128` and `relaxed-simd`. Sums of f32 products depend on whether the machine fuses
    /// multiplication and addition; integer products do not depend on it.
    #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
    WasmRelaxed in relaxed, "relaxed"; {
        found: WasmRelaxed::try_new(),
        |t| f32: t, int8: t, bf16: None, tiles: None
    }
}

/// CPUID family of AMD's Zen 5.
#[cfg(target_arch = "x86_64")]
const ZEN5_FAMILY: u32 = 0x1a;

/// Prefetches the cache line at `p` to L2, which has more outstanding misses than L1. No-op on targets without the hint.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    prefetch_to::<2, T>(p);
}

/// Calls [`prefetch`] for each line of `len` values from `p`.
#[inline(always)]
pub(crate) fn prefetch_span<T>(p: *const T, len: usize) {
    for at in (0..len * size_of::<T>()).step_by(CACHE_LINE) {
        prefetch(p.wrapping_byte_add(at));
    }
}

/// Prefetches the cache line at `p` to L1, for single streams: faster than [`prefetch`] on Zen 5.
#[inline(always)]
pub fn prefetch_line<T>(p: *const T) {
    prefetch_to::<1, T>(p);
}

#[inline(always)]
fn prefetch_to<const LEVEL: usize, T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch hint neither reads nor faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match LEVEL {
            1 => _mm_prefetch::<_MM_HINT_T0>(p.cast()),
            _ => _mm_prefetch::<_MM_HINT_T1>(p.cast()),
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch hint neither reads nor faults.
    unsafe {
        use std::arch::asm;
        match LEVEL {
            1 => {
                asm!("prfm pldl1keep, [{0}]", in(reg) p, options(nostack, preserves_flags, readonly))
            }
            _ => {
                asm!("prfm pldl2keep, [{0}]", in(reg) p, options(nostack, preserves_flags, readonly))
            }
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// CPUID family of an AMD processor, `None` for other vendors. Cached, since `cpuid` traps in virtual machines.
#[cfg(target_arch = "x86_64")]
fn amd_family() -> Option<u32> {
    use std::arch::x86_64::__cpuid;

    static FAMILY: OnceLock<Option<u32>> = OnceLock::new();
    *FAMILY.get_or_init(|| {
        let vendor = __cpuid(0);
        let vendor = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        // The base family is 15 on all AMD processors since 2003; the extended family is added to it.
        let family = 15 + (__cpuid(1).eax >> 20 & 0xff);
        (vendor.as_flattened() == b"AuthenticAMD").then_some(family)
    })
}

/// Whether the hardware prefetcher covers sequential streams, so that a [`prefetch_line`] of each line only competes for
/// its miss buffers: AMD before Zen 5. Zen 5 and Intel's Sapphire Rapids stream faster with software prefetch.
#[must_use]
pub fn reads_ahead() -> bool {
    #[cfg(target_arch = "x86_64")]
    return amd_family().is_some_and(|family| family < ZEN5_FAMILY);
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Kernel generic over the SIMD token.
pub trait Kernel {
    /// Result of the kernel.
    type Output;

    /// Runs the kernel. Must be `#[inline(always)]`, as must every function that it calls in a hot loop.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Kernel of 8-bit integers, generic over the token.
pub trait Int8Kernel {
    /// Result of the kernel.
    type Output;

    /// Runs the kernel, outside the token's feature context.
    fn run<S: Int8>(self, simd: S) -> Self::Output;
}

/// Kernel and token, to call in the feature context of the token.
struct InContext<K, S>(K, S);

impl<K: Kernel, S: Simd> NullaryFnOnce for InContext<K, S> {
    type Output = K::Output;

    #[inline(always)]
    fn call(self) -> K::Output {
        self.0.run(self.1)
    }
}

/// Kernel without explicit SIMD, for auto-vectorization.
struct Plain<F>(F);

impl<F: NullaryFnOnce> Kernel for Plain<F> {
    type Output = F::Output;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> F::Output {
        self.0.call()
    }
}

impl Isa {
    /// Best tier of this CPU that is not above the one named by the environment variable `STONECHAT_ISA`, if that is
    /// set. Detected once.
    ///
    /// # Errors
    /// [`Error::Config`] if the variable names no tier of this architecture.
    pub fn best() -> Result<Self> {
        static BEST: OnceLock<Result<Isa>> = OnceLock::new();
        BEST.get_or_init(|| match config::isa_limit() {
            Some(limit) => Self::limited_to(&limit),
            None => Ok(Self::fastest()),
        })
        .clone()
    }

    /// The lowest tier, which every CPU has that runs this program: plain Rust, or the one of the WebAssembly module.
    #[must_use]
    pub fn lowest() -> Self {
        Self::available().swap_remove(0)
    }

    /// Runs `f`, code without explicit SIMD, in the same context, where the compiler may vectorize it.
    pub fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
        self.dispatch(Plain(f))
    }

    fn fastest() -> Self {
        Self::available().pop().unwrap_or_else(Self::lowest)
    }

    fn limited_to(limit: &str) -> Result<Self> {
        let limit_name = limit.to_ascii_lowercase();
        let Some(rank) = rank(&limit_name) else {
            return Err(Error::Config {
                name: config::ISA_VARIABLE,
                expected: Self::NAMES.join("|"),
                got: limit.to_owned(),
            });
        };
        let best =
            Self::available().into_iter().rfind(|tier| self::rank(tier.name()) <= Some(rank));
        Ok(best.unwrap_or_else(Self::lowest))
    }
}

/// Index of a name in [`Isa::NAMES`].
fn rank(name: &str) -> Option<usize> {
    Isa::NAMES.iter().position(|&tier| tier == name)
}

impl PartialEq for Isa {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Isa {}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::{Isa, Kernel, Simd};
    use crate::error::Error;

    #[test]
    fn a_limit_lowers_and_never_raises() {
        let tiers = Isa::available();
        assert_eq!((tiers[0], tiers[0].name()), (Isa::lowest(), Isa::NAMES[0]));
        assert_eq!(Isa::limited_to(Isa::NAMES[0]), Ok(tiers[0]));
        for &tier in &tiers {
            assert_eq!(Isa::limited_to(&tier.name().to_uppercase()), Ok(tier));
        }
        let top = Isa::NAMES.last().unwrap();
        assert_eq!(Isa::limited_to(top), Ok(*tiers.last().unwrap()));
    }

    #[test]
    fn an_unknown_limit_is_an_error() {
        let error = Isa::limited_to("avx9000").unwrap_err();
        let Error::Config { name, got, .. } = &error else { panic!("{error}") };
        assert_eq!((*name, got.as_str()), ("STONECHAT_ISA", "avx9000"));
    }

    struct Sum<'a>(&'a [f32]);

    impl Kernel for Sum<'_> {
        type Output = (usize, f32);

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> (usize, f32) {
            let (head, tail) = simd.split(self.0);
            let mut sum = simd.splat(0.0);
            for &v in head {
                sum = simd.add(sum, v);
            }
            (S::LANES, simd.reduce_sum(sum) + tail.iter().sum::<f32>())
        }
    }

    #[test]
    fn every_tier_runs_a_kernel() {
        let x: Vec<f32> = (0..37u8).map(f32::from).collect();
        for isa in Isa::available() {
            let (lanes, sum) = isa.dispatch(Sum(&x));
            assert_eq!(sum, 666.0, "{isa}");
            let expected = match isa.name() {
                "avx2" | "avxvnni" => 8,
                "avx512" | "avx512vnni" | "avx512bf16" | "amx" => 16,
                _ => 4,
            };
            assert_eq!(lanes, expected, "{isa}");
        }
    }
}
