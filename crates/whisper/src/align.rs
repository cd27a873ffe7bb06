//! When each token of a window was spoken: some heads of the decoder's cross-attention look at the
//! sound of the token that they predict.
//!
//! One forward pass over the window's tokens, as if they were decoded without timestamps, copies
//! the queries of those heads aside; their keys were copied when the window was set. The weights are
//! computed here from both, so that attention itself stays fused. Dynamic time warping then finds
//! the path of tokens through time.
//!
//! Source: openai/whisper 20250625 `timing.py`.

mod heads;
mod warp;

use stonechat_nn::{Backend, Rows, View};

use crate::decoder::DecoderState;
use crate::words::{Placement, place_words, time_words};
use crate::{
    Batch, Config, Error, FRAMES_PER_POSITION, Model, Options, Segment, TIMESTAMP_SECONDS,
};
pub(crate) use heads::AlignmentHeads;

/// When the tokens of a text were spoken.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenTimes {
    /// Start of each token in seconds from the start of the window, then the end of the last.
    pub(crate) seconds: Vec<f64>,
    /// Probability of each token among text tokens, given those before it.
    pub(crate) probabilities: Vec<f32>,
}

/// The window that segments were cut from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heard<'a> {
    /// Which of the state's windows it is.
    pub(crate) window: usize,
    /// The start sequence that it was decoded with.
    pub(crate) start: &'a [u32],
    /// Code of the language that was written down.
    pub(crate) language: &'a str,
    /// Where it begins in seconds.
    pub(crate) offset: f64,
    /// Frames of it that are no padding.
    pub(crate) n_frames: usize,
    /// Where speech ended before it, in seconds.
    pub(crate) last_speech: f64,
}

/// Keys and queries of the alignment heads, copied aside.
#[derive(Debug)]
pub(crate) struct Tap<B: Backend> {
    heads: AlignmentHeads,
    /// `[windows, heads, n_audio_ctx, C]`.
    keys: B::Buffer,
    /// `[heads, n_text_ctx, C]` of the last pass that was recorded.
    queries: B::Buffer,
    recording: bool,
}

impl<B: Backend> Tap<B> {
    fn new(
        backend: &B,
        config: &Config,
        n_windows: usize,
        heads: AlignmentHeads,
    ) -> Result<Self, Error> {
        let width = heads.len() * config.text_head_dim();
        Ok(Self {
            keys: backend.alloc(n_windows * config.n_audio_ctx * width)?,
            queries: backend.alloc(config.n_text_ctx * width)?,
            heads,
            recording: false,
        })
    }

    /// Keeps the keys of a window and layer, the first `D` columns of `cross`, `[n_audio_ctx, 2D]`.
    pub(crate) fn set_keys(
        &mut self,
        backend: &B,
        config: &Config,
        (window, layer): (usize, usize),
        cross: &B::Buffer,
    ) {
        let (t, c) = (config.n_audio_ctx, config.text_head_dim());
        let all = Rows::packed(t, 2 * config.d_model);
        for (i, head) in self.heads.of_layer(layer) {
            let view = View::new(cross, all.columns(head * c, c));
            let place = window * self.heads.len() + i;
            backend.copy(&mut self.keys, place * t * c, view);
        }
    }

    /// Keeps the queries of `layer`, `[T, D]`, if this pass is recorded.
    pub(crate) fn set_queries(
        &mut self,
        backend: &B,
        config: &Config,
        layer: usize,
        queries: View<'_, B>,
    ) {
        if !self.recording {
            return;
        }
        let c = config.text_head_dim();
        for (i, head) in self.heads.of_layer(layer) {
            let view = View::new(queries.buffer, queries.rows.columns(head * c, c));
            backend.copy(&mut self.queries, i * config.n_text_ctx * c, view);
        }
    }
}

impl<B: Backend> Model<B> {
    /// Makes `state` keep what [`add_words`](Self::add_words) needs from the next window on.
    pub(crate) fn enable_alignment(&self, state: &mut DecoderState<B>) -> Result<(), Error> {
        if state.tap.is_none() {
            let heads = self.alignment_heads().clone();
            state.tap = Some(Tap::new(self.backend(), self.config(), state.n_windows(), heads)?);
        }
        Ok(())
    }

    /// Gives the segments of a window of `state` their words, and their times to the segments.
    /// Forgets the state's sequences.
    ///
    /// # Panics
    /// If alignment was not enabled before the window was set.
    pub(crate) async fn add_words(
        &self,
        state: &mut DecoderState<B>,
        segments: &mut [Segment],
        heard: Heard<'_>,
        options: &Options,
    ) -> Result<(), Error> {
        let special = self.special();
        let text: Vec<u32> =
            segments.iter().flat_map(|s| &s.tokens).copied().filter(|&t| t < special.eot).collect();
        let start: Vec<u32> =
            heard.start.iter().copied().filter(|&t| t != special.no_timestamps).collect();
        let n_positions = heard.n_frames / FRAMES_PER_POSITION;
        let times = self.align(state, heard.window, (&start, &text), n_positions).await?;
        let punctuation = (&*options.prepend_punctuations, &*options.append_punctuations);
        let (words, median) =
            time_words(self.tokenizer(), &text, &times, heard.language, punctuation);
        let Heard { offset, last_speech, .. } = heard;
        let token_seconds = &times.seconds[..];
        let placement = Placement { offset, last_speech, median, token_seconds };
        place_words(words, segments, special, placement);
        Ok(())
    }

    /// Times of the text tokens `text` in window `window` of `state`, of which
    /// `n_positions` hold sound; `start` is the start sequence without `<|notimestamps|>`. Forgets
    /// the state's sequences.
    ///
    /// # Panics
    /// If alignment was not enabled before the window was set.
    async fn align(
        &self,
        state: &mut DecoderState<B>,
        window: usize,
        (start, text): (&[u32], &[u32]),
        n_positions: usize,
    ) -> Result<TokenTimes, Error> {
        let special = self.special();
        let (config, n_text) = (self.config(), text.len());
        // A window may be so full that its tokens and two more do not fit; the rest gets the time
        // of the last that does.
        let fitting = &text[..n_text.min(config.n_text_ctx.saturating_sub(start.len() + 2))];
        let tokens = [start, &[special.no_timestamps][..], fitting, &[special.eot][..]].concat();
        let sequences = vec![window * state.n_sequences(); tokens.len()];
        state.clear();
        tap(state).recording = true;
        let run =
            self.decode(state, Batch { tokens: &tokens, sequences: &sequences, outputs: &[] });
        tap(state).recording = false;
        run?;
        let mut probabilities =
            self.text_probabilities(state, tokens.len(), start.len(), fitting).await?;
        let weights = self.alignment_weights(state, window, tokens.len(), n_positions).await?;
        // Row `i` of these is where the model looks while it predicts token `i`, or the end.
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

    /// The probability of each of `text` where the last pass, of `n_tokens`, predicts it: from row
    /// `first` on.
    async fn text_probabilities(
        &self,
        state: &mut DecoderState<B>,
        n_tokens: usize,
        first: usize,
        text: &[u32],
    ) -> Result<Vec<f32>, Error> {
        let (vocab_size, n_words) = (self.config().vocab_size, self.special().eot as usize);
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
                probabilities.push(crate::sampling::probability(&logits[..n_words], token));
            }
        }
        Ok(probabilities)
    }

    /// What the alignment heads look at, `[n_tokens, n_positions]`: their weights, normalized over
    /// the tokens, smoothed over time and averaged.
    async fn alignment_weights(
        &self,
        state: &DecoderState<B>,
        window: usize,
        n_tokens: usize,
        n_positions: usize,
    ) -> Result<Vec<f32>, Error> {
        let tap = state.tap.as_ref().expect("alignment is enabled");
        let (config, n_heads) = (self.config(), tap.heads.len());
        let c = config.text_head_dim();
        let mut keys = vec![0.0; n_heads * config.n_audio_ctx * c];
        let mut queries = vec![0.0; n_heads * config.n_text_ctx * c];
        self.backend().read(&tap.keys, window * keys.len(), &mut keys).await?;
        self.backend().read(&tap.queries, 0, &mut queries).await?;
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

fn tap<B: Backend>(state: &mut DecoderState<B>) -> &mut Tap<B> {
    state.tap.as_mut().expect("alignment is enabled")
}

#[cfg(test)]
mod tests;
