//! [`I8Dot`] in plain Rust: the reference tier, also for NEON and WebAssembly.
//!
//! Loops run over fixed arrays, so that the compiler turns them into the vector instructions of
//! the feature context they are inlined into.

use stonechat_compute::simd;

use super::I8Dot;
use crate::block::Half;

macro_rules! portable {
    ($token:ty, $name:literal) => {
        impl I8Dot for $token {
            type Bytes = [u8; 32];
            type Ints = [i32; 8];
            type Floats = [f32; 8];

            const DOT_NAME: &'static str = $name;

            #[inline(always)]
            fn half(self, x: Half) -> f32 {
                x.to_f32()
            }

            #[inline(always)]
            fn halves(self, x: [Half; 8]) -> [f32; 8] {
                let mut wide = [0.0; 8];
                for i in 0..8 {
                    wide[i] = x[i].to_f32();
                }
                wide
            }

            #[inline(always)]
            fn splat_half(self, x: Half) -> [f32; 8] {
                [x.to_f32(); 8]
            }

            #[inline(always)]
            fn widen_unsigned(self, x: [u8; 8]) -> [f32; 8] {
                x.map(f32::from)
            }

            #[inline(always)]
            fn widen_signed(self, x: [u8; 8]) -> [f32; 8] {
                x.map(|v| f32::from(v as i8))
            }

            #[inline(always)]
            fn load_twice(self, x: &[f32; 8]) -> [[f32; 8]; 2] {
                std::array::from_fn(|h| std::array::from_fn(|i| x[4 * h + i / 2]))
            }

            #[inline(always)]
            fn load_bytes(self, x: &[u8; 32]) -> [u8; 32] {
                *x
            }

            #[inline(always)]
            fn nibbles(self, x: &[u8; 16]) -> [u8; 32] {
                std::array::from_fn(|i| x[i % 16] >> (i / 16 * 4) & 15)
            }

            #[inline(always)]
            fn spread_bits(self, bits: u32) -> [u8; 32] {
                std::array::from_fn(|i| ((bits >> i & 1) << 4) as u8)
            }

            #[inline(always)]
            fn negate(self, x: [u8; 32], bits: u32) -> [u8; 32] {
                let mut out = [0; 32];
                for i in 0..32 {
                    let mask = ((bits >> i & 1) as u8).wrapping_neg();
                    out[i] = (x[i] ^ mask).wrapping_sub(mask);
                }
                out
            }

            #[inline(always)]
            fn lookup(self, table: &[i8; 16], x: [u8; 32]) -> [u8; 32] {
                x.map(|v| table[usize::from(v & 15)] as u8)
            }

            #[inline(always)]
            fn mask(self, x: [u8; 32], mask: u8) -> [u8; 32] {
                x.map(|v| v & mask)
            }

            #[inline(always)]
            fn or(self, x: [u8; 32], y: [u8; 32]) -> [u8; 32] {
                std::array::from_fn(|i| x[i] | y[i])
            }

            #[inline(always)]
            fn shift_right<const N: i32>(self, x: [u8; 32]) -> [u8; 32] {
                x.map(|v| v >> N)
            }

            #[inline(always)]
            fn shift_left<const N: i32>(self, x: [u8; 32]) -> [u8; 32] {
                x.map(|v| v << N)
            }

            #[inline(always)]
            fn dot_unsigned(self, w: [u8; 32], a: [u8; 32]) -> [i32; 8] {
                self.dot_signed(w, a)
            }

            #[inline(always)]
            fn dot_signed(self, w: [u8; 32], a: [u8; 32]) -> [i32; 8] {
                let mut sums = [0; 8];
                for i in 0..32 {
                    sums[i / 4] += i32::from(w[i] as i8) * i32::from(a[i] as i8);
                }
                sums
            }

            #[inline(always)]
            fn to_floats(self, x: [i32; 8]) -> [f32; 8] {
                x.map(|v| v as f32)
            }

            #[inline(always)]
            fn load_floats(self, x: &[f32; 8]) -> [f32; 8] {
                *x
            }

            #[inline(always)]
            fn to_array(self, x: [f32; 8]) -> [f32; 8] {
                x
            }

            #[inline(always)]
            fn splat_floats(self, x: f32) -> [f32; 8] {
                [x; 8]
            }

            #[inline(always)]
            fn pair(self, low: f32, high: f32) -> [f32; 8] {
                [low, low, low, low, high, high, high, high]
            }

            #[inline(always)]
            fn scale_floats(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
                std::array::from_fn(|i| a[i] * b[i])
            }

            #[inline(always)]
            fn fused(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
                std::array::from_fn(|i| a[i] * b[i] + c[i])
            }

            #[inline(always)]
            fn sum(self, x: [f32; 8]) -> f32 {
                let x: [f32; 4] = std::array::from_fn(|i| x[i] + x[i + 4]);
                (x[0] + x[2]) + (x[1] + x[3])
            }
        }
    };
}

portable!(simd::Scalar, "scalar");
#[cfg(target_arch = "aarch64")]
portable!(simd::Neon, "portable-neon");
#[cfg(target_arch = "aarch64")]
portable!(simd::NeonDot, "portable-neon");
#[cfg(target_arch = "wasm32")]
portable!(simd::WasmSimd128, "portable-simd128");
