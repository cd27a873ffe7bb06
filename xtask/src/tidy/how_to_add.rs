//! "How to add" in `docs/architecture.md`: each row of its table names an example, and lists exactly the files of some crates
//! that name the example in code: as an identifier or part of one, in any case (`LogSumExp`, `run_log_sum_exp`, `LOG_SUM_EXP`,
//! `log-sum-exp`), in a literal, or in the file's own name. Comments and tests do not count.

use std::collections::BTreeSet;

use super::{SourceFile, lexer};
use crate::test_code::{TestModules, test_lines};

const DOCUMENT: &str = "docs/architecture.md";
/// Files with code.
const SOURCES: [&str; 4] = [".rs", ".wgsl", ".cu", ".cuh"];

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else {
        return vec![format!("{DOCUMENT}:1: missing")];
    };
    let all = rows(&document.text);
    if all.is_empty() {
        return vec![document.finding(1, "no table of `How to add`")];
    }
    let tests = TestModules::of(files.iter().map(|file| (file.path.as_str(), file.text.as_str())));
    let files: Vec<_> = files.iter().filter(|file| !tests.has(&file.path)).collect();
    all.into_iter().filter_map(|row| check_row(document, &files, &row)).collect()
}

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    line: usize,
    /// Names of the example.
    words: Vec<&'a str>,
    /// Crates that are searched.
    crates: Vec<&'a str>,
    /// Most files.
    limit: usize,
    listed: BTreeSet<&'a str>,
}

/// Rows `| what | words | crates | limit | files |` of the section. A row without crates has those of the row before, one without
/// a limit continues it.
fn rows(markdown: &str) -> Vec<Row<'_>> {
    let section = |(_, line): &(usize, &str)| *line != "## How to add";
    let lines = markdown.lines().enumerate().skip_while(section).skip(1);
    let lines = lines.take_while(|(_, line)| !line.starts_with("## "));
    let mut all: Vec<Row<'_>> = Vec::new();
    for (i, text) in lines {
        let cells: Vec<&str> = text.split('|').map(str::trim).collect();
        let ["", _, words, crates, limit, files, ""] = cells[..] else { continue };
        let quoted = |cell| str::split(cell, '`').skip(1).step_by(2);
        match limit.parse() {
            Ok(limit) => {
                let (words, mut crates) =
                    (quoted(words).collect(), quoted(crates).collect::<Vec<_>>());
                if crates.is_empty() {
                    crates.extend(all.last().iter().flat_map(|row| &row.crates));
                }
                all.push(Row {
                    line: i + 1,
                    words,
                    crates,
                    limit,
                    listed: quoted(files).collect(),
                });
            }
            // More files of the row before.
            Err(_) if limit.is_empty() => {
                all.last_mut().into_iter().for_each(|row| row.listed.extend(quoted(files)));
            }
            Err(_) => {}
        }
    }
    all
}

fn check_row(document: &SourceFile, files: &[&SourceFile], row: &Row<'_>) -> Option<String> {
    let in_crates = |file: &&&SourceFile| {
        let parts: Vec<&str> = file.path.split('/').collect();
        parts[0] == "crates"
            && row.crates.contains(&parts[1])
            && parts.get(2) == Some(&"src")
            && SOURCES.iter().any(|end| file.path.ends_with(end))
    };
    let words: Vec<String> = row.words.iter().map(|word| snake_case(word)).collect();
    let found = files.iter().filter(in_crates).filter(|file| names_one(file, &words));
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

/// Whether the code of `file`, or its name, has one of `words`.
fn names_one(file: &SourceFile, words: &[String]) -> bool {
    let is_in = |text: &str| {
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        let identifiers = text.split(|c| !is_part(c)).filter(|part| !part.is_empty());
        let mut identifiers = identifiers.map(snake_case);
        identifiers.any(|name| words.iter().any(|word| name.contains(word)))
    };
    // Kernels name their modules in a comment, for `cargo xtask ptx`.
    is_in(file.stem()) || is_in(&file.text) && (!file.is_rust() || is_in(&program(&file.text)))
}

/// Rust without comments and tests.
fn program(text: &str) -> String {
    let code = lexer::without_comments(text);
    let lines = code.lines().zip(test_lines(text));
    lines.filter(|(_, is_test)| !is_test).flat_map(|(line, _)| [line, "\n"]).collect()
}

/// `name` in lower case, with `_` around it and between its parts.
fn snake_case(name: &str) -> String {
    let mut out = String::from("_");
    let mut is_after_small = false;
    for c in name.chars() {
        if c.is_uppercase() && is_after_small {
            out.push('_');
        }
        is_after_small = c.is_lowercase() || c.is_ascii_digit();
        out.extend(if c == '-' { '_' } else { c }.to_lowercase());
    }
    out.push('_');
    out
}

#[cfg(test)]
mod tests {
    use super::{SourceFile, check, snake_case};

    fn findings(table: &str, sources: &[(&str, &str)]) -> Vec<String> {
        let document =
            format!("# A\n\n## How to add\n\n{table}\n\n## B\n| x | `y` | `z` | 1 | `z` |\n");
        let mut files = vec![SourceFile::new("docs/architecture.md", document)];
        files.extend(sources.iter().map(|(path, text)| SourceFile::new(path, (*text).to_owned())));
        check(&files)
    }

    const SOURCES: [(&str, &str); 7] = [
        ("crates/compute/src/op.rs", "enum Op { SoftCap(f32), Add }"),
        ("crates/nn/src/cpu.rs", "run_soft_cap(x)\n#[cfg(test)]\nmod tests;\n"),
        ("crates/nn/src/cuda.rs", "launch(\"soft-cap\")"),
        ("crates/nn/src/cpu/tests.rs", "Op::SoftCap(cap)"),
        (
            "crates/nn/src/other.rs",
            "/// Like SoftCap.\nSoftCapital;\n#[cfg(test)]\nmod tests {\n    use SoftCap;\n}\n",
        ),
        ("crates/llm/src/forward.rs", "Op::SoftCap(cap)"),
        ("crates/nn/src/SoftCap.json", "SoftCap"),
    ];

    #[test]
    fn listed_files_are_those_with_the_words() {
        let table = "| what | words | crates | most | files |\n|---|---|---|---|---|\n\
                     | op | `SoftCap` | `compute`, `nn` | 3 | `compute/src/op.rs`, |\n\
                     | | | | | `nn/src/cpu.rs`, `nn/src/cuda.rs` |";
        assert_eq!(findings(table, &SOURCES), Vec::<String>::new());
        let few = table.replace("| 3 |", "| 2 |");
        assert_eq!(findings(&few, &SOURCES), ["docs/architecture.md:7: how to add: 3 files"]);
        let missing = table.replace("`compute/src/op.rs`, ", "");
        let [finding] = &findings(&missing, &SOURCES)[..] else { panic!("one finding") };
        assert!(finding.contains("not listed [\"compute/src/op.rs\"]"), "{finding}");
        assert_eq!(findings("text", &SOURCES).len(), 1);
    }

    #[test]
    fn a_file_is_named_by_its_stem() {
        let table = "| format | `Q9K` | `quant` | 6 | `quant/src/wgpu/format_q9_k.wgsl` |";
        let sources = [("crates/quant/src/wgpu/format_q9_k.wgsl", "fn load() {}")];
        assert_eq!(findings(table, &sources), Vec::<String>::new());
    }

    #[test]
    fn names_in_every_case_are_one() {
        for name in ["LogSumExp", "log_sum_exp", "LOG_SUM_EXP", "log-sum-exp"] {
            assert_eq!(snake_case(name), "_log_sum_exp_");
        }
        assert_eq!(snake_case("BlockIq4Nl"), "_block_iq4_nl_");
        assert_eq!(snake_case("Q4K"), "_q4_k_");
    }
}
