//! Embeddings: hidden states of a text, pooled to one vector.

use crate::model::pooling::Pooling;
use crate::{Error, OutputRow};

/// Embedding of one text in the making, without a device: the hidden states after the last norm, pooled.
///
/// ```text
/// plan.add(slot, &text.pending()[..n], OutputRequest::Hidden, text.n_rows(n))?;     texts share steps
/// text.accept(n, rows of the step);
/// ```
#[derive(Debug, Clone)]
pub struct Embedding {
    tokens: Vec<u32>,
    pooling: Pooling,
    n_done: usize,
    /// `[D]`, or `[T, D]` without pooling.
    values: Vec<f32>,
}

impl Embedding {
    /// Starts the embedding of a text.
    ///
    /// # Errors
    /// If the text is empty.
    pub fn new(tokens: Vec<u32>, pooling: Pooling) -> Result<Self, Error> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        Ok(Self { tokens, pooling, n_done: 0, values: Vec::new() })
    }

    /// Tokens that have not run.
    #[must_use]
    pub fn pending(&self) -> &[u32] {
        &self.tokens[self.n_done..]
    }

    /// Rows of hidden states of a step that runs the first `n` pending tokens: of its last tokens.
    #[must_use]
    pub fn n_rows(&self, n: usize) -> usize {
        match self.pooling {
            Pooling::Last => usize::from(n == self.pending().len()),
            Pooling::Cls if self.n_done > 0 => 0,
            Pooling::None | Pooling::Mean | Pooling::Cls => n,
        }
    }

    /// Takes the rows of a step that ran the first `n` pending tokens.
    ///
    /// # Panics
    /// If there are fewer tokens, or a row is no hidden state.
    pub fn accept<'a>(&mut self, n: usize, rows: impl IntoIterator<Item = OutputRow<'a>>) {
        assert!(n <= self.pending().len(), "{n} tokens of {}", self.pending().len());
        let n_used = match self.pooling {
            Pooling::Cls => 1,
            Pooling::None | Pooling::Mean | Pooling::Last => n,
        };
        let factor = 1.0 / self.tokens.len() as f32;
        for row in rows.into_iter().take(n_used) {
            let OutputRow::Hidden(hidden) = row else { panic!("a row of hidden states") };
            if self.pooling != Pooling::Mean {
                self.values.extend_from_slice(hidden);
                continue;
            }
            self.values.resize(hidden.len(), 0.0);
            self.values.iter_mut().zip(hidden).for_each(|(sum, value)| *sum += factor * value);
        }
        self.n_done += n;
    }

    /// Records that nothing has run: all tokens are pending.
    pub fn restart(&mut self) {
        self.n_done = 0;
        self.values.clear();
    }

    /// The embedding, `[D]`, or `[T, D]` without pooling. It is whole once no token is pending.
    #[must_use]
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }
}

/// Norm that the elements of an embedding are divided by.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Norm {
    /// Largest absolute value, over 32,760: the vector fits 16-bit integers.
    Max16Bit,
    /// p-norm, `(sum |x|^p)^(1/p)`; 2 is the Euclidean length.
    P(f32),
}

/// Divides a vector by its norm; zero stays zero.
pub fn normalize(vector: &mut [f32], norm: Norm) {
    let norm = match norm {
        Norm::Max16Bit => {
            vector.iter().fold(0.0, |max: f64, x| max.max(f64::from(x.abs()))) / 32_760.0
        }
        Norm::P(p) => {
            let sum: f64 = vector.iter().map(|x| f64::from(x.abs()).powf(p.into())).sum();
            sum.powf(1.0 / f64::from(p))
        }
    };
    if norm > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::{Norm, normalize};

    #[test]
    fn vectors_are_divided_by_their_norm() {
        for (norm, expected) in [
            (Norm::P(2.0), [0.6, -0.8, 0.0]),
            (Norm::P(1.0), [3.0 / 7.0, -4.0 / 7.0, 0.0]),
            (Norm::Max16Bit, [24_570.0, -32_760.0, 0.0]),
        ] {
            let mut vector = [3.0, -4.0, 0.0];
            normalize(&mut vector, norm);
            assert_eq!(vector, expected);
        }
        let mut zero = [0.0; 3];
        normalize(&mut zero, Norm::P(2.0));
        assert_eq!(zero, [0.0; 3]);
    }
}
