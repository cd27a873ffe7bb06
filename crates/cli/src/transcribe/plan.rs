//! Arguments checked against each other: everything that can fail before work begins.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow, bail, ensure};
use stonechat::audio::Channels;
use stonechat::whisper::{Options, OutputFormat, SubtitleLayout, VadMode};

use super::Args;
use super::files::FileArgs;
use super::inputs::{Input, Inputs};
use super::output::create_folder;
use super::results::{self, Task};
use crate::recognizer::{MAX_THREADS, Recognizer};

/// What to do.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) tasks: Vec<Task>,
    /// The format of standard output, if text goes there.
    pub(super) standard_output: Option<OutputFormat>,
    pub(super) recognizer: Recognizer,
    pub(super) layout: SubtitleLayout,
    pub(super) channels: Channels,
    pub(super) options: Options,
    pub(super) jobs: usize,
    pub(super) overwrite: bool,
    pub(super) summary: Option<PathBuf>,
    pub(super) verbose: bool,
    pub(super) quiet: bool,
    pub(super) shows_progress: bool,
    /// What to tell before work begins.
    pub(super) notes: Vec<String>,
}

/// A number, or `none`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Threshold(pub(crate) Option<f64>);

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

impl Plan {
    /// Checks every argument, and finds the inputs and the model.
    pub(super) fn check(args: &Args) -> anyhow::Result<Self> {
        let options = options(args)?;
        let FileArgs { jobs, overwrite, ref summary, no_progress, channels, .. } = args.files;
        ensure!((1..=MAX_THREADS).contains(&jobs), "jobs: expected 1 to {MAX_THREADS}, got {jobs}");
        let inputs = Inputs::find(&args.audio)?;
        let (tasks, standard_output, notes) = destination(&args.files, inputs)?;
        ensure!(
            summary.as_deref() != Some(Path::new("-")) || standard_output.is_none(),
            "--summary - needs standard output, where the text goes"
        );
        ensure!(
            jobs == 1 || standard_output.is_none() || tasks.len() == 1,
            "jobs: expected 1 where several inputs go to standard output, got {jobs}"
        );
        let recognizer = args.recognizer.find()?;
        Ok(Self {
            tasks,
            standard_output,
            recognizer,
            layout: args.speech.layout(),
            channels: channels.0,
            options,
            jobs,
            overwrite,
            summary: summary.clone(),
            verbose: args.verbose,
            quiet: args.quiet,
            shows_progress: !no_progress,
            notes,
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
        clip_timestamps: args.files.clips(),
        seed: args.seed,
        ..Options::default()
    };
    let mut options = args.speech.apply(args.recognizer.apply(options)?);
    if args.files.channels.0 == Channels::Each && options.vad == VadMode::Auto {
        // Whoever listens is silent, and what is said must be put in order.
        options.vad = VadMode::On;
    }
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

/// The formats by name, each once.
fn formats(names: &[String]) -> anyhow::Result<Vec<OutputFormat>> {
    let mut formats: Vec<OutputFormat> = Vec::new();
    for name in names.iter().map(|name| name.trim()) {
        // openai-whisper's word for its five formats.
        let named = if name == "all" {
            use OutputFormat::{Json, Srt, Tsv, Txt, Vtt};
            vec![Txt, Vtt, Srt, Tsv, Json]
        } else {
            vec![name.parse().map_err(|e: String| anyhow!("output format: {e}"))?]
        };
        for format in named {
            if !formats.contains(&format) {
                formats.push(format);
            }
        }
    }
    if formats.is_empty() {
        formats.push(OutputFormat::Txt);
    }
    Ok(formats)
}

/// Where the results of `inputs` go: named files, or standard output in a format; and what to tell
/// about the names.
fn destination(
    args: &FileArgs,
    inputs: Inputs,
) -> anyhow::Result<(Vec<Task>, Option<OutputFormat>, Vec<String>)> {
    let formats = formats(&args.output_format)?;
    let Inputs { all: inputs, is_batch } = inputs;
    if let Some(file) = &args.output_file {
        let Ok([input]) = <[Input; 1]>::try_from(inputs) else {
            bail!("--output-file: expected one input; several have a name each");
        };
        let result = |&format: &OutputFormat| (format, results::ending(file, format));
        let results = formats.iter().map(result).collect();
        return Ok((vec![Task { input, results }], None, Vec::new()));
    }
    let is_printed = match &args.output_dir {
        Some(folder) => folder.as_os_str() == "-",
        None => !is_batch && (args.output_format.is_empty() || inputs[0] == Input::StandardInput),
    };
    if !is_printed {
        let (tasks, notes) = results::name(inputs, args.output_dir.as_deref(), &formats)?;
        if let Some(folder) = &args.output_dir {
            create_folder(folder)?;
        }
        return Ok((tasks, None, notes));
    }
    let [format] = formats[..] else {
        bail!("several output formats need --output-dir: standard output takes one");
    };
    let runs_together = !matches!(format, OutputFormat::Txt | OutputFormat::Json);
    ensure!(
        inputs.len() == 1 || !runs_together,
        "several inputs as {} need a folder as --output-dir: on standard output they would run together",
        format.name()
    );
    let task = |input| Task { input, results: Vec::new() };
    Ok((inputs.into_iter().map(task).collect(), Some(format), Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::{Threshold, suppressed, temperatures};

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
}
