//! The pseudo-random generator of tests.

/// Linear congruential generator with Knuth's MMIX constants; reproducible on every platform.
#[derive(Debug, Clone)]
pub struct Lcg(u64);

impl Lcg {
    /// Starts at `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Uniform in `[-1, 1)`.
    pub fn uniform(&mut self) -> f32 {
        (f64::from(self.next_u32()) / f64::from(1u32 << 31) - 1.0) as f32
    }

    /// `n` values of [`uniform`](Self::uniform).
    pub fn uniforms(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.uniform()).collect()
    }

    /// Approximately standard normal: half the sum of 12 uniform values.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() / 2.0
    }

    /// `n` values of [`normal`](Self::normal), times `scale`.
    pub fn normals(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * scale).collect()
    }
}
