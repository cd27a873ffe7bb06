//! Allowed places of `unsafe`; repeated safety comments.

use std::collections::BTreeMap;

use super::SourceFile;

/// Crates that hold `unsafe`: the variables of the program, kernels, the memory map of model files, quantized kernels, the
/// allocator of tests, the compiler of CUDA kernels.
const UNSAFE_CRATES: [&str; 6] = [
    "crates/cli/",
    "crates/compute/",
    "crates/formats/",
    "crates/quant/",
    "crates/testkit/",
    "xtask/src/main.rs",
];

/// Sources with a single file of `unsafe`, and that file.
const UNSAFE_FILES: [(&str, &str); 4] = [
    ("crates/cli/src/", "crates/cli/src/environment.rs"),
    ("crates/formats/src/", "crates/formats/src/mmap.rs"),
    ("crates/testkit/src/", "crates/testkit/src/counting_allocator.rs"),
    ("xtask/src/", "xtask/src/ptx/nvrtc.rs"),
];

/// Maximum uses of one justification; more are a copied formula.
const MAX_COPIES: usize = 3;

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let may_have = UNSAFE_CRATES.iter().any(|folder| file.path.starts_with(folder));
        let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
        if is_root && !may_have && !file.code.contains("#![forbid(unsafe_code)]") {
            findings.push(file.finding(1, "the crate root lacks #![forbid(unsafe_code)]"));
        }
        for (folder, only) in UNSAFE_FILES {
            if file.path.starts_with(folder) && file.path != only {
                for (i, _) in file.code.lines().enumerate().filter(|(_, line)| has_unsafe(line)) {
                    findings.push(file.finding(i + 1, format!("unsafe belongs into {only}")));
                }
            }
        }
        for (line, text) in justifications(&file.text) {
            texts.entry(text).or_default().push(format!("{}:{line}", file.path));
        }
    }
    for (text, places) in texts.iter().filter(|(_, places)| places.len() > MAX_COPIES) {
        findings.push(format!(
            "{}: the same SAFETY comment stands at {} places: \"{text}\"",
            places[0],
            places.len()
        ));
    }
    findings
}

fn has_unsafe(line: &str) -> bool {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe")
}

/// Line and text of each SAFETY comment, its lines joined.
fn justifications(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut lines = source.lines().enumerate().peekable();
    while let Some((i, line)) = lines.next() {
        let Some(first) = line.trim_start().strip_prefix(concat!("// ", "SAFETY:")) else {
            continue;
        };
        let mut text = first.trim().to_owned();
        while let Some((_, next)) = lines.peek() {
            let Some(more) = next.trim_start().strip_prefix("//") else { break };
            text.push(' ');
            text.push_str(more.trim());
            lines.next();
        }
        found.push((i + 1, text));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile::new(path, text.to_owned())
    }

    #[test]
    fn crate_roots_forbid_unsafe_code() {
        let bare = file("crates/nn/src/lib.rs", "//! Layers.\n// #![forbid(unsafe_code)]\n");
        assert_eq!(check(&[bare]).len(), 1);
        let good = file("crates/nn/src/lib.rs", "//! Layers.\n#![forbid(unsafe_code)]\n");
        let kernels = file("crates/quant/src/lib.rs", "//! Kernels.\n");
        assert!(check(&[good, kernels]).is_empty());
    }

    #[test]
    fn copied_justifications_are_found() {
        let comment = concat!("// ", "SAFETY: the same\n// words.\nf();\n");
        let findings = check(&[file("crates/quant/src/dot.rs", &comment.repeat(4))]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].contains("at 4 places: \"the same words.\""), "{findings:?}");
        assert!(check(&[file("crates/quant/src/dot.rs", &comment.repeat(3))]).is_empty());
    }

    #[test]
    fn unsafe_of_formats_stays_in_the_memory_map() {
        let text = "//! Doc.\nunsafe { f() } // unsafe\n";
        assert_eq!(check(&[file("crates/formats/src/gguf.rs", text)]).len(), 1);
        assert!(check(&[file("crates/formats/src/mmap.rs", text)]).is_empty());
    }
}
