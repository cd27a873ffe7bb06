//! NEON with `dotprod`: `sdot` adds four products per lane.

use std::arch::aarch64::{int8x16_t, int32x4_t, uint8x16_t};
use std::arch::asm;

use super::int8::{Int8, RowInt8};
use super::neon::{Neon, int8_neon};
use super::token::token;
use super::vector::{F32, Simd, delegate_simd};

token! {
    /// [`Neon`] and `dotprod`, the 8-bit dot product.
    NeonDot(Neon), std::arch::is_aarch64_feature_detected!("dotprod"), "neon", "dotprod"
}

impl NeonDot {
    /// The token without the 8-bit dot product.
    #[inline(always)]
    pub(super) fn neon(self) -> Neon {
        self.0
    }
}

delegate_simd!(NeonDot, Neon, Self::neon);

impl Int8 for NeonDot {
    int8_neon!();

    type Sums = int32x4_t;

    const NAME: &'static str = "neondot";
    const GEMV_ROWS: usize = 8;
    const HEADROOM: usize = 1 << 16;

    #[inline(always)]
    fn start(self, offset: i32) -> int32x4_t {
        self.neon.vdupq_n_s32(offset)
    }

    #[inline(always)]
    fn dot4(self, sums: int32x4_t, w: uint8x16_t, x: uint8x16_t) -> int32x4_t {
        // SAFETY: `self` proves `dotprod`.
        unsafe { sdot(sums, bytemuck::cast(w), bytemuck::cast(x)) }
    }

    #[inline(always)]
    fn dot4_quad(self, sums: int32x4_t, w: uint8x16_t, x: &[i32; 8], quad: usize) -> int32x4_t {
        let four = quad / 4;
        match quad % 4 {
            0 => self.dot4_lane::<0>(sums, w, x, four),
            1 => self.dot4_lane::<1>(sums, w, x, four),
            2 => self.dot4_lane::<2>(sums, w, x, four),
            _ => self.dot4_lane::<3>(sums, w, x, four),
        }
    }

    #[inline(always)]
    fn dot4_lane<const LANE: usize>(
        self,
        sums: int32x4_t,
        w: uint8x16_t,
        x: &[i32; 8],
        four: usize,
    ) -> int32x4_t {
        // 16 bytes of `x` in a register serve four quads.
        let x = bytemuck::cast(x.as_chunks::<4>().0[four]);
        // SAFETY: `self` proves `dotprod`.
        unsafe { sdot_lane::<LANE>(sums, bytemuck::cast(w), x) }
    }

    #[inline(always)]
    fn widen(self, sums: int32x4_t) -> int32x4_t {
        sums
    }

    #[inline(always)]
    fn finish(self, sums: int32x4_t, _: i32) -> F32<Self> {
        self.to_floats(bytemuck::cast(sums))
    }
}

/// `sums += dot4(w, x)` of each lane; the intrinsic is not stable yet.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: works on registers alone; the function's features have the instruction.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {w:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// `sums += dot4(w, x[LANE])` of each lane.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot_lane<const LANE: usize>(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: works on registers alone; the function's features have the instruction.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]",
            sums = inout(vreg) sums,
            w = in(vreg) w,
            x = in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

impl RowInt8 for NeonDot {}
