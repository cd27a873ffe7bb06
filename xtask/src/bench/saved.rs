//! Saved reports and baselines of comparisons.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use stonechat_benches::report::{Machine, Report, SCHEMA};

use super::build::find_revision;
use super::folder;

/// Baseline of `--compare`.
#[derive(Debug)]
pub(super) enum Baseline {
    /// A run that was saved.
    Report(Box<Report>),
    /// A commit, by its full hash.
    Revision(String),
}

/// A file, the name of a saved run, or a commit, whichever is there first.
pub(super) fn baseline(name: &str) -> Result<Baseline> {
    let candidates = [PathBuf::from(name), path_of(name)?];
    if let Some(path) = candidates.iter().find(|path| path.is_file()) {
        return Ok(Baseline::Report(Box::new(read(path)?)));
    }
    if let Some(hash) = find_revision(name) {
        return Ok(Baseline::Revision(hash));
    }
    let saved = names()?;
    let saved = if saved.is_empty() { "none".to_owned() } else { saved.join(", ") };
    bail!("--compare {name}: no file, saved run or git revision is called so (saved runs: {saved})")
}

/// Path of `--save NAME`: in the target folder, unless NAME looks like a path.
pub(super) fn path_of(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if name.ends_with(".json") || path.components().count() > 1 {
        return Ok(std::path::absolute(path)?);
    }
    Ok(folder()?.join(format!("{name}.json")))
}

pub(super) fn write(report: &Report, path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

/// Reads a report; anything else is an error that says what is wrong with it.
pub(super) fn read(path: &Path) -> Result<Report> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let report: Report = serde_json::from_str(&text)
        .with_context(|| format!("{shown}: expected a report of `cargo xtask bench`"))?;
    let got = report.schema;
    ensure!(got == SCHEMA, "{shown}: expected version {SCHEMA} of the format, got {got}");
    Ok(report)
}

/// An error if the figures of a saved run cannot stand beside those of this machine.
pub(super) fn check_machine(saved: &Report, here: &Machine) -> Result<()> {
    match saved.machine.difference(here) {
        None => Ok(()),
        Some(difference) => bail!("the saved run is of another machine: {difference}"),
    }
}

fn names() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder()?)? {
        let path = entry?.path();
        if let (Some("json"), Some(stem)) =
            (path.extension().and_then(|e| e.to_str()), path.file_stem())
        {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_report_is_refused() {
        let folder = std::env::temp_dir().join(format!("bench-saved-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("run.json");
        fs::write(&path, "{\"schema\": 1}").unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains("expected a report") && error.contains("missing field"), "{error}");
        let error = format!("{:#}", baseline("no such thing").unwrap_err());
        assert!(error.contains("no file, saved run or git revision"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn names_go_to_the_target_folder_and_paths_where_they_say() {
        assert!(path_of("before").unwrap().ends_with("bench/before.json"));
        assert!(path_of("/x/before.json").unwrap().ends_with("x/before.json"));
    }
}
