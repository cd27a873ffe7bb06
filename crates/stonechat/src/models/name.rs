//! Names of models: the path in the models folder, and the files on the hub.
//!
//! ```text
//! base, turbo, qwen3:0.6b        a name of the catalog
//! qwen3:0.6b-q8_0                the same with other weights
//! ggml-base, base-q5_1           a file of whisper.cpp
//! user/repo                      a repository; hf.co/user/repo and its web address too
//! https://hf.co/user/repo/resolve/main/file.gguf     a file's address, also with `blob`
//! user/repo:Q4_K_M               the GGUF file with these weights
//! user/repo:file.gguf            one file
//! ```

use std::path::PathBuf;

use super::{CatalogEntry, ModelKind};

/// Repository of whisper.cpp's models.
const WHISPER_CPP: &str = "ggerganov/whisper.cpp";

/// Prefixes of a repository's name that users paste.
const HUB_PREFIXES: [&str; 8] = [
    "https://huggingface.co/",
    "https://www.huggingface.co/",
    "http://huggingface.co/",
    "huggingface.co/",
    "https://hf.co/",
    "http://hf.co/",
    "hf.co/",
    "hf://",
];

/// Weight types of a repository with several GGUF files, in order of preference.
const PREFERRED_TYPES: [&str; 9] =
    ["Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "Q5_K_M", "Q5_0", "Q8_0", "MXFP4", "F16"];

/// A model name, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    /// Repository on the hub, `user/repo`.
    pub(crate) repo: String,
    /// Files of the repository.
    pub(crate) part: Part,
    /// Folder or file relative to the models folder.
    pub(crate) place: PathBuf,
}

/// Files of a repository that make a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Weights and their companions. A GGUF repository gives the file with the preferred weight type.
    Whole,
    /// The GGUF file with this weight type, which may be in several parts.
    Type(String),
    /// One file.
    File(String),
}

impl Name {
    /// Resolves a name; `None` for one that names nothing on the hub.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let bare = without_hub(name);
        if bare.contains('/') {
            return Self::repository(&without_page(bare));
        }
        if let Some(entry) = CatalogEntry::find(bare) {
            return Some(Self::of_entry(entry));
        }
        let stem = bare.strip_suffix(".bin").unwrap_or(bare);
        if let Some(size) = whisper_cpp_size(stem) {
            let file = format!("ggml-{size}.bin");
            let place = PathBuf::from(&file);
            return Some(Self { repo: WHISPER_CPP.to_owned(), part: Part::File(file), place });
        }
        let (model, weights) = bare.rsplit_once('-')?;
        let entry = CatalogEntry::find(model).filter(|entry| entry.weights.is_some())?;
        is_weight_type(weights).then(|| Self {
            part: Part::Type(weights.to_ascii_uppercase()),
            ..Self::of_entry(entry)
        })
    }

    fn of_entry(entry: &CatalogEntry) -> Self {
        let (part, place) = match entry.weights {
            Some(weights) => (Part::Type(weights.to_owned()), folder_name(entry.repo)),
            None => (Part::Whole, entry.name.to_owned()),
        };
        Self { repo: entry.repo.to_owned(), part, place: place.into() }
    }

    /// `user/repo`, `user/repo:TYPE` or `user/repo:file`. Folders of a file within the repository are left out of
    /// `place`; no name leads out of the models folder.
    fn repository(name: &str) -> Option<Self> {
        let (repo, tag) =
            name.split_once(':').map_or((name, None), |(repo, tag)| (repo, Some(tag)));
        let (user, model) = repo.split_once('/')?;
        if !is_plain(user) || !is_plain(model) {
            return None;
        }
        let folder = PathBuf::from(folder_name(repo));
        let (part, place) = match tag {
            None => (Part::Whole, folder),
            Some(file) if file.contains('.') => {
                let base = base_name(file);
                (is_plain(base) && is_safe(file)).then_some(())?;
                (Part::File(file.to_owned()), folder.join(base))
            }
            Some(tag) => {
                is_plain(tag).then_some(())?;
                (Part::Type(tag.to_owned()), folder)
            }
        };
        Some(Self { repo: repo.to_owned(), part, place })
    }
}

/// A name without the address of the hub: the public one, or that of `HF_ENDPOINT`.
fn without_hub(name: &str) -> &str {
    let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
    let endpoint = endpoint.map(|endpoint| format!("{}/", endpoint.trim_end_matches('/')));
    let mut prefixes = HUB_PREFIXES.into_iter().chain(endpoint.as_deref());
    prefixes.find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// The name that stands for a page of the hub: `user/repo/resolve/main/FILE` is `user/repo:FILE`.
fn without_page(path: &str) -> String {
    let page = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let mut parts = page.splitn(4, '/');
    let (user, repo) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    match (parts.next(), parts.next()) {
        (None, _) | (Some("tree"), Some("main")) => format!("{user}/{repo}"),
        (Some("resolve" | "blob" | "raw"), Some(rest)) => match rest.strip_prefix("main/") {
            Some(file) => format!("{user}/{repo}:{file}"),
            None => path.to_owned(),
        },
        _ => path.to_owned(),
    }
}

/// Folder of a repository within the models folder.
pub(crate) fn folder_name(repo: &str) -> String {
    repo.replacen('/', "--", 1)
}

/// Name of the folder `user--repo` for [`Name::parse`].
pub(crate) fn repo_of_folder(folder: &str) -> Option<String> {
    let (user, repo) = folder.split_once("--")?;
    (!user.is_empty() && !repo.is_empty()).then(|| format!("{user}/{repo}"))
}

/// Model size of whisper.cpp's file `ggml-SIZE.bin`, from `ggml-SIZE` or a quantized `SIZE-q5_1`.
fn whisper_cpp_size(stem: &str) -> Option<String> {
    let ggml = stem.strip_prefix("ggml-");
    let size = ggml.unwrap_or(stem);
    let (base, quantized) = match size.rsplit_once("-q") {
        Some((base, weights)) => (base, Some(weights)),
        None => (size, None),
    };
    if ggml.is_none() && quantized.is_none() {
        return None;
    }
    let entry = CatalogEntry::find(base)?;
    if entry.kind != ModelKind::Speech || entry.name.starts_with("distil-") {
        return None;
    }
    let weights = quantized.map(|weights| format!("-q{weights}")).unwrap_or_default();
    Some(format!("{}{weights}", entry.name))
}

/// Tells if `part` is one component of a path and no hidden file.
pub(crate) fn is_plain(part: &str) -> bool {
    !part.is_empty() && !part.starts_with('.') && !part.contains(['/', '\\', ':', '\0'])
}

/// Tells if the name of a file in a repository leads to no other folder, on any system.
pub(crate) fn is_safe(path: &str) -> bool {
    let is_safe = |part: &str| !part.is_empty() && part != "." && part != "..";
    !path.contains(['\\', ':', '\0']) && path.split('/').all(is_safe)
}

/// Last component of a path in a repository.
pub(crate) fn base_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Tells if `text` has the form of a weight type: `Q4_K_M`, `IQ2_XXS`, `F16`, `BF16`, `MXFP4`.
fn is_weight_type(text: &str) -> bool {
    let upper = text.to_ascii_uppercase();
    let rest = ["IQ", "TQ", "Q", "BF", "F", "MXFP", "NVFP"]
        .iter()
        .find_map(|prefix| upper.strip_prefix(prefix));
    rest.is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_ascii_digit())
            && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

/// A GGUF model of a folder: one file, or the parts `NAME-00001-of-00003.gguf` and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GgufFiles {
    /// Path without the number of the part and the extension.
    pub(crate) stem: String,
    /// Paths in the order of the parts.
    pub(crate) files: Vec<String>,
}

impl GgufFiles {
    /// The complete models among `paths`, sorted; multimodal projectors and importance matrices are left out.
    pub(crate) fn among<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<Self> {
        let mut all: Vec<(String, usize, usize, &str)> = paths
            .into_iter()
            .filter_map(|path| {
                let stem = path.strip_suffix(".gguf").or_else(|| path.strip_suffix(".GGUF"))?;
                let base = base_name(stem).to_ascii_lowercase();
                let is_other = base.contains("mmproj") || base.contains("imatrix");
                let (stem, part, count) = split_part(stem);
                (!is_other).then(|| (stem.to_owned(), count, part, path))
            })
            .collect();
        all.sort();
        let mut models: Vec<(usize, Self)> = Vec::new();
        for (stem, count, _, path) in all {
            match models.last_mut() {
                Some((n, model)) if model.stem == stem && *n == count => {
                    model.files.push(path.to_owned());
                }
                _ => models.push((count, Self { stem, files: vec![path.to_owned()] })),
            }
        }
        let complete =
            |(count, model): (usize, Self)| (model.files.len() == count).then_some(model);
        models.into_iter().filter_map(complete).collect()
    }

    /// The model with weights of `weights`, else of the preferred type, among `models`.
    pub(crate) fn choose<'a>(models: &'a [Self], weights: Option<&str>) -> Option<&'a Self> {
        let with = |weights: &str| {
            let matching = models.iter().filter(|model| model.has_type(weights));
            matching.min_by_key(|model| model.stem.len())
        };
        match weights {
            Some(weights) => with(weights),
            None => PREFERRED_TYPES.iter().find_map(|&weights| with(weights)).or(models.first()),
        }
    }

    /// Tells if the name has `weights` as a word.
    fn has_type(&self, weights: &str) -> bool {
        let (stem, weights) = (self.stem.to_ascii_uppercase(), weights.to_ascii_uppercase());
        stem.match_indices(&weights).any(|(at, _)| {
            let before = stem[..at].chars().next_back();
            let after = stem[at + weights.len()..].chars().next();
            before.is_none_or(|c| "-._/".contains(c)) && after.is_none_or(|c| "-./".contains(c))
        })
    }

    /// Weight type at the end of the name.
    pub(crate) fn weights(&self) -> Option<String> {
        let last = self.stem.rsplit(['-', '.', '/']).next()?;
        let joined = last.match_indices('_').map(|(at, _)| &last[at + 1..]);
        std::iter::once(last)
            .chain(joined)
            .find(|word| is_weight_type(word))
            .map(str::to_ascii_uppercase)
    }
}

/// Splits `NAME-00002-of-00003` into `NAME`, 2 and 3; a whole file is part 1 of 1.
pub(crate) fn split_part(stem: &str) -> (&str, usize, usize) {
    let parse = || {
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (name, part) = rest.rsplit_once('-')?;
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        let (part, count) = (is_number(part).then_some(part)?, is_number(count).then_some(count)?);
        Some((name, part.parse().ok()?, count.parse().ok()?))
    };
    parse().unwrap_or((stem, 1, 1))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{GgufFiles, Name, Part, base_name, is_safe};

    #[test]
    fn names_stand_for_files_of_repositories() {
        #[track_caller]
        fn check(name: &str, repo: &str, part: Part, place: &str) {
            let name = Name::parse(name).unwrap();
            assert_eq!((name.repo.as_str(), &name.part), (repo, &part));
            assert_eq!(name.place, Path::new(place));
        }
        let file = |file: &str| Part::File(file.to_owned());
        let weights = |weights: &str| Part::Type(weights.to_owned());
        check("base", "Systran/faster-whisper-base", Part::Whole, "base");
        check("large-v1", "Systran/faster-whisper-large-v1", Part::Whole, "large-v1");
        check("turbo", "openai/whisper-large-v3-turbo", Part::Whole, "large-v3-turbo");
        check("distil-large-v3", "distil-whisper/distil-large-v3", Part::Whole, "distil-large-v3");
        let cpp = "ggerganov/whisper.cpp";
        check("ggml-base", cpp, file("ggml-base.bin"), "ggml-base.bin");
        check("ggml-tiny.en.bin", cpp, file("ggml-tiny.en.bin"), "ggml-tiny.en.bin");
        check("base-q5_1", cpp, file("ggml-base-q5_1.bin"), "ggml-base-q5_1.bin");
        check(
            "turbo-q5_0",
            cpp,
            file("ggml-large-v3-turbo-q5_0.bin"),
            "ggml-large-v3-turbo-q5_0.bin",
        );
        check("u/r", "u/r", Part::Whole, "u--r");
        check("hf.co/u/r:Q8_0", "u/r", weights("Q8_0"), "u--r");
        check("https://huggingface.co/u/r", "u/r", Part::Whole, "u--r");
        check("u/r:x/m.gguf", "u/r", file("x/m.gguf"), "u--r/m.gguf");
        let hub = "https://huggingface.co";
        check(&format!("{hub}/u/r/"), "u/r", Part::Whole, "u--r");
        check(&format!("{hub}/u/r/tree/main"), "u/r", Part::Whole, "u--r");
        for page in ["resolve/main/m.gguf", "blob/main/m.gguf", "resolve/main/m.gguf?download=true"]
        {
            check(&format!("{hub}/u/r/{page}"), "u/r", file("m.gguf"), "u--r/m.gguf");
            check(&format!("hf.co/u/r/{page}"), "u/r", file("m.gguf"), "u--r/m.gguf");
        }
        check(&format!("{hub}/u/r/blob/main/x/m.gguf"), "u/r", file("x/m.gguf"), "u--r/m.gguf");
        let qwen = ("unsloth/Qwen3-0.6B-GGUF", "unsloth--Qwen3-0.6B-GGUF");
        check("qwen3:0.6b", qwen.0, weights("Q4_K_M"), qwen.1);
        check("qwen3", qwen.0, weights("Q4_K_M"), qwen.1);
        check("qwen3:0.6b-q8_0", qwen.0, weights("Q8_0"), qwen.1);
        check("qwen3-0.6b", qwen.0, weights("Q4_K_M"), qwen.1);
        check("qwen3-0.6b-q8_0", qwen.0, weights("Q8_0"), qwen.1);
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "",
            "bsae",
            "ggml-bsae",
            "../x",
            "u/r/v",
            "u/r/resolve/other/m.gguf",
            "https://huggingface.co/u/r/resolve/main/../m.gguf",
            "https://huggingface.co/u/r/blob/main/",
            "u/..",
            "u/r:",
            "u/r:..",
            "u/r:a/..",
            "u/r:../m.gguf",
            "u/r:a/../m.gguf",
            "u/r:/m.gguf",
            "u/r:a\\m.gguf",
            "u/r:C:m.gguf",
            "u/r:m\0.gguf",
            "/etc/passwd",
            "base:x",
            "ggml-distil-large-v3",
            "qwen3:0.6b-big",
            "qwen3:0.6b-",
            "ggml-qwen3:0.6b",
            "base-f16",
        ] {
            assert_eq!(Name::parse(name), None, "{name}");
        }
    }

    #[test]
    fn names_that_lead_out_of_a_folder_are_unsafe() {
        for name in ["model.bin", "a/b/m.gguf", ".gitattributes", "a..b", "m-00001-of-00002.gguf"] {
            assert!(is_safe(name), "{name}");
        }
        let refused = ["", "..", "../x", "a/../x", "a/..", "/x", "a//x", "a/", "./x"];
        for name in refused.into_iter().chain(["..\\x", "a\\x", "C:x", "x:y", "a\0", "\\\\x\\y"]) {
            assert!(!is_safe(name), "{name}");
        }
        assert_eq!(base_name("..\\..\\x.gguf"), "x.gguf");
        assert_eq!(base_name("a/b\\x.gguf"), "x.gguf");
    }

    #[test]
    fn gguf_files_are_chosen_by_type() {
        let paths = [
            "README.md",
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m-UD-Q4_K_M.gguf",
            "m-Q8_0-00001-of-00002.gguf",
            "m-Q8_0-00002-of-00002.gguf",
            "BF16/m-BF16-00001-of-00002.gguf",
            "mmproj-m-F16.gguf",
            "m.IQ2_XXS.gguf",
            "m_q5_1.gguf",
        ];
        let models = GgufFiles::among(paths);
        let choose = |weights: Option<&str>| {
            GgufFiles::choose(&models, weights).map(|model| model.files.join(" "))
        };
        assert_eq!(choose(None).as_deref(), Some("m-Q4_K_M.gguf"));
        assert_eq!(choose(Some("q4_k_m")).as_deref(), Some("m-Q4_K_M.gguf"));
        assert_eq!(choose(Some("Q4_K")), None);
        assert_eq!(choose(Some("Q5_1")).as_deref(), Some("m_q5_1.gguf"));
        assert_eq!(choose(Some("Q8_0")).unwrap().split(' ').count(), 2);
        // A part is missing.
        assert_eq!(choose(Some("BF16")), None);
        let types: Vec<_> = models.iter().filter_map(GgufFiles::weights).collect();
        assert_eq!(types, ["Q4_K_M", "Q4_K_S", "Q8_0", "Q4_K_M", "IQ2_XXS", "Q5_1"]);
        let others = GgufFiles::among(["b.gguf", "a.gguf"]);
        assert_eq!(GgufFiles::choose(&others, None).unwrap().files, ["a.gguf"]);
    }
}
