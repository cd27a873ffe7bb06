//! "Ways" in `docs/architecture.md`: the calls from a request to a kernel and back. Each row of a table names a file, functions
//! that it defines, and types that its code names. The line `At most N calls, M types.` above a table bounds what it lists:
//! `calls`, those of rows `down` and `back`, `types`, `files` and `crates`. Paths in the rest of the document exist, too.

use std::collections::BTreeSet;

use super::SourceFile;

const DOCUMENT: &str = "docs/architecture.md";
const LIMIT: &str = "At most ";

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else {
        return Vec::new();
    };
    let ways = ways(&document.text);
    let mut findings = missing_paths(document, files);
    if ways.is_empty() {
        findings.push(document.finding(1, "no table of `Ways`"));
    }
    for way in &ways {
        findings.extend(way.rows.iter().flat_map(|row| check_row(document, files, row)));
        findings.extend(check_limits(document, way));
    }
    findings
}

/// Quoted paths `CRATE/src/..` of files or folders that are not there.
fn missing_paths(document: &SourceFile, files: &[SourceFile]) -> Vec<String> {
    let exists = |path: &str| {
        let path = format!("crates/{}", path.trim_start_matches("crates/"));
        let rest = files.iter().filter_map(|file| file.path.strip_prefix(&path));
        rest.into_iter().any(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut findings = Vec::new();
    for (i, line) in document.text.lines().enumerate() {
        let quoted = line.split('`').skip(1).step_by(2);
        let paths = quoted.filter(|path| path.contains("/src/") && !path.starts_with("xtask/"));
        let missing = paths.filter(|path| !exists(path));
        findings.extend(missing.map(|path| document.finding(i + 1, format!("no file `{path}`"))));
    }
    findings
}

/// A table.
#[derive(Debug, Default)]
struct Way<'a> {
    /// Number of its heading's line.
    line: usize,
    /// Words and numbers of its line of limits.
    limits: Vec<(usize, &'a str)>,
    rows: Vec<Row<'a>>,
}

/// A row `| direction | file | functions | types |`.
#[derive(Debug)]
struct Row<'a> {
    line: usize,
    direction: &'a str,
    file: &'a str,
    functions: Vec<&'a str>,
    types: Vec<&'a str>,
}

fn ways(markdown: &str) -> Vec<Way<'_>> {
    let lines = markdown.lines().enumerate().skip_while(|(_, line)| *line != "## Ways").skip(1);
    let mut all: Vec<Way<'_>> = Vec::new();
    for (i, line) in lines.take_while(|(_, line)| !line.starts_with("## ")) {
        if line.starts_with("### ") {
            all.push(Way { line: i + 1, ..Way::default() });
        }
        let Some(way) = all.last_mut() else { continue };
        if let Some(limits) = line.strip_prefix(LIMIT) {
            let limits = limits.trim_end_matches('.').split(", ");
            way.limits.extend(limits.filter_map(|limit| {
                let (n, what) = limit.split_once(' ')?;
                Some((n.parse().ok()?, what))
            }));
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", direction, file, functions, types, ""] = cells[..] else { continue };
        let quoted = |cell| str::split(cell, '`').skip(1).step_by(2);
        let Some(file) = quoted(file).next() else { continue };
        let (functions, types) = (quoted(functions).collect(), quoted(types).collect());
        way.rows.push(Row { line: i + 1, direction, file, functions, types });
    }
    all
}

fn check_row(document: &SourceFile, files: &[SourceFile], row: &Row<'_>) -> Vec<String> {
    let path = format!("crates/{}", row.file);
    // A file that is not there is a finding of its own.
    let Some(file) = files.iter().find(|file| file.path == path) else { return Vec::new() };
    let functions = row.functions.iter().filter(|name| !defines(file, name));
    let functions = functions.map(|name| format!("ways: {path} defines no function `{name}`"));
    let types = row.types.iter().filter(|name| words(code(file)).all(|(_, word)| word != **name));
    let types = types.map(|name| format!("ways: {path} has no type `{name}`"));
    functions.chain(types).map(|what| document.finding(row.line, what)).collect()
}

fn code(file: &SourceFile) -> &str {
    if file.is_rust() { &file.code } else { &file.text }
}

/// Whether `file` defines the function `name`. In a kernel that may be the work of a macro: `KERNEL(32) name(..`.
fn defines(file: &SourceFile, name: &str) -> bool {
    let code = code(file);
    let mut found = words(code).filter(|(_, word)| *word == name);
    found.any(|(at, _)| {
        let is_called = || code[at + name.len()..].starts_with('(');
        if file.is_rust() { code[..at].ends_with("fn ") } else { is_called() }
    })
}

/// Identifiers with their offsets.
fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let words = code.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    words.map(move |word| (word.as_ptr().addr() - code.as_ptr().addr(), word))
}

/// Limits that are exceeded.
fn check_limits(document: &SourceFile, way: &Way<'_>) -> Vec<String> {
    let calls = |direction: Option<&str>| {
        let rows = way.rows.iter();
        let rows = rows.filter(|row| direction.is_none_or(|direction| row.direction == direction));
        rows.map(|row| row.functions.len()).sum::<usize>()
    };
    let distinct = |names: &mut dyn Iterator<Item = &str>| names.collect::<BTreeSet<_>>().len();
    let rows = || way.rows.iter();
    let mut findings = Vec::new();
    for &(limit, what) in &way.limits {
        let n = match what {
            "calls" => calls(None),
            "down" | "back" => calls(Some(what)),
            "types" => distinct(&mut rows().flat_map(|row| row.types.iter().copied())),
            "files" => distinct(&mut rows().map(|row| row.file)),
            "crates" => distinct(&mut rows().filter_map(|row| row.file.split('/').next())),
            _ => {
                let what = format!(
                    "ways: expected calls, down, back, types, files or crates, got `{what}`"
                );
                findings.push(document.finding(way.line, what));
                continue;
            }
        };
        if n > limit {
            let what = format!("ways: expected at most {limit} {what}, got {n}");
            findings.push(document.finding(way.line, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::{SourceFile, check};

    const TABLE: &str = "### A token\n\nAt most 2 down, 1 back, 1 types, 2 files, 1 crates.\n\n\
        | | file | functions | types |\n|---|---|---|---|\n\
        | down | `nn/src/a.rs` | `run`, `step` | `Step` |\n| back | `nn/src/k.cu` | `gemv` | |\n";

    #[test]
    fn paths_exist() {
        let table = format!("{TABLE}\nIn `nn/src/a.rs`, `crates/nn/src/k.cu`, `nn/src`.\n");
        found(&table, &[]);
        let table = format!("{TABLE}\nIn `nn/src/k`.\n");
        found(&table, &["docs/architecture.md:14: no file `nn/src/k`"]);
    }

    #[track_caller]
    fn found(table: &str, expected: &[&str]) {
        let document = format!("# A\n\n## Ways\n\n{table}\n## B\n\n| | `c.rs` | `c` | |\n");
        let rust = "//! Doc of fn other.\nfn run(x: Step) {}\n    fn step() { call() }\n";
        let files = [
            SourceFile::new("docs/architecture.md", document),
            SourceFile::new("crates/nn/src/a.rs", rust.to_owned()),
            SourceFile::new("crates/nn/src/k.cu", "KERNEL(32) gemv(int x) {}\n".to_owned()),
        ];
        assert_eq!(check(&files), expected);
    }

    #[test]
    fn files_functions_and_types_exist() {
        found(TABLE, &[]);
        found(&TABLE.replace("a.rs", "b.rs"), &["docs/architecture.md:11: no file `nn/src/b.rs`"]);
        for name in ["call", "other", "Step"] {
            let finding = format!(
                "docs/architecture.md:11: ways: crates/nn/src/a.rs defines no function `{name}`"
            );
            found(&TABLE.replace("`step`", &format!("`{name}`")), &[&finding]);
        }
        found(
            &TABLE.replace("`Step`", "`Stop`"),
            &["docs/architecture.md:11: ways: crates/nn/src/a.rs has no type `Stop`"],
        );
        found("", &["docs/architecture.md:1: no table of `Ways`"]);
    }

    #[test]
    fn limits_hold() {
        for (limit, what, n) in
            [("2 down", "down", 2), ("1 back", "back", 1), ("2 files", "files", 2)]
        {
            let finding =
                format!("docs/architecture.md:5: ways: expected at most 0 {what}, got {n}");
            found(&TABLE.replace(limit, &format!("0 {what}")), &[&finding]);
        }
        found(
            &TABLE.replace("1 types", "1 kinds"),
            &[
                "docs/architecture.md:5: ways: expected calls, down, back, types, files or crates, got `kinds`",
            ],
        );
    }
}
