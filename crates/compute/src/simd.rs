//! SIMD: the instruction-set tokens, their detection, and dispatch to kernels generic over them.
//!
//! An f32 kernel is a [`Kernel`], generic over [`Simd`]; [`Isa::dispatch`] runs it with the token
//! of one tier. What does not generalise (8-bit dot products) belongs to an extension trait that
//! its owner implements on the tokens, reached with [`match_isa!`](crate::match_isa).

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
pub use token::{Neon, NeonDot, NeonI8mm};
pub(crate) use vector::transposed;
pub use vector::{F32, Simd, U32};

use crate::aligned::CACHE_LINE;
use crate::config;
use crate::error::{Error, Result};

/// A tier of instructions, holding the token that proves this CPU has it.
///
/// Variants are in rising order. A later tier can run whatever an earlier one can, but for the 8-bit dot
/// product of AVX-VNNI, which CPUs with AVX-512 may lack.
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
    /// AVX-512 with VNNI and products of bf16 values, where these are faster than those of f32.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(Avx512Bf16),
    /// AVX-512 with VNNI and matrix tiles.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    /// NEON with `dotprod`.
    #[cfg(target_arch = "aarch64")]
    NeonDot(NeonDot),
    /// NEON with `dotprod` and `i8mm`.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm(NeonI8mm),
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
            #[cfg(target_arch = "aarch64")]
            $crate::simd::Isa::NeonI8mm($token) => $body,
            #[cfg(target_arch = "wasm32")]
            $crate::simd::Isa::WasmSimd128($token) => $body,
        }
    };
}

/// The family of AMD's Zen 5.
#[cfg(target_arch = "x86_64")]
const ZEN5_FAMILY: u32 = 0x1a;

/// Asks for the memory at `p`, which will be read soon; nothing where the target has no such hint. It comes to the
/// second-level cache, which waits for more lines at a time than the first.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    prefetch_to::<2, T>(p);
}

/// [`prefetch`] of each line of `len` values from `p`.
#[inline(always)]
pub(crate) fn prefetch_span<T>(p: *const T, len: usize) {
    for at in (0..len * size_of::<T>()).step_by(CACHE_LINE) {
        prefetch(p.wrapping_byte_add(at));
    }
}

/// [`prefetch`] to the first-level cache, for one line of a stream at a time: two threads of Zen 5 stream `q4_k` at 44
/// GB/s so, and at 38 to the second level; Sapphire Rapids makes no difference.
#[inline(always)]
pub fn prefetch_line<T>(p: *const T) {
    prefetch_to::<1, T>(p);
}

#[inline(always)]
fn prefetch_to<const LEVEL: usize, T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which neither reads nor faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match LEVEL {
            1 => _mm_prefetch::<_MM_HINT_T0>(p.cast()),
            _ => _mm_prefetch::<_MM_HINT_T1>(p.cast()),
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint, which neither reads nor faults.
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

/// The family of a processor of AMD's; asked once, since a virtual machine answers `cpuid` slowly.
#[cfg(target_arch = "x86_64")]
fn amd_family() -> Option<u32> {
    use std::arch::x86_64::__cpuid;

    static FAMILY: OnceLock<Option<u32>> = OnceLock::new();
    *FAMILY.get_or_init(|| {
        let vendor = __cpuid(0);
        let vendor = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        // Of all processors since 2003 the first part of the family is 15, and an extension is added.
        let family = 15 + (__cpuid(1).eax >> 20 & 0xff);
        (vendor.as_flattened() == b"AuthenticAMD").then_some(family)
    })
}

/// Whether the processor itself asks far enough ahead for memory that is read in order, so that a [`prefetch_line`] of
/// each line only takes the places of its own requests: AMD's before Zen 5. One thread of Zen 4 streams weights at 25 to
/// 29 GB/s, with requests for a block at a time 12 to 22. With a request for each word that is read Zen 5 streams `q4_k`
/// at 37 GB/s instead of 19 to 22, Sapphire Rapids at 12 to 14 instead of 8.
#[must_use]
pub fn reads_ahead() -> bool {
    #[cfg(target_arch = "x86_64")]
    return amd_family().is_some_and(|family| family < ZEN5_FAMILY);
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// A computation generic over the SIMD token.
pub trait Kernel {
    /// What it returns.
    type Output;

    /// Computes. Must be `#[inline(always)]`, as must be every function it calls in a hot loop.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

struct InContext<K, S>(K, S);

impl<K: Kernel, S: Simd> NullaryFnOnce for InContext<K, S> {
    type Output = K::Output;

    #[inline(always)]
    fn call(self) -> K::Output {
        self.0.run(self.1)
    }
}

struct Plain<F>(F);

impl<F: NullaryFnOnce> Kernel for Plain<F> {
    type Output = F::Output;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> F::Output {
        self.0.call()
    }
}

impl Isa {
    /// The best tier of this CPU, lowered by the environment variable `STONECHAT_ISA` to the
    /// best one not above the tier it names. Detected once.
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

    /// Every tier this CPU has, in rising order; the environment is not consulted.
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
            if std::is_x86_feature_detected!("avx512vl") {
                tiers.extend(Avx512::try_new().map(Self::Avx512));
                tiers.extend(Avx512Vnni::try_new().map(Self::Avx512Vnni));
                let bf16 = Avx512Bf16::try_new().filter(|token| token.is_fast());
                tiers.extend(bf16.map(Self::Avx512Bf16));
                tiers.extend(Amx::try_new().map(Self::Amx));
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            tiers.extend(Neon::try_new().map(Self::Neon));
            tiers.extend(NeonDot::try_new().map(Self::NeonDot));
            tiers.extend(NeonI8mm::try_new().map(Self::NeonI8mm));
        }
        #[cfg(target_arch = "wasm32")]
        tiers.extend(WasmSimd128::try_new().map(Self::WasmSimd128));
        tiers
    }

    /// Names of all tiers of this architecture, in rising order, as `STONECHAT_ISA` takes them.
    pub const NAMES: &'static [&'static str] = if cfg!(target_arch = "x86_64") {
        &["scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"]
    } else if cfg!(target_arch = "aarch64") {
        &["scalar", "neon", "neondot", "neoni8mm"]
    } else if cfg!(target_arch = "wasm32") {
        &["scalar", "simd128"]
    } else {
        &["scalar"]
    };

    /// The tier's name, for logs and benches.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self.rank()]
    }

    /// Runs `kernel` inside the feature context of the vectors that the tier has: products of integers and tiles add
    /// nothing to what is generic over [`Simd`], which is compiled once for each width.
    #[inline]
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
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm(token) => run!(token.neon_dot().neon()),
            #[cfg(target_arch = "wasm32")]
            Self::WasmSimd128(token) => run!(token),
        }
    }

    /// Calls `f`, plain code for the compiler to make vectors of, in the same context.
    #[inline]
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
        let wanted = limit.to_ascii_lowercase();
        let Some(rank) = Self::NAMES.iter().position(|&name| name == wanted) else {
            return Err(Error::Config {
                name: config::ISA_VARIABLE,
                expected: Self::NAMES.join("|"),
                got: limit.to_owned(),
            });
        };
        let best = Self::available().into_iter().rfind(|tier| tier.rank() <= rank);
        Ok(best.unwrap_or(Self::Scalar(Scalar::new())))
    }

    /// Position in [`Self::NAMES`].
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
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm(_) => 3,
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
