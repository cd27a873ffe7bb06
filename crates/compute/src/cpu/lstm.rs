//! One step of an LSTM (Hochreiter & Schmidhuber 1997), in PyTorch's gate order `i, f, g, o`:
//!
//! ```text
//! gates += W_hh · h                       [4H], W_hh packed into panels of 64 gates: [4H/64][H][64]
//! c = sigmoid(f) * c + sigmoid(i) * tanh(g)
//! h = sigmoid(o) * tanh(c)
//! ```

use super::gemm::{Operands, run_tiles};
use super::math::{sigmoid, tanh};
use crate::check_eq;
use crate::simd::{Isa, Kernel, Simd};

/// Width of a tile in vectors.
const N_VECTORS: usize = 4;
/// Required divisor of `H`, so that the `4H` gates are whole panels.
const HIDDEN_MULTIPLE: usize = 16;

/// Gates of a panel: one tile of the widest vectors.
const PANEL: usize = 64;

/// Recurrent weights `W_hh`, packed.
#[derive(Debug, Clone)]
pub struct Lstm {
    /// `H`.
    hidden_size: usize,
    /// `[4H / 64, H, 64]`.
    panels: Vec<f32>,
}

impl Lstm {
    /// Packs `weight` = `[4H, H]`, whose gates are in PyTorch's order: input, forget, cell, output.
    ///
    /// # Panics
    /// If `hidden_size` (`H`) is 0 or no multiple of 16, or the length differs.
    #[must_use]
    pub fn new(hidden_size: usize, weight: &[f32]) -> Self {
        let h = hidden_size;
        let is_whole = h > 0 && h.is_multiple_of(HIDDEN_MULTIPLE);
        assert!(
            is_whole,
            "lstm: expected a hidden size that is a multiple of {HIDDEN_MULTIPLE}, got {h}"
        );
        check_eq!(weight.len(), 4 * h * h, "lstm: values of the weights for hidden size {h}");
        let mut panels = Vec::with_capacity(weight.len());
        for first in (0..4 * h).step_by(PANEL) {
            for k in 0..h {
                panels.extend((first..first + PANEL).map(|gate| weight[gate * h + k]));
            }
        }
        Self { hidden_size, panels }
    }

    /// Advances `hidden` and `cell`, both `[H]`, by one step. `gates` = `[4H]` holds `W_ih · x` plus both biases on
    /// entry, unspecified values on return.
    ///
    /// Numerics: f32 sums, `tanh` and the sigmoid within 4 ULP. Runs on this thread.
    ///
    /// # Panics
    /// If a length differs.
    #[track_caller]
    pub fn step(&self, isa: Isa, gates: &mut [f32], hidden: &mut [f32], cell: &mut [f32]) {
        let h = self.hidden_size;
        let lengths = [gates.len(), hidden.len(), cell.len()];
        check_eq!(lengths, [4 * h, h, h], "lstm: lengths of gates, h and c for hidden size {h}");
        isa.dispatch(LstmStep { gates, panels: &self.panels, hidden, cell });
    }
}

struct LstmStep<'a> {
    gates: &'a mut [f32],
    panels: &'a [f32],
    hidden: &'a mut [f32],
    cell: &'a mut [f32],
}

impl Kernel for LstmStep<'_> {
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
                    prefetch_offset: 0,
                };
                // SAFETY: `hidden` has `h` values, the panel `h` rows, and a tile divides their width.
                unsafe { run_tiles::<S, f32, N_VECTORS, false>(s, 1, operands) };
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
    #[should_panic(expected = "expected a hidden size that is a multiple of 16, got 8")]
    fn odd_widths_are_refused() {
        drop(Lstm::new(8, &[0.0; 256]));
    }
}
