//! A step of a long short-term memory (Hochreiter & Schmidhuber 1997).

use super::gemm::{Operands, tile_rows};
use super::math::{sigmoid, tanh};
use crate::simd::{Isa, Kernel, Simd};

/// Vectors of gates whose sums are kept in registers.
const N_VECTORS: usize = 4;
/// The widths it takes are multiples of this: the gates of `H` units are whole tiles of the widest vectors.
const UNITS: usize = 16;

/// Gates whose weights lie together.
const PANEL: usize = 64;

/// Weights of the products with the hidden state.
#[derive(Debug, Clone)]
pub struct Lstm {
    /// `H`.
    n_units: usize,
    /// `[4H / 64, H, 64]`: what a tile reads, one after the other.
    panels: Vec<f32>,
}

impl Lstm {
    /// Rearranges `weight`, `[4H, H]`, whose gates are in PyTorch's order: input, forget, candidate, output.
    ///
    /// # Panics
    /// If `H`, `n_units`, is 0 or no multiple of 16, or the length differs.
    #[must_use]
    pub fn new(n_units: usize, weight: &[f32]) -> Self {
        let h = n_units;
        let is_whole = h > 0 && h.is_multiple_of(UNITS);
        assert!(is_whole, "lstm: expected a multiple of {UNITS} units, got {h}");
        assert_eq!(weight.len(), 4 * h * h, "lstm: length of the weights for {h} units");
        let mut panels = Vec::with_capacity(weight.len());
        for first in (0..4 * h).step_by(PANEL) {
            for unit in 0..h {
                panels.extend((first..first + PANEL).map(|gate| weight[gate * h + unit]));
            }
        }
        Self { n_units, panels }
    }

    /// Moves `hidden` and `cell`, both `[H]`, by one step; `gates`, `[4H]`, holds the products with the input and all
    /// biases, and afterwards nothing of use.
    ///
    /// Numerics: f32 sums, `tanh` and the sigmoid within 4 ULP. Runs on this thread.
    ///
    /// # Panics
    /// If a length differs.
    #[track_caller]
    pub fn step(&self, isa: Isa, gates: &mut [f32], hidden: &mut [f32], cell: &mut [f32]) {
        let h = self.n_units;
        let lengths = [gates.len(), hidden.len(), cell.len()];
        assert_eq!(lengths, [4 * h, h, h], "lstm: lengths for {h} units");
        isa.dispatch(Step { gates, panels: &self.panels, hidden, cell });
    }
}

struct Step<'a> {
    gates: &'a mut [f32],
    panels: &'a [f32],
    hidden: &'a mut [f32],
    cell: &'a mut [f32],
}

impl Kernel for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { gates, panels, hidden, cell } = self;
        let h = hidden.len();
        let (gates_of_panels, _) = gates.as_chunks_mut::<PANEL>();
        for (gates, panel) in gates_of_panels.iter_mut().zip(panels.chunks_exact(h * PANEL)) {
            for first in (0..PANEL).step_by(N_VECTORS * S::LANES) {
                let operands = Operands {
                    a: hidden.as_ptr(),
                    a_stride: h,
                    b: panel[first..].as_ptr(),
                    b_stride: PANEL,
                    c: gates[first..].as_mut_ptr(),
                    c_stride: PANEL,
                    k: h,
                    accumulate: true,
                    ahead: 0,
                };
                // SAFETY: `hidden` has `h` values, the panel as many rows, and a tile divides their width.
                unsafe { tile_rows::<S, f32, N_VECTORS, false>(s, 1, operands) };
            }
        }
        let (input, rest) = gates.split_at(h);
        let (forget, rest) = rest.split_at(h);
        let (candidate, output) = rest.split_at(h);
        let [input, forget, candidate, output] =
            [input, forget, candidate, output].map(|gate| s.split(gate).0);
        let (hidden, cell) = (s.split_mut(hidden).0, s.split_mut(cell).0);
        for i in 0..cell.len() {
            let kept = s.mul(sigmoid(s, forget[i]), cell[i]);
            cell[i] = s.mul_add(sigmoid(s, input[i]), tanh(s, candidate[i]), kept);
            hidden[i] = s.mul(sigmoid(s, output[i]), tanh(s, cell[i]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Lstm;
    use crate::cpu::test_data::{assert_close, random};
    use crate::simd::Isa;

    #[test]
    fn steps_match_f64() {
        for isa in Isa::available() {
            for h in [16, 48, 128] {
                let weight: Vec<f32> = random(4 * h * h, 1).iter().map(|w| 0.2 * w).collect();
                let lstm = Lstm::new(h, &weight);
                let (mut hidden, mut cell) = (random(h, 2), random(h, 3));
                let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| x.into()).collect() };
                let (mut hidden_64, mut cell_64) = (wide(&hidden), wide(&cell));
                for step in 0..3 {
                    let mut gates: Vec<f32> = random(4 * h, 4 + step);
                    let sums: Vec<f64> = (0..4 * h)
                        .map(|n| {
                            let product = |i: usize| f64::from(weight[n * h + i]) * hidden_64[i];
                            f64::from(gates[n]) + (0..h).map(product).sum::<f64>()
                        })
                        .collect();
                    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                    for i in 0..h {
                        let [input, forget, candidate, output] =
                            [0, 1, 2, 3].map(|gate| sums[gate * h + i]);
                        cell_64[i] =
                            sigmoid(forget) * cell_64[i] + sigmoid(input) * candidate.tanh();
                        hidden_64[i] = sigmoid(output) * cell_64[i].tanh();
                    }
                    lstm.step(isa, &mut gates, &mut hidden, &mut cell);
                    assert_close(&hidden, &hidden_64, 1e-5, isa.name());
                    assert_close(&cell, &cell_64, 1e-5, isa.name());
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "expected a multiple of 16 units, got 8")]
    fn odd_widths_are_refused() {
        drop(Lstm::new(8, &[0.0; 256]));
    }
}
