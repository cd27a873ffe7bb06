//! The dot product of `NVFP4`, the only format with blocks of 64.

use super::{ActivationRow, DotRow, Sums, first_qblocks};
use crate::block::{BlockNvfp4, E2M1_TWICE};
use crate::simd::I8Dot;

impl DotRow for BlockNvfp4 {
    #[inline(always)]
    fn dot<S: I8Dot, const M: usize>(s: S, w: &[Self], x: &[ActivationRow<'_>; M]) -> [f32; M] {
        let x = first_qblocks(x, 2 * w.len());
        let mut sums = Sums::zeros(s);
        for (i, block) in w.iter().enumerate() {
            let scales = block.half_scales();
            for u in 0..2 {
                let q = s.lookup(&E2M1_TWICE, s.load_bytes(&block.quants32(u)));
                let scale = s.pair(scales[2 * u], scales[2 * u + 1]);
                for m in 0..M {
                    let p = s.load_bytes(x[m].quants[2 * i + u].bytes());
                    let factor = s.scale_floats(scale, s.splat_floats(x[m].scales[2 * i + u]));
                    sums.add(s, (m, u), s.to_floats(s.dot_signed(q, p)), factor);
                }
            }
        }
        sums.finish(s)
    }
}
