//! Plain Rust: the reference tier, present everywhere.

use half::{bf16, f16};
use pulp::NullaryFnOnce;

use super::int8::{Int8, RowInt8};
use super::token::Token;
use super::vector::Simd;

/// Token of plain Rust.
#[derive(Clone, Copy, Debug)]
pub struct Scalar(());

impl Scalar {
    /// The token; always available.
    pub(super) const fn new() -> Self {
        Self(())
    }
}

impl Token for Scalar {
    fn try_new() -> Option<Self> {
        Some(Self::new())
    }

    #[inline(always)]
    fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
        f.call()
    }
}

impl Simd for Scalar {
    type Pulp = pulp::Scalar;

    #[inline(always)]
    fn pulp(self) -> pulp::Scalar {
        pulp::Scalar
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> f32 {
        // SAFETY: one readable value, by the contract.
        unsafe { p.read_unaligned() }.to_f32()
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> f32 {
        // SAFETY: one readable value, by the contract.
        unsafe { p.read_unaligned() }.to_f32()
    }
}

impl Int8 for Scalar {
    type U32s = u32;
    type Sums = i32;
    type Narrow = Self;

    const NAME: &'static str = "scalar";
    const GEMV_ROWS: usize = 4;
    const GEMM_ROWS: usize = 0;
    const HEADROOM: usize = 1 << 16;
    const BYTE_OFFSET: u8 = 0;

    #[inline(always)]
    fn narrow(self) -> Self {
        self
    }

    #[inline(always)]
    fn load_u32s<const N: usize>(self, x: &[u32; N], part: usize) -> u32 {
        x[part]
    }

    #[inline(always)]
    fn load_u16s<const N: usize>(self, x: &[u16; N], part: usize) -> u32 {
        x[part].into()
    }

    #[inline(always)]
    fn mask(self, x: u32, mask: u8) -> u32 {
        x & u32::from_ne_bytes([mask; 4])
    }

    #[inline(always)]
    fn or(self, x: u32, y: u32) -> u32 {
        x | y
    }

    #[inline(always)]
    fn add_to_bytes(self, x: u32, y: u8) -> u32 {
        u32::from_ne_bytes(x.to_ne_bytes().map(|byte| byte.wrapping_add(y)))
    }

    #[inline(always)]
    fn shift_right(self, x: u32, n: usize) -> u32 {
        x >> n
    }

    #[inline(always)]
    fn shift_left(self, x: u32, n: usize) -> u32 {
        x << n
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: u32) -> u32 {
        u32::from_ne_bytes(x.to_ne_bytes().map(|byte| table[usize::from(byte & 15)]))
    }

    #[inline(always)]
    fn bits(self, x: u32, at: usize, n: usize) -> u32 {
        x >> at & ((1 << n) - 1)
    }

    #[inline(always)]
    fn signed_byte(self, x: u32, at: usize) -> u32 {
        i32::from((x >> (8 * at)) as i8).cast_unsigned()
    }

    #[inline(always)]
    fn to_floats(self, x: u32) -> f32 {
        x.cast_signed() as f32
    }

    #[inline(always)]
    fn start(self, offset: i32) -> i32 {
        offset
    }

    #[inline(always)]
    fn dot4(self, mut sums: i32, w: u32, x: u32) -> i32 {
        for i in 0..4 {
            sums += i32::from((w >> (8 * i)) as i8) * i32::from((x >> (8 * i)) as i8);
        }
        sums
    }

    #[inline(always)]
    fn dot4_quad(self, sums: i32, w: u32, x: &[i32; 8], quad: usize) -> i32 {
        self.dot4(sums, w, x[quad].cast_unsigned())
    }

    #[inline(always)]
    fn widen(self, sums: i32) -> i32 {
        sums
    }

    #[inline(always)]
    fn finish(self, sums: i32, _: i32) -> f32 {
        sums as f32
    }
}

impl RowInt8 for Scalar {}
