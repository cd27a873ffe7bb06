//! CUDA sources of the crates: modules, headers, options.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Crates with kernels, each with the crates whose headers it includes.
pub(crate) const CRATES: [(&str, &[&str]); 2] = [("compute", &[]), ("quant", &["compute"])];

/// Architectures in the order of the macro `cuda_archive`, PTX last.
pub(super) const TARGETS: [&str; 6] =
    ["sm_75", "sm_80", "sm_90a", "sm_100", "sm_120", "compute_80"];

/// Options of every compilation beside the architecture, the folders and the defines.
pub(super) const OPTIONS: [&str; 3] = ["-std=c++17", "-default-device", "--ptxas-options=-v"];

/// First line of a source that is several modules: `// modules: name -DX=1 -DY=2; other -DX=2`. A header in place of a name stands for
/// one module per `#define NAME NUMBER` of it, named in lower case, with `NAME` in place of `*`: `// modules: formats.cuh -DX=*`.
const MODULES: &str = "// modules:";

/// Folder of the sources of a crate, relative to the root.
pub(crate) fn kernels_folder(name: &str) -> String {
    format!("crates/{name}/src/cuda/kernels")
}

/// Folder of the compiled archives of a crate, relative to the root.
pub(crate) fn cubins_folder(name: &str) -> String {
    format!("crates/{name}/src/cuda/cubins")
}

/// Sources of a crate and the headers that they can include.
#[derive(Debug)]
pub(super) struct Sources {
    /// Name of the crate's folder.
    pub(super) name: &'static str,
    /// Folders for `-I`, the crate's own first.
    pub(super) folders: Vec<String>,
    /// Texts by path, relative to the root.
    pub(super) files: BTreeMap<String, String>,
    /// Sorted by name.
    pub(super) modules: Vec<Module>,
}

/// One compilation per architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Module {
    pub(super) name: String,
    /// Path of the source, relative to the root.
    pub(super) path: String,
    pub(super) defines: Vec<String>,
}

impl Sources {
    /// Reads the sources of a crate; no modules if it has none.
    pub(super) fn read(root: &Path, name: &'static str, others: &[&str]) -> Result<Self> {
        let folders: Vec<String> =
            std::iter::once(name).chain(others.iter().copied()).map(kernels_folder).collect();
        let mut files = BTreeMap::new();
        for (i, folder) in folders.iter().enumerate() {
            // A crate without kernels has no folder.
            for entry in fs::read_dir(root.join(folder)).into_iter().flatten() {
                let file = entry?.file_name().to_string_lossy().into_owned();
                if file.ends_with(".cuh") || (i == 0 && file.ends_with(".cu")) {
                    let path = format!("{folder}/{file}");
                    let text = fs::read_to_string(root.join(&path));
                    files
                        .insert(path.clone(), text.with_context(|| format!("cannot read {path}"))?);
                }
            }
        }
        let mut modules = Vec::new();
        for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".cu")) {
            modules.extend(modules_of(path, text, &files)?);
        }
        modules.sort_by(|a, b| a.name.cmp(&b.name));
        for pair in modules.windows(2) {
            let [a, b] = pair else { continue };
            ensure!(a.name != b.name, "{} and {}: two modules `{}`", a.path, b.path, a.name);
        }
        Ok(Self { name, folders, files, modules })
    }

    /// Options of a module for one architecture.
    pub(super) fn options(&self, module: &Module, target: &str) -> Vec<String> {
        let mut options = vec![format!("--gpu-architecture={target}")];
        options.extend(OPTIONS.map(str::to_owned));
        options.extend(self.folders.iter().map(|folder| format!("-I{folder}")));
        options.extend(module.defines.iter().cloned());
        options
    }

    /// Paths of a source and of all files that it includes, directly or not.
    pub(super) fn closure(&self, path: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut pending = vec![path];
        while let Some(path) = pending.pop() {
            let Some((path, text)) = self.files.get_key_value(path) else { continue };
            if !found.insert(path.as_str()) {
                continue;
            }
            for name in text.lines().filter_map(included) {
                let paths = self.folders.iter().map(|folder| format!("{folder}/{name}"));
                let path = paths.into_iter().find_map(|path| self.files.get_key_value(&path));
                pending.extend(path.map(|(path, _)| path.as_str()));
            }
        }
        found
    }
}

/// Name of the header of an `#include "..."` line.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split('"').next()
}

/// Name of a `#define NAME NUMBER` line.
fn numbered(line: &str) -> Option<&str> {
    let (name, number) = line.strip_prefix("#define ")?.split_once(' ')?;
    number.parse::<u32>().is_ok().then_some(name)
}

/// The modules of a source: those of its first lines, else one of the name of the file. `files`: texts of headers by path.
fn modules_of(path: &str, text: &str, files: &BTreeMap<String, String>) -> Result<Vec<Module>> {
    let mut lines = text.lines();
    let Some(first) = lines.next().and_then(|first| first.strip_prefix(MODULES)) else {
        let name = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".cu");
        let (name, path) = (name.to_owned(), path.to_owned());
        return Ok(vec![Module { name, path, defines: Vec::new() }]);
    };
    // Lines of a deeper indent continue the list.
    let others = lines.map_while(|line| line.strip_prefix("//   "));
    let list = [first].into_iter().chain(others).collect::<Vec<_>>().join(" ");
    let mut modules = Vec::new();
    for module in list.split(';').filter(|module| !module.trim().is_empty()) {
        let mut words = module.split_whitespace().map(str::to_owned);
        let name = words.next().filter(|name| !name.starts_with('-'));
        let name = name.with_context(|| format!("{path}:1: expected a name, got `{module}`"))?;
        let defines: Vec<String> = words.collect();
        if !name.ends_with(".cuh") {
            modules.push(Module { name, path: path.to_owned(), defines });
            continue;
        }
        let folder = &path[..path.rfind('/').map_or(0, |at| at + 1)];
        let header = files.get(&format!("{folder}{name}"));
        let header = header.with_context(|| format!("{path}:1: no header `{name}`"))?;
        modules.extend(header.lines().filter_map(numbered).map(|define| Module {
            name: define.to_lowercase(),
            path: path.to_owned(),
            defines: defines.iter().map(|text| text.replace('*', define)).collect(),
        }));
    }
    ensure!(!modules.is_empty(), "{path}:1: expected modules after `{MODULES}`");
    Ok(modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str, path: &str, defines: &[&str]) -> Module {
        let defines = defines.iter().map(|&define| define.to_owned()).collect();
        Module { name: name.to_owned(), path: path.to_owned(), defines }
    }

    #[test]
    fn a_source_is_one_module_or_those_of_its_first_line() {
        let header = "#define Q4_K 12\n#define F16 1\n#define IS_X(f) ((f) == 1)\n".to_owned();
        let files = BTreeMap::from([("a/formats.cuh".to_owned(), header)]);
        let modules_of = |path, text| modules_of(path, text, &files);
        assert_eq!(
            modules_of("a/copy.cu", "// Copies.\n").unwrap(),
            [module("copy", "a/copy.cu", &[])]
        );
        let expected = [("q4_k", ["-DB=Q4_K"]), ("f16", ["-DB=F16"])];
        let expected = expected.map(|(name, defines)| module(name, "a/b.cu", &defines));
        assert_eq!(modules_of("a/b.cu", "// modules: formats.cuh -DB=*\n").unwrap(), expected);
        assert!(modules_of("b.cu", "// modules: formats.cuh -DB=*\n").is_err());
        let text = "// modules: q4 -DB=1 -DC=2;\n//   q8 -DB=2\n//\n//   No module.\n";
        let expected =
            [module("q4", "a.cu", &["-DB=1", "-DC=2"]), module("q8", "a.cu", &["-DB=2"])];
        assert_eq!(modules_of("a.cu", text).unwrap(), expected);
        assert!(modules_of("a.cu", "// modules: -DB=1\n").is_err());
        assert!(modules_of("a.cu", "// modules:\n").is_err());
    }

    #[test]
    fn headers_are_followed_in_the_order_of_the_folders() {
        let files = [
            ("a/x.cu", "#include \"own.cuh\"\n#include <mma.h>\n"),
            ("a/own.cuh", "# include \"base.cuh\"\n"),
            ("b/base.cuh", ""),
            ("b/own.cuh", ""),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let folders = vec!["a".to_owned(), "b".to_owned()];
        let sources = Sources { name: "a", folders, files, modules: Vec::new() };
        let found: Vec<_> = sources.closure("a/x.cu").into_iter().collect();
        assert_eq!(found, ["a/own.cuh", "a/x.cu", "b/base.cuh"]);
    }
}
