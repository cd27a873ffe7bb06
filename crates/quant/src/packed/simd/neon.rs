//! [`PanelSimd`] on NEON: 4 of a panel's 16 rows. `sdot` of `dotprod` adds four products per row; plain NEON adds products
//! in 16 bits (`smlal`), and widens the sums before they overflow.

use std::arch::aarch64::{int8x16_t, int16x8_t, int32x4_t, uint8x16_t};
use std::arch::asm;

use stonechat_compute::simd::{F32, Neon, NeonDot, NullaryFnOnce};

use super::PanelSimd;
use crate::activation::QBlock;
use crate::packed::{PANEL_ROWS, U32x16};

/// Sums of products of the first and last two rows in 16 bits, and the 32-bit sums they were widened to.
#[derive(Clone, Copy)]
pub(in crate::packed) struct Narrow {
    low: int16x8_t,
    high: int16x8_t,
    wide: int32x4_t,
}

/// Methods that do not depend on the dot product. Weight bytes are signed.
macro_rules! common {
    () => {
        type U32s = uint8x16_t;

        const BYTE_OFFSET: u8 = 0;

        #[inline(always)]
        fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
            Self::vectorize(self, f)
        }

        #[inline(always)]
        fn load_u32s(self, x: &U32x16, part: usize) -> uint8x16_t {
            bytemuck::cast(x.0.as_chunks::<4>().0[part])
        }

        #[inline(always)]
        fn load_u16(self, x: &[u16; PANEL_ROWS], part: usize) -> uint8x16_t {
            bytemuck::cast(self.neon.vmovl_u16(bytemuck::cast(x.as_chunks::<4>().0[part])))
        }

        #[inline(always)]
        fn mask(self, x: uint8x16_t, mask: u8) -> uint8x16_t {
            self.neon.vandq_u8(x, self.neon.vdupq_n_u8(mask))
        }

        #[inline(always)]
        fn or(self, x: uint8x16_t, y: uint8x16_t) -> uint8x16_t {
            self.neon.vorrq_u8(x, y)
        }

        #[inline(always)]
        fn shift_right(self, x: uint8x16_t, n: usize) -> uint8x16_t {
            self.neon.vshlq_u8(x, self.neon.vdupq_n_s8(-(n as i8)))
        }

        #[inline(always)]
        fn shift_left(self, x: uint8x16_t, n: usize) -> uint8x16_t {
            self.neon.vshlq_u8(x, self.neon.vdupq_n_s8(n as i8))
        }

        #[inline(always)]
        fn lookup(self, table: &[u8; 16], x: uint8x16_t) -> uint8x16_t {
            self.neon.vqtbl1q_u8(bytemuck::cast(*table), x)
        }

        #[inline(always)]
        fn unbias(self, x: uint8x16_t) -> uint8x16_t {
            self.neon.veorq_u8(x, self.neon.vdupq_n_u8(128))
        }

        #[inline(always)]
        fn bits(self, x: uint8x16_t, at: usize, n: usize) -> uint8x16_t {
            let down = self.neon.vdupq_n_s32(-(at as i32));
            let low = self.neon.vshlq_u32(bytemuck::cast(x), down);
            bytemuck::cast(self.neon.vandq_u32(low, self.neon.vdupq_n_u32((1 << n) - 1)))
        }

        #[inline(always)]
        fn signed_byte(self, x: uint8x16_t, at: usize) -> uint8x16_t {
            let up = self.neon.vdupq_n_s32(24 - 8 * at as i32);
            let top = self.neon.vshlq_s32(bytemuck::cast(x), up);
            bytemuck::cast(self.neon.vshlq_s32(top, self.neon.vdupq_n_s32(-24)))
        }

        #[inline(always)]
        fn to_floats(self, x: uint8x16_t) -> F32<Self> {
            bytemuck::cast(self.neon.vcvtq_f32_s32(bytemuck::cast(x)))
        }

        #[inline(always)]
        fn dot_bytes(self, sums: Self::Sums, w: uint8x16_t, x: &QBlock, quad: usize) -> Self::Sums {
            self.dot(sums, w, x, quad)
        }
    };
}

impl PanelSimd for NeonDot {
    common!();

    type Sums = int32x4_t;

    const MR: usize = 8;
    const HEADROOM: usize = 1 << 16;

    #[inline(always)]
    fn start(self, offset: i32) -> int32x4_t {
        self.neon.vdupq_n_s32(offset)
    }

    #[inline(always)]
    fn dot(self, sums: int32x4_t, w: uint8x16_t, x: &QBlock, quad: usize) -> int32x4_t {
        // 16 activations in a register serve four quads.
        let x: int8x16_t = bytemuck::cast(x.quads().as_chunks::<4>().0[quad / 4]);
        let w = bytemuck::cast(w);
        // SAFETY: `self` proves `dotprod`.
        unsafe {
            match quad % 4 {
                0 => sdot::<0>(sums, w, x),
                1 => sdot::<1>(sums, w, x),
                2 => sdot::<2>(sums, w, x),
                _ => sdot::<3>(sums, w, x),
            }
        }
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

/// `sums += dot4(w, x.quad[FOUR])` of each row; the intrinsic is not stable yet.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot<const FOUR: u32>(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: works on registers alone; the function's features have the instruction.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {w:v}.16b, {x:v}.4b[{four}]",
            sums = inout(vreg) sums,
            w = in(vreg) w,
            x = in(vreg) x,
            four = const FOUR,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

impl PanelSimd for Neon {
    common!();

    type Sums = Narrow;

    const MR: usize = 4;
    const HEADROOM: usize = 2;

    #[inline(always)]
    fn start(self, _: i32) -> Narrow {
        let zero = self.neon.vdupq_n_s16(0);
        Narrow { low: zero, high: zero, wide: self.neon.vdupq_n_s32(0) }
    }

    #[inline(always)]
    fn dot(self, sums: Narrow, w: uint8x16_t, x: &QBlock, quad: usize) -> Narrow {
        let four: int8x16_t = bytemuck::cast(self.neon.vdupq_n_s32(x.quads()[quad]));
        let w: int8x16_t = bytemuck::cast(w);
        let low = self.neon.vget_low_s8(w);
        Narrow {
            low: self.neon.vmlal_s8(sums.low, low, self.neon.vget_low_s8(four)),
            high: self.neon.vmlal_high_s8(sums.high, w, four),
            wide: sums.wide,
        }
    }

    #[inline(always)]
    fn widen(self, sums: Narrow) -> Narrow {
        let (low, high) = (self.neon.vpaddlq_s16(sums.low), self.neon.vpaddlq_s16(sums.high));
        let wide = self.neon.vaddq_s32(sums.wide, self.neon.vpaddq_s32(low, high));
        Narrow { wide, ..self.start(0) }
    }

    #[inline(always)]
    fn finish(self, sums: Narrow, offset: i32) -> F32<Self> {
        let wide = self.widen(sums).wide;
        let sum = self.neon.vaddq_s32(wide, self.neon.vdupq_n_s32(offset));
        self.to_floats(bytemuck::cast(sum))
    }
}
