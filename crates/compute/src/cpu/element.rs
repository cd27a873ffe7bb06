//! Element types that kernels load as f32 vectors.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::simd::{F32, Simd};

/// Element type of weights and pages.
pub(crate) trait Element: Copy + Send + Sync {
    /// Loads `S::LANES` values and converts them to f32.
    ///
    /// # Safety
    /// - `p` is readable for `S::LANES` values; it needs no alignment.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> F32<S>;

    /// Converts one value.
    fn widen(self) -> f32;

    /// Converts `from` into `to`, which has the same length.
    fn widen_slice(from: &[Self], to: &mut [f32]);
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> F32<S> {
        // SAFETY: `p` is readable for `S::LANES` f32 values, by the contract.
        unsafe { s.load(p) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    fn widen_slice(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> F32<S> {
        // SAFETY: `p` is readable for `S::LANES` f16 values, by the contract.
        unsafe { s.load_f16(p) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn widen_slice(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
}

impl Element for i8 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> F32<S> {
        // SAFETY: `p` is readable for `S::LANES` integers, by the contract.
        unsafe { s.load_i8(p) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from(self)
    }

    fn widen_slice(from: &[Self], to: &mut [f32]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = f32::from(from);
        }
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> F32<S> {
        // SAFETY: `p` is readable for `S::LANES` bf16 values, by the contract.
        unsafe { s.load_bf16(p) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn widen_slice(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
}
