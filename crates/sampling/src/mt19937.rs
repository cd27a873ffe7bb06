//! The generator of llama.cpp's samplers: a text has the same draws for the same seed.

use rand_mt::Mt;

/// MT19937 with the uniform distributions of libstdc++.
///
/// Source: Matsumoto and Nishimura, "Mersenne Twister", 1998; libstdc++ `std::generate_canonical`.
#[derive(Debug, Clone)]
pub(super) struct Mt19937(Mt);

impl Mt19937 {
    /// A generator with a seed of 32 bits as `std::mt19937` has, or with a longer one.
    pub(super) fn new(seed: u64) -> Self {
        Self(match u32::try_from(seed) {
            Ok(seed) => Mt::new(seed),
            Err(_) => Mt::new_with_key([seed as u32, (seed >> 32) as u32]),
        })
    }

    /// Uniform in `[0, 1)` from two words, as `std::uniform_real_distribution<double>`.
    pub(super) fn uniform(&mut self) -> f64 {
        const WORD: f64 = 4_294_967_296.0;
        let low = f64::from(self.0.next_u32());
        let sum = low + f64::from(self.0.next_u32()) * WORD;
        (sum / (WORD * WORD)).min(1f64.next_down())
    }

    /// Uniform in `[0, 1)` from one word, as `std::uniform_real_distribution<float>`.
    pub(super) fn uniform_f32(&mut self) -> f32 {
        (self.0.next_u32() as f32 / 4_294_967_296.0).min(1f32.next_down())
    }
}

#[cfg(test)]
mod tests {
    use super::Mt19937;

    #[test]
    fn words_are_those_of_the_standard() {
        // ISO C++ [rand.predef]: the 10,000th word of the default seed.
        let mut generator = Mt19937::new(5489);
        let last = (0..10_000).map(|_| generator.0.next_u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn distributions_are_those_of_libstdcpp() {
        // The first words of seed 42.
        let words = [1_608_637_542u32, 3_421_126_067, 4_083_286_876];
        let mut generator = Mt19937::new(42);
        let expected = (words[0] as f64 + words[1] as f64 * 2f64.powi(32)) / 2f64.powi(64);
        assert_eq!(generator.uniform(), expected);
        assert_eq!(generator.uniform_f32(), words[2] as f32 / 2f32.powi(32));
        assert_ne!(Mt19937::new(1 << 32).uniform(), Mt19937::new(0).uniform());
    }
}
