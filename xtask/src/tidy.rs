//! `cargo xtask tidy`: the rules of the source tree that no compiler or linter knows.
//!
//! One file of `tidy/` per group of rules; each rule returns its findings as `PATH:LINE: what`.

mod commands;
mod commits;
mod cubins;
mod examples;
mod features;
mod graph;
mod how_to_add;
mod lexer;
mod named_tests;
mod names;
mod quotes;
mod text;
mod unsafety;
mod ways;
mod words;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{results, shell};

/// A text file of the tree.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Rust only: `text` with comments and the contents of literals blanked, same lines.
    pub(crate) code: String,
}

impl SourceFile {
    fn new(path: &str, text: String) -> Self {
        let code = if path.ends_with(".rs") { lexer::code_only(&text) } else { String::new() };
        Self { path: path.to_owned(), text, code }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.split('.').next().unwrap_or_default()
    }

    fn finding(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path)
    }
}

/// Runs every rule over the files that git tracks or would track.
pub(crate) fn run() -> Result<()> {
    let root = shell::workspace_root();
    let files = read_tree(&root)?;
    let mut findings = Vec::new();
    findings.extend(text::check(&files));
    findings.extend(names::check(&files));
    findings.extend(named_tests::check(&files));
    findings.extend(quotes::check(&files));
    findings.extend(words::check(&files));
    findings.extend(features::check(&files));
    findings.extend(unsafety::check(&files));
    findings.extend(commands::check(&files));
    findings.extend(commits::check());
    findings.extend(cubins::check(&files, &root)?);
    findings.extend(examples::check(&files));
    findings.extend(how_to_add::check(&files));
    findings.extend(ways::check(&files));
    findings.extend(graph::check()?);
    match results::documents() {
        Ok(stale) => findings.extend(stale.iter().map(|(path, _)| {
            format!("{path}:1: a table differs from the runs: run `cargo xtask results`")
        })),
        Err(error) => findings.push(format!("{error:#}")),
    }
    if findings.is_empty() {
        println!("tidy: {} files, nothing to report", files.len());
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    bail!("tidy: {} findings", findings.len())
}

/// Text files that git tracks or would track.
pub(crate) fn read_tree(root: &Path) -> Result<Vec<SourceFile>> {
    let mut git = shell::program("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = shell::output(&mut git).context("tidy reads the files that git knows")?;
    let mut files = Vec::new();
    for path in listed.split('\0').filter(|path| !path.is_empty()) {
        // A file that was removed but not yet committed is still listed.
        let Ok(bytes) = fs::read(root.join(path)) else { continue };
        // Audio and models are no text.
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile::new(path, text));
        }
    }
    Ok(files)
}
