//! SIMD: instruction-set tiers, their tokens and detection, and dispatch to kernels generic over the token.
//!
//! An f32 kernel is a [`Kernel`], generic over [`Simd`]; [`Isa::dispatch`] runs it with the token of one tier.
//! Operations that do not generalise (8-bit dot products) belong to an extension trait on the tokens, reached with
//! [`match_isa!`](crate::match_isa).

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod bf16;
mod token;
mod vector;

use std::fmt;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
pub use amx::{Amx, Tile, TileSums, Tiles};
pub use pulp::NullaryFnOnce;
pub use token::Scalar;
#[cfg(target_arch = "wasm32")]
pub use token::WasmSimd128;
#[cfg(target_arch = "x86_64")]
pub use token::{Avx2, Avx512, Avx512Bf16, Avx512Vnni, AvxVnni};
#[cfg(target_arch = "aarch64")]
pub use token::{Neon, NeonDot};
pub(crate) use vector::transposed;
pub use vector::{F32, Simd, U32};

use crate::aligned::CACHE_LINE;
use crate::config;
use crate::error::{Error, Result};

/// Instruction-set tier, with the token that proves that this CPU has it.
///
/// Variants are in rising order. A later tier includes the earlier ones, except for the 8-bit dot product of AVX-VNNI,
/// which CPUs with AVX-512 may lack.
#[derive(Clone, Copy, Debug)]
pub enum Isa {
    /// Plain Rust.
    Scalar(Scalar),
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX2 with AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    /// AVX-512 F, BW, CD, DQ, VL.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Avx512Vnni),
    /// AVX-512 with VNNI and BF16, on CPUs where bf16 dot products are faster than f32 ones.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(Avx512Bf16),
    /// AVX-512 with VNNI, and AMX tiles with bf16 products.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    /// NEON with `dotprod`.
    #[cfg(target_arch = "aarch64")]
    NeonDot(NeonDot),
    /// WebAssembly `simd128`.
    #[cfg(target_arch = "wasm32")]
    WasmSimd128(WasmSimd128),
}

/// Evaluates `$body` with `$token` bound to the token that `$isa` holds, once per tier. For AVX-VNNI and
/// for AVX-512 without VNNI that is the token of AVX2, for bf16 and tiles that of AVX-512 with VNNI: kernels of integers
/// are compiled once for each 8-bit dot product.
///
/// This is how code outside this crate dispatches over its own extension trait. `$body` runs
/// *outside* the tier's feature context; enter it with `$token.vectorize(…)`, whose argument
/// implements [`NullaryFnOnce`](crate::simd::NullaryFnOnce) with an `#[inline(always)]` body.
#[macro_export]
macro_rules! match_isa {
    ($isa:expr, $token:ident => $body:expr) => {
        match $isa {
            $crate::simd::Isa::Scalar($token) => $body,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx2($token) => $body,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::AvxVnni(token) => {
                let $token = token.avx2();
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx512(token) => {
                let $token = token.avx2();
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx512Vnni($token) => $body,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx512Bf16(token) => {
                let $token = token.vnni();
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Amx(tiles) => {
                let $token = tiles.vectors();
                $body
            }
            #[cfg(target_arch = "aarch64")]
            $crate::simd::Isa::Neon($token) => $body,
            #[cfg(target_arch = "aarch64")]
            $crate::simd::Isa::NeonDot($token) => $body,
            #[cfg(target_arch = "wasm32")]
            $crate::simd::Isa::WasmSimd128($token) => $body,
        }
    };
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

    /// All tiers of this CPU, in rising order, whatever the environment says.
    #[must_use]
    pub fn available() -> Vec<Self> {
        #[cfg_attr(
            not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "wasm32")),
            expect(unused_mut, reason = "only the scalar tier exists")
        )]
        let mut tiers = vec![Self::Scalar(Scalar::new())];
        #[cfg(target_arch = "x86_64")]
        {
            tiers.extend(Avx2::try_new().map(Self::Avx2));
            tiers.extend(AvxVnni::try_new().map(Self::AvxVnni));
            tiers.extend(Avx512::try_new().map(Self::Avx512));
            tiers.extend(Avx512Vnni::try_new().map(Self::Avx512Vnni));
            let bf16 = Avx512Bf16::try_new().filter(|token| token.is_fast());
            tiers.extend(bf16.map(Self::Avx512Bf16));
            tiers.extend(Amx::try_new().map(Self::Amx));
        }
        #[cfg(target_arch = "aarch64")]
        {
            tiers.extend(Neon::try_new().map(Self::Neon));
            tiers.extend(NeonDot::try_new().map(Self::NeonDot));
        }
        #[cfg(target_arch = "wasm32")]
        tiers.extend(WasmSimd128::try_new().map(Self::WasmSimd128));
        tiers
    }

    /// Names of all tiers of this architecture, in rising order: the values of `STONECHAT_ISA`.
    pub const NAMES: &'static [&'static str] = if cfg!(target_arch = "x86_64") {
        &["scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"]
    } else if cfg!(target_arch = "aarch64") {
        &["scalar", "neon", "neondot"]
    } else if cfg!(target_arch = "wasm32") {
        &["scalar", "simd128"]
    } else {
        &["scalar"]
    };

    /// Name of the tier, one of [`NAMES`](Self::NAMES).
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self.rank()]
    }

    /// Runs `kernel` in the feature context of the tier's vectors. Tiers that differ only in 8-bit or bf16 products share
    /// a token, so that kernels are compiled once per vector width.
    pub fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        macro_rules! run {
            ($token:expr) => {{
                let token = $token;
                token.vectorize(InContext(kernel, token))
            }};
        }
        match self {
            Self::Scalar(token) => run!(token),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(token) => run!(token),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(token) => run!(token.avx2()),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(token) => run!(token),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(token) => run!(token.avx512()),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(token) => run!(token.vnni().avx512()),
            #[cfg(target_arch = "x86_64")]
            Self::Amx(token) => run!(token.vectors().avx512()),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(token) => run!(token),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot(token) => run!(token.neon()),
            #[cfg(target_arch = "wasm32")]
            Self::WasmSimd128(token) => run!(token),
        }
    }

    /// Runs `f`, code without explicit SIMD, in the same context, where the compiler may vectorize it.
    pub fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
        self.dispatch(Plain(f))
    }

    /// The tier whose kernels of 8-bit integers this one runs: bf16 adds none, and AVX-512 without VNNI has AVX2's.
    #[must_use]
    pub fn of_integers(self) -> Self {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(token) => Self::Avx2(token.avx2()),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(token) => Self::Avx512Vnni(token.vnni()),
            isa => isa,
        }
    }

    fn fastest() -> Self {
        Self::available().pop().unwrap_or(Self::Scalar(Scalar::new()))
    }

    fn limited_to(limit: &str) -> Result<Self> {
        let limit_name = limit.to_ascii_lowercase();
        let Some(rank) = Self::NAMES.iter().position(|&name| name == limit_name) else {
            return Err(Error::Config {
                name: config::ISA_VARIABLE,
                expected: Self::NAMES.join("|"),
                got: limit.to_owned(),
            });
        };
        let best = Self::available().into_iter().rfind(|tier| tier.rank() <= rank);
        Ok(best.unwrap_or(Self::Scalar(Scalar::new())))
    }

    /// Index in [`NAMES`](Self::NAMES).
    fn rank(self) -> usize {
        match self {
            Self::Scalar(_) => 0,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => 1,
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(_) => 2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => 3,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(_) => 4,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(_) => 5,
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) => 6,
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => 1,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot(_) => 2,
            #[cfg(target_arch = "wasm32")]
            Self::WasmSimd128(_) => 1,
        }
    }
}

impl PartialEq for Isa {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
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
        assert_eq!(tiers[0].name(), "scalar");
        assert_eq!(Isa::limited_to("scalar"), Ok(tiers[0]));
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
                "scalar" => 1,
                "avx2" | "avxvnni" => 8,
                "avx512" | "avx512vnni" | "avx512bf16" | "amx" => 16,
                _ => 4,
            };
            assert_eq!(lanes, expected, "{isa}");
        }
    }
}
