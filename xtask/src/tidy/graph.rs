//! The edges between the crates of the workspace: layers without back edges.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::shell;

/// Each library crate with the crates of the workspace that it may use.
const ALLOWED: [(&str, &[&str]); 9] = [
    ("stonechat-compute", &[]),
    ("stonechat-quant", &["compute"]),
    ("stonechat-formats", &["compute"]),
    ("stonechat-text", &[]),
    ("stonechat-audio", &["compute"]),
    ("stonechat-nn", &["compute", "quant", "formats"]),
    ("stonechat-sampling", &["compute"]),
    ("stonechat-whisper", &["compute", "quant", "formats", "nn", "sampling", "text", "audio"]),
    ("stonechat-llm", &["compute", "quant", "formats", "nn", "sampling", "text"]),
];

/// Depends on what it gives references of, and only tests, benches and the test builds for browsers depend on it.
const TESTKIT: &str = "stonechat-testkit";

/// Everything above the libraries may use every library.
const TOP: [&str; 9] = [
    "stonechat",
    "stonechat-api",
    "stonechat-server",
    "stonechat-cli",
    "stonechat-benches",
    "stonechat-web",
    "xtask",
    "xtask-bindgen",
    "xtask-tools",
];

pub(super) fn check() -> Result<Vec<String>> {
    let mut cargo = shell::cargo();
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let metadata: Value = serde_json::from_str(&shell::output(&mut cargo)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"] == "dev";
            if !dependency["path"].is_null() && !is_allowed(name, used, for_tests) {
                findings.push(format!(
                    "{name} must not use {used}: see the layers in docs/architecture.md"
                ));
            }
        }
        if !TOP.contains(&name)
            && name != TESTKIT
            && !ALLOWED.iter().any(|(known, _)| *known == name)
        {
            findings.push(format!("{name} has no place in the layers of xtask/src/tidy/graph.rs"));
        }
    }
    Ok(findings)
}

fn is_allowed(user: &str, used: &str, for_tests: bool) -> bool {
    if used == TESTKIT {
        return for_tests || ["stonechat-benches", "stonechat-web"].contains(&user);
    }
    if TOP.contains(&user) || user == TESTKIT {
        return true;
    }
    let below = ALLOWED.iter().find(|(name, _)| *name == user).map_or(&[][..], |(_, below)| below);
    below.iter().any(|name| used.strip_prefix("stonechat-") == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_edges_are_refused() {
        assert!(is_allowed("stonechat-nn", "stonechat-quant", false));
        assert!(!is_allowed("stonechat-quant", "stonechat-nn", false));
        assert!(!is_allowed("stonechat-compute", "stonechat-quant", true));
        assert!(is_allowed("stonechat", "stonechat-whisper", false));
        assert!(!is_allowed("stonechat-whisper", "stonechat", false));
    }

    #[test]
    fn testkit_is_for_tests() {
        assert!(is_allowed("stonechat-nn", TESTKIT, true));
        assert!(!is_allowed("stonechat-nn", TESTKIT, false));
        assert!(is_allowed("stonechat-benches", TESTKIT, false));
    }
}
