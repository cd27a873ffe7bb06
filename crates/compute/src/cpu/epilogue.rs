//! Epilogue of a matmul: bias, activation and residual, applied while the sums are in cache.

use super::math::{gelu, gelu_tanh};
use crate::check_eq;
use crate::op::Activation;
use crate::simd::{F32, Simd};

/// Epilogue with values in memory.
pub type Epilogue<'a> = crate::op::Epilogue<&'a [f32]>;

impl Epilogue<'_> {
    /// Applies the epilogue to the sums of columns `first ..` of one row and stores them in `out`. Inlined into matmul
    /// kernels.
    ///
    /// # Panics
    /// If `sums` is shorter than `out`, or the bias ends before the last column.
    #[inline(always)]
    pub fn finish<S: Simd>(self, s: S, sums: &[f32], first: usize, out: &mut [f32]) {
        let sums = &sums[..out.len()];
        let bias = self.bias.map(|b| &b[first..first + out.len()]);
        let mut i = 0;
        while i + S::LANES <= out.len() {
            // SAFETY: `i + LANES <= out.len()`, the loop's condition; `sums` and `bias` have the same length.
            unsafe {
                let b = bias.map(|b| s.load(b.as_ptr().add(i)));
                let y = self.finish_vector(s, s.load(sums.as_ptr().add(i)), b);
                let p = out.as_mut_ptr().add(i);
                s.store(p, if self.accumulate { s.add(s.load(p), y) } else { y });
            }
            i += S::LANES;
        }
        if i < out.len() {
            let b = bias.map(|b| s.load_partial(&b[i..]));
            let y = self.finish_vector(s, s.load_partial(&sums[i..]), b);
            let out = &mut out[i..];
            let y = if self.accumulate { s.add(s.load_partial(out), y) } else { y };
            s.store_partial(out, y);
        }
    }

    #[inline(always)]
    fn finish_vector<S: Simd>(self, s: S, sum: F32<S>, bias: Option<F32<S>>) -> F32<S> {
        let y = match bias {
            Some(b) => s.add(sum, b),
            None => sum,
        };
        match self.activation {
            Activation::None => y,
            Activation::Gelu => gelu(s, y),
            Activation::GeluTanh => gelu_tanh(s, y),
        }
    }

    #[track_caller]
    pub(crate) fn check(self, n: usize) {
        let len = self.bias.map_or(n, <[f32]>::len);
        check_eq!(len, n, "matmul: values of the bias");
    }
}
