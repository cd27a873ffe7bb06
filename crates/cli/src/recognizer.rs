//! Flags that the speech verbs share: model, language, prompt, beam size, device.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use stonechat::device::DeviceNeeds;
use stonechat::formats::ModelFile;
use stonechat::nn::KvDType;
use stonechat::whisper::{Config, Language, Model, Options, SpecialTokens, Task};

use super::completions::{languages, speech_names};
use super::console::Console;
use super::device::{DeviceArgs, OpenDevices};
use super::find_model;
use super::headings::{DECODING, DEVICE, OPTIONS};
use super::kv_type::float_type;

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
        value_parser = PossibleValuesParser::new(["transcribe", "translate"]).map(task),
        default_value = "transcribe",
        hide_possible_values = true,
        help_heading = OPTIONS
    )]
    task: Task,
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
    #[arg(long, value_name = "TYPE", value_parser = float_type(), default_value = "f16")]
    kv_type: KvDType,
}

impl RecognizerArgs {
    /// Applies these flags to `options`.
    pub(super) fn apply(&self, options: Options) -> anyhow::Result<Options> {
        Ok(Options {
            language: language(&self.language)?,
            task: self.task,
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
        Ok(Recognizer { path, is_default, kv_dtype: compute.kv_type, n_threads: compute.threads })
    }
}

impl ComputeArgs {
    /// Checks the number of threads.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let n = self.threads;
        let wrong = || usage_error!("threads: expected 0 to {MAX_THREADS}, got {n}");
        ensure!(n <= MAX_THREADS, wrong());
        Ok(())
    }

    /// Opens the device of the model in `file`; prints it if `verbose`.
    pub(super) fn open(
        &self,
        file: &ModelFile,
        console: &Console,
        verbose: bool,
    ) -> anyhow::Result<OpenDevices> {
        let needs = DeviceNeeds::whole(file.weight_bytes());
        self.device.open(needs, self.threads, console, verbose)
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

fn task(name: String) -> Task {
    if name == "translate" { Task::Translate } else { Task::Transcribe }
}

fn language(name: &str) -> anyhow::Result<Option<Language>> {
    if name.eq_ignore_ascii_case("auto") {
        return Ok(None);
    }
    let expected = "auto, a code such as `de` or an English name such as `german`";
    let found = Language::find(name).map(Some);
    found.ok_or_else(|| anyhow!("language: expected {expected}, got `{name}`"))
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
