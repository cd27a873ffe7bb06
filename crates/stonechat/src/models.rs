//! Models by path or name: the models folder, the Hugging Face cache, and a catalog of names.

mod catalog;
mod details;
pub(crate) mod name;
pub(crate) mod unknown;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use stonechat_formats::{COMPANIONS, ModelFile, SHARD_INDEX, WEIGHTS};

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
    /// Whether the model is in the Hugging Face cache instead of the models folder.
    pub is_in_hub_cache: bool,
    /// Files that are removed with it.
    pub files: Vec<PathBuf>,
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
    /// [`Error::ModelNotFound`] with the searched folder and a hint how to get the model, [`Error::UnsupportedFamily`],
    /// [`Error::Address`].
    pub fn find(&self, name_or_path: &str) -> Result<PathBuf, Error> {
        let path = Path::new(name_or_path);
        if path.exists() {
            return Ok(path.to_owned());
        }
        let folder = self.folder()?;
        if let Some(path) = self.find_installed(name_or_path) {
            return Ok(path);
        }
        let is_on_hub = Name::parse(name_or_path).is_some();
        if let Some(refusal) = unknown::refusal(name_or_path).filter(|_| !is_on_hub) {
            return Err(refusal);
        }
        let (name, folder) = (name_or_path.to_owned(), folder.to_owned());
        Err(Error::ModelNotFound { advice: self.advice(&name, is_on_hub), name, folder })
    }

    /// Advice for getting the model `name`, which is not installed.
    fn advice(&self, name: &str, is_on_hub: bool) -> String {
        if is_on_hub {
            return format!(
                "get it with `stonechat pull {name}`, or `stonechat::pull` in a program"
            );
        }
        let suggestion = self.suggestion(name).map(|text| format!("{text} ")).unwrap_or_default();
        format!(
            "{suggestion}`stonechat models` lists the installed ones, `stonechat models --available` \
             those that can be downloaded by a short name"
        )
    }

    /// Suggestion for an unknown name.
    pub(crate) fn suggestion(&self, name: &str) -> Option<String> {
        let installed = self.installed().unwrap_or_default();
        let names: Vec<_> = installed.into_iter().map(|model| model.name).collect();
        unknown::suggestion(name, &names)
    }

    /// As [`find`](Self::find), for a path, or a name given as a path.
    pub(crate) fn find_path(&self, path: &Path) -> Result<PathBuf, Error> {
        // A browser has no files: opening the path is refused.
        if cfg!(target_arch = "wasm32") || path.exists() {
            Ok(path.to_owned())
        } else {
            self.find(&path.to_string_lossy())
        }
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

    /// Total bytes of the files of the model at `path`, which `file` is: the size in the list of installed models.
    #[must_use]
    pub fn bytes_at(path: &Path, file: &ModelFile) -> u64 {
        if path.is_dir() { total_bytes(&own_files(path)) } else { file.file_bytes() }
    }

    /// Path of an installed model.
    pub(crate) fn find_installed(&self, name: &str) -> Option<PathBuf> {
        // A file or folder may have `-` where the catalog has `:`, which some systems have in no file name.
        let dashed = || {
            let full = CatalogEntry::find(name).map_or(name, |entry| entry.name);
            let own = self.folder.as_deref()?;
            in_folder(own, &full.replace(':', "-")).filter(|_| full.contains(':'))
        };
        self.find_named(name).or_else(dashed)
    }

    /// Path of an installed model of exactly this name.
    fn find_named(&self, name: &str) -> Option<PathBuf> {
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
        let bytes = total_bytes(&files);
        Self { name, path, bytes, is_in_hub_cache: false, files }
    }
}

fn total_bytes(files: &[PathBuf]) -> u64 {
    files.iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum()
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
    // A file such as `model.gguf` is the model of the folder, which is added below.
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
    let is_own = |name: &str| {
        let mut known = COMPANIONS.iter().chain(WEIGHTS).chain([&SHARD_INDEX]);
        known.any(|known| *known == name) || is_shard(name, &index)
    };
    let names = paths_in(folder).into_iter().filter(|name| is_own(name));
    names.map(|name| folder.join(name)).collect()
}

/// Tells if a file is a shard of the weights in `index`, which has the name of each shard as a JSON string.
pub(crate) fn is_shard(name: &str, index: &str) -> bool {
    name.ends_with(".safetensors") && index.contains(&format!("\"{name}\""))
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
mod tests;
