//! NEON: 128-bit vectors. Products are added in 16 bits (`smlal`), and sums widened before they overflow.

use std::arch::aarch64::{int8x16_t, int16x8_t, int32x4_t, uint8x16_t};
use std::arch::asm;

use half::{bf16, f16};

use super::int8::{Int8, RowInt8};
use super::token::token;
use super::vector::{F32, Simd, widen_f16};

token! {
    /// NEON: 128-bit vectors.
    Neon(pulp::aarch64::Neon), true, "neon"
}

impl Simd for Neon {
    type Pulp = pulp::aarch64::Neon;

    const HAS_F16: bool = false;

    #[inline(always)]
    fn pulp(self) -> pulp::aarch64::Neon {
        self.0
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> F32<Self> {
        // SAFETY: four f16 of `p` are 8 readable bytes, by the trait's contract.
        let half = unsafe { self.neon.vld1_s16(p.cast()) };
        widen_f16(self, bytemuck::cast(self.neon.vshll_n_s16::<13>(half)))
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> F32<Self> {
        // SAFETY: four bf16 of `p` are 8 readable bytes, by the trait's contract.
        let half = unsafe { self.neon.vld1_u16(p.cast()) };
        bytemuck::cast(self.neon.vshll_n_u16::<16>(half))
    }
}

/// Methods of [`Int8`] that do not depend on the dot product. Weight bytes are signed.
macro_rules! int8_neon {
    () => {
        type U32s = uint8x16_t;
        type Narrow = Self;

        const GEMM_ROWS: usize = 6;
        const HAS_LANE_DOT: bool = true;
        const BYTE_OFFSET: u8 = 0;

        #[inline(always)]
        fn narrow(self) -> Self {
            self
        }

        #[inline(always)]
        fn load_u32s<const N: usize>(self, x: &[u32; N], part: usize) -> uint8x16_t {
            bytemuck::cast(x.as_chunks::<4>().0[part])
        }

        #[inline(always)]
        fn load_u16s<const N: usize>(self, x: &[u16; N], part: usize) -> uint8x16_t {
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
        fn add_to_bytes(self, x: uint8x16_t, y: u8) -> uint8x16_t {
            self.neon.vaddq_u8(x, self.neon.vdupq_n_u8(y))
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
    };
}
pub(super) use int8_neon;

/// Sums of products of the first and last two lanes in 16 bits, and the 32-bit sums they were widened to. A tile of GEMM
/// has the 16-bit sums of all lanes in `low`.
#[derive(Clone, Copy, Debug)]
pub struct NarrowSums {
    low: int16x8_t,
    high: int16x8_t,
    wide: int32x4_t,
}

/// The first two bytes of each lane, then the last two: 16-bit sums of both halves are those of the same lane.
///
/// ```text
/// w      | a0 a1  b0 b1  c0 c1  d0 d1 | a2 a3  b2 b3  c2 c3  d2 d3 |
/// x      | x0 x1  x0 x1  x0 x1  x0 x1 | x2 x3  x2 x3  x2 x3  x2 x3 |
/// low[0] = a0 * x0 + a2 * x2, low[1] = a1 * x1 + a3 * x3
/// ```
const HALVES: [u8; 16] = [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15];

/// [`HALVES`] of four lanes that are all lane `lane`.
const fn halves_of(lane: usize) -> [u8; 16] {
    let mut bytes = HALVES;
    let mut i = 0;
    while i < 16 {
        bytes[i] = HALVES[i] % 4 + 4 * lane as u8;
        i += 1;
    }
    bytes
}

/// `table[index]` of each byte. LLVM makes a shuffle of the intrinsic with constant indices, then a load for each quad that
/// is shuffled.
#[inline]
#[target_feature(enable = "neon")]
fn table_lookup(table: uint8x16_t, index: uint8x16_t) -> uint8x16_t {
    let bytes;
    // SAFETY: works on registers alone; the function's features have the instruction.
    unsafe {
        asm!(
            "tbl {bytes:v}.16b, {{{table:v}.16b}}, {index:v}.16b",
            bytes = lateout(vreg) bytes,
            table = in(vreg) table,
            index = in(vreg) index,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    bytes
}

impl Int8 for Neon {
    int8_neon!();

    type Sums = NarrowSums;

    const NAME: &'static str = "neon";
    const GEMV_ROWS: usize = 4;
    const HEADROOM: usize = 2;
    const TILE_HEADROOM: usize = 1;

    #[inline(always)]
    fn start(self, _: i32) -> NarrowSums {
        let zero = self.neon.vdupq_n_s16(0);
        NarrowSums { low: zero, high: zero, wide: self.neon.vdupq_n_s32(0) }
    }

    #[inline(always)]
    fn dot4(self, sums: NarrowSums, w: uint8x16_t, x: uint8x16_t) -> NarrowSums {
        let (w, x): (int8x16_t, int8x16_t) = (bytemuck::cast(w), bytemuck::cast(x));
        let low = self.neon.vget_low_s8(w);
        NarrowSums {
            low: self.neon.vmlal_s8(sums.low, low, self.neon.vget_low_s8(x)),
            high: self.neon.vmlal_high_s8(sums.high, w, x),
            wide: sums.wide,
        }
    }

    #[inline(always)]
    fn dot4_quad(self, sums: NarrowSums, w: uint8x16_t, x: &[i32; 8], quad: usize) -> NarrowSums {
        self.dot4(sums, w, bytemuck::cast(self.neon.vdupq_n_s32(x[quad])))
    }

    #[inline(always)]
    fn widen(self, sums: NarrowSums) -> NarrowSums {
        let (low, high) = (self.neon.vpaddlq_s16(sums.low), self.neon.vpaddlq_s16(sums.high));
        let wide = self.neon.vaddq_s32(sums.wide, self.neon.vpaddq_s32(low, high));
        NarrowSums { wide, ..self.start(0) }
    }

    #[inline(always)]
    fn finish(self, sums: NarrowSums, offset: i32) -> F32<Self> {
        let wide = self.widen(sums).wide;
        let sum = self.neon.vaddq_s32(wide, self.neon.vdupq_n_s32(offset));
        self.to_floats(bytemuck::cast(sum))
    }

    #[inline(always)]
    fn tile_order(self, w: uint8x16_t) -> uint8x16_t {
        self.neon.vqtbl1q_u8(w, bytemuck::cast(HALVES))
    }

    #[inline(always)]
    fn dot4_lane<const LANE: usize>(
        self,
        sums: NarrowSums,
        w: uint8x16_t,
        x: &[i32; 8],
        four: usize,
    ) -> NarrowSums {
        // 16 bytes of `x` in a register serve four quads.
        let x = bytemuck::cast(x.as_chunks::<4>().0[four]);
        // SAFETY: `self` proves NEON.
        let x = unsafe { table_lookup(x, bytemuck::cast(const { halves_of(LANE) })) };
        let (w, x): (int8x16_t, int8x16_t) = (bytemuck::cast(w), bytemuck::cast(x));
        let (first, second) = (self.neon.vget_low_s8(w), self.neon.vget_low_s8(x));
        let low = self.neon.vmlal_s8(sums.low, first, second);
        NarrowSums { low: self.neon.vmlal_high_s8(low, w, x), ..sums }
    }

    #[inline(always)]
    fn widen_lanes(self, sums: NarrowSums) -> NarrowSums {
        NarrowSums { wide: self.neon.vpadalq_s16(sums.wide, sums.low), ..self.start(0) }
    }

    #[inline(always)]
    fn finish_lanes(self, sums: NarrowSums) -> F32<Self> {
        self.to_floats(bytemuck::cast(self.widen_lanes(sums).wide))
    }
}

impl RowInt8 for Neon {}
