//! A loaded model: config, weights, tokenizer, mel filters.

use std::iter;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use stonechat_audio::{LogMel, Mel, Vad};
use stonechat_formats::{Format, ModelFile};
use stonechat_nn::{Device, LoadStats, Program};
use stonechat_text::Tokenizer;
use web_time::Instant;

use crate::alignment_heads::AlignmentHeads;
use crate::config::Config;
use crate::error::Error;
use crate::languages::LANGUAGES;
use crate::source::Source;
use crate::special::SpecialTokens;
use crate::state::{State, StateOptions};
use crate::weights::Weights;

/// Immutable Whisper model on a device. Clones share it.
#[derive(Debug, Clone)]
pub struct Model {
    info: Arc<ModelInfo>,
    device: Device,
    weights: Arc<Weights>,
}

/// Properties that do not depend on the device.
#[derive(Debug)]
struct ModelInfo {
    config: Config,
    special: SpecialTokens,
    tokenizer: Tokenizer,
    log_mel: LogMel,
    alignment_heads: AlignmentHeads,
    /// Made for the first recording that needs it.
    vad: OnceLock<Vad>,
}

impl Model {
    /// Loads a model of any supported format; `progress` gets the fraction done, 0 to 1.
    ///
    /// # Errors
    /// If the file is no Whisper model, a tensor is missing or has another shape, or the device is out
    /// of memory.
    pub fn load(
        device: impl Into<Device>,
        file: &ModelFile,
        progress: impl FnMut(f32),
    ) -> Result<Self, Error> {
        let (started, device) = (Instant::now(), device.into());
        let source = Source::new(file)?;
        let config = Config::read(&source)?;
        let special = SpecialTokens::new(config.vocab_size)?;
        let info = Arc::new(ModelInfo {
            special,
            tokenizer: read_tokenizer(file, &special)?,
            log_mel: LogMel::new(config.n_mels),
            alignment_heads: AlignmentHeads::read(file, &config)?,
            vad: OnceLock::new(),
            config,
        });
        let weights = Arc::new(Weights::load(&device, &source, &config, progress)?);
        tracing::info!(
            device = device.describe(),
            bytes = file.weight_bytes(),
            seconds = started.elapsed().as_secs_f64(),
            "speech model loaded"
        );
        Ok(Self { info, device, weights })
    }

    /// Divides the device ([`DeviceApi::divide`](stonechat_nn::DeviceApi::divide)) into 1 to `n` models for concurrent use, which share
    /// the weights.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn divide(&self, n: usize) -> Result<Vec<Self>, Error> {
        let on = |device| Self { device, ..self.clone() };
        Ok(self.device.divide(n)?.into_iter().map(on).collect())
    }

    /// Names of the kernels and device in use.
    #[must_use]
    pub fn describe(&self) -> String {
        self.device.describe()
    }

    /// Load statistics of the device.
    #[must_use]
    pub fn load_stats(&self) -> LoadStats {
        self.device.load_stats()
    }

    /// The sizes.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.info.config
    }

    /// The special token ids.
    #[must_use]
    pub fn special(&self) -> &SpecialTokens {
        &self.info.special
    }

    /// The tokenizer, which has all special tokens.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.info.tokenizer
    }

    /// Computes the log-mel spectrogram of 16 kHz `samples` followed by `padding_samples` zeros; see
    /// [`LogMel::compute`].
    #[must_use]
    pub fn mel(&self, samples: &[f32], padding_samples: usize) -> Mel {
        self.info.log_mel.compute_by(samples, padding_samples, |parts, task| {
            self.device.for_each(parts, task);
        })
    }

    /// As [`mel`](Self::mel), beside another task.
    pub(crate) fn mel_beside<T: Send>(
        &self,
        samples: &[f32],
        padding_samples: usize,
        task: impl FnOnce() -> T + Send,
    ) -> (Mel, T) {
        let other = Mutex::new((Some(task), None));
        let mel = self.info.log_mel.compute_by(samples, padding_samples, |parts, task| {
            // The other task first: it is longer than a part.
            let mut tasks: Vec<_> = iter::once(None).chain(parts.iter_mut().map(Some)).collect();
            self.device.for_each(&mut tasks, |part| match part {
                Some(part) => task(part),
                None => {
                    let mut other = other.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(task) = other.0.take() {
                        other.1 = Some(task());
                    }
                }
            });
        });
        let (_, result) = other.into_inner().unwrap_or_else(PoisonError::into_inner);
        (mel, result.expect("the task ran"))
    }

    /// As [`mel`](Self::mel), on the calling thread alone.
    pub(crate) fn mel_on_this_thread(&self, samples: &[f32], padding_samples: usize) -> Mel {
        self.info.log_mel.compute(samples, padding_samples)
    }

    /// Allocates and warms up a state.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn state(&self, options: StateOptions) -> Result<State, Error> {
        State::new(self, options)
    }

    /// Recorded program of a state, before fusion, for inspection and tests.
    #[must_use]
    pub fn program(&self, options: StateOptions) -> Program {
        options.program(&self.info.config, &self.weights, &self.info.alignment_heads)
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn alignment_heads(&self) -> &AlignmentHeads {
        &self.info.alignment_heads
    }

    /// Voice activity detection, shared by all recordings.
    pub(crate) fn vad(&self) -> Result<&Vad, Error> {
        if let Some(vad) = self.info.vad.get() {
            return Ok(vad);
        }
        let vad = Vad::new()?;
        Ok(self.info.vad.get_or_init(|| vad))
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
