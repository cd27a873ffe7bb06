//! Word alignment of one window: dynamic time warping over cross-attention weights.
//!
//! ```text
//! one decoder pass over sot_sequence, <|notimestamps|>, text, <|endoftext|>, capturing queries
//! for each alignment head:
//!     weights  = softmax(queries · keysᵀ / sqrt(C))        [tokens, positions of 20 ms]
//!     normalize each column over the tokens; median filter of 7 along the positions
//! mean over the heads ──► DTW path ──► first position of each token ──► seconds
//! ```
//!
//! Source: openai/whisper 20250625 `timing.py`.

mod warp;

use stonechat_nn::{Backend, Batch};

use crate::capture::CrossAttentionCapture;
use crate::decoder::DecoderState;
use crate::error::Error;
use crate::model::Model;
use crate::options::Options;
use crate::sampling::probability;
use crate::transcript::Segment;
use crate::words::{Placement, TokenTimes, place_words, time_words};
use crate::{FRAMES_PER_POSITION, TIMESTAMP_SECONDS};

/// Window that segments were decoded from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowContext<'a> {
    /// Index of the window in the decoder state.
    pub(crate) window: usize,
    /// Start sequence that it was decoded with.
    pub(crate) sot_sequence: &'a [u32],
    /// Code of the language of the text: `en` when translated.
    pub(crate) language: &'a str,
    /// Start of the window, in seconds.
    pub(crate) offset: f64,
    /// Frames (10 ms) without padding.
    pub(crate) n_frames: usize,
    /// End of the last speech before the window, in seconds.
    pub(crate) last_speech: f64,
}

impl<B: Backend> Model<B> {
    /// Allocates the capture of `state` that [`add_words`](Self::add_words) needs, before audio is set.
    pub(crate) fn enable_alignment(&self, state: &mut DecoderState<B>) -> Result<(), Error> {
        if state.capture.is_none() {
            let (heads, n_windows) = (self.alignment_heads().clone(), state.n_windows());
            let capture =
                CrossAttentionCapture::new(self.backend(), self.config(), n_windows, heads)?;
            state.capture = Some(capture);
        }
        Ok(())
    }

    /// Sets the words of the segments of one window, and the segment times from their words. Empties
    /// the sequences of `state`.
    ///
    /// # Panics
    /// If alignment was not enabled before the audio was set.
    pub(crate) async fn add_words(
        &self,
        state: &mut DecoderState<B>,
        segments: &mut [Segment],
        context: WindowContext<'_>,
        options: &Options,
    ) -> Result<(), Error> {
        let special = self.special();
        let text: Vec<u32> =
            segments.iter().flat_map(|s| &s.tokens).copied().filter(|&t| t < special.eot).collect();
        let start: Vec<u32> =
            context.sot_sequence.iter().copied().filter(|&t| t != special.no_timestamps).collect();
        let n_positions = context.n_frames / FRAMES_PER_POSITION;
        let times = self.align(state, context.window, (&start, &text), n_positions).await?;
        let punctuation = (&*options.prepend_punctuations, &*options.append_punctuations);
        let (words, median) =
            time_words(self.tokenizer(), &text, &times, context.language, punctuation);
        let WindowContext { offset, last_speech, .. } = context;
        let token_seconds = &times.seconds[..];
        let placement = Placement { offset, last_speech, median, token_seconds };
        place_words(words, segments, special, placement);
        Ok(())
    }

    /// Aligns the text tokens `text` with the first `n_positions` positions (20 ms) of window
    /// `window`; `start` is the start sequence without `<|notimestamps|>`. Empties the sequences of
    /// `state`.
    ///
    /// # Panics
    /// If alignment was not enabled before the audio was set.
    async fn align(
        &self,
        state: &mut DecoderState<B>,
        window: usize,
        (start, text): (&[u32], &[u32]),
        n_positions: usize,
    ) -> Result<TokenTimes, Error> {
        let special = self.special();
        let (config, n_text) = (self.config(), text.len());
        // The text of a full window may not fit the context with the two special tokens; tokens past
        // its end get the time of the last one that fits.
        let fitting = &text[..n_text.min(config.n_text_ctx.saturating_sub(start.len() + 2))];
        let tokens = [start, &[special.no_timestamps][..], fitting, &[special.eot][..]].concat();
        let sequences = vec![window * state.n_sequences(); tokens.len()];
        state.clear();
        capture(state).is_recording = true;
        let run =
            self.decode(state, Batch { tokens: &tokens, sequences: &sequences, outputs: &[] });
        capture(state).is_recording = false;
        run?;
        let mut probabilities =
            self.text_probabilities(state, tokens.len(), start.len(), fitting).await?;
        let weights = self.alignment_weights(state, window, tokens.len(), n_positions).await?;
        // Row `i` of these holds the attention that predicts token `i` of the text, then the end token.
        let rows = start.len()..tokens.len() - 1;
        let path =
            warp::first_columns(&weights[rows.start * n_positions..], rows.len(), n_positions);
        let mut seconds: Vec<f64> =
            path.into_iter().map(|position| position as f64 * TIMESTAMP_SECONDS).collect();
        seconds.resize(n_text + 1, seconds.last().copied().unwrap_or(0.0));
        probabilities.resize(n_text, 0.0);
        state.clear();
        Ok(TokenTimes { seconds, probabilities })
    }

    /// Probability of each token of `text` among text tokens, from the logits of the last pass, of
    /// `n_tokens` tokens; row `first` predicts the first token.
    async fn text_probabilities(
        &self,
        state: &mut DecoderState<B>,
        n_tokens: usize,
        first: usize,
        text: &[u32],
    ) -> Result<Vec<f32>, Error> {
        let (vocab_size, n_text_tokens) = (self.config().vocab_size, self.special().eot as usize);
        let mut probabilities = Vec::with_capacity(text.len());
        let mut logits = vec![0.0; state.max_outputs() * vocab_size];
        let mut rows = Vec::with_capacity(state.max_outputs());
        for (chunk, tokens) in text.chunks(state.max_outputs()).enumerate() {
            rows.clear();
            let from = first + chunk * state.max_outputs();
            rows.extend(from..from + tokens.len());
            self.project(state, n_tokens, &rows);
            let read = &mut logits[..tokens.len() * vocab_size];
            self.backend().read(state.logits(), 0, read).await?;
            for (&token, logits) in tokens.iter().zip(read.chunks_exact(vocab_size)) {
                probabilities.push(probability(&logits[..n_text_tokens], token));
            }
        }
        Ok(probabilities)
    }

    /// Mean attention weights of the alignment heads, `[n_tokens, n_positions]`, normalized over the
    /// tokens and median-filtered along the positions.
    async fn alignment_weights(
        &self,
        state: &DecoderState<B>,
        window: usize,
        n_tokens: usize,
        n_positions: usize,
    ) -> Result<Vec<f32>, Error> {
        let capture = state.capture.as_ref().expect("alignment is enabled");
        let (config, n_heads) = (self.config(), capture.heads.len());
        let c = config.text_head_dim();
        let mut keys = vec![0.0; n_heads * config.n_audio_ctx * c];
        let mut queries = vec![0.0; n_heads * config.n_text_ctx * c];
        self.backend().read(&capture.keys, window * keys.len(), &mut keys).await?;
        self.backend().read(&capture.queries, 0, &mut queries).await?;
        let mut mean = vec![0.0; n_tokens * n_positions];
        if n_positions == 0 {
            return Ok(mean);
        }
        let heads = keys
            .chunks_exact(config.n_audio_ctx * c)
            .zip(queries.chunks_exact(config.n_text_ctx * c));
        for (keys, queries) in heads {
            let mut weights =
                warp::attention_weights(&queries[..n_tokens * c], &keys[..n_positions * c], c);
            warp::normalize_columns(&mut weights, n_positions);
            for (row, mean) in
                weights.chunks_exact(n_positions).zip(mean.chunks_exact_mut(n_positions))
            {
                warp::add_medians(row, mean);
            }
        }
        let scale = 1.0 / n_heads as f32;
        mean.iter_mut().for_each(|weight| *weight *= scale);
        Ok(mean)
    }
}

fn capture<B: Backend>(state: &mut DecoderState<B>) -> &mut CrossAttentionCapture<B> {
    state.capture.as_mut().expect("alignment is enabled")
}

#[cfg(test)]
mod tests;
