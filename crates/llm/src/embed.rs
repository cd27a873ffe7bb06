//! Embeddings: hidden states of a text, pooled to one vector.

use std::fmt;
use std::str::FromStr;

use stonechat_nn::Slot;

use crate::{Error, Model, OutputRequest, OutputRow, StateOptions};

/// Pooling of the hidden states of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// Mean over the tokens.
    Mean,
    /// First token.
    Cls,
    /// Last token.
    Last,
}

impl Pooling {
    /// Pooling of `pooling_type` in a GGUF file; `None` for another type.
    pub(crate) fn from_gguf(code: usize) -> Option<Self> {
        match code {
            1 => Some(Self::Mean),
            2 => Some(Self::Cls),
            3 => Some(Self::Last),
            _ => None,
        }
    }
}

impl FromStr for Pooling {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "mean" => Ok(Self::Mean),
            "cls" => Ok(Self::Cls),
            "last" => Ok(Self::Last),
            _ => Err(Error::Option {
                option: "pooling",
                expected: "mean, cls or last".to_owned(),
                got: name.to_owned(),
            }),
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
        })
    }
}

/// Largest number of tokens of a step.
const N_BATCH: usize = 512;
/// Largest number of texts of a step.
const MAX_TEXTS: usize = 16;

impl Model {
    /// Embeds token sequences: the hidden states after the last norm, pooled, one vector `[D]` a text. Texts share steps.
    /// The vectors are not normalized; see [`normalize`].
    ///
    /// # Errors
    /// If a text is empty, has an unknown token or is longer than the context of the model, or a device fails.
    pub async fn embed(
        &self,
        texts: &[Vec<u32>],
        pooling: Pooling,
    ) -> Result<Vec<Vec<f32>>, Error> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let n_max = texts.iter().map(Vec::len).max().unwrap_or(0);
        let n_ctx = self.config().n_ctx_train;
        if n_max > n_ctx {
            return Err(Error::ContextFull { tokens: n_max, n_ctx });
        }
        if texts.iter().any(Vec::is_empty) {
            return Err(Error::EmptyPrompt);
        }
        let n_batch = N_BATCH.min(texts.iter().map(Vec::len).sum());
        let mut state = self.state(StateOptions {
            n_sequences: texts.len().min(MAX_TEXTS),
            n_batch,
            n_hidden: n_batch,
            ..StateOptions::new(n_max)
        })?;
        let n_slots = state.options().n_sequences;
        let mut embeddings = vec![vec![0.0; self.config().d_model]; texts.len()];
        // Texts in slots, with the number of tokens that have run.
        let mut slots: Vec<Option<(usize, usize)>> = vec![None; n_slots];
        let mut waiting = 0..texts.len();
        loop {
            let mut plan = state.plan();
            let mut runs = Vec::new();
            for (index, slot) in slots.iter_mut().enumerate() {
                if slot.is_none() {
                    *slot = waiting.next().map(|text| (text, 0));
                }
                let Some((text, done)) = slot else { continue };
                let tokens = &texts[*text][*done..];
                let n = tokens.len().min(n_batch - plan.n_tokens());
                let is_last = n == tokens.len();
                // Rows of the run that are pooled are its last ones.
                let n_outputs = match pooling {
                    Pooling::Last => usize::from(is_last),
                    Pooling::Cls if *done > 0 => 0,
                    Pooling::Mean | Pooling::Cls => n,
                };
                if n > 0 {
                    let slot = Slot::new(index);
                    plan.add(slot, &tokens[..n], OutputRequest::Hidden, n_outputs)?;
                    runs.push((index, *text, n, n_outputs, is_last));
                }
            }
            if runs.is_empty() {
                return Ok(embeddings);
            }
            let ticket = plan.run()?;
            let outputs = state.outputs(ticket).await?;
            let mut row = 0;
            for &(_, text, _, n_outputs, _) in &runs {
                let used = if pooling == Pooling::Cls { n_outputs.min(1) } else { n_outputs };
                let factor = match pooling {
                    Pooling::Mean => 1.0 / texts[text].len() as f32,
                    Pooling::Cls | Pooling::Last => 1.0,
                };
                for output in outputs.rows(row..row + used) {
                    let OutputRow::Hidden(hidden) = output else { unreachable!("hidden states") };
                    let sums = embeddings[text].iter_mut().zip(hidden);
                    sums.for_each(|(sum, value)| *sum += factor * value);
                }
                row += n_outputs;
            }
            for (index, _, n, _, is_last) in runs {
                if is_last {
                    slots[index] = None;
                    state.truncate(Slot::new(index), 0);
                } else if let Some((_, done)) = &mut slots[index] {
                    *done += n;
                }
            }
        }
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
    use super::{Norm, Pooling, normalize};

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

    #[test]
    fn poolings_have_names() {
        for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Last] {
            assert_eq!(pooling.to_string().parse::<Pooling>().unwrap(), pooling);
        }
        assert!("rank".parse::<Pooling>().is_err());
    }
}
