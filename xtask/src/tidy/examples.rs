//! Examples: short, and shown in documents as they are.

use super::SourceFile;

/// Lines of an example of the library `stonechat`; those of other crates are tools.
const MAX_LINES: usize = 60;
/// Start of the line above a code block that shows an example.
const MARKER: &str = "<!-- example ";

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files {
        let is_example = file.path.starts_with("crates/stonechat/examples/");
        if is_example && file.text.lines().count() > MAX_LINES {
            findings.push(file.finding(1, format!("an example has at most {MAX_LINES} lines")));
        }
        if !file.path.ends_with(".md") {
            continue;
        }
        for (i, line) in file.text.lines().enumerate() {
            let Some(path) = line.strip_prefix(MARKER).and_then(|l| l.strip_suffix(" -->")) else {
                continue;
            };
            let shown = block(&file.text, i + 1);
            let wanted =
                files.iter().find(|other| other.path == path).map(|other| code(&other.text));
            if shown.is_none() || shown != wanted {
                findings
                    .push(file.finding(i + 1, format!("the block below differs from `{path}`")));
            }
        }
    }
    findings
}

/// Code of the block that starts at line `first`, from 0.
fn block(text: &str, first: usize) -> Option<String> {
    let mut lines = text.lines().skip(first);
    lines.next().filter(|line| *line == "```rust")?;
    let lines: Vec<&str> = lines.take_while(|line| *line != "```").collect();
    Some(lines.join("\n"))
}

/// Code of an example without its documentation and the attributes of the crate.
fn code(text: &str) -> String {
    let is_code = |line: &&str| !line.starts_with("//!") && !line.starts_with("#![");
    let lines: Vec<&str> = text.lines().filter(is_code).collect();
    lines.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{SourceFile, check};

    #[test]
    fn a_block_shows_its_example() {
        let example = "//! Prints.\n#![expect(x)]\n\nfn main() {\n    f();\n}\n";
        let shown = "<!-- example crates/stonechat/examples/a.rs -->\n```rust\nfn main() {\n    f();\n}\n```\n";
        let file = |path: &str, text: &str| SourceFile::new(path, text.to_owned());
        let example = || file("crates/stonechat/examples/a.rs", example);
        assert!(check(&[example(), file("README.md", shown)]).is_empty());
        let other = shown.replace("f()", "g()");
        for wrong in [&other[..], "<!-- example crates/stonechat/examples/b.rs -->\n"] {
            assert_eq!(check(&[example(), file("README.md", wrong)]).len(), 1, "{wrong}");
        }
        let long = "\n".repeat(61);
        assert_eq!(check(&[file("crates/stonechat/examples/a.rs", &long)]).len(), 1);
    }
}
