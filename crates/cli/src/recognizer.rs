//! What the verbs that hear speech share: the model, where it runs, and what it is told.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use clap::ValueEnum;
use stonechat::Models;
use stonechat::formats::ModelFile;
use stonechat::nn::{Backend, KvDType};
use stonechat::whisper::{CancelToken, Language, Model, Options, Task, Transcriber};

use super::console::Console;
use super::device::{DeviceArgs, Work};

/// Most threads or jobs that can be asked for; more is a typing error.
pub(super) const MAX_THREADS: usize = 1024;

/// Flags of every verb that hears speech.
#[derive(Debug, clap::Args)]
pub(super) struct RecognizerArgs {
    /// Model: a file, a folder or a name [default: test-data/models, else an installed one]
    #[arg(short, long)]
    model: Option<String>,
    /// Spoken language: a code or English name, or auto to detect it
    #[arg(short, long, default_value = "auto")]
    language: String,
    /// Write the words as spoken, or in English
    #[arg(long, value_enum, default_value_t = TaskName::Transcribe)]
    task: TaskName,
    /// Text that comes before the recording: names, spelling, style
    #[arg(long, value_name = "TEXT")]
    initial_prompt: Option<String>,
    /// Words to expect in every window
    #[arg(long, value_name = "TEXT")]
    hotwords: Option<String>,
    /// Texts followed side by side at temperature 0; 1 is greedy, faster and a little less accurate [default: 5, and 1 in streams]
    #[arg(long, visible_alias = "bs", value_name = "N")]
    beam_size: Option<usize>,
    /// Threads; 0 is one for each physical core
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    threads: usize,
    #[command(flatten)]
    device: DeviceArgs,
    /// Type of cached keys and values
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = KvName::F16)]
    kv_type: KvName,
}

/// Values of `--task`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum TaskName {
    Transcribe,
    Translate,
}

/// Values of `--kv-type`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum KvName {
    F32,
    F16,
}

impl RecognizerArgs {
    /// `options` with what these arguments say.
    pub(super) fn apply(&self, options: Options) -> anyhow::Result<Options> {
        ensure!(
            self.threads <= MAX_THREADS,
            "threads: expected 0 to {MAX_THREADS}, got {}",
            self.threads
        );
        Ok(Options {
            language: language(&self.language)?,
            task: match self.task {
                TaskName::Transcribe => Task::Transcribe,
                TaskName::Translate => Task::Translate,
            },
            beam_size: self.beam_size.unwrap_or(options.beam_size),
            initial_prompt: self.initial_prompt.clone(),
            hotwords: self.hotwords.clone(),
            ..options
        })
    }

    /// Finds the model and what it is loaded with.
    pub(super) fn find(&self) -> anyhow::Result<Recognizer> {
        let models = Models::from_env();
        let path = match &self.model {
            Some(name) => models.find(name)?,
            None => models.find_default()?,
        };
        let kv_dtype = match self.kv_type {
            KvName::F32 => KvDType::F32,
            KvName::F16 => KvDType::F16,
        };
        Ok(Recognizer { path, kv_dtype, n_threads: self.threads })
    }

    /// Opens the device and does `work` on it.
    pub(super) fn run<W: Work>(&self, work: W) -> anyhow::Result<W::Output> {
        self.device.run(self.threads, work)
    }
}

/// A model that is not loaded yet.
#[derive(Debug)]
pub(super) struct Recognizer {
    path: PathBuf,
    kv_dtype: KvDType,
    n_threads: usize,
}

impl Recognizer {
    /// Where the model is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Threads of the CPU; 0 means one a physical core.
    pub(super) fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Loads `file`, the model's, with a bar on a terminal.
    pub(super) fn load<B: Backend>(
        &self,
        file: &ModelFile,
        backend: B,
        console: &Console,
    ) -> anyhow::Result<Model<B>> {
        const STEPS: f32 = 1000.0;
        console.begin("loading", STEPS as u64);
        let model = Model::load(backend, file, |done| console.advance((done * STEPS) as u64));
        console.end();
        let is_llm = model.is_err() && stonechat::llm::Config::from_file(file).is_ok();
        let advice = if is_llm { " (language models: `stonechat generate`)" } else { "" };
        model.with_context(|| format!("cannot load `{}`{advice}", self.path.display()))
    }

    /// Makes the buffers of `model` for what `options` ask; `cancel` ends its runs.
    pub(super) fn transcriber<B: Backend>(
        &self,
        model: Model<B>,
        options: &Options,
        cancel: &CancelToken,
    ) -> anyhow::Result<Transcriber<B>> {
        let builder = Transcriber::builder(model.backend().clone()).kv_dtype(self.kv_dtype);
        Ok(builder.options(options).cancelled_by(cancel).build(model)?)
    }
}

fn language(name: &str) -> anyhow::Result<Option<Language>> {
    if name.eq_ignore_ascii_case("auto") {
        return Ok(None);
    }
    let expected = "auto, a code such as `de` or an English name such as `german`";
    let language = Language::find(name);
    language.map(Some).ok_or_else(|| anyhow!("language: expected {expected}, got `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::language;

    #[test]
    fn languages_have_codes_and_names() {
        assert_eq!(language("auto").unwrap(), None);
        assert_eq!(language("German").unwrap(), language("de").unwrap());
        assert_eq!(language("de").unwrap().map(|l| l.code), Some("de"));
        assert!(language("klingon").unwrap_err().to_string().contains("got `klingon`"));
    }
}
