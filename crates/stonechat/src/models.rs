//! Finding models: by path, by name in the models folder, or the default model.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::Error;

/// Names of Whisper models for `pull`, in the order of preference for the default model.
pub const NAMES: [&str; 16] = [
    "base",
    "tiny.en",
    "base.en",
    "tiny",
    "small",
    "small.en",
    "medium",
    "medium.en",
    "large-v3-turbo",
    "large-v3",
    "large-v2",
    "large-v1",
    "distil-large-v3.5",
    "distil-large-v3",
    "distil-medium.en",
    "distil-small.en",
];

/// Folder of the default model in a checkout.
const CHECKOUT_MODELS: &str = "test-data/models";

/// A models folder, by default `stonechat/models` in the platform's cache folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Models {
    folder: Option<PathBuf>,
}

/// A model in the models folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Name for [`Models::find`].
    pub name: String,
    /// File or folder.
    pub path: PathBuf,
    /// Total bytes of its files.
    pub bytes: u64,
}

impl Models {
    /// Folder of `STONECHAT_MODELS`, else `stonechat/models` in the platform's cache folder.
    #[must_use]
    pub fn from_env() -> Self {
        let folder = variable("STONECHAT_MODELS")
            .map(PathBuf::from)
            .or_else(|| Some(dirs::cache_dir()?.join("stonechat").join("models")));
        Self { folder }
    }

    /// Folder at a path.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// Path of the folder, which need not exist.
    ///
    /// # Errors
    /// [`Error::NoModelsFolder`] if neither `STONECHAT_MODELS` nor a home folder is set.
    pub fn folder(&self) -> Result<&Path, Error> {
        self.folder.as_deref().ok_or(Error::NoModelsFolder)
    }

    /// Finds the model at a path, else by name in the models folder: `NAME/`, `NAME`, `NAME.gguf`, `NAME.bin` or
    /// `ggml-NAME.bin`.
    ///
    /// # Errors
    /// [`Error::ModelNotFound`] with the searched folder and a hint how to get the model.
    pub fn find(&self, name_or_path: &str) -> Result<PathBuf, Error> {
        let path = Path::new(name_or_path);
        if path.exists() {
            return Ok(path.to_owned());
        }
        let folder = self.folder()?;
        self.installed_at(name_or_path).ok_or_else(|| Error::ModelNotFound {
            name: name_or_path.to_owned(),
            folder: folder.to_owned(),
            advice: advice(name_or_path),
        })
    }

    /// Finds the default model: the first GGUF file of `test-data/models` above the working directory or above this
    /// program, else the first of [`NAMES`] that is installed.
    ///
    /// # Errors
    /// [`Error::NoModel`].
    pub fn find_default(&self) -> Result<PathBuf, Error> {
        let starts = [env::current_dir().ok(), env::current_exe().ok()];
        let in_checkout = starts
            .iter()
            .flatten()
            .flat_map(|start| start.ancestors())
            .find_map(|folder| first_gguf(&folder.join(CHECKOUT_MODELS)));
        let installed = || NAMES.iter().find_map(|name| self.installed_at(name));
        match in_checkout.or_else(installed) {
            Some(path) => Ok(path),
            None => Err(Error::NoModel { folder: self.folder()?.to_owned() }),
        }
    }

    /// Lists the models in the folder, sorted by name.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder exists and cannot be read.
    pub fn installed(&self) -> Result<Vec<Installed>, Error> {
        let folder = self.folder()?;
        let io = |source| Error::Io { action: "read", path: folder.to_owned(), source };
        if !folder.exists() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let Some(file_name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let name = if file_name.starts_with('.') {
                continue;
            } else if path.is_dir() {
                file_name.to_owned()
            } else if let Some(stem) = file_name.strip_suffix(".gguf") {
                stem.to_owned()
            } else if let Some(stem) = file_name.strip_suffix(".bin") {
                stem.strip_prefix("ggml-").unwrap_or(stem).to_owned()
            } else {
                continue;
            };
            found.push(Installed { name, bytes: bytes_at(&path), path });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Path of the installed model `name`.
    pub(crate) fn installed_at(&self, name: &str) -> Option<PathBuf> {
        let folder = self.folder.as_ref()?;
        let place = place(name)?;
        let file_name = place.file_name()?.to_str()?;
        let candidates = [
            file_name.to_owned(),
            format!("{file_name}.gguf"),
            format!("{file_name}.bin"),
            format!("ggml-{file_name}.bin"),
        ];
        candidates
            .into_iter()
            .map(|candidate| folder.join(place.with_file_name(candidate)))
            .find(|path| path.exists())
    }
}

/// Path of a model relative to the models folder: `user--repo` for `user/repo`, and `user--repo/file` for
/// `user/repo:file`. `None` for an invalid name; no name leads to a path outside of the folder.
pub(crate) fn place(name: &str) -> Option<PathBuf> {
    let plain =
        |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['/', '\\', ':']);
    let (repo, file) = name.split_once(':').map_or((name, None), |(repo, file)| (repo, Some(file)));
    let folder = match repo.split_once('/') {
        Some((user, repo)) if plain(user) && plain(repo) => format!("{user}--{repo}"),
        None if plain(repo) && file.is_none() => canonical(repo).to_owned(),
        _ => return None,
    };
    match file {
        None => Some(folder.into()),
        // Folders within the repository are flattened.
        Some(file) => {
            file.rsplit('/').next().filter(|f| plain(f)).map(|f| Path::new(&folder).join(f))
        }
    }
}

/// Expands the short names of openai-whisper, `turbo` and `large`.
pub(crate) fn canonical(name: &str) -> &str {
    match name {
        "turbo" => "large-v3-turbo",
        "large" => "large-v3",
        name => name,
    }
}

fn advice(name: &str) -> String {
    let known = NAMES.contains(&canonical(name)) || (name.contains('/') && place(name).is_some());
    match name {
        "base" | "tiny.en" => {
            format!("get it with `stonechat pull {name}` or `cargo xtask models {name}`")
        }
        _ if known => format!("get it with `stonechat pull {name}`"),
        _ => "`stonechat models` lists what is installed, `stonechat pull base` downloads one"
            .to_owned(),
    }
}

/// First GGUF file of a folder by name; the choice does not depend on the file system.
fn first_gguf(folder: &Path) -> Option<PathBuf> {
    let paths = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| path.extension().is_some_and(|e| e == "gguf")).min()
}

fn bytes_at(path: &Path) -> u64 {
    let Ok(metadata) = fs::metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries.filter_map(|entry| Some(fs::metadata(entry.ok()?.path()).ok()?.len())).sum()
}

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Models, place};

    /// Temporary folder, removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("stonechat-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn names_have_a_place_in_the_folder() {
        #[track_caller]
        fn check(name: &str, expected: Option<&str>) {
            assert_eq!(place(name).as_deref(), expected.map(Path::new), "{name}");
        }
        check("base", Some("base"));
        check("turbo", Some("large-v3-turbo"));
        check("user/repo", Some("user--repo"));
        check("user/repo:a/b.gguf", Some("user--repo/b.gguf"));
        check("..", None);
        check("../x", None);
        check("user/..", None);
        check("user/repo:..", None);
        check("/etc/passwd", None);
        check("a/b/c", None);
        check("base:x", None);
        check("", None);
    }

    #[test]
    fn names_are_found_in_every_form() {
        let scratch = Scratch::new("find");
        let models = Models::at(&scratch.0);
        fs::create_dir(scratch.0.join("base")).unwrap();
        for file in ["one.gguf", "two.bin", "ggml-tiny-q5_1.bin", "large-v3-turbo.gguf", ".hidden"]
        {
            fs::write(scratch.0.join(file), b"12345").unwrap();
        }
        for (name, file) in [
            ("base", "base"),
            ("one", "one.gguf"),
            ("one.gguf", "one.gguf"),
            ("two", "two.bin"),
            ("tiny-q5_1", "ggml-tiny-q5_1.bin"),
            ("turbo", "large-v3-turbo.gguf"),
        ] {
            assert_eq!(models.find(name).unwrap(), scratch.0.join(file));
        }
        let names: Vec<_> = models.installed().unwrap().into_iter().map(|m| m.name).collect();
        assert_eq!(names, ["base", "large-v3-turbo", "one", "tiny-q5_1", "two"]);
        assert_eq!(models.installed().unwrap()[2].bytes, 5);
    }

    #[test]
    fn a_path_wins_over_a_name() {
        let scratch = Scratch::new("path");
        let path = scratch.0.join("one.gguf");
        fs::write(&path, b"").unwrap();
        let models = Models::at(scratch.0.join("nothing"));
        assert_eq!(models.find(path.to_str().unwrap()).unwrap(), path);
        assert_eq!(models.installed().unwrap(), []);
    }

    #[test]
    fn missing_models_come_with_a_hint() {
        #[track_caller]
        fn check(name: &str, expected: &str) {
            let message = Models::at("/nonexistent").find(name).unwrap_err().to_string();
            assert!(message.contains("/nonexistent") && message.contains(expected), "{message}");
        }
        check("base", "`stonechat pull base` or `cargo xtask models base`");
        check("turbo", "`stonechat pull turbo`");
        check("user/repo", "`stonechat pull user/repo`");
        check("bsae", "`stonechat models` lists");
    }
}
