//! Peak 8-bit multiply-add rate of a core: the compute roofline of integer matmuls.

use std::hint::black_box;

use stonechat_compute::Isa;
use stonechat_compute::simd::{Int8, Int8Kernel, NullaryFnOnce};

/// Independent sums: enough to hide the latency of the instruction.
const N_SUMS: usize = 10;
/// Operands of a round, each multiplied into all sums.
const N_STEPS: usize = 100;

/// Runs `rounds` thousand 8-bit multiply-add instructions of the tier's matmuls, from registers and the first-level cache
/// on the calling thread. Returns the number of operations, two for each multiply-add, and the name of the tier whose
/// instructions they are.
#[must_use]
pub fn int8_peak(isa: Isa, rounds: usize) -> (f64, &'static str) {
    isa.dispatch_int8(Rounds(rounds))
}

struct Rounds(usize);

impl Int8Kernel for Rounds {
    type Output = (f64, &'static str);

    fn run<S: Int8>(self, s: S) -> Self::Output {
        s.vectorize(InContext(s, self.0));
        let n_bytes = size_of::<S::U32s>();
        (2.0 * (self.0 * N_STEPS * N_SUMS * n_bytes) as f64, S::NAME)
    }
}

struct InContext<S>(S, usize);

impl<S: Int8> NullaryFnOnce for InContext<S> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(s, rounds) = self;
        // Operands are opaque to the compiler, which would compute the products once otherwise.
        let zeros = black_box([0; 16]);
        let w = black_box([s.load_u32s(&zeros, 0); N_STEPS]);
        let x = black_box([s.load_u32s(&zeros, 0); N_SUMS]);
        let w = &w[..black_box(N_STEPS)];
        let mut sums = [s.start(0); N_SUMS];
        for _ in 0..rounds {
            for &w in w {
                for i in 0..N_SUMS {
                    sums[i] = s.widen(s.dot4(sums[i], w, x[i]));
                }
            }
        }
        for sums in sums {
            black_box(s.finish(sums, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use stonechat_compute::Isa;

    use super::int8_peak;

    #[test]
    fn tiers_count_their_operations() {
        for isa in Isa::available() {
            let (ops, tier) = int8_peak(isa, 2);
            let n_bytes = ops / (2.0 * 2000.0);
            assert!([4.0, 16.0, 32.0, 64.0].contains(&n_bytes), "{isa}: {n_bytes}");
            assert!(Isa::NAMES.contains(&tier), "{isa}: {tier}");
        }
    }
}
