//! `cargo xtask lines`: lines of each package without its tests, beside those of another revision; the longest files and
//! functions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use anyhow::{Context, Result, ensure};

use crate::test_code::{TestModules, test_lines};
use crate::{shell, tidy};

/// Files and functions in each list of the longest.
const N_LONGEST: usize = 10;
/// Folders with packages.
const FOLDERS: [&str; 4] = ["benches", "crates", "fuzz", "xtask"];

/// Options of `cargo xtask lines`.
#[derive(Debug, clap::Args)]
pub(crate) struct LinesArgs {
    /// Count the lines of this revision, too
    #[arg(value_name = "REVISION")]
    revision: Option<String>,
}

/// A file of a package's `src`, which is part of the program.
#[derive(Debug)]
struct Source<'a> {
    package: &'a str,
    path: &'a str,
    /// Lines that are no tests.
    n_lines: usize,
}

impl Source<'_> {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Prints the counts and the lists.
pub(crate) fn run(args: &LinesArgs) -> Result<()> {
    let files = tidy::read_tree(&shell::workspace_root())?;
    let now: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    let sources = sources(&now);
    match &args.revision {
        Some(revision) => {
            let files = files_of(revision)?;
            let before: Vec<_> =
                files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
            print_comparison(&self::sources(&before), &sources);
        }
        None => print_counts(&sources),
    }
    println!("\nlongest files");
    for source in longest(sources.iter(), |source| source.n_lines) {
        println!("{:6}  {}", source.n_lines, source.path);
    }
    println!("\nlongest functions");
    let all = files.iter().filter(|file| sources.iter().any(|source| source.path == file.path));
    let all = all.flat_map(|file| {
        let is_test = test_lines(&file.text);
        let all = functions(&file.code).into_iter();
        all.filter(move |function| !is_test[function.line]).map(move |function| (file, function))
    });
    for (file, Function { name, line, n_lines }) in longest(all, |(_, function)| function.n_lines) {
        println!("{n_lines:6}  {}:{}: {name}", file.path, line + 1);
    }
    Ok(())
}

fn longest<T>(all: impl Iterator<Item = T>, length: impl Fn(&T) -> usize) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_by_key(|one| std::cmp::Reverse(length(one)));
    all.truncate(N_LONGEST);
    all
}

/// Lines of Rust and of kernels of each package.
fn counts<'a>(sources: &[Source<'a>]) -> BTreeMap<&'a str, [usize; 2]> {
    let mut counts = BTreeMap::<_, [usize; 2]>::new();
    for source in sources {
        counts.entry(source.package).or_default()[usize::from(!source.is_rust())] += source.n_lines;
    }
    counts
}

fn print_counts(sources: &[Source<'_>]) {
    println!("{:12} {:>8} {:>8}", "", "Rust", "kernels");
    for (package, [rust, kernels]) in counts(sources) {
        println!("{package:12} {rust:8} {kernels:8}");
    }
}

fn print_comparison(before: &[Source<'_>], now: &[Source<'_>]) {
    let (before, now) = (counts(before), counts(now));
    let packages: BTreeSet<&str> = before.keys().chain(now.keys()).copied().collect();
    println!("{:12} {:>8} {:>8} {:>8}   kernels", "", "Rust", "before", "");
    for package in packages {
        let of =
            |counts: &BTreeMap<&str, [usize; 2]>| counts.get(package).copied().unwrap_or([0; 2]);
        let change = |kind: usize| {
            let (before, now) = (of(&before)[kind], of(&now)[kind]);
            format!("{now:8} {before:8} {:+8}", now.cast_signed() - before.cast_signed())
        };
        println!("{package:12} {} {}", change(0), change(1));
    }
}

/// Path and text of the files of a revision, which `git` packs.
fn files_of(revision: &str) -> Result<Vec<(String, String)>> {
    let mut git = shell::program("git");
    git.args(["archive", "--format=tar", "--end-of-options", revision]).args(FOLDERS);
    let output = git.output().context("cannot start git")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git archive {revision}: {}", error.trim());
    let mut files = Vec::new();
    for entry in tar::Archive::new(&output.stdout[..]).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let mut text = String::new();
        // Audio and archives of kernels are no text.
        if entry.read_to_string(&mut text).is_ok() {
            files.push((path, text));
        }
    }
    Ok(files)
}

/// Files of programs among `files`, paths and texts.
fn sources<'a>(files: &[(&'a str, &'a str)]) -> Vec<Source<'a>> {
    let tests = TestModules::of(files.iter().copied());
    let mut sources = Vec::new();
    for &(path, text) in files {
        let Some((package, file)) = path.split_once("/src/") else { continue };
        let is_read = [".rs", ".cu", ".cuh", ".wgsl"].iter().any(|end| file.ends_with(end));
        if is_read && FOLDERS.iter().any(|folder| package.starts_with(folder)) && !tests.has(path) {
            let package = package.strip_prefix("crates/").unwrap_or(package);
            let n_lines = test_lines(text).iter().filter(|is_test| !**is_test).count();
            sources.push(Source { package, path, n_lines });
        }
    }
    sources
}

/// A function of a file.
#[derive(Debug, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    /// First line of the function, from 0.
    line: usize,
    n_lines: usize,
}

/// Functions with a body in `code`, which has no comments and literals.
fn functions(code: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for (at, _) in code.match_indices("fn ") {
        let name = &code[at + 3..];
        let name = &name[..name.find(|c| !is_word(c)).unwrap_or(name.len())];
        if code[..at].ends_with(is_word) || name.is_empty() {
            continue;
        }
        let mut depth = 0_usize;
        let mut is_in_body = false;
        let end = code[at..].char_indices().find_map(|(i, c)| {
            match c {
                '(' | '[' | '{' => {
                    is_in_body |= c == '{' && depth == 0;
                    depth += 1;
                }
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            (depth == 0 && (c == ';' || c == '}' && is_in_body)).then_some(at + i)
        });
        if let Some(end) = end.filter(|_| is_in_body) {
            let lines = |text: &str| text.matches('\n').count();
            let (line, n_lines) = (lines(&code[..at]), lines(&code[at..end]) + 1);
            found.push(Function { name, line, n_lines });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "\
//! Doc.
mod a;
#[cfg(test)]
mod tests;
/// Doc.
struct S {
    x: u8,
    #[cfg(test)]
    y: u8,
}

impl S {
    #[cfg(test)]
    fn seen(
        &self,
    ) -> u8 {
        self.x
    }

    fn kept(&self) {}
}

#[cfg(test)]
#[expect(dead_code, reason = \"example\")]
mod inner {
    fn f() {
    }
}
fn last() {}
";

    #[test]
    fn items_of_tests_are_not_counted() {
        let files = [
            ("crates/x/src/lib.rs", LIB),
            ("crates/x/src/tests.rs", "fn t() {}\n"),
            ("crates/x/src/tests/more.rs", "fn t() {}\n"),
            ("crates/x/src/a.rs", "//! A.\n#[cfg(test)]\npub(crate) mod made;\n"),
            ("crates/x/src/a/made.rs", "//! M.\n"),
            ("crates/x/src/a/k.cu", "int x;\nint y;\n"),
            ("crates/x/tests/t.rs", "fn t() {}\n"),
            ("docs/src/a.rs", "fn t() {}\n"),
        ];
        let sources = sources(&files);
        let found: Vec<_> = sources.iter().map(|source| (source.path, source.n_lines)).collect();
        let expected =
            [("crates/x/src/lib.rs", 13), ("crates/x/src/a.rs", 1), ("crates/x/src/a/k.cu", 2)];
        assert_eq!(found, expected);
        assert_eq!(counts(&sources)["x"], [14, 2]);
    }

    #[test]
    fn functions_have_names_and_lengths() {
        let code = "fn a() -> [u8; 2] {\n    f(fn_b);\n}\ntrait T {\n    fn b(&self);\n    fn c() {}\n}\nconst F: fn (u8) = x;\n";
        let expected = [
            Function { name: "a", line: 0, n_lines: 3 },
            Function { name: "c", line: 5, n_lines: 1 },
        ];
        assert_eq!(functions(code), expected);
    }
}
