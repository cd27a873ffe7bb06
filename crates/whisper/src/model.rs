//! A loaded model: config, weights, tokenizer, mel filters.

use std::iter;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use stonechat_audio::{LogMel, Mel, MelChunk, Vad};
use stonechat_formats::{Format, ModelFile};
use stonechat_nn::{Device, HostTask, LoadStats, LogMelKernel};
use stonechat_text::Tokenizer;
use web_time::Instant;

use crate::alignment_heads::AlignmentHeads;
use crate::config::Config;
use crate::error::Error;
use crate::languages::LANGUAGES;
use crate::source::Source;
use crate::special::SpecialTokens;
use crate::weights::Weights;

/// Immutable Whisper model on a device. Clones share it.
#[derive(Debug, Clone)]
pub struct Model {
    info: Arc<ModelInfo>,
    device: Device,
    weights: Arc<Weights>,
    /// The device's, if it has one.
    log_mel_kernel: Option<Arc<dyn LogMelKernel>>,
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
        let log_mel_kernel = load_log_mel(&device, &info.log_mel);
        tracing::info!(
            device = device.describe(),
            bytes = file.weight_bytes(),
            seconds = started.elapsed().as_secs_f64(),
            "speech model loaded"
        );
        Ok(Self { info, device, weights, log_mel_kernel })
    }

    /// Divides the device ([`Device::divide`](stonechat_nn::Device::divide)) into 1 to `n` models for concurrent use, which share
    /// the weights.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn divide(&self, n: usize) -> Result<Vec<Self>, Error> {
        let on = |device| Self { device, ..self.clone() };
        Ok(self.device.divide(n)?.into_iter().map(on).collect())
    }

    /// This model for steps that go first, on the device that it was loaded on: see
    /// [`Cpu::for_another_model`](stonechat_nn::Cpu::for_another_model). Both share the weights.
    #[must_use]
    pub fn in_foreground(&self) -> Self {
        Self { device: self.device.in_foreground(), ..self.clone() }
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
    /// [`LogMel::compute`]. On the device if it has a kernel, else on host threads.
    #[must_use]
    pub fn mel(&self, samples: &[f32], padding_samples: usize) -> Mel {
        let for_each: ForEachChunk<'_> = &|parts, task| self.device.for_each(parts, task);
        self.mel_by(samples, padding_samples, |kernel| kernel(), for_each)
    }

    /// As [`mel`](Self::mel), beside another task on a host thread.
    pub(crate) fn mel_beside<T: Send>(
        &self,
        samples: &[f32],
        padding_samples: usize,
        task: impl FnOnce() -> T + Send,
    ) -> (Mel, T) {
        let other = Mutex::new((Some(task), None));
        let run_other = || {
            let mut other = other.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(task) = other.0.take() {
                other.1 = Some(task());
            }
        };
        let run = |kernel: HostTask<'_>| {
            let mut run_other = run_other;
            self.device.run_on_host(&mut [kernel, &mut run_other]);
        };
        let for_each: ForEachChunk<'_> = &|parts, task| {
            // The other task is first, since it is longer than a part.
            let mut tasks: Vec<_> = iter::once(None).chain(parts.iter_mut().map(Some)).collect();
            self.device.for_each(&mut tasks, |part| match part {
                Some(part) => task(part),
                None => run_other(),
            });
        };
        let mel = self.mel_by(samples, padding_samples, run, for_each);
        // A recording without a whole window calls no kernel.
        run_other();
        let (_, result) = other.into_inner().unwrap_or_else(PoisonError::into_inner);
        (mel, result.expect("the task ran"))
    }

    /// As [`mel`](Self::mel), without the host threads, which steps of other recordings may be using. A device's kernel is used
    /// here, too: it runs beside those steps and replaces most of the calling thread's work.
    pub(crate) fn mel_on_this_thread(&self, samples: &[f32], padding_samples: usize) -> Mel {
        let for_each: ForEachChunk<'_> = &|parts, task| parts.iter_mut().for_each(task);
        self.mel_by(samples, padding_samples, |kernel| kernel(), for_each)
    }

    /// The spectrogram by the device's kernel, as a task of `run`, or by `for_each` if the device has none or failed.
    fn mel_by(
        &self,
        samples: &[f32],
        padding_samples: usize,
        run: impl FnOnce(HostTask<'_>),
        for_each: ForEachChunk<'_>,
    ) -> Mel {
        let log_mel = &self.info.log_mel;
        let on_device = self.log_mel_kernel.as_deref().and_then(|kernel| {
            let log_powers = |samples: &[f32], out: &mut [f32]| {
                let mut result = None;
                run(&mut || result = Some(kernel.log_powers(samples, out)));
                result.expect("the task ran")
            };
            let mel = log_mel.compute_with(samples, padding_samples, log_powers, for_each);
            mel.inspect_err(|error| warn_of_log_mel(&self.device, error)).ok()
        });
        on_device.unwrap_or_else(|| log_mel.compute_by(samples, padding_samples, for_each))
    }

    /// Windows of a pass of the encoder ([`StateOptions::encoder_batch_size`](crate::StateOptions::encoder_batch_size)) of a state
    /// of `n_windows`: enough to keep the device busy, but at most a quarter. Windows of a pass wait for each other while the
    /// others are decoded.
    #[must_use]
    pub fn encoder_batch_size(&self, n_windows: usize) -> usize {
        let busy = self.device.saturating_batch() / self.info.config.n_audio_ctx;
        busy.min(n_windows / 4).max(1)
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
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

/// Runs a task on each chunk of a spectrogram.
type ForEachChunk<'a> = &'a dyn Fn(&mut [MelChunk<'_>], &(dyn Fn(&mut MelChunk<'_>) + Sync));

/// The device's log-mel kernel; `None` if it has none or failed.
fn load_log_mel(device: &Device, log_mel: &LogMel) -> Option<Arc<dyn LogMelKernel>> {
    let kernel = device.load_log_mel(&log_mel.tables());
    kernel.inspect_err(|error| warn_of_log_mel(device, error)).ok()?.map(Arc::from)
}

fn warn_of_log_mel(device: &Device, error: &stonechat_nn::Error) {
    tracing::warn!(device = device.name(), %error, "spectrogram computed on the CPU");
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
        Tokenizer::from_byte_level_json(json)?
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

#[cfg(test)]
mod tests {
    use stonechat_audio::Mel;
    use stonechat_nn::{Cpu, Device};
    use stonechat_testkit::{Adapted, Lcg, LogMelOutcome, TinyWhisper};

    use super::Model;

    fn model(device: impl Into<Device>) -> Model {
        Model::load(device, &TinyWhisper::default().file(), |_| {}).unwrap()
    }

    #[test]
    fn spectrograms_come_from_the_device_or_from_the_host_if_it_fails() {
        let on_host = model(Cpu::new(2).unwrap());
        let with = |outcome| model(Adapted::with_log_mel(Cpu::new(2).unwrap(), outcome));
        let (kernel, failing) = (with(LogMelOutcome::Reference), with(LogMelOutcome::Failure));
        for (n, padding) in [(0, 480), (400, 1600), (40_000, 0), (40_000, 1600)] {
            let samples = Lcg::new(n as u64).normals(n, 0.1);
            let all = |model: &Model| -> [Mel; 3] {
                let (beside, result) = model.mel_beside(&samples, padding, || 7);
                assert_eq!(result, 7);
                let on_this_thread = model.mel_on_this_thread(&samples, padding);
                [model.mel(&samples, padding), beside, on_this_thread]
            };
            let expected = on_host.mel(&samples, padding);
            assert!(all(&failing).iter().all(|mel| *mel == expected), "{n}");
            for got in all(&kernel) {
                assert_eq!(
                    (got.n_frames, got.data == expected.data),
                    (expected.n_frames, n < 1000)
                );
                let pairs = got.data.iter().zip(&expected.data);
                assert!(pairs.clone().all(|(got, want)| (got - want).abs() < 1e-4), "{n}");
            }
        }
    }
}
