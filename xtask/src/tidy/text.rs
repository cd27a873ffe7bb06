//! Rules about the text of files: module docs, whitespace, host names; the length of documents.

use super::SourceFile;

/// Markdown files at the root; the others go to `docs/`.
const ROOT_DOCUMENTS: [&str; 3] = ["CHANGELOG.md", "CONTRIBUTING.md", "README.md"];

/// Characters of a line of a document or comment.
const MAX_WIDTH: usize = 160;

/// Documents with the most lines and words that they may have.
const LENGTHS: [(&str, usize, usize); 3] = [
    ("README.md", 150, 1200),
    ("docs/performance.md", 120, 1500),
    ("docs/architecture.md", 440, 4500),
];

/// Written by their tools, host names included.
const LOCK_FILES: [&str; 2] = ["Cargo.lock", "package-lock.json"];

/// Package registries are used through their clients' configuration, never by address.
const HOSTS: [&str; 8] = [
    concat!("//crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("index.crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("deb.debian", ".org"),
];

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<String> {
    let mut findings = Vec::new();
    let name = file.path.rsplit('/').next().unwrap_or_default();
    if LOCK_FILES.contains(&name) {
        return findings;
    }
    if file.path.ends_with(".md") && name == file.path && !ROOT_DOCUMENTS.contains(&name) {
        findings.push(
            file.finding(1, "documents other than README, CHANGELOG, CONTRIBUTING go to docs/"),
        );
    }
    let is_document = file.path.ends_with(".md");
    for (i, line) in file.text.lines().enumerate() {
        let is_prose = is_document || line.trim_start().starts_with("//");
        if is_prose && line.chars().count() > MAX_WIDTH {
            findings.push(file.finding(i + 1, format!("more than {MAX_WIDTH} characters")));
        }
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(file.finding(i + 1, "trailing whitespace"));
        }
        let lower = line.to_lowercase();
        if let Some(host) = HOSTS.iter().find(|host| lower.contains(**host)) {
            findings.push(file.finding(i + 1, format!("host name of a package registry: {host}")));
        }
    }
    if let Some((_, lines, words)) = LENGTHS.iter().find(|(path, ..)| *path == file.path) {
        let got = (file.text.lines().count(), file.text.split_whitespace().count());
        if got.0 > *lines || got.1 > *words {
            let what =
                format!("at most {lines} lines and {words} words, got {} and {}", got.0, got.1);
            findings.push(file.finding(1, what));
        }
    }
    let is_data = file.path.starts_with("test-data/") || file.path.contains("/assets/");
    if !is_data && !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(file.finding(file.text.lines().count(), "no newline at the end of the file"));
    }
    if file.is_rust() && !file.text.starts_with("//! ") && file.stem() != "tests" {
        findings.push(file.finding(1, "the first line is no module doc (`//! What it is.`)"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn findings(path: &str, text: &str, expected: usize) {
        let found = check_file(&SourceFile::new(path, text.to_owned()));
        assert_eq!(found.len(), expected, "{found:?}");
    }

    #[test]
    fn documents_at_the_root_are_listed() {
        findings("README.md", "text\n", 0);
        findings("NOTES.md", "text\n", 1);
        findings("docs/notes.md", "text\n", 0);
    }

    #[test]
    fn documents_and_comments_are_short() {
        findings("docs/a.md", &"x".repeat(161), 2);
        findings("src/a.rs", &format!("//! {}\n", "é".repeat(156)), 0);
        findings("src/a.rs", &format!("//! {}\n", "é".repeat(157)), 1);
        findings("README.md", &"one word\n".repeat(151), 1);
        findings("docs/performance.md", &format!("{}\n", "word\n".repeat(1501)), 1);
    }

    #[test]
    fn whitespace_and_hosts_are_found() {
        findings("docs/a.md", "a \nb\t\nc\n", 2);
        findings("docs/a.md", "no newline", 1);
        findings("test-data/audio/a.txt", "no newline", 0);
        findings("a.toml", concat!("url = \"https://pypi", ".org/simple\"\n"), 1);
        findings("Cargo.lock", concat!("https://index.crates", ".io \n"), 0);
    }

    #[test]
    fn rust_files_start_with_their_doc() {
        findings("src/a.rs", "//! Doc.\n", 0);
        findings("src/a.rs", "use a;\n", 1);
        findings("src/a/tests.rs", "use a;\n", 0);
    }
}
