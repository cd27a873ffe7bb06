//! Names that say nothing, and second words for a thing that has one.

use super::SourceFile;

const BANNED_STEMS: [&str; 8] =
    ["mod", "util", "utils", "helper", "helpers", "common", "base", "misc"];

/// Identifiers with the word that the tree uses instead.
const BANNED_IDENTIFIERS: [(&str, &str); 12] = [
    ("hidden_dim", "d_model or d_ff"),
    ("n_state", "d_model"),
    ("head_size", "head_dim"),
    ("num_heads", "n_heads"),
    ("num_kv_heads", "n_kv_heads"),
    ("num_layers", "n_layers"),
    ("num_mels", "n_mels"),
    ("head_count", "n_heads"),
    ("layer_count", "n_layers"),
    ("generate_step", "decode"),
    ("BLCK_SIZE", "block_len"),
    ("blck_size", "block_len"),
];

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let folders = file.path.split('/').rev().skip(1);
        for part in folders.chain([file.stem()]).filter(|part| BANNED_STEMS.contains(part)) {
            findings.push(file.finding(1, format!("`{part}` is no name of a module")));
        }
        for (i, line) in file.code.lines().enumerate() {
            let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            for word in words {
                if let Some((_, better)) = BANNED_IDENTIFIERS.iter().find(|(bad, _)| *bad == word) {
                    findings.push(file.finding(i + 1, format!("`{word}`: say {better}")));
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_and_identifiers_are_checked() {
        let source = "//! Doc.\nlet num_heads = \"head_size\"; // n_state\n";
        let findings = check(&[SourceFile::new("crates/x/src/utils.rs", source.to_owned())]);
        assert_eq!(
            findings,
            [
                "crates/x/src/utils.rs:1: `utils` is no name of a module",
                "crates/x/src/utils.rs:2: `num_heads`: say n_heads",
            ]
        );
        assert!(
            check(&[SourceFile::new("a/src/norm.rs", "let n_heads = 1;".to_owned())]).is_empty()
        );
    }
}
