//! Checks of all arguments before the first recording is read.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use stonechat::audio::Channels;
use stonechat::formats::AtomicFile;
use stonechat::whisper::{Options, OutputFormat, VadMode};

use super::Args;
use super::files::FileArgs;
use super::inputs::{Input, Inputs};
use super::records::{FileIdentity, Recipe, Records};
use super::results::{self, Task};
use crate::UsageError;
use crate::aliases::FORMAT_HINT;
use crate::recognizer::{MAX_THREADS, Recognizer};

/// Inputs, options and outputs of a run.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) args: &'a Args,
    pub(super) tasks: Vec<Task>,
    /// Format of standard output; `None` where results go to files.
    pub(super) standard_output: Option<OutputFormat>,
    /// Whether segments are printed with their times, beside files or alone.
    pub(super) prints_times: bool,
    pub(super) recognizer: Recognizer,
    pub(super) options: Options,
    pub(super) records: Records,
    pub(super) recipe: Recipe,
    /// Notes to print before work begins.
    pub(super) notes: Vec<String>,
    /// Folders that cannot be listed.
    pub(super) unreadable: Vec<String>,
}

impl<'a> Plan<'a> {
    /// Checks every argument, and finds the inputs and the model.
    pub(super) fn check(args: &'a Args) -> anyhow::Result<Self> {
        args.compute.check()?;
        let options = options(args).map_err(UsageError::from_error)?;
        let jobs = args.jobs;
        let FileArgs { overwrite, ref summary, channels, audio_track, .. } = args.files;
        let track = audio_track.map(|number| format!(" track {number}")).unwrap_or_default();
        let wrong = || usage_error!("jobs: expected 1 to {MAX_THREADS}, got {jobs}");
        ensure!((1..=MAX_THREADS).contains(&jobs), wrong());
        let mut inputs = Inputs::find(&args.audio)?;
        let left_out = std::mem::take(&mut inputs.left_out);
        let records = Records::of_user();
        let (mut tasks, standard_output, names) = destination(&args.files, inputs, &records)?;
        ensure!(
            summary.as_deref() != Some(Path::new("-"))
                || (standard_output.is_none() && !args.files.print_timestamps),
            usage_error!("--summary - needs standard output, where the text goes")
        );
        let expected = "expected 1 where several inputs go to standard output";
        let prints_times = args.files.print_timestamps
            && standard_output.is_none_or(|format| format == OutputFormat::Txt);
        ensure!(
            jobs == 1 || (standard_output.is_none() && !prints_times) || tasks.len() == 1,
            usage_error!("jobs: {expected}, got {jobs}")
        );
        let recognizer = args.recognizer.find(&args.compute)?;
        let mut notes = left_out.notes;
        notes.extend(names);
        notes.extend(no_word_times(args, &tasks, standard_output));
        let recipe = Recipe {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: FileIdentity::of_model(&recognizer.path),
            options: format!(
                "{options:?} {:?} {:?} {:?}{track}",
                args.speech.layout(),
                channels,
                recognizer.kv_dtype
            ),
        };
        if !overwrite {
            notes.extend(tasks.iter_mut().flat_map(|task| task.examine(&records, &recipe)));
        }
        Ok(Self {
            args,
            tasks,
            standard_output,
            prints_times,
            recognizer,
            options,
            records,
            recipe,
            notes,
            unreadable: left_out.unreadable,
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
    if args.files.channels == Channels::Each && options.vad == VadMode::Auto {
        // The channel of a silent speaker has little speech, and speech times put the segments in order.
        options.vad = VadMode::On;
    }
    options.validate()?;
    Ok(options)
}

/// A note if none of the formats has the times that `--word-timestamps` asks for.
fn no_word_times(
    args: &Args,
    tasks: &[Task],
    standard_output: Option<OutputFormat>,
) -> Option<String> {
    use OutputFormat::{Csv, Lrc, Tsv, Txt};
    let files = tasks.iter().flat_map(|task| task.results.iter().map(|(format, _)| *format));
    let mut formats = files.chain(standard_output);
    let is_marked = args.speech.highlight_words;
    let has_none = formats.all(|format| match format {
        Lrc => !is_marked,
        format => matches!(format, Txt | Tsv | Csv),
    });
    let text = "--word-timestamps: txt, tsv, csv and lrc have no times of words; json has, and lrc with \
                --highlight-words";
    (args.speech.word_timestamps && has_none).then(|| text.to_owned())
}

/// Parses `--output-format`; each format occurs once.
fn formats(names: &[String]) -> anyhow::Result<Vec<OutputFormat>> {
    let mut formats: Vec<OutputFormat> = Vec::new();
    // A comma may end the list.
    for name in names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()) {
        // openai-whisper's five formats.
        let named = if name == "all" {
            use OutputFormat::{Json, Srt, Tsv, Txt, Vtt};
            vec![Txt, Vtt, Srt, Tsv, Json]
        } else {
            let expected: Vec<_> = OutputFormat::ALL.iter().map(|format| format.name()).collect();
            let expected = expected.join(", ");
            let wrong = |_| {
                let got = format!("expected {expected} or all, got `{name}`");
                usage_error!("output format: {got} ({FORMAT_HINT})")
            };
            vec![name.parse().map_err(wrong)?]
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
    records: &Records,
) -> anyhow::Result<(Vec<Task>, Option<OutputFormat>, Vec<String>)> {
    let formats = formats(&args.output_format)?;
    let Inputs { all: inputs, is_batch, .. } = inputs;
    if let Some(file) = &args.output_file {
        let Ok([input]) = <[Input; 1]>::try_from(inputs) else {
            let expected = "expected one input; several are named after the inputs";
            bail!(usage_error!("--output-file: {expected}"));
        };
        // whisper.cpp writes its JSON to FILE.json.
        let has_json = formats.contains(&OutputFormat::Json);
        let result = |&format: &OutputFormat| match format {
            OutputFormat::JsonFull if !has_json => {
                (format, results::with_format(file, OutputFormat::Json))
            }
            _ => (format, results::with_format(file, format)),
        };
        let results = formats.iter().map(result).collect();
        return Ok((vec![Task::new(input, results)], None, Vec::new()));
    }
    if let Some(path) = &args.output_dir
        && let Some(named) = format_of_name(path)
    {
        ensure!(
            !is_batch,
            usage_error!(
                "`{0}`: expected a folder for several inputs, got the name of a file (`{0}/` is a folder)",
                path.display()
            )
        );
        let format = match formats[..] {
            _ if args.output_format.is_empty() => named,
            [OutputFormat::JsonFull] if named == OutputFormat::Json => OutputFormat::JsonFull,
            [format] if format == named => format,
            _ => bail!(usage_error!(
                "`{0}`: expected a name with the extension of the one format, or a folder (`{0}/`)",
                path.display()
            )),
        };
        let task = |input| Task::new(input, vec![(format, path.clone())]);
        return Ok((inputs.into_iter().map(task).collect(), None, Vec::new()));
    }
    let is_printed = match &args.output_dir {
        Some(folder) => folder.as_os_str() == "-",
        None if args.print_timestamps && args.output_format.is_empty() => true,
        None => !is_batch && (args.output_format.is_empty() || inputs[0] == Input::StandardInput),
    };
    if !is_printed {
        if let Some(folder) = &args.output_dir {
            check_folder(folder)?;
        }
        let owner = |path: &Path, input: &Input| records.owner(path, input);
        let (tasks, notes) = results::name(inputs, args.output_dir.as_deref(), &formats, &owner)?;
        return Ok((tasks, None, notes));
    }
    let [format] = formats[..] else {
        bail!(usage_error!("several output formats need --output-dir: standard output takes one"));
    };
    let runs_together = !matches!(format, OutputFormat::Txt | OutputFormat::Json);
    ensure!(
        inputs.len() == 1 || !runs_together,
        usage_error!(
            "several inputs as {} need a folder as --output-dir: on standard output they would run together",
            format.name()
        )
    );
    let task = |input| Task::new(input, Vec::new());
    Ok((inputs.into_iter().map(task).collect(), Some(format), Vec::new()))
}

/// The format whose extension ends the name of `path`, unless it is a folder.
fn format_of_name(path: &Path) -> Option<OutputFormat> {
    let is_folder = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
    let name = path.file_name().filter(|_| !is_folder)?.to_str()?.to_ascii_lowercase();
    let has = |format: &&OutputFormat| {
        name.strip_suffix(format.extension())
            .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    };
    OutputFormat::ALL.iter().filter(has).max_by_key(|format| format.extension().len()).copied()
}

/// Checks that files can be written to `folder`, which need not exist yet.
fn check_folder(folder: &Path) -> anyhow::Result<()> {
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let context = || format!("cannot create the folder `{}`", folder.display());
    let existing = whole.ancestors().find(|path| path.symlink_metadata().is_ok());
    let Some(existing) = existing else { return Ok(()) };
    if !existing.is_dir() {
        bail!("{}: `{}` is a file", context(), existing.display());
    }
    // Removed at once.
    AtomicFile::create(existing.join("results")).map(drop).with_context(context)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stonechat::whisper::OutputFormat;

    use super::format_of_name;

    #[test]
    fn files_are_named_by_their_extension() {
        for (name, format) in [
            ("out.txt", Some(OutputFormat::Txt)),
            ("a/B.SRT", Some(OutputFormat::Srt)),
            ("x.full.json", Some(OutputFormat::JsonFull)),
            ("x.json", Some(OutputFormat::Json)),
            ("out", None),
            ("out.txt/", None),
            (".txt", None),
            ("talks.v2", None),
            ("-", None),
        ] {
            assert_eq!(format_of_name(Path::new(name)), format, "{name}");
        }
    }
}
