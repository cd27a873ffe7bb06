//! Compiled CUDA kernels: their manifest is that of the sources and of the archives.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::SourceFile;
use crate::ptx::manifest::{self, Manifest, sha256};
use crate::ptx::sources::{CRATES, cubins_folder, kernels_folder};

pub(super) fn check(files: &[SourceFile], root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for (name, others) in CRATES {
        let manifest = Manifest::read(root, name)?;
        findings.extend(check_sources(files, name, others, manifest.as_ref()));
        for (target, entry) in manifest.iter().flat_map(|manifest| &manifest.targets) {
            let path = format!("{}/{target}.bin", cubins_folder(name));
            let is_same = fs::read(root.join(&path)).is_ok_and(|it| sha256(&it) == entry.archive);
            if !is_same {
                findings.push(format!("{path}: not the archive of {}", manifest::path(name)));
            }
        }
    }
    Ok(findings)
}

fn check_sources(
    files: &[SourceFile],
    name: &str,
    others: &[&str],
    manifest: Option<&Manifest>,
) -> Vec<String> {
    let ours = format!("{}/", kernels_folder(name));
    let folders = others.iter().map(|other| format!("{}/", kernels_folder(other)));
    let folders: Vec<String> = folders.collect();
    let is_source = |path: &str| {
        let of = |folder: &str, ends: &[&str]| {
            let file = path.strip_prefix(folder).filter(|file| !file.contains('/'));
            file.is_some_and(|file| ends.iter().any(|end| file.ends_with(end)))
        };
        of(&ours, &[".cu", ".cuh"]) || folders.iter().any(|folder| of(folder, &[".cuh"]))
    };
    let sources: BTreeMap<&str, &SourceFile> = files
        .iter()
        .map(|file| (file.path.as_str(), file))
        .filter(|(path, _)| is_source(path))
        .collect();
    let has_kernels = sources.keys().any(|path| path.ends_with(".cu"));
    if !has_kernels && manifest.is_none() {
        return Vec::new();
    }
    let empty = BTreeMap::new();
    let compiled = manifest.map_or(&empty, |manifest| &manifest.sources);
    let mut findings = Vec::new();
    for (path, file) in &sources {
        let what = match compiled.get(*path) {
            None => "not compiled yet: run `cargo xtask ptx`",
            Some(hash) if *hash != sha256(file.text.as_bytes()) => {
                "changed since `cargo xtask ptx`"
            }
            Some(_) => continue,
        };
        findings.push(file.finding(1, what));
    }
    for path in compiled.keys().filter(|path| !sources.contains_key(path.as_str())) {
        findings.push(format!("{path}:1: removed since `cargo xtask ptx`"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_sources_and_headers_are_found() {
        let file = |path: &str, text: &str| SourceFile::new(path, text.to_owned());
        let kernel = "crates/quant/src/cuda/kernels/gemm.cu";
        let header = "crates/compute/src/cuda/kernels/base.cuh";
        let other = "crates/compute/src/cuda/kernels/copy.cu";
        let files = [file(kernel, "a"), file(header, "b"), file(other, "c")];
        let found =
            |manifest: &Manifest| check_sources(&files, "quant", &["compute"], Some(manifest));
        let mut manifest = Manifest::default();
        for (path, text) in [(kernel, "a"), (header, "b")] {
            manifest.sources.insert(path.to_owned(), sha256(text.as_bytes()));
        }
        assert!(found(&manifest).is_empty());
        manifest.sources.insert(header.to_owned(), sha256(b"old"));
        assert_eq!(found(&manifest), [format!("{header}:1: changed since `cargo xtask ptx`")]);
        manifest.sources.remove(header);
        manifest.sources.insert("gone.cuh".to_owned(), String::new());
        let expected = [
            format!("{header}:1: not compiled yet: run `cargo xtask ptx`"),
            "gone.cuh:1: removed since `cargo xtask ptx`".to_owned(),
        ];
        assert_eq!(found(&manifest), expected);
        assert!(check_sources(&[file(header, "b")], "quant", &["compute"], None).is_empty());
        assert_eq!(check_sources(&files, "quant", &["compute"], None).len(), 2);
    }
}
