//! Whisper, by stage and as a whole.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use stonechat_benches::protocol::{PeakKind, PeakWork, Stage, Unit};
use stonechat_compute::DType;
use stonechat_formats::ModelFile;
use stonechat_nn::{Device, KvDType};
use stonechat_whisper::{
    Config, Language, Model, Options, State, StateOptions, Transcriber, VadMode, WINDOW_FRAMES,
    WINDOW_SAMPLES,
};

use super::files::main_dtype;
use super::{Work, timed};

/// Rate of the signal that is resampled.
const OTHER_RATE: u32 = 44_100;
/// Tokens of a decoder prompt: as many as earlier text may take, and the start sequence.
const PROMPT: usize = 224;
/// Tokens decoded one at a time.
const STEPS: usize = 32;
/// Some text token of every vocabulary.
const TOKEN: u32 = 1000;

/// One model and one recording.
pub(super) struct Speech {
    transcriber: Transcriber,
    state: State,
    audio: PathBuf,
    samples: Vec<f32>,
    /// As long as the recording, at [`OTHER_RATE`].
    unresampled: Vec<f32>,
    options: Options,
    /// The type that most weights have.
    dtype: DType,
    text: Option<String>,
}

impl Speech {
    /// Loads the model; checks that the recording can be read.
    pub(super) fn new(device: impl Into<Device>, model: &Path, audio: PathBuf) -> Result<Self> {
        let file = ModelFile::open(model)?;
        let dtype = main_dtype(&file);
        let model = Model::load(device, &file, |_| {})?;
        drop(file);
        let samples = stonechat_audio::decode_file(&audio)?.samples;
        let n = samples.len() as f64 / f64::from(stonechat_audio::SAMPLE_RATE);
        let unresampled = (0..(n * f64::from(OTHER_RATE)) as usize)
            .map(|i| (i * 7919 % 1999) as f32 / 1000.0 - 1.0)
            .collect();
        let kv = KvDType::F16;
        let english = Language::find("en").context("a list of languages without English")?;
        Ok(Self {
            state: model.state(StateOptions { kv_dtype: kv, ..StateOptions::default() })?,
            transcriber: Transcriber::new(&model, &Options::default(), kv)?,
            audio,
            samples,
            unresampled,
            options: Options {
                language: Some(english),
                beam_size: 1,
                vad: VadMode::Off,
                ..Options::default()
            },
            dtype,
            text: None,
        })
    }

    fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(stonechat_audio::SAMPLE_RATE)
    }
}

impl Work for Speech {
    fn stages(&self) -> Vec<Stage> {
        let audio = |name: &str| Stage {
            name: name.to_owned(),
            amount: self.seconds(),
            unit: Unit::AudioSeconds,
            peak: Vec::new(),
            kernel: None,
        };
        let tokens = |name: String, n: usize, peak| Stage {
            name,
            amount: n as f64,
            unit: Unit::Tokens,
            peak,
            kernel: None,
        };
        let costs = Costs { config: self.transcriber.model().config(), dtype: self.dtype };
        let window = |name: &str, peak| Stage { peak, ..audio(name) };
        vec![
            audio("read audio"),
            audio(&format!("resample {OTHER_RATE} Hz")),
            audio("mel"),
            window("encoder", costs.encoder()),
            window("cross keys", costs.cross_keys()),
            // whisper.cpp does both in one call.
            window("encoder with cross keys", [costs.encoder(), costs.cross_keys()].concat()),
            tokens(format!("prompt {PROMPT}"), PROMPT, costs.prompt()),
            tokens(format!("steps {STEPS}"), STEPS, costs.steps()),
            audio("transcribe"),
        ]
    }

    fn settings(&self) -> String {
        "greedy, timestamps, KV f16".to_owned()
    }

    fn sample(&mut self) -> Result<Vec<f64>> {
        let (read, decoded) = timed(|| stonechat_audio::decode_file(&self.audio));
        decoded?;
        let (resample, made) =
            timed(|| stonechat_audio::resample(&self.unresampled, OTHER_RATE).map(|s| s.len()));
        made?;
        let Self { transcriber, state, samples, options, .. } = self;
        let mut seconds = vec![read, resample];
        let model = transcriber.model();
        let passes = passes(model, state, samples);
        seconds.extend(passes?);
        let (transcribe, transcript) = timed(|| transcriber.transcribe(&*samples, options, |_| {}));
        self.text = Some(transcript?.text);
        seconds.push(transcribe);
        Ok(seconds)
    }

    fn text(&self) -> Option<String> {
        self.text.clone()
    }
}

/// Seconds of the spectrogram, the encoder, the keys of its output, both of these, a prompt and single
/// tokens.
fn passes(model: &Model, state: &mut State, samples: &[f32]) -> Result<[f64; 6]> {
    let (mel_s, mel) = timed(|| model.mel(samples, WINDOW_SAMPLES));
    let window = mel.window(0, WINDOW_FRAMES);
    let (encode_s, ()) = timed(|| state.encode(&window));
    let (keys_s, ()) = timed(|| state.set_audio(0));
    let mut logits = Vec::new();
    let mut run = |tokens: &[u32]| -> Result<()> {
        let slot = state.slot(0, 0);
        let mut plan = state.plan();
        plan.add(slot, tokens, [tokens.len() - 1])?;
        plan.run();
        Ok(pollster::block_on(state.read_logits(1, &mut logits))?)
    };
    let (prompt_s, done) = timed(|| run(&[TOKEN; PROMPT]));
    done?;
    let (steps_s, done) = timed(|| (0..STEPS).try_for_each(|_| run(&[TOKEN])));
    done?;
    Ok([mel_s, encode_s, keys_s, encode_s + keys_s, prompt_s, steps_s])
}

/// Least work of each stage, for its share of the peak.
struct Costs<'a> {
    config: &'a Config,
    dtype: DType,
}

impl Costs<'_> {
    /// Products of weights with `rows` rows: `2 * rows * n_weights` operations.
    fn products(&self, rows: usize, n_weights: usize) -> PeakWork {
        let kind = if self.dtype.is_quantized() { PeakKind::Int8 } else { PeakKind::F32 };
        PeakWork { kind, amount: 2.0 * rows as f64 * n_weights as f64 }
    }

    fn f32(amount: usize) -> PeakWork {
        PeakWork { kind: PeakKind::F32, amount: amount as f64 }
    }

    fn encoder(&self) -> Vec<PeakWork> {
        let c = self.config;
        let (t, d) = (c.n_audio_ctx, c.d_model);
        // Convolutions with kernel 3, over frames and then over positions; scores and sums of all pairs
        // of positions.
        let convolutions = 2 * (WINDOW_FRAMES * 3 * c.n_mels * d + t * 3 * d * d);
        let attention = c.n_audio_layers * 4 * t * t * d;
        vec![self.products(t, c.n_audio_layers * 12 * d * d), Self::f32(convolutions + attention)]
    }

    fn cross_keys(&self) -> Vec<PeakWork> {
        let c = self.config;
        vec![self.products(c.n_audio_ctx, c.n_text_layers * 2 * c.d_model * c.d_model)]
    }

    /// Weights of the decoder's layers without the keys of cross-attention.
    fn layer_weights(&self) -> usize {
        self.config.n_text_layers * 14 * self.config.d_model * self.config.d_model
    }

    fn prompt(&self) -> Vec<PeakWork> {
        let c = self.config;
        let pairs = PROMPT * c.n_audio_ctx + PROMPT * PROMPT / 2;
        let attention = c.n_text_layers * 4 * pairs * c.d_model;
        vec![
            self.products(PROMPT, self.layer_weights()),
            self.products(1, c.vocab_size * c.d_model),
            Self::f32(attention),
        ]
    }

    /// Weights, and keys and values of the window in f16, once per token.
    fn steps(&self) -> Vec<PeakWork> {
        let c = self.config;
        let n_weights = self.layer_weights() + c.vocab_size * c.d_model;
        let bytes_per_weight = self.dtype.block_bytes() as f64 / self.dtype.block_len() as f64;
        let kv_bytes = c.n_text_layers * c.n_audio_ctx * 2 * c.d_model * 2;
        let amount = STEPS as f64 * (n_weights as f64 * bytes_per_weight + kv_bytes as f64);
        vec![PeakWork { kind: PeakKind::Read, amount }]
    }
}
