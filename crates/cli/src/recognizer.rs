//! Flags that the speech verbs share: model, language, prompt, beam size, device.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail, ensure};
use clap::ValueEnum;
use stonechat::device::DeviceNeeds;
use stonechat::formats::ModelFile;
use stonechat::nn::KvDType;
use stonechat::whisper::{Config, Language, Model, Options, SpecialTokens, Task};

use super::WrongValue;
use super::completions::{languages, speech_names};
use super::console::Console;
use super::device::{DeviceArgs, OpenDevices};
use super::find_model;
use super::headings::{DECODING, DEVICE, OPTIONS};
use super::kv_type::KvType;

/// Maximum of `--threads` and `--jobs`.
pub(super) const MAX_THREADS: usize = 1024;

/// Advice for getting a multilingual model.
pub(super) const MULTILINGUAL: &str = "`stonechat pull base` gets a multilingual one for `-m base`";

/// Model, language and prompt.
#[derive(Debug, clap::Args)]
pub(super) struct RecognizerArgs {
    /// Whisper model: file, folder or name of an installed model
    ///
    /// Without it: an installed model, `base` first, else that of the checkout it was built in.
    #[arg(short, long, help_heading = OPTIONS, add = speech_names())]
    model: Option<String>,
    /// Spoken language: code or English name; auto detects it
    #[arg(short, long, default_value = "auto", help_heading = OPTIONS, add = languages())]
    language: String,
    /// Transcribe, or translate to English
    #[arg(
        long,
        value_enum,
        default_value_t = TaskName::Transcribe,
        hide_possible_values = true,
        help_heading = OPTIONS
    )]
    task: TaskName,
    /// Prompt of the first window: names, spelling, style
    #[arg(long, value_name = "TEXT", help_heading = DECODING)]
    initial_prompt: Option<String>,
    /// Hint phrases to add to the prompt of every window
    #[arg(long, value_name = "TEXT", help_heading = DECODING)]
    hotwords: Option<String>,
    /// Beam size at temperature 0; 1 is greedy [default: 5]
    ///
    /// Greedy decoding is faster and a little less accurate; it is the default of live streams.
    #[arg(long, visible_alias = "bs", value_name = "N", help_heading = DECODING)]
    beam_size: Option<usize>,
}

/// Device, threads and weights layout.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = DEVICE)]
pub(super) struct ComputeArgs {
    /// Number of CPU threads; 0 is one per physical core
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    threads: usize,
    #[command(flatten)]
    device: DeviceArgs,
    /// KV cache data type
    #[arg(long, value_name = "TYPE", value_parser = KvType::float_parser(), default_value = "f16")]
    kv_type: KvType,
}

/// Values of `--task`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum TaskName {
    Transcribe,
    Translate,
}

impl RecognizerArgs {
    /// Applies these flags to `options`.
    pub(super) fn apply(&self, options: Options) -> anyhow::Result<Options> {
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

    /// Finds the model file.
    pub(super) fn find(&self, compute: &ComputeArgs) -> anyhow::Result<Recognizer> {
        let path = match &self.model {
            Some(name) => find_model::find(name)?,
            None => find_model::find_default()?,
        };
        let is_default = self.model.is_none();
        Ok(Recognizer {
            path,
            is_default,
            kv_dtype: compute.kv_type.dtype(),
            n_threads: compute.threads,
        })
    }
}

impl ComputeArgs {
    /// Checks the number of threads.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let n = self.threads;
        let wrong = || WrongValue(format!("threads: expected 0 to {MAX_THREADS}, got {n}"));
        ensure!(n <= MAX_THREADS, wrong());
        Ok(())
    }

    /// Opens the device of a model whose weights have `weight_bytes`; prints it if `verbose`.
    pub(super) fn open(&self, weight_bytes: u64, verbose: bool) -> anyhow::Result<OpenDevices> {
        let device = self.device.choose(DeviceNeeds { weight_bytes, can_split: false }, verbose)?;
        self.device.open(device, self.threads)
    }
}

/// A model to load.
#[derive(Debug)]
pub(super) struct Recognizer {
    pub(super) path: PathBuf,
    /// Whether no model was named.
    pub(super) is_default: bool,
    pub(super) kv_dtype: KvDType,
    /// CPU threads; 0 is one per physical core.
    pub(super) n_threads: usize,
}

impl Recognizer {
    /// File name of the model.
    pub(super) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.display().to_string()
    }

    /// Whether the model of `file` is English-only.
    pub(super) fn is_english_only(file: &ModelFile) -> bool {
        let special = Config::from_file(file).map(|config| SpecialTokens::new(config.vocab_size));
        matches!(special, Ok(Ok(special)) if !special.multilingual)
    }

    /// Checks that the model of `file` supports the language and the task of `options`.
    pub(super) fn check_language(&self, file: &ModelFile, options: &Options) -> anyhow::Result<()> {
        if !Self::is_english_only(file) {
            return Ok(());
        }
        let model = format!("the model is English-only (`{}`); {MULTILINGUAL}", self.name());
        match options.language {
            Some(other) if other.code != "en" => {
                bail!("language `{}`: expected en, {model}", other.name)
            }
            _ if options.task == Task::Translate => {
                bail!("task translate: expected transcribe, {model}")
            }
            _ => Ok(()),
        }
    }

    /// Loads the weights of `file`, with a progress bar.
    pub(super) fn load(
        &self,
        file: &ModelFile,
        devices: &OpenDevices,
        console: &Console,
    ) -> anyhow::Result<Model> {
        let model = console
            .stage("loading", |on_progress| devices.device.load_speech_model(file, on_progress));
        let is_llm = model.is_err() && stonechat::llm::Config::from_file(file).is_ok();
        let advice = if is_llm { " (language models: `stonechat generate`)" } else { "" };
        model.with_context(|| format!("cannot load `{}`{advice}", self.path.display()))
    }
}

fn language(name: &str) -> anyhow::Result<Option<Language>> {
    if name.eq_ignore_ascii_case("auto") {
        return Ok(None);
    }
    let expected = "auto, a code such as `de` or an English name such as `german`";
    // Regions and scripts (`de-DE`, `zh_Hans_CN`) make no difference.
    let base = name.split(['-', '_']).next().filter(|base| (2..=3).contains(&base.len()));
    let language = Language::find(name).or_else(|| Language::find(base?));
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
        for (regional, code) in
            [("de-DE", "de"), ("zh-CN", "zh"), ("pt_BR", "pt"), ("yue-HK", "yue")]
        {
            assert_eq!(language(regional).unwrap().map(|l| l.code), Some(code));
        }
        for wrong in ["xx-DE", "-de", "klingon-de", "german-at", ""] {
            assert!(language(wrong).is_err(), "{wrong}");
        }
        assert!(language("klingon").unwrap_err().to_string().contains("got `klingon`"));
    }
}
