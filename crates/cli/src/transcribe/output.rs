//! Writes transcripts: segment by segment to standard output, or as whole files; what there is of an interrupted one as
//! partial files.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use stonechat::formats::AtomicFile;
use stonechat::whisper::{OutputFormat, Segment, Transcript, TranscriptWriter};

use super::plan::Plan;
use super::records::Found;
use super::remarks::is_silent;
use super::results::Task;

/// Writer of one recording's transcript.
#[derive(Debug)]
pub(super) struct Output<'a> {
    plan: &'a Plan<'a>,
    task: &'a Task,
    /// Writer to standard output.
    writer: Option<(OutputFormat, TranscriptWriter)>,
    /// Name of the recording, where several share standard output.
    file: Option<String>,
}

/// Result files of one recording.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) paths: Vec<PathBuf>,
    /// Reason why a result has no record.
    pub(super) unrecorded: Option<anyhow::Error>,
}

/// Context of errors of standard output, which are not those of an input.
#[derive(Debug)]
pub(super) struct StandardOutput;

impl fmt::Display for StandardOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot write to standard output")
    }
}

/// JSON line of a transcript with the name of its recording.
#[derive(serde::Serialize)]
struct Named<'a> {
    file: &'a str,
    #[serde(flatten)]
    transcript: &'a Transcript,
}

impl<'a> Output<'a> {
    /// Writes the header of the format.
    pub(super) fn begin(plan: &'a Plan<'a>, task: &'a Task) -> anyhow::Result<Self> {
        let writer = |format| {
            let writer = TranscriptWriter::new(format, plan.args.speech.layout());
            (format, if plan.prints_times { writer.with_times() } else { writer })
        };
        let format = plan.standard_output.or(plan.prints_times.then_some(OutputFormat::Txt));
        let mut writer = format.map(writer);
        if let Some((_, writer)) = &mut writer {
            print(|out| writer.begin(out))?;
        }
        let file = (plan.tasks.len() > 1).then(|| task.input.name());
        Ok(Self { plan, task, writer, file })
    }

    /// Writes a segment to standard output, if text goes there.
    pub(super) fn segment(&mut self, segment: &Segment) -> anyhow::Result<()> {
        if let Some((_, writer)) = &mut self.writer {
            print(|out| writer.segment(out, segment))?;
        }
        Ok(())
    }

    /// Writes the end of the format to standard output, and all result files; returns what was written.
    pub(super) fn end(mut self, transcript: &Transcript) -> anyhow::Result<Written> {
        match (&mut self.writer, &self.file) {
            (Some((OutputFormat::Json, _)), Some(file)) => {
                let named = Named { file, transcript };
                print(|out| {
                    serde_json::to_writer(&mut *out, &named)?;
                    writeln!(out)
                })?;
            }
            (Some((_, writer)), _) => print(|out| writer.end(out, transcript))?,
            (None, _) => {}
        }
        let mut written = Written::default();
        // All formats are tried before the first error is returned.
        let mut result = Ok(());
        for (format, path) in &self.task.results {
            let one = self.write_file(*format, path, transcript, &mut written);
            if one.is_ok() {
                self.remove_partial(*format, path);
            }
            result = result.and(one);
        }
        result.map(|()| written)
    }

    /// Writes what there is of an interrupted transcript to partial files; returns them.
    pub(super) fn interrupted(&self, transcript: &Transcript) -> anyhow::Result<Written> {
        let Plan { args, records, recipe, .. } = self.plan;
        let mut written = Written::default();
        let mut result = Ok(());
        if is_silent(transcript) {
            return Ok(written);
        }
        for (format, path) in &self.task.results {
            let path = partial_name(path, *format);
            let found = records.examine(&path, &self.task.input, recipe);
            let is_foreign = matches!(found, Found::Edited | Found::Foreign(_));
            let is_kept = is_foreign && !args.files.overwrite;
            let one = if is_kept {
                Err(anyhow!("`{}` is not replaced, it is not known as a result", path.display()))
            } else {
                self.write_file(*format, &path, transcript, &mut written)
            };
            result = result.and(one);
        }
        result.map(|()| written)
    }

    /// Removes the partial file of an earlier run, unless it was edited.
    fn remove_partial(&self, format: OutputFormat, path: &Path) {
        let partial = partial_name(path, format);
        let found = self.plan.records.examine(&partial, &self.task.input, &self.plan.recipe);
        if matches!(found, Found::Current | Found::Outdated(_)) {
            // The complete result replaces it.
            let _ = std::fs::remove_file(partial);
        }
    }

    fn write_file(
        &self,
        format: OutputFormat,
        path: &Path,
        transcript: &Transcript,
        written: &mut Written,
    ) -> anyhow::Result<()> {
        let mut text = Vec::new();
        format.write(&mut text, transcript, self.plan.args.speech.layout())?;
        if text.is_empty() {
            // An empty file would look like a result, as would the file of an earlier run.
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("cannot remove `{}`", path.display()))
                }
                _ => Ok(()),
            };
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create the folder `{}`", folder.display()))?;
        }
        let mut file = AtomicFile::create(path)?;
        file.write_all(&text)?;
        file.commit()?;
        written.paths.push(path.to_owned());
        let Plan { records, recipe, .. } = self.plan;
        if let Err(error) = records.write(path, &self.task.input, recipe, &text) {
            written.unrecorded.get_or_insert(error);
        }
        Ok(())
    }
}

/// Name of the partial file of the result at `path`: `talk.partial.srt` for `talk.srt`.
fn partial_name(path: &Path, format: OutputFormat) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let end = [format.extension(), OutputFormat::Json.extension()]
        .map(|extension| format!(".{extension}"))
        .into_iter()
        .find(|end| name.to_ascii_lowercase().ends_with(end.as_str()));
    let stem = end.map_or(&*name, |end| &name[..name.len() - end.len()]);
    path.with_file_name(format!("{stem}.partial{}", &name[stem.len()..]))
}

/// Writes to standard output and flushes it, so that a pipe gets each segment at once.
fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut text = Vec::new();
    write(&mut text)?;
    let mut stdout = io::stdout().lock();
    let result = stdout.write_all(&text).and_then(|()| stdout.flush());
    if result.as_ref().is_err_and(crate::is_broken_pipe) {
        // The reader has closed the pipe (`| head`).
        std::process::exit(0);
    }
    result.context(StandardOutput)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stonechat::whisper::OutputFormat;

    use super::partial_name;

    #[test]
    fn partial_files_are_named_so() {
        for (path, format, expected) in [
            ("out/talk.v2.srt", OutputFormat::Srt, "out/talk.v2.partial.srt"),
            ("talk.full.json", OutputFormat::JsonFull, "talk.partial.full.json"),
            ("talk.json", OutputFormat::JsonFull, "talk.partial.json"),
            ("B.SRT", OutputFormat::Srt, "B.partial.SRT"),
            ("talk", OutputFormat::Txt, "talk.partial"),
        ] {
            assert_eq!(partial_name(Path::new(path), format), Path::new(expected));
        }
    }
}
