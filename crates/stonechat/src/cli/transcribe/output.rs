//! Where text goes: standard output as it comes, or files that appear when they are whole.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use stonechat::formats::AtomicFile;
use stonechat::whisper::{OutputFormat, Segment, SubtitleLayout, Transcript, TranscriptWriter};

use super::plan::{Destination, Input};

/// The text of one recording on its way out.
#[derive(Debug)]
pub(super) struct Output<'a> {
    destination: &'a Destination,
    layout: SubtitleLayout,
    /// What standard output gets as it comes.
    writer: Option<TranscriptWriter>,
    /// Set where several recordings share standard output.
    file: Option<String>,
    stem: PathBuf,
}

/// A transcript that says which recording it belongs to.
#[derive(serde::Serialize)]
struct Named<'a> {
    file: &'a str,
    #[serde(flatten)]
    transcript: &'a Transcript,
}

impl<'a> Output<'a> {
    /// Writes what comes before the first segment.
    pub(super) fn begin(
        destination: &'a Destination,
        layout: SubtitleLayout,
        input: &Input,
        several: bool,
    ) -> anyhow::Result<Self> {
        let mut writer = match destination {
            Destination::StandardOutput(format) => Some(TranscriptWriter::new(*format, layout)),
            Destination::Folder(..) => None,
        };
        if let Some(writer) = &mut writer {
            print(|out| writer.begin(out))?;
        }
        let file = several.then(|| input.name());
        Ok(Self { destination, layout, writer, file, stem: input.stem().into() })
    }

    /// Writes a segment where it can be seen at once.
    pub(super) fn segment(&mut self, segment: &Segment) -> anyhow::Result<()> {
        if let Some(writer) = &mut self.writer {
            print(|out| writer.segment(out, segment))?;
        }
        Ok(())
    }

    /// Writes what takes the whole transcript.
    pub(super) fn end(mut self, transcript: &Transcript) -> anyhow::Result<()> {
        match (self.destination, &self.file, &mut self.writer) {
            (Destination::StandardOutput(OutputFormat::Json), Some(file), _) => {
                let named = Named { file, transcript };
                print(|out| {
                    serde_json::to_writer(&mut *out, &named)?;
                    writeln!(out)
                })?;
            }
            (Destination::StandardOutput(_), _, Some(writer)) => {
                print(|out| writer.end(out, transcript))?;
            }
            (Destination::StandardOutput(_), _, None) => {}
            (Destination::Folder(folder, formats), ..) => {
                // A format that cannot be written does not cost the others.
                let results: Vec<_> = formats
                    .iter()
                    .map(|format| self.write_file(folder, *format, transcript))
                    .collect();
                results.into_iter().collect::<anyhow::Result<()>>()?;
            }
        }
        Ok(())
    }

    fn write_file(
        &self,
        folder: &Path,
        format: OutputFormat,
        transcript: &Transcript,
    ) -> anyhow::Result<()> {
        // Not `with_extension`: the stem may have a dot of its own.
        let mut name = self.stem.as_os_str().to_owned();
        name.push(".");
        name.push(format.extension());
        let mut file = AtomicFile::create(folder.join(name))?;
        format.write(&mut file, transcript, self.layout)?;
        Ok(file.commit()?)
    }
}

/// Writes to standard output and flushes it: a pipe gets each line when it is known.
fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut text = Vec::new();
    write(&mut text)?;
    let mut stdout = io::stdout().lock();
    let result = stdout.write_all(&text).and_then(|()| stdout.flush());
    if result.as_ref().is_err_and(crate::cli::is_broken_pipe) {
        // The reader has enough; working on would be for nobody.
        std::process::exit(0);
    }
    result
}
