//! `cargo xtask results`: the tables of README.md, docs/performance.md and docs/accuracy.md, from the committed runs.
//!
//! A run of speed is saved by `cargo xtask bench --peers --save benches/runs/MACHINE/DATE.json`; the last date of each
//! machine counts. A run of accuracy is saved by `cargo xtask exactness --save MACHINE`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use stonechat_benches::results::{Headline, SavedRun, headline, replaced, sections};

use crate::{bench, exactness, shell};

/// Folder of the committed runs.
const RUNS: &str = "benches/runs";
/// Folder in it whose last run the README shows.
const HEADLINE_MACHINE: &str = "emerald-rapids-2-cores";
/// Rows of the README's table.
const HEADLINE: [Headline; 4] = [
    Headline {
        model: "base-q8_0",
        stage: "transcribe",
        title: "Whisper base q8_0, 11 s of speech",
    },
    Headline {
        model: "tiny.en-q8_0",
        stage: "transcribe",
        title: "Whisper tiny.en q8_0, 11 s of speech",
    },
    Headline {
        model: "qwen2.5-coder-1.5b",
        stage: "prefill 128",
        title: "Qwen2.5 1.5B q4_k, reading a prompt",
    },
    Headline {
        model: "qwen2.5-coder-1.5b",
        stage: "decode 32",
        title: "Qwen2.5 1.5B q4_k, writing",
    },
];

/// Options of `cargo xtask results`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResultsArgs {
    /// Fail if a table differs from the runs, instead of writing it
    #[arg(long)]
    check: bool,
}

/// Writes or checks the tables.
pub(crate) fn run(args: &ResultsArgs) -> Result<()> {
    let changed = documents()?;
    for (path, text) in &changed {
        ensure!(!args.check, "{path}: a table differs from the runs: run `cargo xtask results`");
        fs::write(shell::workspace_root().join(path), text)
            .with_context(|| format!("cannot write {path}"))?;
        println!("wrote {path}");
    }
    Ok(())
}

/// The documents whose tables differ from the runs, with their new text.
pub(crate) fn documents() -> Result<Vec<(&'static str, String)>> {
    let root = shell::workspace_root();
    let runs = last_runs(&root)?;
    let Some(first) = runs.iter().find(|run| run.path.contains(HEADLINE_MACHINE)) else {
        bail!("{RUNS}/{HEADLINE_MACHINE}: expected a run, got none");
    };
    let mut changed = Vec::new();
    for (path, name, table) in [
        ("README.md", "headline", headline(first, &HEADLINE)),
        ("docs/performance.md", "results", sections(&runs)),
    ] {
        let text =
            fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        let new = replaced(&text, name, &table).with_context(|| {
            format!("{path}: expected the lines `<!-- {name} -->` and `<!-- /{name} -->`")
        })?;
        if new != text {
            changed.push((path, new));
        }
    }
    changed.extend(exactness::page()?);
    Ok(changed)
}

/// The last run of each machine, in the order of the folders' names.
fn last_runs(root: &Path) -> Result<Vec<SavedRun>> {
    let mut runs = Vec::new();
    for machine in sorted(&root.join(RUNS))? {
        let Some(last) = sorted(&machine)?
            .into_iter()
            .rfind(|path| path.extension().is_some_and(|e| e == "json"))
        else {
            continue;
        };
        let shown = last.strip_prefix(root).unwrap_or(&last);
        let path = shown.to_string_lossy().replace(std::path::MAIN_SEPARATOR, "/");
        runs.push(SavedRun { report: bench::read(&last)?, path });
    }
    Ok(runs)
}

fn sorted(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}
