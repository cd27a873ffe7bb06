//! Names of result files, and whether existing ones are kept, replaced or refused.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use stonechat::whisper::OutputFormat;

use super::inputs::Input;
use super::records::{Found, Owner, Recipe, Records};

/// An input and its result files.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) input: Input,
    /// Results to write; empty where text goes to standard output.
    pub(super) results: Vec<(OutputFormat, PathBuf)>,
    /// Results that are up to date.
    pub(super) kept: Vec<PathBuf>,
    pub(super) verdict: Verdict,
}

/// Decision on an input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Transcribe,
    /// The results of the input are up to date; the reason is a note.
    Skip(String),
    /// A result would replace a file that is none of this input; which and why, as an error.
    Refuse(String),
}

impl Task {
    pub(super) fn new(input: Input, results: Vec<(OutputFormat, PathBuf)>) -> Self {
        Self { input, results, kept: Vec::new(), verdict: Verdict::Transcribe }
    }

    /// Decides what to do by the results that exist; returns notes.
    pub(super) fn examine(&mut self, records: &Records, recipe: &Recipe) -> Vec<String> {
        // A missing input fails by its own error.
        if self.input.path().is_some_and(|path| !path.exists()) {
            return Vec::new();
        }
        let name = self.input.name();
        let (mut notes, mut to_write) = (Vec::new(), Vec::new());
        for (format, path) in std::mem::take(&mut self.results) {
            let shown = path.display().to_string();
            match records.examine(&path, &self.input, recipe) {
                Found::Nothing => {}
                Found::Current => {
                    self.kept.push(path);
                    continue;
                }
                Found::Edited => {
                    notes.push(format!("{name}: `{shown}` was edited and is kept"));
                    self.kept.push(path);
                    continue;
                }
                Found::Outdated(why) => {
                    notes.push(format!("{name}: `{shown}` is written anew, {why}"));
                }
                Found::Foreign(why) => {
                    let message = format!("`{shown}` is not replaced, {why} (--overwrite does)");
                    self.verdict = Verdict::Refuse(message);
                    return Vec::new();
                }
            }
            to_write.push((format, path));
        }
        self.results = to_write;
        if self.results.is_empty() && !self.kept.is_empty() {
            let shown: Vec<_> = self.kept.iter().map(|p| format!("`{}`", p.display())).collect();
            self.verdict = Verdict::Skip(format!(
                "{name}: skipped, {} is up to date (--overwrite transcribes it again)",
                shown.join(", ")
            ));
        }
        notes
    }
}

/// Names the results of `inputs` in `folder`, or beside each input.
///
/// On a collision of two results, of a result with an input, or with the result of another recording, the results keep
/// the input's extension, and a note is returned. An input that has a result under either name keeps that name.
pub(super) fn name(
    inputs: Vec<Input>,
    folder: Option<&Path>,
    formats: &[OutputFormat],
    owner: &dyn Fn(&Path, &Input) -> Owner,
) -> anyhow::Result<(Vec<Task>, Vec<String>)> {
    let sources: HashSet<PathBuf> = inputs.iter().filter_map(Input::path).map(key).collect();
    let short: Vec<PathBuf> =
        inputs.iter().map(|input| base(input, folder, input.stem())).collect();
    let mut named: HashMap<PathBuf, Vec<String>> = HashMap::new();
    for (base, input) in short.iter().zip(&inputs) {
        named.entry(key(base)).or_default().push(input.name());
    }
    let mut notes = Vec::new();
    let mut taken = HashSet::new();
    let mut tasks = Vec::with_capacity(inputs.len());
    for (input, short) in inputs.into_iter().zip(short) {
        let long = input.path().and_then(Path::file_name);
        let long = long.map(|whole| base(&input, folder, whole.to_owned()));
        let others = &named[&key(&short)];
        let collides = collision(&input, &short, formats, &sources, others, owner);
        let base = match (collides, long) {
            (Some(reason), Some(long)) => {
                let name = with_format(&long, formats[0]);
                let input = input.name();
                notes.push(format!("{input}: goes to `{}`, {reason}", name.display()));
                long
            }
            (None, Some(long)) if was_long(&input, &short, &long, formats, owner) => long,
            _ => short,
        };
        let results: Vec<_> =
            formats.iter().map(|&format| (format, with_format(&base, format))).collect();
        for (_, path) in &results {
            ensure!(
                taken.insert(key(path)),
                "two inputs would write `{}`: transcribe them into different folders",
                path.display()
            );
        }
        tasks.push(Task::new(input, results));
    }
    Ok((tasks, notes))
}

/// Reason why the results of `input` cannot have the name `short`; `named` are the inputs of that name.
fn collision(
    input: &Input,
    short: &Path,
    formats: &[OutputFormat],
    sources: &HashSet<PathBuf>,
    named: &[String],
    owner: &dyn Fn(&Path, &Input) -> Owner,
) -> Option<String> {
    let results = || formats.iter().map(|format| with_format(short, *format));
    if let Some(path) = results().find(|path| sources.contains(&key(path))) {
        return Some(format!("`{}` is an input", path.display()));
    }
    let mut is_own = false;
    for path in results() {
        match owner(&path, input) {
            Owner::Other(other) => {
                return Some(format!("`{}` is the result of `{other}`", path.display()));
            }
            Owner::This => is_own = true,
            Owner::Nobody => {}
        }
    }
    let other = named.iter().find(|name| **name != input.name())?;
    let name = with_format(short, formats[0]);
    (!is_own).then(|| format!("`{}` could be of `{other}`, too", name.display()))
}

/// Tells if an earlier run gave the results of `input` the name `long`, and none has the name `short`.
fn was_long(
    input: &Input,
    short: &Path,
    long: &Path,
    formats: &[OutputFormat],
    owner: &dyn Fn(&Path, &Input) -> Owner,
) -> bool {
    let is_own = |base: &Path| {
        formats.iter().any(|format| owner(&with_format(base, *format), input) == Owner::This)
    };
    is_own(long) && !is_own(short)
}

/// Path of a result without extension.
fn base(input: &Input, folder: Option<&Path>, name: OsString) -> PathBuf {
    match (folder, input) {
        (Some(folder), Input::File { below, .. }) => folder.join(below).join(name),
        (Some(folder), Input::StandardInput) => folder.join(name),
        (None, Input::File { path, .. }) => path.with_file_name(name),
        (None, Input::StandardInput) => name.into(),
    }
}

/// Appends the extension of `format`; not `with_extension`, since the stem may have a dot.
pub(super) fn with_format(base: &Path, format: OutputFormat) -> PathBuf {
    let mut name = base.as_os_str().to_owned();
    name.push(".");
    name.push(format.extension());
    name.into()
}

/// Key of a path: absolute, in lower case on Windows and macOS.
fn key(path: impl AsRef<Path>) -> PathBuf {
    let path = std::path::absolute(&path).unwrap_or_else(|_| path.as_ref().to_owned());
    if cfg!(any(windows, target_os = "macos")) {
        path.as_os_str().to_ascii_lowercase().into()
    } else {
        path
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use stonechat::whisper::OutputFormat;

    use super::{Input, Owner, name};

    fn file(path: &str, below: &str) -> Input {
        Input::File { path: path.into(), below: below.into() }
    }

    fn nobody(_: &Path, _: &Input) -> Owner {
        Owner::Nobody
    }

    #[track_caller]
    fn check(inputs: &[Input], folder: Option<&str>, expected: &[&str], n_notes: usize) {
        let formats = [OutputFormat::Srt, OutputFormat::Json];
        let (tasks, notes) =
            name(inputs.to_vec(), folder.map(Path::new), &formats, &nobody).unwrap();
        let paths = tasks.iter().map(|task| task.results[0].1.clone());
        assert_eq!(
            paths.collect::<Vec<_>>(),
            expected.iter().map(PathBuf::from).collect::<Vec<_>>()
        );
        assert!(tasks.iter().all(|task| task.results.len() == 2));
        assert_eq!(notes.len(), n_notes);
    }

    #[test]
    fn results_lie_beside_the_input_or_in_the_folder_as_inputs_do() {
        let inputs = [file("a/b/x.v2.mp3", "b"), file("a/y.wav", ""), Input::StandardInput];
        check(&inputs, None, &["a/b/x.v2.srt", "a/y.srt", "stdin.srt"], 0);
        check(&inputs, Some("out"), &["out/b/x.v2.srt", "out/y.srt", "out/stdin.srt"], 0);
    }

    #[test]
    fn no_result_replaces_another_or_an_input() {
        let same_stem = [file("a/x.mp3", ""), file("a/x.wav", ""), file("a/z.wav", "")];
        check(&same_stem, None, &["a/x.mp3.srt", "a/x.wav.srt", "a/z.srt"], 2);
        check(&[file("a/x.srt", "")], None, &["a/x.srt.srt"], 1);
        let apart = [file("a/x.mp3", ""), file("b/x.wav", "")];
        check(&apart, None, &["a/x.srt", "b/x.srt"], 0);
        check(&apart, Some("out"), &["out/x.mp3.srt", "out/x.wav.srt"], 2);
        let same = vec![file("a/x.mp3", ""), file("b/x.mp3", "")];
        let error = name(same, Some(Path::new("out")), &[OutputFormat::Txt], &nobody).unwrap_err();
        assert!(error.to_string().contains("x.mp3.txt"));
        let collides = [file("x.mp3", ""), file("x.wav", ""), file("x.mp3.flac", "")];
        assert!(name(collides.to_vec(), None, &[OutputFormat::Txt], &nobody).is_err());
    }

    #[test]
    fn names_stay_with_their_recordings() {
        let owner = |path: &Path, input: &Input| match path.to_str() {
            Some("x.srt") if input.name() == "x.mp4" => Owner::This,
            Some("x.srt") => Owner::Other("x.mp4".to_owned()),
            Some("y.wav.srt") => Owner::This,
            _ => Owner::Nobody,
        };
        let named = |inputs: &[Input]| {
            let (tasks, notes) = name(inputs.to_vec(), None, &[OutputFormat::Srt], &owner).unwrap();
            let paths = tasks.iter().map(|task| task.results[0].1.display().to_string());
            (paths.collect::<Vec<_>>(), notes)
        };
        let (paths, notes) = named(&[file("x.mp3", ""), file("x.mp4", ""), file("y.wav", "")]);
        assert_eq!(paths, ["x.mp3.srt", "x.srt", "y.wav.srt"]);
        assert_eq!(notes, ["x.mp3: goes to `x.mp3.srt`, `x.srt` is the result of `x.mp4`"]);
        assert_eq!(named(&[file("x.mp3", "")]).0, ["x.mp3.srt"]);
    }
}
