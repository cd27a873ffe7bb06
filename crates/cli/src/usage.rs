//! Messages of usage errors: the usage of the right verb, the spelling of the user, and tips that help.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use stonechat::text::prefix_distances;

use super::aliases::Refusal;

/// Maximum edits between a name and its suggestion.
const MAX_DISTANCE: usize = 2;

/// Usage error of a refused command line, with the usage of its verb.
pub(super) fn of_refusal(mut command: Command, refusal: &Refusal) -> clap::Error {
    command.build();
    let (kind, message) = (ErrorKind::UnknownArgument, refusal.message.as_str());
    match command.find_subcommand_mut(refusal.verb.as_deref().unwrap_or_default()) {
        Some(verb) => verb.error(kind, message),
        None => command.error(kind, message),
    }
}

/// Spells a flag as its user does, of pairs of clap's and his form, and removes tips that are not near.
pub(super) fn refine(mut error: clap::Error, spelled: &[(String, String)]) -> clap::Error {
    let is_flag = match error.kind() {
        ErrorKind::UnknownArgument => true,
        ErrorKind::InvalidSubcommand => false,
        _ => return error,
    };
    let given = if is_flag { ContextKind::InvalidArg } else { ContextKind::InvalidSubcommand };
    let Some(ContextValue::String(given_name)) = error.get(given).cloned() else { return error };
    // "to pass '--flag' as a value, use '-- --flag'"
    error.remove(ContextKind::Suggested);
    for kind in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand] {
        let near: Vec<String> = match error.remove(kind) {
            Some(ContextValue::String(name)) => vec![name],
            Some(ContextValue::Strings(names)) => names,
            _ => continue,
        };
        let mut near =
            near.into_iter().filter(|name| is_near(&given_name, name)).collect::<Vec<_>>();
        let value = match near.len() {
            0 => continue,
            1 => ContextValue::String(near.remove(0)),
            _ => ContextValue::Strings(near),
        };
        error.insert(kind, value);
    }
    if let Some((_, own)) = spelled.iter().find(|(flag, _)| *flag == given_name) {
        error.insert(given, ContextValue::String(own.clone()));
    }
    error
}

/// Tells if `name` may be what was meant by `given`: a few edits away, or begun by it.
fn is_near(given: &str, name: &str) -> bool {
    let [given, name] = [given, name].map(|text| text.trim_start_matches('-'));
    let is_begun = given.len() > 2 && name.starts_with(given);
    let distances = prefix_distances(given.as_bytes(), name.as_bytes());
    let max = MAX_DISTANCE.min(given.len() / 2);
    is_begun || distances.last().is_some_and(|&distance| distance <= max)
}

#[cfg(test)]
mod tests {
    use super::is_near;

    #[test]
    fn tips_are_near() {
        for (given, name) in [
            ("--beam-sise", "--beam-size"),
            ("--vad-thres", "--vad-threshold"),
            ("transcibe", "transcribe"),
        ] {
            assert!(is_near(given, name), "{given} {name}");
        }
        for (given, name) in
            [("--numa", "--n-predict"), ("--keepalive", "--kernel-times"), ("cp", "completions")]
        {
            assert!(!is_near(given, name), "{given} {name}");
        }
    }
}
