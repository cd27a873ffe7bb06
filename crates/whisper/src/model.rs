//! A loaded model: config, weights, tokenizer, mel filters.

use std::sync::Arc;

use stonechat_audio::{LogMel, Mel};
use stonechat_formats::{Format, ModelFile};
use stonechat_nn::{Backend, Batch, KvDType, warmup_batch_sizes};
use stonechat_text::Tokenizer;
use web_time::Instant;

use crate::WINDOW_FRAMES;
use crate::alignment_heads::AlignmentHeads;
use crate::config::Config;
use crate::decoder::DecoderState;
use crate::encoder::EncoderState;
use crate::error::Error;
use crate::languages::LANGUAGES;
use crate::source::Source;
use crate::special::SpecialTokens;
use crate::weights::Weights;

/// An immutable Whisper model on a device.
#[derive(Debug)]
pub struct Model<B: Backend> {
    backend: B,
    config: Config,
    special: SpecialTokens,
    tokenizer: Arc<Tokenizer>,
    weights: Arc<Weights<B>>,
    log_mel: Arc<LogMel>,
    alignment_heads: Arc<AlignmentHeads>,
}

impl<B: Backend> Model<B> {
    /// Loads a model of any supported format; `progress` gets the fraction done, 0 to 1.
    ///
    /// # Errors
    /// If the file is no Whisper model, a tensor is missing or has another shape, or the device is out
    /// of memory.
    pub fn load(backend: B, file: &ModelFile, progress: impl FnMut(f32)) -> Result<Self, Error> {
        let started = Instant::now();
        let source = Source::new(file)?;
        let config = Config::read(&source)?;
        let special = SpecialTokens::new(config.vocab_size)?;
        let tokenizer = Arc::new(read_tokenizer(file, &special)?);
        let alignment_heads = Arc::new(AlignmentHeads::read(file, &config)?);
        let log_mel = Arc::new(LogMel::new(config.n_mels));
        let weights = Arc::new(Weights::load(&backend, &source, &config, progress)?);
        tracing::info!(
            device = backend.describe(),
            bytes = file.weight_bytes(),
            seconds = started.elapsed().as_secs_f64(),
            "speech model loaded"
        );
        Ok(Self { backend, config, special, tokenizer, weights, log_mel, alignment_heads })
    }

    /// Divides the device ([`Backend::divide`]) into 1 to `n` models for concurrent use, which share
    /// the weights.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn divide(&self, n: usize) -> Result<Vec<Self>, Error> {
        let on = |backend| Self {
            backend,
            config: self.config,
            special: self.special,
            tokenizer: Arc::clone(&self.tokenizer),
            weights: Arc::clone(&self.weights),
            log_mel: Arc::clone(&self.log_mel),
            alignment_heads: Arc::clone(&self.alignment_heads),
        };
        Ok(self.backend.divide(n)?.into_iter().map(on).collect())
    }

    /// The device.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The sizes.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The special token ids.
    #[must_use]
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The tokenizer, which has all special tokens.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Computes the log-mel spectrogram of 16 kHz `samples` followed by `padding_samples` zeros; see
    /// [`LogMel::compute`].
    #[must_use]
    pub fn mel(&self, samples: &[f32], padding_samples: usize) -> Mel {
        self.log_mel.compute_by(samples, padding_samples, |parts, task| {
            self.backend.for_each(parts, task);
        })
    }

    pub(crate) fn alignment_heads(&self) -> &AlignmentHeads {
        &self.alignment_heads
    }

    /// Allocates the state of [`encode`](Self::encode).
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn encoder_state(&self, kv_dtype: KvDType) -> Result<EncoderState<B>, Error> {
        Ok(EncoderState::new(&self.backend, &self.config, kv_dtype)?)
    }

    /// Allocates the state of [`decode`](Self::decode), for `n_windows` windows with `n_sequences`
    /// sequences each.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn decoder_state(
        &self,
        n_windows: usize,
        n_sequences: usize,
        kv_dtype: KvDType,
    ) -> Result<DecoderState<B>, Error> {
        Ok(DecoderState::new(&self.backend, &self.config, n_windows, n_sequences, kv_dtype)?)
    }

    /// Encodes one window of mel frames, `[WINDOW_FRAMES, n_mels]`.
    ///
    /// # Panics
    /// If `mel` has another length.
    pub fn encode(&self, state: &mut EncoderState<B>, mel: &[f32]) {
        self.weights.encoder.forward(&self.backend, &self.config, state, mel);
    }

    /// Sets the audio of window `window` of `state` to the output of `encoder`, and empties the
    /// window's sequences.
    ///
    /// # Panics
    /// If `state` has no such window.
    pub fn set_audio(&self, state: &mut DecoderState<B>, window: usize, encoder: &EncoderState<B>) {
        let (decoder, audio) = (&self.weights.decoder, encoder.output());
        decoder.set_audio(&self.backend, &self.config, state, window, audio);
    }

    /// Runs the decoder on a ragged batch of tokens; read the logits with
    /// [`read_logits`](Self::read_logits).
    ///
    /// # Errors
    /// If the KV pool is full or a sequence exceeds `n_text_ctx`.
    ///
    /// # Panics
    /// If the batch is larger than the state allows, or the window of a sequence has no audio.
    pub fn decode(&self, state: &mut DecoderState<B>, batch: Batch<'_>) -> Result<(), Error> {
        Ok(self.weights.decoder.forward(&self.backend, &self.config, state, batch)?)
    }

    /// Warms up the device for one window and batches of all sizes.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn warm_up(
        &self,
        encoder: &mut EncoderState<B>,
        decoder: &mut DecoderState<B>,
    ) -> Result<(), Error> {
        self.backend.warm_up::<Error>(|| {
            self.encode(encoder, &vec![0.0; WINDOW_FRAMES * self.config.n_mels]);
            self.set_audio(decoder, 0, encoder);
            let most = self.config.n_text_ctx;
            let (tokens, sequences) = (vec![0; most], vec![0; most]);
            for n in warmup_batch_sizes(most) {
                let (tokens, sequences) = (&tokens[..n], &sequences[..n]);
                self.decode(decoder, Batch { tokens, sequences, outputs: &[n - 1] })?;
                decoder.clear();
            }
            // One step of all sequences after forks of one, with copies of its KV page.
            let all: Vec<_> = (0..decoder.n_sequences()).collect();
            let n = all.len();
            self.decode(decoder, Batch { tokens: &[0], sequences: &[0], outputs: &[0] })?;
            all[1..].iter().for_each(|&to| decoder.fork(0, to));
            self.decode(decoder, Batch { tokens: &tokens[..n], sequences: &all, outputs: &all })?;
            decoder.clear_audio(0);
            Ok(())
        })
    }

    /// Computes the logits of `rows` of the last batch, of `n_tokens` tokens, for
    /// [`read_logits`](Self::read_logits).
    pub(crate) fn project(&self, state: &mut DecoderState<B>, n_tokens: usize, rows: &[usize]) {
        self.weights.decoder.project(&self.backend, &self.config, state, n_tokens, rows);
    }

    /// Reads logits of the last batch, `[n, vocab_size]`, from output `index` on.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn read_logits(
        &self,
        state: &DecoderState<B>,
        index: usize,
        logits: &mut [f32],
    ) -> Result<(), Error> {
        let offset = index * self.config.vocab_size;
        Ok(self.backend.read(state.logits(), offset, logits).await?)
    }
}

/// Reads the tokenizer of the file or its folder and adds the special tokens.
pub(crate) fn read_tokenizer(
    file: &ModelFile,
    special: &SpecialTokens,
) -> Result<Tokenizer, Error> {
    let n_text = special.eot as usize;
    let tokenizer = if let Some(bin) = file.whisper_bin() {
        Tokenizer::from_ranked(&bin.vocab[..bin.vocab.len().min(n_text)])?
    } else if file.format() == Format::Gguf {
        let tokens = file.metadata().strings("tokenizer.ggml.tokens")?;
        Tokenizer::from_vocabulary(&tokens[..tokens.len().min(n_text)])?
    } else if let Some(txt) = file.companion("vocabulary.txt") {
        Tokenizer::from_vocabulary_txt(txt)?
    } else if let Some(json) = file.companion("vocabulary.json") {
        Tokenizer::from_vocabulary_json(json)?
    } else if let Some(json) = file.companion("tokenizer.json") {
        Tokenizer::from_hf_json(json)?
    } else {
        return Err(Error::NoTokenizer);
    };
    Ok(tokenizer.with_special(special_names(special))?)
}

fn special_names(special: &SpecialTokens) -> Vec<(u32, String)> {
    let mut names = vec![
        (special.eot, "<|endoftext|>".to_owned()),
        (special.sot, "<|startoftranscript|>".to_owned()),
        (special.translate, "<|translate|>".to_owned()),
        (special.transcribe, "<|transcribe|>".to_owned()),
        (special.start_of_lm, "<|startoflm|>".to_owned()),
        (special.start_of_prev, "<|startofprev|>".to_owned()),
        (special.no_speech, "<|nospeech|>".to_owned()),
        (special.no_timestamps, "<|notimestamps|>".to_owned()),
    ];
    let languages = LANGUAGES.iter().take(special.n_languages as usize);
    names.extend(languages.zip(special.sot + 1..).map(|(l, id)| (id, format!("<|{}|>", l.code))));
    names.extend((0..=1500).map(|i| {
        let (seconds, hundredths) = (i / 50, i % 50 * 2);
        (special.timestamp_begin + i, format!("<|{seconds}.{hundredths:02}|>"))
    }));
    names
}
