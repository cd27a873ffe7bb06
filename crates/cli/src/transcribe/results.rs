//! Names of result files.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use stonechat::whisper::OutputFormat;

use super::inputs::Input;

/// An input and its result files.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) input: Input,
    /// Empty where text goes to standard output.
    pub(super) results: Vec<(OutputFormat, PathBuf)>,
}

impl Task {
    /// Tells if every result exists and is newer than the input.
    pub(super) fn is_up_to_date(&self) -> bool {
        let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
        let Some(input) = self.input.path().and_then(modified) else { return false };
        !self.results.is_empty()
            && self.results.iter().all(|(_, path)| modified(path).is_some_and(|at| at > input))
    }
}

/// Names the results of `inputs` in `folder`, or beside each input. On a collision of two results, or of a result
/// with an input, the results keep the input's extension, and a note is returned.
pub(super) fn name(
    inputs: Vec<Input>,
    folder: Option<&Path>,
    formats: &[OutputFormat],
) -> anyhow::Result<(Vec<Task>, Vec<String>)> {
    let sources: HashSet<PathBuf> = inputs.iter().filter_map(Input::path).map(key).collect();
    let short: Vec<PathBuf> =
        inputs.iter().map(|input| base(input, folder, input.stem())).collect();
    let mut n_named: HashMap<PathBuf, usize> = HashMap::new();
    for base in &short {
        *n_named.entry(key(base)).or_default() += 1;
    }
    let mut notes = Vec::new();
    let mut taken = HashSet::new();
    let mut tasks = Vec::with_capacity(inputs.len());
    for (input, short) in inputs.into_iter().zip(short) {
        let is_source =
            |format: &OutputFormat| sources.contains(&key(with_format(&short, *format)));
        let is_shared = n_named[&key(&short)] > 1;
        let whole = input.path().and_then(Path::file_name);
        let base = match whole {
            Some(whole) if is_shared || formats.iter().any(is_source) => {
                let base = base(&input, folder, whole.to_owned());
                let name = with_format(&base, formats[0]);
                notes.push(format!(
                    "{}: goes to `{}`, another file has the shorter name",
                    input.name(),
                    name.display()
                ));
                base
            }
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
        tasks.push(Task { input, results });
    }
    Ok((tasks, notes))
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

    use super::{Input, name};

    fn file(path: &str, below: &str) -> Input {
        Input::File { path: path.into(), below: below.into() }
    }

    #[track_caller]
    fn check(inputs: &[Input], folder: Option<&str>, expected: &[&str], n_notes: usize) {
        let formats = [OutputFormat::Srt, OutputFormat::Json];
        let (tasks, notes) = name(inputs.to_vec(), folder.map(Path::new), &formats).unwrap();
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
        let error = name(same, Some(Path::new("out")), &[OutputFormat::Txt]).unwrap_err();
        assert!(error.to_string().contains("x.mp3.txt"));
        let collides = [file("x.mp3", ""), file("x.wav", ""), file("x.mp3.flac", "")];
        assert!(name(collides.to_vec(), None, &[OutputFormat::Txt]).is_err());
    }
}
