//! "How to add" in `docs/architecture.md`: each row of its table names an example by the words that its files have, and lists
//! exactly these files.

use std::collections::BTreeSet;

use super::SourceFile;

const DOCUMENT: &str = "docs/architecture.md";
/// Crates that the examples are looked for in.
const CRATES: [&str; 4] = ["compute", "quant", "nn", "testkit"];

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else {
        return vec![format!("{DOCUMENT}:1: missing")];
    };
    let all = rows(&document.text);
    if all.is_empty() {
        return vec![document.finding(1, "no table of `How to add`")];
    }
    all.into_iter().filter_map(|row| check_row(document, files, &row)).collect()
}

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    line: usize,
    words: Vec<&'a str>,
    /// Most files.
    limit: usize,
    listed: BTreeSet<&'a str>,
}

/// Rows `| what | words | limit | files |` of the section; a row without words and limit continues the one before.
fn rows(markdown: &str) -> Vec<Row<'_>> {
    let section = |(_, line): &(usize, &str)| *line != "## How to add";
    let lines = markdown.lines().enumerate().skip_while(section).skip(1);
    let lines = lines.take_while(|(_, line)| !line.starts_with("## "));
    let mut all: Vec<Row<'_>> = Vec::new();
    for (i, text) in lines {
        let cells: Vec<&str> = text.split('|').map(str::trim).collect();
        let ["", _, words, limit, files, ""] = cells[..] else { continue };
        let quoted = |cell| str::split(cell, '`').skip(1).step_by(2);
        match (limit.parse(), all.last_mut()) {
            (Ok(limit), _) => {
                let (words, listed) = (quoted(words).collect(), quoted(files).collect());
                all.push(Row { line: i + 1, words, limit, listed });
            }
            // More files of the row before.
            (Err(_), Some(row)) if limit.is_empty() => row.listed.extend(quoted(files)),
            _ => {}
        }
    }
    all
}

fn check_row(document: &SourceFile, files: &[SourceFile], row: &Row<'_>) -> Option<String> {
    let in_crates = |file: &&SourceFile| {
        let parts: Vec<&str> = file.path.split('/').collect();
        parts[0] == "crates"
            && CRATES.contains(&parts[1])
            && parts.get(2) == Some(&"src")
            && !file.path.ends_with("tests.rs")
            && !file.path.contains("/tests/")
    };
    let is_part = |file: &&SourceFile| {
        row.words.contains(&file.stem()) || row.words.iter().any(|word| has_word(&file.text, word))
    };
    let found = files.iter().filter(in_crates).filter(is_part);
    let found: BTreeSet<&str> = found.map(|file| &file.path["crates/".len()..]).collect();
    if found != row.listed {
        let missing: Vec<_> = found.difference(&row.listed).collect();
        let extra: Vec<_> = row.listed.difference(&found).collect();
        let what = format!("how to add: not listed {missing:?}, without the words {extra:?}");
        return Some(document.finding(row.line, what));
    }
    let too_many = found.len() > row.limit;
    too_many.then(|| document.finding(row.line, format!("how to add: {} files", found.len())))
}

/// Whether `text` has `word` between characters that are no part of an identifier.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(is_part);
        let after = text[at + word.len()..].chars().next().is_some_and(is_part);
        !before && !after
    })
}

#[cfg(test)]
mod tests {
    use super::{SourceFile, check};

    fn findings(table: &str, sources: &[(&str, &str)]) -> Vec<String> {
        let document = format!("# A\n\n## How to add\n\n{table}\n\n## B\n| x | `y` | 1 | `z` |\n");
        let mut files = vec![SourceFile::new("docs/architecture.md", document)];
        files.extend(sources.iter().map(|(path, text)| SourceFile::new(path, (*text).to_owned())));
        check(&files)
    }

    const SOURCES: [(&str, &str); 4] = [
        ("crates/compute/src/op.rs", "enum Op { SoftCap(f32), Add }"),
        ("crates/nn/src/cpu.rs", "Op::SoftCap(cap) => soft_cap(cap)"),
        ("crates/nn/src/cpu/tests.rs", "Op::SoftCap(cap)"),
        ("crates/nn/src/other.rs", "MySoftCapOp"),
    ];

    #[test]
    fn listed_files_are_those_with_the_words() {
        let table = "| what | words | most | files |\n|---|---|---|---|\n\
                     | op | `SoftCap` | 2 | `compute/src/op.rs`, |\n| | | | `nn/src/cpu.rs` |";
        assert_eq!(findings(table, &SOURCES), Vec::<String>::new());
        let few = table.replace("| 2 |", "| 1 |");
        assert_eq!(findings(&few, &SOURCES), ["docs/architecture.md:7: how to add: 2 files"]);
        let missing = table.replace("`compute/src/op.rs`, ", "");
        let [finding] = &findings(&missing, &SOURCES)[..] else { panic!("one finding") };
        assert!(finding.contains("not listed [\"compute/src/op.rs\"]"), "{finding}");
        assert_eq!(findings("text", &SOURCES).len(), 1);
    }

    #[test]
    fn a_file_is_named_by_its_stem() {
        let table = "| format | `format_q9` | 6 | `quant/src/wgpu/format_q9.wgsl` |";
        let sources = [("crates/quant/src/wgpu/format_q9.wgsl", "fn load() {}")];
        assert_eq!(findings(table, &sources), Vec::<String>::new());
    }
}
