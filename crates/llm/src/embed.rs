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

/// Embeds token sequences: the hidden states after the last norm, pooled, one vector `[D]` a text. Texts share steps. The
/// vectors are not normalized.
///
/// # Errors
/// If a text is empty, has an unknown token or is longer than the context of the model, or a device fails.
pub async fn embed(
    model: &Model,
    texts: &[Vec<u32>],
    pooling: Pooling,
) -> Result<Vec<Vec<f32>>, Error> {
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let n_max = texts.iter().map(Vec::len).max().unwrap_or(0);
    let n_ctx = model.config().n_ctx_train;
    if n_max > n_ctx {
        return Err(Error::ContextFull { tokens: n_max, n_ctx });
    }
    if texts.iter().any(Vec::is_empty) {
        return Err(Error::EmptyPrompt);
    }
    let n_batch = N_BATCH.min(texts.iter().map(Vec::len).sum());
    let mut state = model.state(StateOptions {
        n_sequences: texts.len().min(MAX_TEXTS),
        n_batch,
        n_hidden: n_batch,
        ..StateOptions::new(n_max)
    })?;
    let n_slots = state.options().n_sequences;
    let mut embeddings = vec![vec![0.0; model.config().d_model]; texts.len()];
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
