//! Stored element types that kernels widen to f32 in registers.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::simd::{F32, Simd};

/// A stored type with an f32 value.
pub(crate) trait Element: Copy + Send + Sync {
    /// Loads `S::LANES` values.
    ///
    /// # Safety
    /// `p` is readable for `S::LANES` values.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> F32<S>;

    /// One value.
    fn widen(self) -> f32;

    /// Writes the values of `from` to `to`, which is as long.
    fn widen_slice(from: &[Self], to: &mut [f32]);
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> F32<S> {
        // SAFETY: `p` is readable for `S::LANES` f32 values, as the trait asks of the caller.
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
        // SAFETY: `p` is readable for `S::LANES` f16 values, as the trait asks of the caller.
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
        // SAFETY: `p` is readable for `S::LANES` integers, as the trait asks of the caller.
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
        // SAFETY: `p` is readable for `S::LANES` bf16 values, as the trait asks of the caller.
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
