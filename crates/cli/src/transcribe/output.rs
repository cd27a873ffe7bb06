//! Writes transcripts: segment by segment to standard output, or as whole files.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use stonechat::formats::AtomicFile;
use stonechat::whisper::{OutputFormat, Segment, SubtitleLayout, Transcript, TranscriptWriter};

use super::plan::Plan;
use super::results::Task;

/// Writer of one recording's transcript.
#[derive(Debug)]
pub(super) struct Output<'a> {
    task: &'a Task,
    layout: SubtitleLayout,
    /// Writer to standard output.
    writer: Option<(OutputFormat, TranscriptWriter)>,
    /// Name of the recording, where several share standard output.
    file: Option<String>,
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
    pub(super) fn begin(plan: &Plan, task: &'a Task) -> anyhow::Result<Self> {
        let writer = |format| (format, TranscriptWriter::new(format, plan.layout));
        let mut writer = plan.standard_output.map(writer);
        if let Some((_, writer)) = &mut writer {
            print(|out| writer.begin(out))?;
        }
        let file = (plan.tasks.len() > 1).then(|| task.input.name());
        Ok(Self { task, layout: plan.layout, writer, file })
    }

    /// Writes a segment to standard output, if results go there.
    pub(super) fn segment(&mut self, segment: &Segment) -> anyhow::Result<()> {
        if let Some((_, writer)) = &mut self.writer {
            print(|out| writer.segment(out, segment))?;
        }
        Ok(())
    }

    /// Writes the end of the format to standard output, or all result files.
    pub(super) fn end(mut self, transcript: &Transcript) -> anyhow::Result<()> {
        match (&mut self.writer, &self.file) {
            (Some((OutputFormat::Json, _)), Some(file)) => {
                let named = Named { file, transcript };
                print(|out| {
                    serde_json::to_writer(&mut *out, &named)?;
                    writeln!(out)
                })?;
            }
            (Some((_, writer)), _) => print(|out| writer.end(out, transcript))?,
            (None, _) => {
                // All formats are tried before the first error is returned.
                let results = self.task.results.iter();
                let written: Vec<_> = results
                    .map(|(format, path)| self.write_file(*format, path, transcript))
                    .collect();
                written.into_iter().collect::<anyhow::Result<()>>()?;
            }
        }
        Ok(())
    }

    fn write_file(
        &self,
        format: OutputFormat,
        path: &Path,
        transcript: &Transcript,
    ) -> anyhow::Result<()> {
        if let Some(folder) = path.parent() {
            create_folder(folder)?;
        }
        let mut file = AtomicFile::create(path)?;
        format.write(&mut file, transcript, self.layout)?;
        Ok(file.commit()?)
    }
}

/// Creates `folder` with its parents.
pub(super) fn create_folder(folder: &Path) -> anyhow::Result<()> {
    if folder.as_os_str().is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder `{}`", folder.display()))
}

/// Writes to standard output and flushes it, so that a pipe gets each segment at once.
fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut text = Vec::new();
    write(&mut text)?;
    let mut stdout = io::stdout().lock();
    let result = stdout.write_all(&text).and_then(|()| stdout.flush());
    if result.as_ref().is_err_and(crate::is_broken_pipe) {
        // The reader has closed the pipe (`| head`).
        std::process::exit(0);
    }
    result
}
