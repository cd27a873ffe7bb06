//! Help texts and `docs/cli.md`.

#[cfg(feature = "pull")]
mod reference {
    use std::fs;

    use crate::run::{Folder, workspace};

    const COMMAND: &str = "cargo run -p stonechat-cli -- help-markdown > docs/cli.md";

    #[test]
    fn the_reference_is_up_to_date() {
        let folder = Folder::new("help-markdown");
        let ran = folder.run(&["help-markdown"]);
        let expected = ran.succeeds();
        for line in expected.lines() {
            assert!(line.chars().count() <= 160, "longer than 160 characters: {line}");
        }
        let written = fs::read_to_string(workspace().join("docs/cli.md")).unwrap_or_default();
        // Git may have checked it out with CRLF.
        assert!(written.replace('\r', "") == expected, "docs/cli.md is out of date: {COMMAND}");
    }
}

use crate::run::Folder;

const VERBS: [&str; 16] = [
    "run",
    "transcribe",
    "listen",
    "generate",
    "chat",
    "serve",
    "tokenize",
    "perplexity",
    "bench",
    "models",
    "show",
    "rm",
    "devices",
    "inspect",
    "convert",
    "quantize",
];

#[test]
fn long_help_has_examples() {
    let folder = Folder::new("help-examples");
    for verb in VERBS {
        let ran = folder.run(&[verb, "--help"]);
        let (_, examples) = ran.succeeds().split_once("\nExamples:\n").unwrap();
        let n = examples.lines().filter(|line| line.contains(&format!("stonechat {verb}"))).count();
        assert!((2..=4).contains(&n), "{verb}: {n} examples");
        assert!(examples.lines().all(|line| line.len() <= 100), "{examples}");
    }
}

#[test]
fn flags_are_grouped() {
    let folder = Folder::new("help-headings");
    for (verb, headings) in [
        ("transcribe", &["Input", "Output", "Decoding", "Voice activity", "Device"][..]),
        ("listen", &["Input", "Output", "Streaming", "Decoding", "Voice activity", "Device"]),
        ("generate", &["Input", "Output", "Context", "Sampling", "Grammar", "Device"]),
        ("chat", &["Input", "Output", "Context", "Sampling", "Grammar", "Device"]),
        ("serve", &["Network", "Routes", "Context", "Sampling", "Device"]),
        ("perplexity", &["Input", "Context", "Output", "Device"]),
        ("bench", &["Tests", "Device"]),
    ] {
        let ran = folder.run(&[verb, "--help"]);
        let mut rest = ran.succeeds();
        for heading in headings {
            let after = rest.split_once(&format!("\n{heading}:\n"));
            rest = after.unwrap_or_else(|| panic!("{verb}: no heading {heading}")).1;
        }
    }
}
