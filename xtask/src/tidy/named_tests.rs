//! Tests that documents name: each quoted name in the last column of their tables is a test in Rust, or a check of a client.

use std::collections::HashSet;

use super::SourceFile;

const DOCUMENTS: [&str; 2] = ["docs/notes/complaints.md", "docs/notes/findings.md"];

/// Ends of files, attributes before a test, and the keyword before its name.
const LANGUAGES: [(&str, &[&str], &str); 2] =
    [(".rs", &["#[test]", "#[tokio::test"], "fn "), (".py", &["@check"], "def ")];
/// Start of a check in JavaScript, whose name is a string.
const CHECK: &str = "check(\"";

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let tests: HashSet<&str> = files.iter().flat_map(tests).collect();
    let mut findings = Vec::new();
    for path in DOCUMENTS {
        let Some(document) = files.iter().find(|file| file.path == path) else {
            findings.push(format!("{path}:1: missing"));
            continue;
        };
        let named = names(&document.text);
        let missing = named.into_iter().filter(|(_, name)| !tests.contains(name));
        findings.extend(
            missing.map(|(line, name)| document.finding(line, format!("no test `{name}`"))),
        );
    }
    findings
}

/// Names of the tests of a file.
fn tests(file: &SourceFile) -> Vec<&str> {
    if file.path.ends_with(".mjs") {
        let checks = file.text.lines().filter_map(|line| line.trim_start().strip_prefix(CHECK));
        return checks.filter_map(|rest| rest.split('"').next()).collect();
    }
    let language = LANGUAGES.iter().find(|(end, ..)| file.path.ends_with(end));
    let Some((_, attributes, keyword)) = language else { return Vec::new() };
    let text = if file.is_rust() { &file.code } else { &file.text };
    let (mut found, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim_start) {
        is_test |= attributes.iter().any(|attribute| line.starts_with(attribute));
        let line = line.strip_prefix("async ").unwrap_or(line);
        if let Some(rest) = line.strip_prefix(keyword) {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
            found.extend(is_test.then(|| &rest[..end.unwrap_or(rest.len())]));
            is_test = false;
        }
    }
    found
}

/// Quoted names in the last column of tables, with their lines. A name has `_`, and no capital letters.
fn names(markdown: &str) -> Vec<(usize, &str)> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.".contains(c);
    let is_name = |word: &&str| word.contains('_') && word.chars().all(is_part);
    let mut found = Vec::new();
    for (i, line) in markdown.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let cell = line.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        found.extend(cell.split('`').skip(1).step_by(2).filter(is_name).map(|name| (i + 1, name)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{DOCUMENTS, SourceFile, check};

    /// Findings of a document whose table has these rows.
    fn findings(rows: &str) -> Vec<String> {
        let rust = "#[test]\n#[cfg(unix)]\nfn a_holds() {}\nfn a_helper() {}\n\
                    #[tokio::test(flavor = \"multi_thread\")]\n  async fn b_holds() {}\n\
                    // #[test]\nfn commented_out() {}\n";
        let python = "@check\ndef c_holds(server):\n    pass\n\n\ndef c_helper():\n    pass\n";
        let script = "check(\"d.holds_here\", async () => {\n";
        let table = format!("| trap | test |\n|---|---|\n{rows}");
        check(&[
            SourceFile::new(DOCUMENTS[0], table),
            SourceFile::new(DOCUMENTS[1], String::new()),
            SourceFile::new("crates/a/src/b.rs", rust.to_owned()),
            SourceFile::new("crates/a/tests/c.py", python.to_owned()),
            SourceFile::new("crates/a/tests/d.mjs", script.to_owned()),
        ])
    }

    #[test]
    fn tests_and_checks_are_found_by_name() {
        let rows =
            "| `x_y` is no test | `a_holds`, `b_holds`, |\n| | `c_holds`, `d.holds_here` |\n";
        assert_eq!(findings(rows), Vec::<String>::new());
        for name in ["a_helper", "commented_out", "c_helper", "a_held", "d.held_here"] {
            let expected = format!("docs/notes/complaints.md:3: no test `{name}`");
            assert_eq!(findings(&format!("| x | the test `{name}` |\n")), [expected]);
        }
    }

    #[test]
    fn documents_exist() {
        assert_eq!(check(&[]).len(), DOCUMENTS.len());
    }
}
