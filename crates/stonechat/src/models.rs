//! Models by path or name: the models folder, the Hugging Face cache, and a catalog of names.

mod catalog;
mod details;
pub(crate) mod name;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use stonechat_formats::{COMPANIONS, SHARD_INDEX, WEIGHTS};

use crate::Error;

pub use catalog::{CATALOG, CatalogEntry, ModelKind};
pub use details::Details;
pub(crate) use name::{GgufFiles, Name, Part};

/// Folder of the default model in the checkout that this crate was built in.
const CHECKOUT_MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/models");

/// A models folder, by default `stonechat/models` in the platform's cache folder, and beside it the cache of other
/// programs that download from the Hugging Face hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Models {
    folder: Option<PathBuf>,
    hub_cache: Option<PathBuf>,
}

/// An installed model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Installed {
    /// Name for [`Models::find`].
    pub name: String,
    /// File or folder.
    pub path: PathBuf,
    /// Total bytes of its files.
    pub bytes: u64,
    /// Whether it lies in the Hugging Face cache instead of the models folder.
    pub is_in_hub_cache: bool,
    /// Files to remove with it.
    files: Vec<PathBuf>,
}

impl Models {
    /// Folder of `STONECHAT_MODELS`, else `stonechat/models` in the platform's cache folder; the Hugging Face cache of
    /// `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else `~/.cache/huggingface/hub`.
    #[must_use]
    pub fn from_env() -> Self {
        let folder = variable("STONECHAT_MODELS")
            .map(PathBuf::from)
            .or_else(|| Some(dirs::cache_dir()?.join("stonechat").join("models")));
        let hub_cache = variable("HF_HUB_CACHE")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("HF_HOME")?).join("hub")))
            .or_else(|| Some(dirs::home_dir()?.join(".cache").join("huggingface").join("hub")));
        Self { folder, hub_cache }
    }

    /// Folder at a path, without a Hugging Face cache.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), hub_cache: None }
    }

    /// The same with another models folder.
    #[must_use]
    pub fn with_folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), ..self }
    }

    /// The same with another Hugging Face cache, a folder of `models--user--repo` folders.
    #[must_use]
    pub fn with_hub_cache(self, folder: impl Into<PathBuf>) -> Self {
        Self { hub_cache: Some(folder.into()), ..self }
    }

    /// Path of the folder, which need not exist.
    ///
    /// # Errors
    /// [`Error::NoModelsFolder`] if neither `STONECHAT_MODELS` nor a home folder is set.
    pub fn folder(&self) -> Result<&Path, Error> {
        self.folder.as_deref().ok_or(Error::NoModelsFolder)
    }

    /// Finds the model at a path, else by name: a file or folder of the models folder (`NAME`, `NAME.gguf`, `NAME.bin`
    /// or `ggml-NAME.bin`), a name of [`CATALOG`], or `user/repo[:TYPE|:file]`, in the models folder or the Hugging
    /// Face cache.
    ///
    /// # Errors
    /// [`Error::ModelNotFound`] with the searched folder and a hint how to get the model.
    pub fn find(&self, name_or_path: &str) -> Result<PathBuf, Error> {
        let path = Path::new(name_or_path);
        if path.exists() {
            return Ok(path.to_owned());
        }
        let folder = self.folder()?;
        self.find_installed(name_or_path).ok_or_else(|| Error::ModelNotFound {
            name: name_or_path.to_owned(),
            folder: folder.to_owned(),
            advice: advice(name_or_path),
        })
    }

    /// As [`find`](Self::find), for a path, or a name given as a path.
    pub(crate) fn find_path(&self, path: &Path) -> Result<PathBuf, Error> {
        if path.exists() { Ok(path.to_owned()) } else { self.find(&path.to_string_lossy()) }
    }

    /// Finds the default speech model: the first of the catalog that is installed, else, of a program built in a
    /// checkout, the first GGUF file of its `test-data/models`.
    ///
    /// # Errors
    /// [`Error::NoModel`].
    pub fn find_default(&self) -> Result<PathBuf, Error> {
        let installed = catalog::speech_names().find_map(|name| self.find_installed(name));
        match installed.or_else(|| first_gguf(Path::new(CHECKOUT_MODELS))) {
            Some(path) => Ok(path),
            None => Err(Error::NoModel { folder: self.folder()?.to_owned() }),
        }
    }

    /// Lists the models of the models folder, then those of the Hugging Face cache, each sorted by name.
    ///
    /// # Errors
    /// [`Error::Io`] if a folder exists and cannot be read.
    pub fn installed(&self) -> Result<Vec<Installed>, Error> {
        let mut own = Vec::new();
        for path in entries(self.folder()?)? {
            let Some(file_name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if path.is_dir() {
                own.extend(models_in(&path, file_name, name::repo_of_folder(file_name).as_deref()));
            }
        }
        own.extend(self.single_files()?);
        own.sort_by(|a, b| a.name.cmp(&b.name));
        let mut cached = Vec::new();
        for path in self.hub_cache.as_deref().map(entries).transpose()?.unwrap_or_default() {
            let file_name = path.file_name().and_then(|name| name.to_str());
            let folder = file_name.and_then(|name| name.strip_prefix("models--"));
            let Some(repo) = folder.and_then(name::repo_of_folder) else { continue };
            if let Some(snapshot) = snapshot(&path) {
                cached.extend(models_in(&snapshot, &repo, Some(&repo)));
            }
        }
        cached.iter_mut().for_each(|model| model.is_in_hub_cache = true);
        cached.retain(|model| own.iter().all(|other| other.name != model.name));
        cached.sort_by(|a, b| a.name.cmp(&b.name));
        own.extend(cached);
        Ok(own)
    }

    /// Tells if a name can be downloaded: one of [`CATALOG`], or the name of a repository.
    #[must_use]
    pub fn is_hub_name(name: &str) -> bool {
        Name::parse(name).is_some()
    }

    /// Removes the files of a model of the models folder, and its folder if that is empty then. Other files stay.
    ///
    /// # Errors
    /// [`Error::ModelNotFound`] for a name that is not installed, [`Error::NotOwned`] for a model outside of the models
    /// folder, [`Error::Io`] if a file cannot be removed.
    pub fn remove(&self, name: &str) -> Result<Installed, Error> {
        let path = self.find(name)?;
        let installed = self.installed()?;
        let owned =
            installed.into_iter().find(|model| !model.is_in_hub_cache && model.path == path);
        let Some(model) = owned else { return Err(Error::NotOwned { path }) };
        if model.path.is_symlink() {
            fs::remove_file(&model.path).map_err(io("remove", &model.path))?;
            return Ok(model);
        }
        for file in &model.files {
            fs::remove_file(file).map_err(io("remove", file))?;
        }
        let mut folder = model.files.first().and_then(|file| file.parent());
        while let Some(empty) = folder.filter(|folder| Some(*folder) != self.folder.as_deref()) {
            // The system refuses to remove a folder with other files.
            if fs::remove_dir(empty).is_err() {
                break;
            }
            folder = empty.parent();
        }
        Ok(model)
    }

    /// Path of an installed model.
    pub(crate) fn find_installed(&self, name: &str) -> Option<PathBuf> {
        let full_name =
            CatalogEntry::find(name).map(|entry| entry.name).filter(|full| *full != name);
        let mut names = [Some(name), full_name].into_iter().flatten();
        if let Some(path) = names.find_map(|name| in_folder(self.folder.as_deref()?, name)) {
            return Some(path);
        }
        let name = Name::parse(name)?;
        let own = || find_part(&self.folder.as_ref()?.join(&name.place), &name.part);
        let cached = || {
            let folder = format!("models--{}", name::folder_name(&name.repo));
            find_part(&snapshot(&self.hub_cache.as_ref()?.join(folder))?, &name.part)
        };
        own().or_else(cached)
    }

    /// Models that are single files of the models folder.
    fn single_files(&self) -> Result<Vec<Installed>, Error> {
        let folder = self.folder()?;
        let is_single = |model: &Installed| model.path.parent() == Some(folder);
        let mut models = models_of_gguf(folder, |model, _| model.stem.clone());
        models.retain(is_single);
        for path in entries(folder)? {
            let file_name = path.file_name().and_then(|name| name.to_str());
            let Some(stem) = file_name.and_then(|name| name.strip_suffix(".bin")) else { continue };
            let name = stem.strip_prefix("ggml-").unwrap_or(stem).to_owned();
            models.push(Installed::new(name, path.clone(), vec![path]));
        }
        Ok(models)
    }
}

impl Installed {
    fn new(name: String, path: PathBuf, files: Vec<PathBuf>) -> Self {
        let bytes = files.iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum();
        Self { name, path, bytes, is_in_hub_cache: false, files }
    }
}

/// The model `name` in a models folder, by its file name.
fn in_folder(folder: &Path, name: &str) -> Option<PathBuf> {
    if !name.split('/').all(name::is_plain) {
        return None;
    }
    let path = folder.join(name);
    let file_name = path.file_name()?.to_str()?;
    let candidates = [
        file_name.to_owned(),
        format!("{file_name}.gguf"),
        format!("{file_name}.bin"),
        format!("ggml-{file_name}.bin"),
    ];
    let whole = candidates
        .into_iter()
        .map(|candidate| path.with_file_name(candidate))
        .find(|path| path.is_file() || has_weights(path));
    let in_parts = || {
        let paths = paths_in(folder);
        let models = GgufFiles::among(paths.iter().map(String::as_str));
        Some(folder.join(&models.iter().find(|model| model.stem == name)?.files[0]))
    };
    whole.or_else(in_parts)
}

/// The part of a repository that lies at `place`: a file, or a folder with the repository's files.
fn find_part(place: &Path, part: &Part) -> Option<PathBuf> {
    let gguf = |weights: Option<&str>| {
        let paths = paths_in(place);
        let models = GgufFiles::among(paths.iter().map(String::as_str));
        Some(place.join(&GgufFiles::choose(&models, weights)?.files[0]))
    };
    match part {
        Part::Whole if has_weights(place) => Some(place.to_owned()),
        Part::Whole => gguf(None),
        Part::Type(weights) => gguf(Some(weights)),
        // A snapshot of the Hugging Face cache has the file inside.
        Part::File(file) => [place.to_owned(), place.join(file)].into_iter().find(|p| p.is_file()),
    }
}

/// Models of a folder: its Hugging Face or CTranslate2 model, and its GGUF files. `repo` is the repository that the
/// folder is a copy of.
fn models_in(folder: &Path, folder_name: &str, repo: Option<&str>) -> Vec<Installed> {
    let catalog_name = |weights: Option<&str>| {
        let same_weights = |entry: &&CatalogEntry| match (entry.weights, weights) {
            (Some(a), Some(b)) => a.eq_ignore_ascii_case(b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let mut of_repo = CATALOG.iter().filter(|entry| Some(entry.repo) == repo);
        of_repo.find(same_weights).map(|entry| entry.name.to_owned())
    };
    let mut models = models_of_gguf(folder, |model, weights| {
        let of_catalog = weights.and_then(|weights| catalog_name(Some(weights)));
        of_catalog.unwrap_or_else(|| match (repo, weights) {
            (Some(repo), Some(weights)) => format!("{repo}:{weights}"),
            (Some(repo), None) => format!("{repo}:{}", model.files[0]),
            (None, _) => format!("{folder_name}/{}", model.stem),
        })
    });
    // `model.gguf` is the model of the folder.
    models.retain(|model| WEIGHTS.iter().all(|name| model.path != folder.join(name)));
    if has_weights(folder) {
        let files = own_files(folder);
        let name = catalog_name(None).unwrap_or_else(|| repo.unwrap_or(folder_name).to_owned());
        models.push(Installed::new(name, folder.to_owned(), files));
    }
    models
}

/// Files of the Hugging Face or CTranslate2 model of a folder: those that a download brings. Others are not the model's.
fn own_files(folder: &Path) -> Vec<PathBuf> {
    let index = fs::read_to_string(folder.join(SHARD_INDEX)).unwrap_or_default();
    // The index has the name of each shard as a JSON string.
    let is_shard =
        |name: &str| name.ends_with(".safetensors") && index.contains(&format!("\"{name}\""));
    let is_own = |name: &str| {
        let mut known = COMPANIONS.iter().chain(WEIGHTS).chain([&SHARD_INDEX]);
        known.any(|known| *known == name) || is_shard(name)
    };
    let names = paths_in(folder).into_iter().filter(|name| is_own(name));
    names.map(|name| folder.join(name)).collect()
}

/// GGUF models of a folder; `name` gets the weight type too if it is unique.
fn models_of_gguf(
    folder: &Path,
    name: impl Fn(&GgufFiles, Option<&str>) -> String,
) -> Vec<Installed> {
    let paths = paths_in(folder);
    let models = GgufFiles::among(paths.iter().map(String::as_str));
    let installed = |model: &GgufFiles| {
        let weights = model.weights();
        let is_unique = |weights: &&str| GgufFiles::choose(&models, Some(weights)) == Some(model);
        let files: Vec<_> = model.files.iter().map(|file| folder.join(file)).collect();
        let name = name(model, weights.as_deref().filter(is_unique));
        Installed::new(name, files[0].clone(), files)
    };
    models.iter().map(installed).collect()
}

/// Tells if a folder is a model for [`ModelFile::open`](stonechat_formats::ModelFile::open).
fn has_weights(folder: &Path) -> bool {
    WEIGHTS.iter().chain([&SHARD_INDEX]).any(|name| folder.join(name).is_file())
}

/// Newest snapshot of a repository in the Hugging Face cache.
fn snapshot(repository: &Path) -> Option<PathBuf> {
    let snapshots = repository.join("snapshots");
    let main = fs::read_to_string(repository.join("refs").join("main")).ok();
    let main = main.map(|commit| snapshots.join(commit.trim())).filter(|path| path.is_dir());
    let modified = |path: &PathBuf| fs::metadata(path).and_then(|m| m.modified()).ok();
    let newest = || entries(&snapshots).ok()?.into_iter().max_by_key(modified);
    main.or_else(newest)
}

/// Paths of the entries of a folder, in the order of their names, hidden ones left out; none if it does not exist.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(io("read", folder))? {
        let entry = entry.map_err(io("read", folder))?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// Names of the files of a folder and, as `folder/file`, of its folders.
fn paths_in(folder: &Path) -> Vec<String> {
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    let mut names = Vec::new();
    for path in entries(folder).unwrap_or_default() {
        let Some(own) = name(&path) else { continue };
        if path.is_file() {
            names.push(own);
        } else if path.is_dir() {
            let inner = entries(&path).unwrap_or_default();
            let files = inner.iter().filter(|path| path.is_file());
            names.extend(files.filter_map(|path| Some(format!("{own}/{}", name(path)?))));
        }
    }
    names
}

fn advice(name: &str) -> String {
    match Name::parse(name) {
        Some(_) => {
            format!("get it with `stonechat pull {name}`, or `stonechat::pull` in a program")
        }
        None => "`stonechat models` lists the installed ones, `stonechat models --available` \
                 those that can be downloaded by a short name"
            .to_owned(),
    }
}

/// First GGUF file of a folder by name; the choice does not depend on the file system.
fn first_gguf(folder: &Path) -> Option<PathBuf> {
    let paths = entries(folder).ok()?;
    paths.into_iter().find(|path| path.extension().is_some_and(|e| e == "gguf"))
}

pub(crate) fn io(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path: path.clone(), source }
}

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::Models;

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
    fn names_are_found_in_every_form() {
        let scratch = Scratch::new("find");
        let models = Models::at(&scratch.0);
        fs::create_dir(scratch.0.join("base")).unwrap();
        fs::write(scratch.0.join("base/model.bin"), b"").unwrap();
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
        check("base", "`stonechat pull base`");
        check("qwen3:0.6b", "`stonechat pull qwen3:0.6b`");
        check("turbo", "`stonechat pull turbo`");
        check("user/repo", "`stonechat pull user/repo`");
        check("bsae", "`stonechat models` lists");
    }

    /// Every installed name, and whether it is in the Hugging Face cache.
    fn names(models: &Models) -> Vec<(String, bool)> {
        let installed = models.installed().unwrap();
        installed.into_iter().map(|model| (model.name, model.is_in_hub_cache)).collect()
    }

    fn write_all(folder: &Path, files: &[&str]) {
        for file in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"12345").unwrap();
        }
    }

    #[test]
    fn every_listed_name_is_found() {
        let scratch = Scratch::new("listed");
        let (own, hub) = (scratch.0.join("own"), scratch.0.join("hub"));
        write_all(
            &own,
            &[
                "one.gguf",
                "base/config.json",
                "base/model.safetensors",
                "mine/x.gguf",
                "two-00001-of-00002.gguf",
                "two-00002-of-00002.gguf",
                "cut-00001-of-00002.gguf",
                "user--whole/model.safetensors",
                "user--files/m-Q4_K_M.gguf",
                "user--files/m-Q8_0-00001-of-00002.gguf",
                "user--files/m-Q8_0-00002-of-00002.gguf",
                "user--files/other.gguf",
                "user--files/mmproj-F16.gguf",
                "unsloth--Qwen3-0.6B-GGUF/Qwen3-0.6B-Q4_K_M.gguf",
                "unsloth--Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf",
                ".downloads/x.gguf",
                "empty/readme.txt",
            ],
        );
        let snapshot = "models--a--b/snapshots/c0ffee";
        write_all(&hub, &[&format!("{snapshot}/model.safetensors"), "models--a--b/refs/main"]);
        fs::write(hub.join("models--a--b/refs/main"), "c0ffee").unwrap();
        write_all(&hub, &["models--a--g/snapshots/1/Q4_0/g-Q4_0.gguf"]);
        let models = Models::at(&own).with_hub_cache(&hub);
        let expected = [
            ("base", false),
            ("mine/x", false),
            ("one", false),
            ("qwen3:0.6b", false),
            ("two", false),
            ("unsloth/Qwen3-0.6B-GGUF:Q8_0", false),
            ("user/files:Q4_K_M", false),
            ("user/files:Q8_0", false),
            ("user/files:other.gguf", false),
            ("user/whole", false),
            ("a/b", true),
            ("a/g:Q4_0", true),
        ];
        let listed = names(&models);
        assert_eq!(listed, expected.map(|(name, cached)| (name.to_owned(), cached)));
        for model in models.installed().unwrap() {
            assert_eq!(models.find(&model.name).unwrap(), model.path, "{}", model.name);
        }
        for (name, path) in [
            ("qwen3", "unsloth--Qwen3-0.6B-GGUF/Qwen3-0.6B-Q4_K_M.gguf"),
            ("qwen3:0.6b-q8_0", "unsloth--Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"),
            ("user/files", "user--files/m-Q4_K_M.gguf"),
            ("hf.co/user/files:q8_0", "user--files/m-Q8_0-00001-of-00002.gguf"),
        ] {
            assert_eq!(models.find(name).unwrap(), own.join(path), "{name}");
        }
        assert_eq!(models.find("a/b").unwrap(), hub.join(snapshot));
    }

    #[test]
    fn removal_leaves_the_other_models_of_a_folder() {
        let scratch = Scratch::new("remove");
        let (own, hub) = (scratch.0.join("own"), scratch.0.join("hub"));
        let files = ["u--r/m-Q4_0.gguf", "u--r/m-Q8_0.gguf", "u--r/README.md", "base/model.bin"];
        write_all(&own, &files);
        write_all(&hub, &["models--a--b/snapshots/1/model.safetensors"]);
        let models = Models::at(&own).with_hub_cache(&hub);
        assert_eq!(models.remove("u/r:Q8_0").unwrap().bytes, 5);
        assert_eq!(names(&models).len(), 3);
        models.remove("u/r").unwrap();
        // A file that no download brought.
        assert_eq!(fs::read_dir(own.join("u--r")).unwrap().count(), 1);
        fs::remove_dir_all(own.join("u--r")).unwrap();
        // GGUF files beside a whole model stay, and the other way round.
        write_all(&own, &["a--b/config.json", "a--b/model.safetensors", "a--b/m-Q4_0.gguf"]);
        assert_eq!(models.remove("a/b").unwrap().bytes, 10);
        assert!(own.join("a--b/m-Q4_0.gguf").exists());
        write_all(&own, &["a--b/model.safetensors"]);
        models.remove("a/b:Q4_0").unwrap();
        assert!(own.join("a--b/model.safetensors").exists());
        models.remove("a/b").unwrap();
        assert!(!own.join("a--b").exists());
        models.remove("base").unwrap();
        assert!(models.remove("base").unwrap_err().to_string().contains("no model `base`"));
        let error = models.remove("a/b").unwrap_err().to_string();
        assert!(error.contains("not in the models folder"), "{error}");
        assert_eq!(names(&models), [("a/b".to_owned(), true)]);
    }

    #[test]
    fn removal_leaves_files_that_are_not_the_models() {
        let scratch = Scratch::new("foreign");
        let own = scratch.0.join("own");
        let foreign = [
            "mine/notes.txt",
            "mine/.hidden",
            "mine/deep/er/y.gguf",
            "mine/hf/model.safetensors",
            "base/notes.txt",
            "base/runs/log.txt",
            "base/adapter.safetensors",
            "q/a/readme.md",
        ];
        let models_files = [
            "mine/x.gguf",
            "base/config.json",
            "base/tokenizer.json",
            "base/part-1.safetensors",
            "q/a/m-Q4_0.gguf",
            "q/b/m-Q8_0.gguf",
        ];
        write_all(&own, &foreign);
        write_all(&own, &models_files);
        fs::write(own.join("base/model.safetensors.index.json"), r#"{"w": "part-1.safetensors"}"#)
            .unwrap();
        let models = Models::at(&own);
        let all = models.installed().unwrap();
        for model in all.iter().filter(|model| !model.name.contains("hf")) {
            models.remove(&model.name).unwrap();
        }
        for file in foreign {
            assert!(own.join(file).exists(), "{file}");
        }
        for file in models_files {
            assert!(!own.join(file).exists(), "{file}");
        }
        assert!(!own.join("base/model.safetensors.index.json").exists());
        assert!(own.join("q/a").exists() && !own.join("q/b").exists());
    }
}
