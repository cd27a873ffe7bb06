//! Perplexity of a text, over the same windows as llama.cpp's `llama-perplexity`.

use stonechat_nn::{KvDType, Slot};
use stonechat_sampling::log_sum_exp;

use crate::{Error, Model, OutputRequest, OutputRow, StateOptions};

/// Sizes of a perplexity run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerplexityOptions {
    /// Tokens of a window; its second half is measured.
    pub n_ctx: usize,
    /// Maximum tokens of a forward pass. Up to 16, quantized weights use integer dot products, as in
    /// decoding; beyond, formats without a GEMM kernel are multiplied in f32.
    pub n_batch: usize,
    /// Element type of cached keys and values.
    pub kv_dtype: KvDType,
}

impl Default for PerplexityOptions {
    fn default() -> Self {
        Self { n_ctx: 512, n_batch: 16, kv_dtype: KvDType::F16 }
    }
}

impl PerplexityOptions {
    /// Sizes of the state.
    #[must_use]
    pub fn state(&self) -> StateOptions {
        let n_batch = self.n_batch.min(self.n_ctx);
        let kv_dtype = self.kv_dtype;
        StateOptions { n_batch, n_outputs: n_batch, kv_dtype, ..StateOptions::new(self.n_ctx) }
    }
}

/// Progress after a window.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct WindowReport {
    /// Windows done.
    pub window: usize,
    /// Number of windows.
    pub n_windows: usize,
    /// Perplexity of the windows done.
    pub value_so_far: f64,
}

/// Perplexity of a text.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Perplexity {
    /// `exp` of the mean negative log-likelihood.
    pub value: f64,
    /// Standard error of the value.
    pub std_error: f64,
    /// Tokens measured.
    pub n_tokens: usize,
    /// Number of windows.
    pub n_windows: usize,
}

/// Measures `text` as llama.cpp's `llama-perplexity` does. The text is tokenized once and cut into
/// windows of `n_ctx` tokens; the first token of each is replaced by BOS if the vocabulary adds it.
/// The tokens of each window's second half are measured, given those before them in the window.
/// A last, shorter window is left out.
///
/// # Errors
/// If the text has less than two windows, or the device fails.
pub async fn perplexity(
    model: &Model,
    text: &str,
    options: &PerplexityOptions,
    on_window: &mut dyn FnMut(WindowReport),
) -> Result<Perplexity, Error> {
    let tokens = model.tokenizer().tokenize(text, true, false);
    let n_ctx = options.n_ctx;
    if n_ctx < 4 || tokens.len() < 2 * n_ctx {
        return Err(Error::TextTooShort { tokens: tokens.len(), needed: 2 * n_ctx.max(4) });
    }
    let mut state = model.state(options.state())?;
    let n_batch = state.options().n_batch;
    let bos = model.tokenizer().bos().filter(|_| model.tokenizer().adds_bos());
    let slot = Slot::new(0);
    let n_windows = tokens.len() / n_ctx;
    let mut sums = Sums::default();
    for (window, tokens) in tokens.chunks_exact(n_ctx).enumerate() {
        let mut input = tokens.to_vec();
        if let Some(bos) = bos {
            input[0] = bos;
        }
        state.truncate(slot, 0);
        // Position `p` predicts token `p + 1`; positions from the middle on are measured, but for the last one.
        for (part, chunk) in input.chunks(n_batch).enumerate() {
            let first = part * n_batch;
            let end = first + chunk.len();
            let outputs_from = first.max(n_ctx / 2).min(end);
            let n_outputs = end - outputs_from;
            let outputs = state.run(slot, chunk, OutputRequest::Logits, n_outputs).await?;
            for (row, position) in outputs.rows(0..outputs.len()).zip(outputs_from..n_ctx - 1) {
                let OutputRow::Logits(logits) = row else { unreachable!("a request for logits") };
                sums.add(f64::from(log_sum_exp(logits) - logits[tokens[position + 1] as usize]));
            }
        }
        let value_so_far = sums.perplexity().0;
        on_window(WindowReport { window: window + 1, n_windows, value_so_far });
    }
    let (value, std_error) = sums.perplexity();
    Ok(Perplexity { value, std_error, n_tokens: sums.n, n_windows })
}

/// Sums of the negative log-likelihood and its square.
#[derive(Debug, Default)]
struct Sums {
    n: usize,
    first: f64,
    second: f64,
}

impl Sums {
    fn add(&mut self, nll: f64) {
        self.n += 1;
        self.first += nll;
        self.second += nll * nll;
    }

    /// `(exp(mean), standard error)`; the error of the mean is scaled by the perplexity.
    fn perplexity(&self) -> (f64, f64) {
        let n = self.n as f64;
        let mean = self.first / n;
        let variance = (self.second / n - mean * mean).max(0.0);
        let value = mean.exp();
        (value, value * (variance / (n - 1.0).max(1.0)).sqrt())
    }
}
