//! Checks of all arguments before the first recording is read.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{anyhow, bail, ensure};
use stonechat::audio::Channels;
use stonechat::whisper::{Options, OutputFormat, SubtitleLayout, VadMode};

use super::Args;
use super::files::FileArgs;
use super::inputs::{Input, Inputs};
use super::output::create_folder;
use super::results::{self, Task};
use crate::aliases::FORMAT_HINT;
use crate::recognizer::{MAX_THREADS, Recognizer};

/// Inputs, options and outputs of a run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) tasks: Vec<Task>,
    /// Format of standard output; `None` where results go to files.
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
    /// Notes to print before work begins.
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
        args.compute.check()?;
        let options = options(args)?;
        let jobs = args.jobs;
        let FileArgs { overwrite, ref summary, no_progress, channels, .. } = args.files;
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
        let recognizer = args.recognizer.find(&args.compute)?;
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
    let options = Options {
        batch_size: args.batch_size,
        clip_timestamps: args.files.clips(),
        ..Options::default()
    };
    let options = args.decoding.apply(options)?;
    let mut options = args.speech.apply(args.recognizer.apply(options)?);
    if args.files.channels.0 == Channels::Each && options.vad == VadMode::Auto {
        // The channel of a silent speaker has little speech, and speech times put the segments in order.
        options.vad = VadMode::On;
    }
    options.validate()?;
    Ok(options)
}

/// Parses `--output-format`; each format occurs once.
fn formats(names: &[String]) -> anyhow::Result<Vec<OutputFormat>> {
    let mut formats: Vec<OutputFormat> = Vec::new();
    for name in names.iter().map(|name| name.trim()) {
        // openai-whisper's five formats.
        let named = if name == "all" {
            use OutputFormat::{Json, Srt, Tsv, Txt, Vtt};
            vec![Txt, Vtt, Srt, Tsv, Json]
        } else {
            vec![name.parse().map_err(|e: String| anyhow!("output format: {e} ({FORMAT_HINT})"))?]
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

/// Chooses the destination of the results: tasks with named files, or the format of standard output; and notes
/// about the names.
fn destination(
    args: &FileArgs,
    inputs: Inputs,
) -> anyhow::Result<(Vec<Task>, Option<OutputFormat>, Vec<String>)> {
    let formats = formats(&args.output_format)?;
    let Inputs { all: inputs, is_batch } = inputs;
    if let Some(file) = &args.output_file {
        let Ok([input]) = <[Input; 1]>::try_from(inputs) else {
            bail!("--output-file: expected one input; several are named after the inputs");
        };
        let result = |&format: &OutputFormat| (format, results::with_format(file, format));
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
    use super::Threshold;

    #[test]
    fn thresholds_can_be_none() {
        assert_eq!("none".parse(), Ok(Threshold(None)));
        assert_eq!("-1.5".parse(), Ok(Threshold(Some(-1.5))));
        assert!("high".parse::<Threshold>().is_err());
        assert!("nan".parse::<Threshold>().is_err());
    }
}
