//! Arguments checked against each other: everything that can fail before work begins.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow, bail, ensure};
use stonechat::whisper::{Options, OutputFormat, SubtitleLayout};

use super::Args;
use crate::cli::recognizer::Recognizer;

/// What to do.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) inputs: Vec<Input>,
    pub(super) recognizer: Recognizer,
    pub(super) destination: Destination,
    pub(super) layout: SubtitleLayout,
    pub(super) options: Options,
    pub(super) verbose: bool,
    pub(super) quiet: bool,
}

/// Where a recording comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    StandardInput,
    File(PathBuf),
}

/// Where text goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Destination {
    StandardOutput(OutputFormat),
    Folder(PathBuf, Vec<OutputFormat>),
}

/// A number, or `none`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cli) struct Threshold(pub(in crate::cli) Option<f64>);

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(Self(None));
        }
        match text.parse() {
            Ok(value) if f64::is_finite(value) => Ok(Self(Some(value))),
            _ => Err("expected a number or none".to_owned()),
        }
    }
}

impl Input {
    fn new(path: &Path) -> Self {
        if path.as_os_str() == "-" { Self::StandardInput } else { Self::File(path.to_owned()) }
    }

    /// What messages call it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::StandardInput => "standard input".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// The name of its results without extension.
    pub(super) fn stem(&self) -> OsString {
        match self {
            Self::StandardInput => "stdin".into(),
            Self::File(path) => path.file_stem().unwrap_or(path.as_os_str()).to_owned(),
        }
    }
}

impl Plan {
    /// Checks every argument and finds the model.
    pub(super) fn check(args: &Args) -> anyhow::Result<Self> {
        let inputs: Vec<Input> = args.audio.iter().map(|path| Input::new(path)).collect();
        let n_standard = inputs.iter().filter(|i| **i == Input::StandardInput).count();
        ensure!(n_standard <= 1, "standard input (`-`) can be read only once");
        let options = options(args)?;
        let destination = destination(args, &inputs)?;
        let recognizer = args.recognizer.find()?;
        Ok(Self {
            inputs,
            recognizer,
            destination,
            layout: args.speech.layout(),
            options,
            verbose: args.verbose,
            quiet: args.quiet,
        })
    }
}

fn options(args: &Args) -> anyhow::Result<Options> {
    let (suppress_tokens, suppress_non_speech) = suppressed(&args.suppress_tokens)?;
    let options = Options {
        temperatures: temperatures(&args.temperature, args.temperature_increment_on_fallback)?,
        patience: args.patience,
        length_penalty: args.length_penalty,
        best_of: args.best_of,
        batch_size: args.batch_size,
        compression_ratio_threshold: args.compression_ratio_threshold.0,
        logprob_threshold: args.logprob_threshold.0,
        no_speech_threshold: args.no_speech_threshold.0,
        condition_on_previous_text: args.condition_on_previous_text,
        prefix: args.prefix.clone(),
        suppress_blank: args.suppress_blank,
        suppress_non_speech,
        suppress_tokens,
        no_repeat_ngram_size: args.no_repeat_ngram_size,
        max_new_tokens: args.max_new_tokens,
        without_timestamps: args.no_timestamps,
        seed: args.seed,
        ..Options::default()
    };
    let options = args.speech.apply(args.recognizer.apply(options)?);
    options.validate()?;
    Ok(options)
}

/// Token ids, and whether -1 was among them.
fn suppressed(text: &str) -> anyhow::Result<(Vec<u32>, bool)> {
    let (mut tokens, mut non_speech) = (Vec::new(), false);
    for id in text.split(',').map(str::trim).filter(|id| !id.is_empty()) {
        if id == "-1" {
            non_speech = true;
        } else {
            let expected = "token ids and -1, separated by commas";
            tokens.push(
                id.parse()
                    .ok()
                    .with_context(|| format!("suppress-tokens: expected {expected}, got `{id}`"))?,
            );
        }
    }
    Ok((tokens, non_speech))
}

/// A list as it is; one value with the steps up to 1 that openai/whisper's command line adds.
fn temperatures(text: &str, increment: Threshold) -> anyhow::Result<Vec<f32>> {
    let parse = |text: &str| {
        let value = text.trim().parse().ok().filter(|value| f32::is_finite(*value));
        value.with_context(|| format!("temperature: expected 0 to 2, got `{text}`"))
    };
    let mut temperatures: Vec<f32> = text.split(',').map(parse).collect::<Result<_, _>>()?;
    if let (&[first], Some(increment)) = (&temperatures[..], increment.0) {
        ensure!(
            increment >= 0.01,
            "temperature-increment-on-fallback: expected 0.01 or more, or none, got {increment}"
        );
        let steps = (1..).map(|i| f64::from(first) + f64::from(i) * increment);
        // The tolerance takes in the 1.0 that a sum of tenths just misses.
        let steps = steps.take_while(|t| *t <= 1.0 + 1e-6);
        temperatures.extend(steps.map(|t| ((t * 1e6).round() / 1e6) as f32));
    }
    Ok(temperatures)
}

fn destination(args: &Args, inputs: &[Input]) -> anyhow::Result<Destination> {
    let mut formats: Vec<OutputFormat> = Vec::new();
    for name in &args.output_format {
        let format = name.trim().parse().map_err(|e: String| anyhow!("output format: {e}"))?;
        if !formats.contains(&format) {
            formats.push(format);
        }
    }
    if formats.is_empty() {
        formats.push(OutputFormat::Txt);
    }
    let Some(folder) = &args.output_dir else {
        let [format] = formats[..] else {
            bail!("several output formats need --output-dir: standard output takes one");
        };
        let runs_together = !matches!(format, OutputFormat::Txt | OutputFormat::Json);
        ensure!(
            inputs.len() == 1 || !runs_together,
            "several inputs as {} need --output-dir: on standard output they would run together",
            format.name()
        );
        return Ok(Destination::StandardOutput(format));
    };
    let mut stems: HashSet<OsString> = HashSet::new();
    for input in inputs {
        let stem = input.stem();
        // Where files differ by more than case, this refuses little that anybody has.
        let key = if cfg!(any(windows, target_os = "macos")) {
            stem.to_ascii_lowercase()
        } else {
            stem.clone()
        };
        ensure!(
            stems.insert(key),
            "two inputs would write `{}.{}` in `{}`: transcribe them into different folders",
            stem.display(),
            formats[0].extension(),
            folder.display()
        );
    }
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder `{}`", folder.display()))?;
    Ok(Destination::Folder(folder.clone(), formats))
}

#[cfg(test)]
mod tests {
    use super::{Input, Threshold, suppressed, temperatures};
    use std::path::Path;

    #[test]
    fn one_temperature_is_a_ladder() {
        #[track_caller]
        fn check(text: &str, increment: Option<f64>, expected: &[f32]) {
            assert_eq!(temperatures(text, Threshold(increment)).unwrap(), expected);
        }
        check("0", Some(0.2), &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        check("0.5", Some(0.2), &[0.5, 0.7, 0.9]);
        check("0", None, &[0.0]);
        check("1.5", Some(0.2), &[1.5]);
        check("0, 0.5", Some(0.2), &[0.0, 0.5]);
    }

    #[test]
    fn other_temperatures_are_refused() {
        for text in ["", "warm", "0,", "NaN", "inf"] {
            let message = temperatures(text, Threshold(None)).unwrap_err().to_string();
            assert!(message.starts_with("temperature: expected 0 to 2, got `"), "{message}");
        }
        assert!(temperatures("0", Threshold(Some(0.0))).is_err());
    }

    #[test]
    fn suppressed_tokens_are_openai_whispers_list() {
        assert_eq!(suppressed("-1").unwrap(), (vec![], true));
        assert_eq!(suppressed("").unwrap(), (vec![], false));
        assert_eq!(suppressed("50, -1,7").unwrap(), (vec![50, 7], true));
        for text in ["-2", "x", "1;2"] {
            assert!(suppressed(text).unwrap_err().to_string().contains("separated by commas"));
        }
    }

    #[test]
    fn thresholds_can_be_none() {
        assert_eq!("none".parse(), Ok(Threshold(None)));
        assert_eq!("-1.5".parse(), Ok(Threshold(Some(-1.5))));
        assert!("high".parse::<Threshold>().is_err());
        assert!("nan".parse::<Threshold>().is_err());
    }

    #[test]
    fn results_are_named_after_the_input() {
        assert_eq!(Input::new(Path::new("a/talk.v2.mp3")).stem(), "talk.v2");
        assert_eq!(Input::new(Path::new("-")).stem(), "stdin");
    }
}
