//! Messages that a guide quotes: each fixed part of one stands in the text of the program.
//!
//! A message is inline code of two words or more in the first column of a table headed [`HEAD`]; `…` stands for values.

use super::SourceFile;

/// First column's head of the tables of messages.
const HEAD: &str = "| message or symptom |";
/// Shorter parts between two values match anything.
const MIN_CHARS: usize = 6;

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let program: Vec<&str> = files
        .iter()
        .filter(|file| file.is_rust() && file.path.starts_with("crates/"))
        .map(|file| file.text.as_str())
        .collect();
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("docs/guide/")) {
        for (line, message) in messages(&file.text) {
            let parts =
                message.split('…').map(str::trim).filter(|p| p.chars().count() >= MIN_CHARS);
            for part in parts {
                if !program.iter().any(|text| text.contains(part)) {
                    findings.push(
                        file.finding(line, format!("no message of the program has `{part}`")),
                    );
                }
            }
        }
    }
    findings
}

/// The messages that `markdown` quotes, with their lines.
fn messages(markdown: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_table = false;
    for (i, line) in markdown.lines().enumerate() {
        in_table = line.starts_with(HEAD) || (in_table && line.starts_with('|'));
        if !in_table {
            continue;
        }
        let column = line.trim_start_matches('|').split('|').next().unwrap_or_default().trim();
        let fence = if column.contains("``") { "``" } else { "`" };
        // Code stands between an odd fence and an even one.
        let code = column.split(fence).skip(1).step_by(2).map(str::trim);
        found.extend(code.filter(|code| code.contains(' ')).map(|code| (i + 1, code)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_messages_stand_in_the_program() {
        let program = SourceFile::new(
            "crates/a/src/error.rs",
            "//! Errors.\nconst A: &str = \"no model `{name}`: expected a file, got {got}\";\n"
                .to_owned(),
        );
        let guide = |text: &str| {
            SourceFile::new("docs/guide/a.md", format!("{HEAD} remedy |\n|---|---|\n{text}\n"))
        };
        let found = |text: &str| {
            check(&[SourceFile::new("crates/a/src/error.rs", program.text.clone()), guide(text)])
        };
        assert!(found("| `expected a file, got …` | write one |").is_empty());
        assert!(found("| ``no model `…`: expected a file`` | write one |").is_empty());
        assert_eq!(found("| `expected a folder, got …` | write one |").len(), 1);
        assert!(found("| slow | `no such message here` |").is_empty(), "another column");
    }
}
