//! Word alignment of one window: dynamic time warping over cross-attention weights.
//!
//! ```text
//! rows of a decoder step: sot_sequence, <|notimestamps|>, text, <|endoftext|>, capturing queries
//! for each alignment head:
//!     weights  = softmax(queries · keysᵀ / sqrt(C))        [tokens, positions of 20 ms]
//!     normalize each column over the tokens; median filter of 7 along the positions
//! mean over the heads ──► DTW path ──► first position of each token ──► seconds
//! ```
//!
//! Source: openai/whisper 20250625 `timing.py`.

mod warp;

use std::ops::Range;

use crate::error::Error;
use crate::model::Model;
use crate::sampling::probability;
use crate::state::State;
use crate::words::TokenTimes;
use crate::{FRAMES_PER_POSITION, TIMESTAMP_SECONDS};

/// Text of a window to align with its audio.
#[derive(Debug, Clone)]
pub struct AlignRequest {
    /// Start sequence without `<|notimestamps|>`.
    pub start: Vec<u32>,
    /// Text tokens.
    pub text: Vec<u32>,
    /// Frames (10 ms) of the window without padding.
    pub n_frames: usize,
}

impl AlignRequest {
    /// Text tokens that fit the context with the special tokens. The text of a full window may not; tokens past its end get
    /// the time of the last one that fits.
    fn fitting(&self, model: &Model) -> &[u32] {
        let max = model.config().n_text_ctx.saturating_sub(self.start.len() + 2);
        &self.text[..self.text.len().min(max)]
    }

    /// Tokens of the decoder pass.
    pub(crate) fn tokens(&self, model: &Model) -> Vec<u32> {
        let special = model.special();
        let text = self.fitting(model);
        [&self.start[..], &[special.no_timestamps], text, &[special.eot]].concat()
    }
}

/// Times of the tokens of `request`, whose pass took `rows` of the last step of `state`, over window `window`.
pub(crate) async fn read_times(
    model: &Model,
    state: &mut State,
    request: &AlignRequest,
    (window, rows): (usize, Range<usize>),
) -> Result<TokenTimes, Error> {
    let n_positions = request.n_frames / FRAMES_PER_POSITION;
    let n_text = request.text.len();
    let fitting = request.fitting(model);
    let first = request.start.len();
    let mut probabilities = text_probabilities(model, state, rows.start + first, fitting).await?;
    let n_tokens = rows.len();
    let weights = alignment_weights(model, state, (window, rows), n_positions).await?;
    // Row `i` of these holds the attention that predicts token `i` of the text, then the end token.
    let rows = first..n_tokens - 1;
    let path = warp::first_columns(&weights[rows.start * n_positions..], rows.len(), n_positions);
    let mut seconds: Vec<f64> =
        path.into_iter().map(|position| position as f64 * TIMESTAMP_SECONDS).collect();
    seconds.resize(n_text + 1, seconds.last().copied().unwrap_or(0.0));
    probabilities.resize(n_text, 0.0);
    Ok(TokenTimes { seconds, probabilities })
}

/// Probability of each token of `text` among text tokens, from the last step; row `first` predicts the
/// first token.
async fn text_probabilities(
    model: &Model,
    state: &mut State,
    first: usize,
    text: &[u32],
) -> Result<Vec<f32>, Error> {
    let (vocab_size, n_text_tokens) = (model.config().vocab_size, model.special().eot as usize);
    let max_outputs = state.limits().n_outputs;
    let mut probabilities = Vec::with_capacity(text.len());
    let mut logits = Vec::new();
    let mut rows = Vec::with_capacity(max_outputs);
    for (chunk, tokens) in text.chunks(max_outputs).enumerate() {
        rows.clear();
        let from = first + chunk * max_outputs;
        rows.extend(from..from + tokens.len());
        state.project(&rows);
        state.read_logits(tokens.len(), &mut logits).await?;
        for (&token, logits) in tokens.iter().zip(logits.chunks_exact(vocab_size)) {
            probabilities.push(probability(&logits[..n_text_tokens], token));
        }
    }
    Ok(probabilities)
}

/// Mean attention weights of the alignment heads, `[rows, n_positions]`, normalized over the rows and
/// median-filtered along the positions.
async fn alignment_weights(
    model: &Model,
    state: &mut State,
    (window, rows): (usize, Range<usize>),
    n_positions: usize,
) -> Result<Vec<f32>, Error> {
    let (config, n_heads) = (model.config(), model.alignment_heads().len());
    let (c, n_tokens) = (config.text_head_dim(), rows.len());
    let mut captured = Vec::new();
    state.read_capture(window, rows, (n_heads, &mut captured)).await?;
    let (keys, queries) = captured.split_at(n_heads * config.n_audio_ctx * c);
    let mut mean = vec![0.0; n_tokens * n_positions];
    if n_positions == 0 {
        return Ok(mean);
    }
    let heads = keys.chunks_exact(config.n_audio_ctx * c).zip(queries.chunks_exact(n_tokens * c));
    for (keys, queries) in heads {
        let mut weights = warp::attention_weights(queries, &keys[..n_positions * c], c);
        warp::normalize_columns(&mut weights, n_positions);
        for (row, mean) in weights.chunks_exact(n_positions).zip(mean.chunks_exact_mut(n_positions))
        {
            warp::add_medians(row, mean);
        }
    }
    let scale = 1.0 / n_heads as f32;
    mean.iter_mut().for_each(|weight| *weight *= scale);
    Ok(mean)
}

#[cfg(test)]
mod tests;
