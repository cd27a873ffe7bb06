//! Plain Rust: the reference tier, present everywhere. Its loops over four lanes are what compilers vectorize with the
//! instructions that every CPU of a target has.

use half::{bf16, f16};
use pulp::NullaryFnOnce;

use super::int8::{Int8, RowInt8};
use super::token::Token;
use super::vector::{F32, Simd, widen_f16};

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
    type Pulp = pulp::Scalar128b;

    const HAS_ALL_VARIANTS: bool = false;
    const HAS_F16: bool = false;

    #[inline(always)]
    fn pulp(self) -> pulp::Scalar128b {
        pulp::Scalar128b
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> F32<Self> {
        // SAFETY: four readable values of 16 bits, by the contract.
        let half = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        let shifted = half.map(|bits| i32::from(bits.cast_signed()) << 13);
        widen_f16(self, bytemuck::cast(shifted))
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> F32<Self> {
        // SAFETY: four readable values of 16 bits, by the contract.
        let half = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        bytemuck::cast(each(widened(half), |bits| bits << 16))
    }

    #[inline(always)]
    fn mul_add(self, a: F32<Self>, b: F32<Self>, c: F32<Self>) -> F32<Self> {
        // pulp fuses in software here.
        self.add(self.mul(a, b), c)
    }
}

/// Lanes of the loops, which the compiler makes vectors of where the target has any.
const LANES: usize = 4;

/// Applies `f` to each lane.
#[inline(always)]
fn each(mut x: [u32; LANES], f: impl Fn(u32) -> u32) -> [u32; LANES] {
    for x in &mut x {
        *x = f(*x);
    }
    x
}

#[inline(always)]
fn widened(x: [u16; LANES]) -> [u32; LANES] {
    let mut wide = [0; LANES];
    for (wide, x) in wide.iter_mut().zip(x) {
        *wide = x.into();
    }
    wide
}

impl Int8 for Scalar {
    type U32s = [u32; LANES];
    type Sums = [i32; LANES];
    type Narrow = Self;

    const NAME: &'static str = "scalar";
    const GEMV_ROWS: usize = 4;
    // GEMM would add to the size of the program and its compile time.
    const GEMM_ROWS: usize = 0;
    const HEADROOM: usize = 1 << 16;
    const BYTE_OFFSET: u8 = 0;

    #[inline(always)]
    fn narrow(self) -> Self {
        self
    }

    #[inline(always)]
    fn load_u32s<const N: usize>(self, x: &[u32; N], part: usize) -> [u32; LANES] {
        x.as_chunks::<LANES>().0[part]
    }

    #[inline(always)]
    fn load_u16s<const N: usize>(self, x: &[u16; N], part: usize) -> [u32; LANES] {
        widened(x.as_chunks::<LANES>().0[part])
    }

    #[inline(always)]
    fn mask(self, x: [u32; LANES], mask: u8) -> [u32; LANES] {
        each(x, |x| x & u32::from_ne_bytes([mask; 4]))
    }

    #[inline(always)]
    fn or(self, mut x: [u32; LANES], y: [u32; LANES]) -> [u32; LANES] {
        for (x, y) in x.iter_mut().zip(y) {
            *x |= y;
        }
        x
    }

    #[inline(always)]
    fn add_to_bytes(self, mut x: [u32; LANES], y: u8) -> [u32; LANES] {
        for byte in bytemuck::bytes_of_mut(&mut x) {
            *byte = byte.wrapping_add(y);
        }
        x
    }

    #[inline(always)]
    fn shift_right(self, x: [u32; LANES], n: usize) -> [u32; LANES] {
        each(x, |x| x >> n)
    }

    #[inline(always)]
    fn shift_left(self, x: [u32; LANES], n: usize) -> [u32; LANES] {
        each(x, |x| x << n)
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], mut x: [u32; LANES]) -> [u32; LANES] {
        for byte in bytemuck::bytes_of_mut(&mut x) {
            *byte = table[usize::from(*byte & 15)];
        }
        x
    }

    #[inline(always)]
    fn bits(self, x: [u32; LANES], at: usize, n: usize) -> [u32; LANES] {
        each(x, |x| x >> at & ((1 << n) - 1))
    }

    #[inline(always)]
    fn signed_byte(self, x: [u32; LANES], at: usize) -> [u32; LANES] {
        each(x, |x| (x << (24 - 8 * at)).cast_signed().wrapping_shr(24).cast_unsigned())
    }

    #[inline(always)]
    fn to_floats(self, x: [u32; LANES]) -> F32<Self> {
        let mut floats = [0.0; LANES];
        for (float, x) in floats.iter_mut().zip(x) {
            *float = x.cast_signed() as f32;
        }
        bytemuck::cast(floats)
    }

    #[inline(always)]
    fn start(self, offset: i32) -> [i32; LANES] {
        [offset; LANES]
    }

    #[inline(always)]
    fn dot4(self, mut sums: [i32; LANES], w: [u32; LANES], x: [u32; LANES]) -> [i32; LANES] {
        // Pairs of 16-bit products: x86-64 adds them in one instruction.
        let (w, x) = (byte_pairs(w), byte_pairs(x));
        for (w, x) in w.into_iter().zip(x) {
            for i in 0..LANES {
                let [first, second] = [2 * i, 2 * i + 1].map(|i| i32::from(w[i]) * i32::from(x[i]));
                sums[i] += first + second;
            }
        }
        sums
    }

    #[inline(always)]
    fn dot4_quad(
        self,
        sums: [i32; LANES],
        w: [u32; LANES],
        x: &[i32; 8],
        quad: usize,
    ) -> [i32; LANES] {
        self.dot4(sums, w, [x[quad].cast_unsigned(); LANES])
    }

    #[inline(always)]
    fn widen(self, sums: [i32; LANES]) -> [i32; LANES] {
        sums
    }

    #[inline(always)]
    fn finish(self, sums: [i32; LANES], _: i32) -> F32<Self> {
        self.to_floats(bytemuck::cast(sums))
    }
}

/// The signed bytes of each lane: the even ones, and the odd ones.
#[inline(always)]
fn byte_pairs(x: [u32; LANES]) -> [[i16; 2 * LANES]; 2] {
    let pairs: [i16; 2 * LANES] = bytemuck::cast(x);
    let [mut even, mut odd] = [pairs; 2];
    for i in 0..2 * LANES {
        even[i] = pairs[i] << 8 >> 8;
        odd[i] = pairs[i] >> 8;
    }
    [even, odd]
}

impl RowInt8 for Scalar {}
