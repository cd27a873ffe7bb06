//! Files of folders and patterns: which are recordings, and notes about the others.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use stonechat::audio::decode::EXTENSIONS;

use crate::sniff;

/// Extensions of recordings that only an installed ffmpeg may decode; without it they fail as inputs.
const OTHER_MEDIA: [&str; 46] = [
    "aa", "aax", "ac3", "aifr", "amr", "ape", "asf", "au", "avi", "awb", "divx", "dsf", "dts",
    "dv", "eac3", "ec3", "flv", "gsm", "m2t", "m2ts", "m4p", "mlp", "mpc", "mpeg", "mpg", "mts",
    "mxf", "nut", "ogm", "ogv", "ogx", "ra", "rm", "rmvb", "snd", "sph", "spx", "thd", "tta",
    "vob", "voc", "w64", "wma", "wmv", "wtv", "wv",
];

/// What folders and patterns hold beside the inputs.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// Files that are left out, and why.
    pub(super) notes: Vec<String>,
    /// Folders below that cannot be listed.
    pub(super) unreadable: Vec<String>,
}

/// Files of one folder or pattern.
#[derive(Debug)]
pub(super) struct Files {
    name: String,
    notes: Vec<String>,
    /// Counts of other files by extension.
    others: BTreeMap<String, usize>,
    /// Hidden folders and recordings.
    pub(super) n_hidden: usize,
}

impl Files {
    /// No files of the folder or pattern `name` yet.
    pub(super) fn of(name: String) -> Self {
        Self { name, notes: Vec::new(), others: BTreeMap::new(), n_hidden: 0 }
    }

    /// Tells if a file is a recording by its name; notes it otherwise.
    pub(super) fn takes(&mut self, path: &Path) -> bool {
        let shown = path.display();
        if path.is_dir() {
            self.notes.push(format!("{shown}: left out, links to folders are not followed"));
            return false;
        }
        // TypeScript files have this extension, too.
        let is_stream = has_extension(path, &["ts"]) && start(path).first() == Some(&0x47);
        if is_stream || has_extension(path, EXTENSIONS) || has_extension(path, &OTHER_MEDIA) {
            if !path.is_file() {
                self.notes.push(format!("{shown}: left out, it is no regular file"));
            }
            return path.is_file();
        }
        if let Some(container) = sniff::container(&start(path)) {
            let why = "without an extension of audio or video; give its own name to transcribe it";
            self.notes.push(format!("{shown}: left out, it looks like {container} {why}"));
        } else {
            let extension = path.extension().and_then(OsStr::to_str).map(str::to_lowercase);
            let kind = extension.map_or("no extension".to_owned(), |text| format!(".{text}"));
            *self.others.entry(kind).or_default() += 1;
        }
        false
    }

    /// Notes about the files that are left out: a line each, or a count of those that are no recordings.
    pub(super) fn notes(mut self) -> Vec<String> {
        let n: usize = self.others.values().sum();
        let kinds: Vec<_> = self.others.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        if n > 0 {
            self.notes.push(format!(
                "{}: {n} left out that are no audio or video ({})",
                self.name,
                kinds.join(", ")
            ));
        }
        if self.n_hidden > 0 {
            self.notes.push(format!("{}: {} left out that are hidden", self.name, self.n_hidden));
        }
        self.notes
    }
}

/// Tells if a path has one of these extensions, in any case.
pub(super) fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    extension.is_some_and(|extension| extensions.contains(&&*extension))
}

/// The first bytes of a regular file; none if it cannot be read.
fn start(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if path.is_file()
        && let Ok(file) = File::open(path)
    {
        // What was read before an error is examined.
        let _ = file.take(4096).read_to_end(&mut bytes);
    }
    bytes
}
