//! Instruction-set tokens: zero-sized values that exist only where the CPU has the features.

use std::fmt::Debug;

use pulp::NullaryFnOnce;

/// Proof that this CPU has some instructions.
pub trait Token: Copy + Send + Sync + Debug + 'static {
    /// The token, if the CPU has the features.
    #[must_use]
    fn try_new() -> Option<Self>;

    /// Calls `f` in a function compiled with the token's features, into which everything that is `#[inline(always)]` is
    /// inlined. A function that is *not* inlined turns every intrinsic that it uses into a call.
    fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output;
}

/// Declares token `$Token`: features `$feature` and those of token `$Lesser`, whose methods it has as well.
/// `$has` says whether the CPU has them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
macro_rules! token {
    ($(#[$doc:meta])* $Token:ident($Lesser:ty), $has:expr, $($feature:literal),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $Token(pub(super) $Lesser);

        impl $crate::simd::Token for $Token {
            fn try_new() -> Option<Self> {
                let lesser = <$Lesser>::try_new()?;
                $has.then_some(Self(lesser))
            }

            #[cfg_attr(
                target_arch = "wasm32",
                expect(unused_unsafe, reason = "a module with unknown instructions does not load")
            )]
            #[inline(always)]
            fn vectorize<F: pulp::NullaryFnOnce>(self, f: F) -> F::Output {
                $(#[target_feature(enable = $feature)])+
                fn in_context<F: pulp::NullaryFnOnce>(f: F) -> F::Output {
                    f.call()
                }
                // SAFETY: the token exists only where `try_new` found the features.
                unsafe { in_context(f) }
            }
        }

        impl std::ops::Deref for $Token {
            type Target = $Lesser;

            #[inline(always)]
            fn deref(&self) -> &$Lesser {
                &self.0
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
pub(super) use token;
