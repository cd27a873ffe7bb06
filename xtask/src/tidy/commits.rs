//! Subjects of commits that no remote's main has yet: `area: What`, at most [`MAX_CHARS`] characters.

use crate::shell;

const MAX_CHARS: usize = 72;

/// Findings of the commits of this branch; none without git or without a remote.
pub(super) fn check() -> Vec<String> {
    let git = |args: &[&str]| shell::output(shell::program("git").args(args)).unwrap_or_default();
    let mains = git(&["for-each-ref", "--format=%(refname)", "refs/remotes/*/main"]);
    let Some(main) = mains.lines().next() else { return Vec::new() };
    let range = format!("{main}..HEAD");
    let log = git(&["log", "--no-merges", "--format=%h %s", &range]);
    log.lines().filter_map(check_commit).collect()
}

/// The finding of a commit `HASH SUBJECT`.
fn check_commit(line: &str) -> Option<String> {
    let (hash, subject) = line.split_once(' ')?;
    let n_chars = subject.chars().count();
    if n_chars > MAX_CHARS {
        let what = format!("expected a subject of at most {MAX_CHARS} characters, got {n_chars}");
        return Some(format!("commit {hash}: {what}"));
    }
    let is_area = |area: &str| {
        let is_part =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_./, ".contains(c);
        !area.is_empty() && area.chars().all(is_part)
    };
    let is_what = |what: &str| what.chars().next().is_some_and(|c| !c.is_lowercase());
    let is_right =
        subject.split_once(": ").is_some_and(|(area, what)| is_area(area) && is_what(what));
    (!is_right).then(|| format!("commit {hash}: expected a subject `area: What`, got `{subject}`"))
}

#[cfg(test)]
mod tests {
    use super::check_commit;

    #[test]
    fn subjects_have_an_area_and_a_length() {
        let is_right = |subject: &str| check_commit(&format!("1a2b {subject}")).is_none();
        assert!(is_right("nn: Lower Moe in fuse"));
        assert!(is_right("stonechat, server: Say comments in the terms of the field"));
        assert!(is_right("xtask/tidy: `lines` counts kernels"));
        assert!(!is_right("Lower Moe in fuse"));
        assert!(!is_right("nn: lower Moe in fuse"));
        assert!(!is_right("NN: Lower Moe in fuse"));
        assert!(!is_right("nn:"));
        assert!(is_right(&format!("nn: {}", "X".repeat(68))));
        assert!(!is_right(&format!("nn: {}", "X".repeat(69))));
    }
}
