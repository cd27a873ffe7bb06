//! Downloads of models from the Hugging Face hub into the models folder.
//!
//! ```text
//! hub --> MODELS/.downloads (resumed after an error) --> MODELS/.NAME.part --> MODELS/NAME (one rename)
//! ```

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo};
use sha2::{Digest, Sha256};
use stonechat_formats::COMPANIONS;

use crate::models::{canonical, place};
use crate::{Error, Models, NAMES};

/// Folder of partial downloads inside the models folder.
const DOWNLOADS: &str = ".downloads";
/// Repository of whisper.cpp's models.
const WHISPER_CPP: &str = "ggerganov/whisper.cpp";
/// Index of sharded weights.
const INDEX: &str = "model.safetensors.index.json";
/// Weights in one file: of Hugging Face, then of CTranslate2.
const WEIGHTS: [&str; 2] = ["model.safetensors", "model.bin"];
/// Retries after a broken connection.
const RETRIES: usize = 3;

/// Progress of the download of one file.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Name of the file in the repository.
    pub file: &'a str,
    /// Bytes received.
    pub done: u64,
    /// Bytes of the file.
    pub total: u64,
}

/// Source and destination of a model name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    repo: String,
    /// One file instead of the whole model.
    file: Option<String>,
    /// Path relative to the models folder.
    place: PathBuf,
}

/// Downloads the model `name` unless it is installed, and returns its path.
///
/// `name` is one of [`NAMES`], `ggml-NAME` or a quantized `NAME-q5_1` for whisper.cpp's files, or
/// `user/repo[:file]`. The environment variable `HF_ENDPOINT` is the URL of the hub, `HF_HOME` the folder with the
/// token of private repositories.
///
/// # Errors
/// If the name is unknown, the hub cannot be reached or refuses, a checksum differs, or the models folder cannot be
/// written to.
pub fn pull(
    models: &Models,
    name: &str,
    on_progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, Error> {
    let source = source(name)?;
    let target = models.folder()?.join(&source.place);
    if target.exists() {
        return Ok(target);
    }
    let downloads = models.folder()?.join(DOWNLOADS);
    let hub = |e: ApiError| hub_error(&source.repo, &e);
    let cache = Cache::new(downloads.clone());
    let api = ApiBuilder::from_env()
        .with_cache_dir(downloads.clone())
        .with_progress(false)
        .with_retries(RETRIES)
        .build()
        .map_err(hub)?;
    let repo = Repo::model(source.repo.clone());
    let remote = api.repo(repo.clone());
    let cached = cache.repo(repo.clone());

    let mut fetch = |file: &str| -> Result<PathBuf, Error> {
        let path = match cached.get(file) {
            Some(path) => path,
            None => {
                let report = Report { file, done: 0, total: 0, on_progress: &mut *on_progress };
                let error = |e: ApiError| hub_error(&format!("{file} of {}", source.repo), &e);
                remote.download_with_progress(file, report).map_err(error)?
            }
        };
        let blob = fs::canonicalize(&path).map_err(io_error("read", &path))?;
        verify(&blob, file)?;
        Ok(blob)
    };
    let files = match &source.file {
        Some(file) => vec![(target.clone(), fetch(file)?)],
        None => {
            let mut files = Vec::new();
            for file in wanted(&remote, &source.repo, &mut fetch)? {
                files.push((target.join(&file), fetch(&file)?));
            }
            files
        }
    };
    place_files(&target, source.file.is_some(), &files)?;
    // The files were moved; links to them are left.
    let _ = fs::remove_dir_all(downloads.join(repo.folder_name()));
    let _ = fs::remove_dir(&downloads);
    Ok(target)
}

/// Resolves a name to repository, file and destination.
fn source(name: &str) -> Result<Source, Error> {
    let unknown = || Error::UnknownName { name: name.to_owned(), expected: NAMES.join(", ") };
    if name.contains('/') {
        let place = place(name).ok_or_else(unknown)?;
        let (repo, file) = match name.split_once(':') {
            Some((repo, file)) => (repo, Some(file.to_owned())),
            None => (name, None),
        };
        return Ok(Source { repo: repo.to_owned(), file, place });
    }
    let bare = name.strip_suffix(".bin").unwrap_or(name);
    let ggml = bare.strip_prefix("ggml-");
    let size = canonical(ggml.unwrap_or(bare));
    let base = size.rsplit_once("-q").map(|(base, _)| base);
    if ggml.is_some() || base.is_some() {
        if !NAMES.contains(&base.unwrap_or(size)) || size.starts_with("distil-") {
            return Err(unknown());
        }
        let file = format!("ggml-{size}.bin");
        let place = PathBuf::from(&file);
        return Ok(Source { repo: WHISPER_CPP.to_owned(), file: Some(file), place });
    }
    if !NAMES.contains(&size) {
        return Err(unknown());
    }
    let repo = match size {
        "large-v1" => "openai/whisper-large".to_owned(),
        size if size.starts_with("distil-") => format!("distil-whisper/{size}"),
        size => format!("openai/whisper-{size}"),
    };
    Ok(Source { repo, file: None, place: size.into() })
}

/// Lists the files to download from a repository, weights last.
fn wanted(
    remote: &ApiRepo,
    repo: &str,
    fetch: &mut dyn FnMut(&str) -> Result<PathBuf, Error>,
) -> Result<Vec<String>, Error> {
    let info = remote.info().map_err(|e| hub_error(repo, &e))?;
    let has = |name: &str| info.siblings.iter().any(|sibling| sibling.rfilename == name);
    let companions = COMPANIONS.iter().filter(|name| has(name));
    let mut files: Vec<String> = companions.map(|&name| name.to_owned()).collect();
    if let Some(weights) = WEIGHTS.into_iter().find(|name| has(name)) {
        files.push(weights.to_owned());
    } else if has(INDEX) {
        let path = fetch(INDEX)?;
        let index = fs::read(&path).map_err(io_error("read", &path))?;
        files.push(INDEX.to_owned());
        files.extend(info.siblings.iter().map(|s| s.rfilename.clone()).filter(|name| {
            // The index has the name of each shard as a JSON string.
            name.ends_with(".safetensors") && contains(&index, format!("\"{name}\"").as_bytes())
        }));
    } else {
        let expected = "model.safetensors, model.safetensors.index.json or model.bin";
        return Err(Error::NoWeights { repo: repo.to_owned(), expected });
    }
    Ok(files)
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Checks the SHA-256 of a large file, which is its name in the cache.
fn verify(blob: &Path, file: &str) -> Result<(), Error> {
    let expected = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if expected.len() != 64 || !expected.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    let read = io_error("read", blob);
    let mut content = File::open(blob).map_err(&read)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match content.read(&mut buffer).map_err(&read)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    let got: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if got == expected {
        return Ok(());
    }
    fs::remove_file(blob).map_err(io_error("remove", blob))?;
    Err(Error::Checksum { file: file.to_owned(), expected: expected.to_owned(), got })
}

/// Moves `(to, from)` files to their destination; a folder is staged and renamed as a whole.
fn place_files(target: &Path, single: bool, files: &[(PathBuf, PathBuf)]) -> Result<(), Error> {
    let parent = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(io_error("create", parent))?;
    if single {
        return files
            .iter()
            .try_for_each(|(to, from)| fs::rename(from, to).map_err(io_error("write", to)));
    }
    let mut staging_name = std::ffi::OsString::from(".");
    staging_name.push(target.file_name().unwrap_or_default());
    staging_name.push(".part");
    let staging = target.with_file_name(staging_name);
    fs::create_dir_all(&staging).map_err(io_error("create", &staging))?;
    for (to, from) in files {
        let to = staging.join(to.file_name().unwrap_or_default());
        fs::rename(from, &to).map_err(io_error("write", &to))?;
    }
    fs::rename(&staging, target).map_err(io_error("write", target))
}

fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path: path.clone(), source }
}

/// Formats an error of the client on one line, with a hint for the usual causes.
fn hub_error(what: &str, error: &ApiError) -> Error {
    let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let lower = text.to_lowercase();
    let reason = if lower.contains("status: 404") || lower.contains("status: 401") {
        format!("no such repository or file, or it is private ({text})")
    } else if ["dns", "lookup", "host not found", "connect", "io:", "timeout", "unreachable"]
        .iter()
        .any(|sign| lower.contains(sign))
    {
        format!("it cannot be reached; is there a network? ({text})")
    } else {
        text
    };
    Error::Hub { what: what.to_owned(), reason }
}

/// Adapter from the client's progress to [`Progress`].
struct Report<'a> {
    file: &'a str,
    done: u64,
    total: u64,
    on_progress: &'a mut dyn FnMut(Progress<'_>),
}

impl Report<'_> {
    fn report(&mut self) {
        let Self { file, done, total, .. } = *self;
        (self.on_progress)(Progress { file, done, total });
    }
}

impl hf_hub::api::Progress for Report<'_> {
    fn init(&mut self, size: usize, _filename: &str) {
        (self.done, self.total) = (0, size as u64);
        self.report();
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        self.report();
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{source, verify};

    #[test]
    fn names_stand_for_repositories() {
        #[track_caller]
        fn check(name: &str, repo: &str, file: Option<&str>, place: &str) {
            let source = source(name).unwrap();
            assert_eq!((source.repo.as_str(), source.file.as_deref()), (repo, file));
            assert_eq!(source.place, Path::new(place));
        }
        check("base", "openai/whisper-base", None, "base");
        check("large-v1", "openai/whisper-large", None, "large-v1");
        check("turbo", "openai/whisper-large-v3-turbo", None, "large-v3-turbo");
        check("distil-large-v3", "distil-whisper/distil-large-v3", None, "distil-large-v3");
        let cpp = "ggerganov/whisper.cpp";
        check("ggml-base", cpp, Some("ggml-base.bin"), "ggml-base.bin");
        check("ggml-tiny.en.bin", cpp, Some("ggml-tiny.en.bin"), "ggml-tiny.en.bin");
        check("base-q5_1", cpp, Some("ggml-base-q5_1.bin"), "ggml-base-q5_1.bin");
        check("u/r", "u/r", None, "u--r");
        check("u/r:x/m.gguf", "u/r", Some("x/m.gguf"), "u--r/m.gguf");
    }

    #[test]
    fn other_names_are_refused() {
        for name in ["", "bsae", "ggml-bsae", "../x", "u/r/v", "u/..", "ggml-distil-large-v3"] {
            let message = source(name).unwrap_err().to_string();
            assert!(message.contains("expected one of base, tiny.en"), "{message}");
        }
    }

    #[test]
    fn damage_is_detected() {
        let folder = std::env::temp_dir().join(format!("stonechat-verify-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // SHA-256 of "abc" (FIPS 180-2, appendix B.1).
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let blob = folder.join(sha256);
        fs::write(&blob, "abc").unwrap();
        verify(&blob, "model.bin").unwrap();
        fs::write(&blob, "abd").unwrap();
        let message = verify(&blob, "model.bin").unwrap_err().to_string();
        assert!(message.starts_with("model.bin was damaged"), "{message}");
        assert!(!blob.exists());
        let small = folder.join("0123abcd");
        fs::write(&small, "anything").unwrap();
        verify(&small, "config.json").unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
