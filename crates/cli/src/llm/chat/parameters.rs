//! `/set`: parameters of the next answers.

use std::fmt::Write;

use anyhow::{Context, ensure};
use stonechat::llm::GenerateOptions;

/// A parameter: name, format of its value, and setter.
type Parameter =
    (&'static str, fn(&GenerateOptions) -> String, fn(&mut GenerateOptions, &str) -> Option<()>);

/// Parameters of `/set`, by llama.cpp's names.
const PARAMETERS: [Parameter; 7] = [
    ("temp", |o| o.sampling.temperature.to_string(), |o, v| set(&mut o.sampling.temperature, v)),
    ("top_k", |o| o.sampling.top_k.to_string(), |o, v| set(&mut o.sampling.top_k, v)),
    ("top_p", |o| o.sampling.top_p.to_string(), |o, v| set(&mut o.sampling.top_p, v)),
    ("min_p", |o| o.sampling.min_p.to_string(), |o, v| set(&mut o.sampling.min_p, v)),
    (
        "repeat_penalty",
        |o| o.sampling.repeat_penalty.to_string(),
        |o, v| set(&mut o.sampling.repeat_penalty, v),
    ),
    (
        "seed",
        |o| o.sampling.seed.map_or_else(|| "random".to_owned(), |seed| seed.to_string()),
        |o, v| set_option(&mut o.sampling.seed, v, "random"),
    ),
    (
        "n_predict",
        |o| o.n_predict.map_or_else(|| "none".to_owned(), |n| n.to_string()),
        |o, v| set_option(&mut o.n_predict, v, "none"),
    ),
];

fn set<T: std::str::FromStr>(target: &mut T, value: &str) -> Option<()> {
    *target = value.parse().ok()?;
    Some(())
}

/// Sets a number, or none for -1 and `none`.
fn set_option<T: std::str::FromStr>(target: &mut Option<T>, value: &str, none: &str) -> Option<()> {
    *target = if value == "-1" || value == none { None } else { Some(value.parse().ok()?) };
    Some(())
}

/// Parameter of a name, in llama.cpp's form or Ollama's.
fn find(name: &str) -> Option<Parameter> {
    let name = match name {
        "temperature" => "temp",
        "num_predict" => "n_predict",
        name => name,
    };
    PARAMETERS.into_iter().find(|(known, ..)| *known == name)
}

/// Lists the parameters and their values.
pub(super) fn list(options: &GenerateOptions) -> String {
    let mut text = String::new();
    for (name, value, _) in PARAMETERS {
        // A String takes every write.
        let _ = writeln!(text, "{name:16}{}", value(options));
    }
    text.trim_end().to_owned()
}

/// Sets a parameter from `NAME VALUE`, or `parameter NAME VALUE` as Ollama has it; a wrong one changes nothing.
pub(super) fn apply(options: &mut GenerateOptions, assignment: &str) -> anyhow::Result<()> {
    let rest = assignment.strip_prefix("parameter").filter(|rest| rest.starts_with(' '));
    let assignment = rest.map_or(assignment, str::trim);
    let names = || PARAMETERS.map(|(name, ..)| name).join(", ");
    let (name, value) = assignment
        .split_once([' ', '='])
        .with_context(|| format!("/set: expected a name and a value; names: {}", names()))?;
    let (name, value) = (name.trim().replace('-', "_"), value.trim());
    ensure!(name != "num_ctx", "/set num_ctx: the context has its size from the start: --ctx-size");
    let (.., set) =
        find(&name).with_context(|| format!("/set: expected one of {}, got `{name}`", names()))?;
    let mut changed = options.clone();
    ensure!(set(&mut changed, value).is_some(), "/set {name}: expected a number, got `{value}`");
    let temperature = changed.sampling.temperature;
    ensure!(temperature >= 0.0, "/set {name}: expected 0 or more, got {temperature}");
    changed.sampling.validate().with_context(|| format!("/set {name}"))?;
    *options = changed;
    Ok(())
}

#[cfg(test)]
mod tests {
    use stonechat::llm::GenerateOptions;

    use super::{apply, list};

    #[test]
    fn parameters_are_set_by_name() {
        let mut options = GenerateOptions::default();
        for assignment in ["temp 0.25", "top-k=7", "seed 42", "n_predict 9"] {
            apply(&mut options, assignment).unwrap();
        }
        assert_eq!((options.sampling.temperature, options.sampling.top_k), (0.25, 7));
        assert_eq!((options.sampling.seed, options.n_predict), (Some(42), Some(9)));
        assert!(list(&options).contains("seed            42"), "{}", list(&options));
        apply(&mut options, "seed -1").unwrap();
        apply(&mut options, "n_predict none").unwrap();
        assert_eq!((options.sampling.seed, options.n_predict), (None, None));
        apply(&mut options, "parameter temperature 0.5").unwrap();
        apply(&mut options, "num_predict 3").unwrap();
        assert_eq!((options.sampling.temperature, options.n_predict), (0.5, Some(3)));
        let before = list(&options);
        for wrong in [
            "temp",
            "temp x",
            "tmp 1",
            "temp -5",
            "top_p 2",
            "min_p -1",
            "temp nan",
            "parameter",
            "repeat_penalty -1",
            "parameter temp -5",
            "num_ctx 8192",
        ] {
            let error = apply(&mut options, wrong).unwrap_err().to_string();
            assert!(error.starts_with("/set"), "{wrong}: {error}");
            assert_eq!(list(&options), before, "{wrong}");
        }
    }
}
