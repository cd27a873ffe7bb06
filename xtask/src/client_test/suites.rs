//! Suites of `client-test`: one client or a few that belong together, with their packages and models.

/// Language and speech model of the suites.
pub(super) const LANGUAGE: &str = "smollm2-135m";
pub(super) const SPEECH: &str = "base";
/// Model that calls tools.
const CODER: &str = "qwen2.5-coder-1.5b";

/// Clients that are checked together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suite {
    pub(super) name: &'static str,
    /// Whether `client-test` runs it unless other suites are named.
    pub(super) is_default: bool,
    /// File of the Python packages.
    pub(super) requirements: Option<&'static str>,
    /// Whether the packages are installed without those that they depend on but the file leaves out.
    pub(super) is_partial: bool,
    /// Folder of the `package.json`; without it the checks are those of `client.py`.
    pub(super) node: Option<&'static str>,
    /// Models that the server has beside the scripted one.
    pub(super) models: &'static [&'static str],
    /// Tokens of a context; the scripted model reads a byte as one.
    pub(super) n_ctx: usize,
}

const PYTHON: Suite = Suite {
    name: "openai",
    is_default: true,
    requirements: Some("requirements.txt"),
    is_partial: false,
    node: None,
    models: &[LANGUAGE, SPEECH],
    n_ctx: 16_384,
};
const NODE: Suite = Suite { is_default: false, requirements: None, models: &[LANGUAGE], ..PYTHON };

const fn python(name: &'static str, requirements: &'static str) -> Suite {
    Suite { name, requirements: Some(requirements), is_default: false, ..PYTHON }
}

/// Suites, the cheapest first.
#[rustfmt::skip]
pub(super) const SUITES: &[Suite] = &[
    PYTHON,
    Suite { is_default: true, models: &[LANGUAGE], ..python("anthropic", "requirements-anthropic.txt") },
    Suite { is_default: true, models: &[LANGUAGE], ..python("ollama", "requirements-ollama.txt") },
    python("live", "requirements.txt"),
    Suite { models: &[SPEECH], ..python("live-figures", "requirements-live-figures.txt") },
    Suite { models: &[], ..python("agents", "requirements-agents.txt") },
    Suite { models: &[SPEECH], ..python("voice", "requirements-voice.txt") },
    python("mcp", "requirements-mcp.txt"),
    Suite { models: &[LANGUAGE], ..python("lm-eval", "requirements-lm-eval.txt") },
    Suite { models: &[CODER], ..python("tool-tasks", "requirements-tool-tasks.txt") },
    Suite { name: "sdk", node: Some("sdk"), ..NODE },
    Suite { name: "agent", node: Some("agent"), models: &[], ..NODE },
    Suite {
        name: "open-webui",
        requirements: Some("requirements-open-webui.txt"),
        is_partial: true,
        node: Some("open-webui"),
        models: &[LANGUAGE, SPEECH],
        n_ctx: 65_536,
        ..NODE
    },
];

/// Suites of these names; without any the default ones, with `all` every one.
///
/// # Errors
/// With the first unknown name.
pub(super) fn named(names: &[String]) -> Result<Vec<&'static Suite>, String> {
    for name in names {
        if name != "all" && SUITES.iter().all(|suite| suite.name != name) {
            let known = SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ");
            return Err(format!("--suite: expected all or one of {known}, got {name:?}"));
        }
    }
    let is_named = |suite: &&Suite| match names {
        [] => suite.is_default,
        names => names.iter().any(|name| name == "all" || name == suite.name),
    };
    Ok(SUITES.iter().filter(is_named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Result<Vec<&'static str>, String> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        Ok(named(&names)?.iter().map(|suite| suite.name).collect())
    }

    #[test]
    fn suites_are_found_by_name() {
        assert_eq!(names(&[]).unwrap(), ["openai", "anthropic", "ollama"]);
        assert_eq!(names(&["sdk", "live"]).unwrap(), ["live", "sdk"]);
        assert_eq!(names(&["all"]).unwrap().len(), SUITES.len());
        let error = names(&["sdk", "poem"]).unwrap_err();
        assert!(error.ends_with("got \"poem\"") && error.contains("openai, anthropic"), "{error}");
    }
}
