//! Instruction-set tokens: zero-sized values that exist only where the CPU has the features.
//!
//! `try_new` checks the running CPU. `vectorize` calls a closure inside a function compiled with the token's features,
//! into which everything that is `#[inline(always)]` is inlined. A function that is *not* inlined turns every intrinsic
//! that it uses into a call.

use pulp::NullaryFnOnce;

/// Plain Rust code: the reference tier, present everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Scalar {
    _private: (),
}

impl Scalar {
    /// The token; always available.
    #[must_use]
    pub const fn new() -> Self {
        Self { _private: () }
    }

    /// Always `Some`, so that all tokens are obtained alike.
    #[must_use]
    pub const fn try_new() -> Option<Self> {
        Some(Self::new())
    }

    /// Calls `f`; there are no features to enable.
    #[inline(always)]
    pub fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
        f.call()
    }
}

impl Default for Scalar {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(missing_docs, reason = "each field is named after the feature it proves")]
mod x86 {
    pulp::simd_type! {
        /// AVX2 with FMA and F16C: 256-bit vectors (x86-64-v3).
        pub struct Avx2 {
            pub sse: "sse",
            pub sse2: "sse2",
            pub fxsr: "fxsr",
            pub sse3: "sse3",
            pub ssse3: "ssse3",
            pub sse4_1: "sse4.1",
            pub sse4_2: "sse4.2",
            pub popcnt: "popcnt",
            pub avx: "avx",
            pub avx2: "avx2",
            pub bmi1: "bmi1",
            pub bmi2: "bmi2",
            pub fma: "fma",
            pub lzcnt: "lzcnt",
            pub f16c: "f16c",
        }

        /// [`Avx2`] and AVX-512 F, BW, CD, DQ and VL: 512-bit vectors (x86-64-v4).
        pub struct Avx512 {
            pub sse: "sse",
            pub sse2: "sse2",
            pub fxsr: "fxsr",
            pub sse3: "sse3",
            pub ssse3: "ssse3",
            pub sse4_1: "sse4.1",
            pub sse4_2: "sse4.2",
            pub popcnt: "popcnt",
            pub avx: "avx",
            pub avx2: "avx2",
            pub bmi1: "bmi1",
            pub bmi2: "bmi2",
            pub fma: "fma",
            pub lzcnt: "lzcnt",
            pub f16c: "f16c",
            pub avx512f: "avx512f",
            pub avx512bw: "avx512bw",
            pub avx512cd: "avx512cd",
            pub avx512dq: "avx512dq",
            pub avx512vl: "avx512vl",
        }

        /// [`Avx512`] and `avx512vnni`, the 8-bit dot product.
        pub struct Avx512Vnni {
            pub sse: "sse",
            pub sse2: "sse2",
            pub fxsr: "fxsr",
            pub sse3: "sse3",
            pub ssse3: "ssse3",
            pub sse4_1: "sse4.1",
            pub sse4_2: "sse4.2",
            pub popcnt: "popcnt",
            pub avx: "avx",
            pub avx2: "avx2",
            pub bmi1: "bmi1",
            pub bmi2: "bmi2",
            pub fma: "fma",
            pub lzcnt: "lzcnt",
            pub f16c: "f16c",
            pub avx512f: "avx512f",
            pub avx512bw: "avx512bw",
            pub avx512cd: "avx512cd",
            pub avx512dq: "avx512dq",
            pub avx512vl: "avx512vl",
            pub avx512vnni: "avx512vnni",
        }
    }

    /// [`Avx2`] and `avxvnni`, the 8-bit dot product of CPUs without AVX-512.
    ///
    /// Written by hand, since `pulp` does not know the feature.
    #[derive(Clone, Copy, Debug)]
    pub struct AvxVnni {
        avx2: Avx2,
    }

    impl AvxVnni {
        /// The token, if the CPU has the features.
        #[must_use]
        pub fn try_new() -> Option<Self> {
            let avx2 = Avx2::try_new()?;
            std::is_x86_feature_detected!("avxvnni").then_some(Self { avx2 })
        }

        /// The token without the 8-bit dot product.
        #[inline(always)]
        #[must_use]
        pub fn avx2(self) -> Avx2 {
            self.avx2
        }

        /// Calls `f` in a function compiled with the token's features.
        #[inline(always)]
        pub fn vectorize<F: pulp::NullaryFnOnce>(self, f: F) -> F::Output {
            #[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,popcnt,f16c,fxsr,avxvnni")]
            fn imp<F: pulp::NullaryFnOnce>(f: F) -> F::Output {
                f.call()
            }
            // SAFETY: `try_new` found `avxvnni`, and `Avx2` proves all others.
            unsafe { imp(f) }
        }
    }

    /// [`Avx512Vnni`] and `avx512bf16`, the dot product of bf16 pairs.
    ///
    /// Written by hand, since `pulp` does not know the feature.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx512Bf16 {
        vnni: Avx512Vnni,
    }

    impl Avx512Bf16 {
        /// The token, if the CPU has the features.
        #[must_use]
        pub fn try_new() -> Option<Self> {
            let vnni = Avx512Vnni::try_new()?;
            std::is_x86_feature_detected!("avx512bf16").then_some(Self { vnni })
        }

        /// Whether bf16 dot products have twice the throughput of f32 ones: on AMD since Zen 4, not on Intel's Sapphire
        /// Rapids.
        pub(crate) fn is_fast(self) -> bool {
            crate::simd::amd_family().is_some()
        }

        /// The token without bf16 dot products.
        #[inline(always)]
        #[must_use]
        pub fn vnni(self) -> Avx512Vnni {
            self.vnni
        }

        /// Calls `f` in a function compiled with the token's features.
        #[inline(always)]
        pub fn vectorize<F: pulp::NullaryFnOnce>(self, f: F) -> F::Output {
            #[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,popcnt,f16c,fxsr")]
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
            #[target_feature(enable = "avx512vnni,avx512bf16")]
            fn imp<F: pulp::NullaryFnOnce>(f: F) -> F::Output {
                f.call()
            }
            // SAFETY: `try_new` found `avx512bf16`, and `Avx512Vnni` proves all others.
            unsafe { imp(f) }
        }
    }

    impl Avx2 {
        /// The same proof for pulp, whose `V3` lacks `f16c`.
        #[inline(always)]
        pub(crate) fn pulp(self) -> pulp::x86::V3 {
            let Self { sse, sse2, fxsr, sse3, ssse3, sse4_1, sse4_2, popcnt, .. } = self;
            let Self { avx, avx2, bmi1, bmi2, fma, lzcnt, .. } = self;
            pulp::x86::V3 {
                sse,
                sse2,
                fxsr,
                sse3,
                ssse3,
                sse4_1,
                sse4_2,
                popcnt,
                avx,
                avx2,
                bmi1,
                bmi2,
                fma,
                lzcnt,
            }
        }
    }

    impl Avx512 {
        /// The 256-bit token that a 512-bit CPU also satisfies.
        #[inline(always)]
        #[must_use]
        pub fn avx2(self) -> Avx2 {
            let Self { sse, sse2, fxsr, sse3, ssse3, sse4_1, sse4_2, popcnt, .. } = self;
            let Self { avx, avx2, bmi1, bmi2, fma, lzcnt, f16c, .. } = self;
            Avx2 {
                sse,
                sse2,
                fxsr,
                sse3,
                ssse3,
                sse4_1,
                sse4_2,
                popcnt,
                avx,
                avx2,
                bmi1,
                bmi2,
                fma,
                lzcnt,
                f16c,
            }
        }

        #[inline(always)]
        pub(crate) fn pulp(self) -> pulp::x86::V4 {
            let pulp::x86::V3 { sse, sse2, fxsr, sse3, ssse3, sse4_1, sse4_2, popcnt, .. } =
                self.avx2().pulp();
            let Self { avx, avx2, bmi1, bmi2, fma, lzcnt, .. } = self;
            let Self { avx512f, avx512bw, avx512cd, avx512dq, avx512vl, .. } = self;
            pulp::x86::V4 {
                sse,
                sse2,
                fxsr,
                sse3,
                ssse3,
                sse4_1,
                sse4_2,
                popcnt,
                avx,
                avx2,
                bmi1,
                bmi2,
                fma,
                lzcnt,
                avx512f,
                avx512bw,
                avx512cd,
                avx512dq,
                avx512vl,
            }
        }
    }

    impl Avx512Vnni {
        /// The token without the 8-bit dot product.
        #[inline(always)]
        #[must_use]
        pub fn avx512(self) -> Avx512 {
            let Self { sse, sse2, fxsr, sse3, ssse3, sse4_1, sse4_2, popcnt, .. } = self;
            let Self { avx, avx2, bmi1, bmi2, fma, lzcnt, f16c, .. } = self;
            let Self { avx512f, avx512bw, avx512cd, avx512dq, avx512vl, .. } = self;
            Avx512 {
                sse,
                sse2,
                fxsr,
                sse3,
                ssse3,
                sse4_1,
                sse4_2,
                popcnt,
                avx,
                avx2,
                bmi1,
                bmi2,
                fma,
                lzcnt,
                f16c,
                avx512f,
                avx512bw,
                avx512cd,
                avx512dq,
                avx512vl,
            }
        }
    }
}
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512, Avx512Bf16, Avx512Vnni, AvxVnni};

#[cfg(target_arch = "aarch64")]
#[expect(missing_docs, reason = "each field is named after the feature it proves")]
mod aarch64 {
    pulp::simd_type! {
        /// NEON: 128-bit vectors.
        pub struct Neon {
            pub neon: "neon",
        }

        /// NEON and `dotprod`, the 8-bit dot product.
        pub struct NeonDot {
            pub neon: "neon",
            pub dotprod: "dotprod",
        }
    }

    impl Neon {
        #[inline(always)]
        pub(crate) fn pulp(self) -> pulp::aarch64::Neon {
            pulp::aarch64::Neon { neon: self.neon }
        }
    }

    impl NeonDot {
        /// The token without the 8-bit dot product.
        #[inline(always)]
        #[must_use]
        pub fn neon(self) -> Neon {
            Neon { neon: self.neon }
        }
    }
}
#[cfg(target_arch = "aarch64")]
pub use aarch64::{Neon, NeonDot};

#[cfg(target_arch = "wasm32")]
#[expect(missing_docs, reason = "each field is named after the feature it proves")]
mod wasm {
    pulp::simd_type! {
        /// WebAssembly 128-bit vectors.
        pub struct WasmSimd128 {
            pub simd128: "simd128",
        }
    }

    impl WasmSimd128 {
        #[inline(always)]
        pub(crate) fn pulp(self) -> pulp::wasm::Simd128 {
            pulp::wasm::Simd128 { simd128: self.simd128 }
        }
    }
}
#[cfg(target_arch = "wasm32")]
pub use wasm::WasmSimd128;
