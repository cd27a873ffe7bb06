//! Downloads of models from the Hugging Face hub into the models folder.
//!
//! ```text
//! hub --> MODELS/.downloads (resumed after an error) --> MODELS/.NAME.part --> MODELS/NAME (one rename)
//! ```

mod download;
mod lock;

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hf_hub::Repo;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use sha2::{Digest, Sha256};
use stonechat_formats::{COMPANIONS, SHARD_INDEX, WEIGHTS};

use crate::models::name::{self, base_name, split_part};
use crate::models::unknown::refusal;
use crate::models::{GgufFiles, Name, Part, io as io_error, is_shard};
use crate::{Error, Models};
use download::{download, is_network, metadata};
use lock::Lock;

/// Folder of partial downloads inside the models folder.
const DOWNLOADS: &str = ".downloads";
/// Start of the reason if there is no connection.
const UNREACHABLE: &str = "it cannot be reached; is there a network?";

/// Progress of the download of one file.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// Name of the file in the repository.
    pub file: &'a str,
    /// Bytes received.
    pub done: u64,
    /// Bytes of the file.
    pub total: u64,
}

/// Files of a repository to download.
enum Files {
    /// Files that together make a folder.
    Folder(Vec<String>),
    /// Files of one model, in the repository's folder beside those of other downloads, or alone.
    Single(Vec<String>),
}

/// Downloads the model `name` unless it is installed, and returns its path.
///
/// `name` is one of [`CATALOG`](crate::CATALOG), one with other weights (`qwen3:0.6b-q8_0`), whisper.cpp's `ggml-NAME` or
/// `NAME-q5_1`, or `user/repo[:TYPE|:file]`. The environment variable `HF_ENDPOINT` is the URL of the hub, `HF_TOKEN`
/// or the file `token` in `HF_HOME` the token of private and gated repositories. One repository is downloaded by one caller at
/// a time, in this process or another; the others wait.
///
/// # Errors
/// If the name is unknown, the hub cannot be reached or refuses, a checksum differs, or the models folder cannot be
/// written to.
pub fn pull(
    models: &Models,
    name: &str,
    on_progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, Error> {
    pull_while(models, name, &mut |progress| {
        on_progress(progress);
        ControlFlow::Continue(())
    })
}

/// [`pull`] that ends when `on_progress` breaks. What arrived is kept.
///
/// # Errors
/// As [`pull`]; [`Error::Io`] if it was ended.
pub fn pull_while(
    models: &Models,
    name: &str,
    on_progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<PathBuf, Error> {
    let resolved = Name::parse(name).ok_or_else(|| unknown(models, name))?;
    if let Some(path) = models.find_installed(name) {
        return Ok(path);
    }
    let Name { repo: repo_name, part, place } = resolved;
    let folder = models.folder()?;
    let target = folder.join(place);
    let downloads = folder.join(DOWNLOADS);
    fs::create_dir_all(&downloads).map_err(io_error("create", &downloads))?;
    let _lock = Lock::take(&downloads, &name::folder_name(&repo_name))?;
    // Another process may have downloaded the file in the meantime.
    if let Some(path) = models.find_installed(name) {
        return Ok(path);
    }
    // The process that had the lock before may have removed the folder.
    fs::create_dir_all(&downloads).map_err(io_error("create", &downloads))?;
    let mut api = ApiBuilder::from_env().with_cache_dir(downloads.clone()).with_progress(false);
    if let Some(token) = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty()) {
        api = api.with_token(Some(token));
    }
    let repo = Repo::model(repo_name.clone());
    let api = api.build().map_err(|e| hub_error(&repo_name, &e))?;
    let remote = api.repo(repo.clone());
    let blobs_folder = downloads.join(repo.folder_name()).join("blobs");

    let mut fetch = |file: &str| -> Result<PathBuf, Error> {
        let error = |e| {
            let error = download_error(&format!("{file} of {repo_name}"), folder, e);
            with_kept(error, &downloads.join(repo.folder_name()))
        };
        let headers = metadata(&api, &remote.url(file)).map_err(error)?;
        let blob = blobs_folder.join(blob_name(&repo_name, headers.etag())?);
        if !blob.exists() {
            let size = headers.size() as u64;
            download(&remote, (file, size), &blob, &mut *on_progress).map_err(error)?;
        }
        verify(&blob, file)?;
        Ok(blob)
    };
    let files = match &part {
        Part::File(file) => Files::Single(parts_of(file)),
        part => choose(&remote, &repo_name, part, &mut fetch)?,
    };
    let (Files::Folder(names) | Files::Single(names)) = &files;
    check_names(&repo_name, names)?;
    let blobs = names.iter().map(|file| fetch(file)).collect::<Result<Vec<_>, _>>()?;
    let first = match &files {
        Files::Folder(_) => {
            place_folder(&target, names, &blobs)?;
            target
        }
        Files::Single(_) => {
            let parent = match part {
                Part::File(_) => target.parent().unwrap_or(folder),
                _ => &target,
            };
            place_files(parent, names, &blobs)?
        }
    };
    // The files were moved; links to them are left.
    let _ = fs::remove_dir_all(downloads.join(repo.folder_name()));
    Ok(first)
}

/// All parts of a file of a repository: one, or those that its name counts.
fn parts_of(file: &str) -> Vec<String> {
    let (name, _, count) = split_part(file.strip_suffix(".gguf").unwrap_or(file));
    match count {
        0 | 1 => vec![file.to_owned()],
        n => (1..=n).map(|part| format!("{name}-{part:05}-of-{n:05}.gguf")).collect(),
    }
}

/// Refuses names that would lead out of the folders of the download and of the model.
fn check_names(repo: &str, names: &[String]) -> Result<(), Error> {
    match names.iter().find(|file| !name::is_safe(file)) {
        Some(file) => Err(Error::UnsafeName { repo: repo.to_owned(), file: file.clone() }),
        None => Ok(()),
    }
}

/// Name of a downloaded file, which is its entity tag; one that would lead out of the folder of downloads is refused.
fn blob_name<'a>(repo: &str, etag: &'a str) -> Result<&'a str, Error> {
    if name::is_plain(etag) && !etag.contains('\0') {
        Ok(etag)
    } else {
        Err(Error::UnsafeName { repo: repo.to_owned(), file: etag.to_owned() })
    }
}

fn unknown(models: &Models, name: &str) -> Error {
    refusal(name).unwrap_or_else(|| Error::UnknownName {
        name: name.to_owned(),
        suggestion: models.suggestion(name),
    })
}

/// Tells if a part of a file lies in a folder of the client's cache.
fn has_arrived(repository: &Path) -> bool {
    let blobs = fs::read_dir(repository.join("blobs")).into_iter().flatten().flatten();
    let mut sizes = blobs.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.any(|bytes| bytes > 0)
}

/// Chooses the files of a repository, weights last.
fn choose(
    remote: &ApiRepo,
    repo: &str,
    part: &Part,
    fetch: &mut dyn FnMut(&str) -> Result<PathBuf, Error>,
) -> Result<Files, Error> {
    let info = remote.info().map_err(|e| hub_error(repo, &e))?;
    let names: Vec<&str> = info.siblings.iter().map(|s| s.rfilename.as_str()).collect();
    let has = |name: &str| names.contains(&name);
    let companions = || COMPANIONS.iter().filter(|name| has(name)).map(|&name| name.to_owned());
    if *part == Part::Whole {
        if let Some(&weights) = WEIGHTS.iter().find(|name| has(name)) {
            return Ok(Files::Folder(companions().chain([weights.to_owned()]).collect()));
        }
        if has(SHARD_INDEX) {
            let path = fetch(SHARD_INDEX)?;
            let index = fs::read_to_string(&path).map_err(io_error("read", &path))?;
            let shards = names.iter().filter(|name| is_shard(name, &index));
            let weights = [SHARD_INDEX].into_iter().chain(shards.copied()).map(str::to_owned);
            return Ok(Files::Folder(companions().chain(weights).collect()));
        }
    }
    let models = GgufFiles::among(names.iter().copied());
    let weights = match part {
        Part::Type(weights) => Some(weights.as_str()),
        _ => None,
    };
    match (GgufFiles::choose(&models, weights), weights) {
        (Some(model), _) => Ok(Files::Single(model.files.clone())),
        (None, Some(weights)) if !models.is_empty() => {
            let mut types: Vec<_> = models.iter().filter_map(GgufFiles::weights).collect();
            types.sort();
            types.dedup();
            Err(Error::NoSuchType {
                repo: repo.to_owned(),
                weights: weights.to_owned(),
                expected: types.join(", "),
            })
        }
        _ => Err(Error::NoWeights {
            repo: repo.to_owned(),
            expected: "model.safetensors, model.safetensors.index.json, model.bin or *.gguf",
        }),
    }
}

/// Checks the SHA-256 of a large file, which is its name in the cache. Small files have another name.
fn verify(blob: &Path, file: &str) -> Result<(), Error> {
    let expected = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if expected.len() != 64 || !expected.bytes().all(|b| b.is_ascii_hexdigit()) {
        if is_large(file) {
            tracing::warn!(
                "{file}: the hub gave no SHA-256, so damage in transfer would go unnoticed"
            );
        }
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

/// Tells if a file is one of weights, for which the hub has a SHA-256.
fn is_large(file: &str) -> bool {
    let extension = Path::new(file).extension().unwrap_or_default();
    ["gguf", "safetensors", "bin"].iter().any(|large| extension.eq_ignore_ascii_case(large))
}

/// Moves the files of a model into a staged folder, and renames that.
fn place_folder(target: &Path, names: &[String], blobs: &[PathBuf]) -> Result<(), Error> {
    let mut staging_name = std::ffi::OsString::from(".");
    staging_name.push(target.file_name().unwrap_or_default());
    staging_name.push(".part");
    let staging = target.with_file_name(staging_name);
    place_files(&staging, names, blobs)?;
    if target.is_dir() {
        // GGUF files of the same repository.
        let staged: Vec<_> = names.iter().map(|name| staging.join(base_name(name))).collect();
        place_files(target, names, &staged)?;
        return fs::remove_dir(&staging).map_err(io_error("remove", &staging));
    }
    fs::rename(&staging, target).map_err(io_error("write", target))
}

/// Moves files into a folder, the first one last: it is the one that is opened. Returns its path.
fn place_files(folder: &Path, names: &[String], blobs: &[PathBuf]) -> Result<PathBuf, Error> {
    fs::create_dir_all(folder).map_err(io_error("create", folder))?;
    let mut first = folder.to_owned();
    for (name, blob) in names.iter().zip(blobs).rev() {
        first = folder.join(base_name(name));
        fs::rename(blob, &first).map_err(io_error("write", &first))?;
    }
    Ok(first)
}

/// Formats an error of a download; those of files name the models folder.
fn download_error(what: &str, folder: &Path, error: ApiError) -> Error {
    match error {
        ApiError::IoError(source) if !is_network(&source) => {
            let is_full =
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            if is_full {
                let (what, folder) = (what.to_owned(), folder.to_owned());
                return Error::DiskFull { what, folder };
            }
            Error::Io { action: "write", path: folder.join(DOWNLOADS), source }
        }
        error => hub_error(what, &error),
    }
}

/// Adds to the error of a hub that is away what to do if a part of a file has arrived.
fn with_kept(error: Error, repository: &Path) -> Error {
    match error {
        Error::Hub { what, reason } => {
            let kept = reason.strip_prefix(UNREACHABLE).filter(|_| has_arrived(repository));
            let kept =
                kept.map(|rest| format!("{UNREACHABLE} What arrived is kept: pull again{rest}"));
            Error::Hub { what, reason: kept.unwrap_or(reason) }
        }
        error => error,
    }
}

/// Formats an error of the client on one line, with a hint for the usual causes.
fn hub_error(what: &str, error: &ApiError) -> Error {
    let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let status = match error {
        ApiError::RequestError(error) => match &**error {
            ureq::Error::StatusCode(code) => Some(*code),
            _ => None,
        },
        _ => None,
    };
    let reason = match status {
        Some(404) => "there is no such repository or file".to_owned(),
        Some(401) => "there is no such repository, or it is private or gated: check the name; for a gated one accept \
                      its licence on its page, and set HF_TOKEN to an access token"
            .to_owned(),
        Some(403) => "the access token has no right to it: accept the licence on the repository's page, or set \
                      HF_TOKEN to another token"
            .to_owned(),
        Some(429) => "too many requests: wait a few minutes, or set HF_TOKEN to an access token".to_owned(),
        Some(code @ 500..) => format!("the hub has a fault (status {code}): try again later"),
        Some(_) => text,
        None => match error {
            ApiError::RequestError(_) | ApiError::IoError(_) => {
                format!("{UNREACHABLE} ({text})")
            }
            ApiError::LockAcquisition(_) => "another process downloads it".to_owned(),
            _ => text,
        },
    };
    Error::Hub { what: what.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{
        Error, UNREACHABLE, blob_name, check_names, is_large, parts_of, verify, with_kept,
    };

    #[test]
    fn only_what_arrived_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let message = || {
            let reason = format!("{UNREACHABLE} (refused)");
            with_kept(Error::Hub { what: "x".to_owned(), reason }, folder.path()).to_string()
        };
        assert!(message().ends_with("is there a network? (refused)"), "{}", message());
        fs::create_dir(folder.path().join("blobs")).unwrap();
        fs::write(folder.path().join("blobs/c0ffee.part"), "").unwrap();
        assert!(!message().contains("kept"), "{}", message());
        fs::write(folder.path().join("blobs/c0ffee.part"), "abc").unwrap();
        assert!(message().contains("What arrived is kept: pull again (refused)"), "{}", message());
    }

    #[test]
    fn tags_that_lead_away_are_refused() {
        assert_eq!(blob_name("u/r", "0123abcd").unwrap(), "0123abcd");
        for etag in ["", ".", "..", "../x", "/etc/x", "a/b", "a\\b", "C:x", "x\0"] {
            let error = blob_name("u/r", etag).unwrap_err().to_string();
            assert!(error.starts_with("the repository u/r has a file"), "{error}");
        }
    }

    #[test]
    fn names_that_lead_away_are_refused() {
        check_names("u/r", &["config.json".to_owned(), "Q4/m.gguf".to_owned()]).unwrap();
        for file in
            ["../m.gguf", "/etc/m.gguf", "a/../../m.gguf", "..\\m.gguf", "C:m.gguf", "m\0.gguf"]
        {
            let error = check_names("u/r", &[file.to_owned()]).unwrap_err().to_string();
            let expected = format!("the repository u/r has a file `{}`", file.escape_debug());
            assert!(error.starts_with(&expected), "{error}");
        }
        assert!(is_large("a/m.GGUF") && is_large("model.bin") && !is_large("config.json"));
    }

    #[test]
    fn files_have_parts() {
        assert_eq!(parts_of("x/m.gguf"), ["x/m.gguf"]);
        let parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        assert_eq!(parts_of(parts[0]), parts);
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
