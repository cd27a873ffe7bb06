//! A loaded model: configuration, weights, tokenizer, chat template.

use stonechat_formats::ModelFile;
use stonechat_nn::Backend;

use crate::forward::forward;
use crate::weights::Weights;
use crate::{Batch, Config, Error, State, StateOptions};

/// An immutable language model on a device.
#[derive(Debug)]
pub struct Model<B: Backend> {
    backend: B,
    config: Config,
    weights: Weights<B>,
}

impl<B: Backend> Model<B> {
    /// Loads a GGUF file or a Hugging Face folder; `progress` is told the fraction done.
    ///
    /// # Errors
    /// If the architecture does not run here, a tensor is missing or misshapen, or the device is
    /// full.
    pub fn load(backend: B, file: &ModelFile, progress: impl FnMut(f32)) -> Result<Self, Error> {
        let config = Config::from_file(file)?;
        let weights = Weights::load(&backend, file, &config, progress)?;
        Ok(Self { backend, config, weights })
    }

    /// The device that the model is on.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Sizes and constants.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Buffers and KV pages for [`forward`](Self::forward).
    ///
    /// # Errors
    /// If a size is impossible or the device is full.
    pub fn state(&self, options: StateOptions) -> Result<State<B>, Error> {
        State::new(&self.backend, &self.config, &self.weights, options)
    }

    /// Runs a ragged batch of tokens; the logits stay on the device until
    /// [`read_logits`](Self::read_logits).
    ///
    /// # Errors
    /// [`Error::ContextFull`], or if the shared KV pages are used up. The state is as before.
    ///
    /// # Panics
    /// If the batch is larger than the state.
    pub fn forward(&self, state: &mut State<B>, batch: Batch<'_>) -> Result<(), Error> {
        let vocab_size = self.config.vocab_size;
        if let Some(token) = batch.tokens.iter().find(|&&t| t as usize >= vocab_size) {
            let expected = format!("0 to {}", vocab_size - 1);
            return Err(Error::Option { option: "token id", expected, got: token.to_string() });
        }
        self.backend.enter(|| forward(&self.backend, &self.config, &self.weights, state, batch))
    }

    /// Copies the logits of output `index` of the last batch to `logits`, `[vocab_size]`.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn read_logits(
        &self,
        state: &State<B>,
        index: usize,
        logits: &mut [f32],
    ) -> Result<(), Error> {
        let offset = index * self.config.vocab_size;
        self.backend.read(&state.buffers.logits, offset, logits).await?;
        if let Some(cap) = self.config.final_soft_cap {
            logits.iter_mut().for_each(|l| *l = cap * (*l / cap).tanh());
        }
        Ok(())
    }
}
