//! Enough of Rust's lexical rules to tell code from comments and literals.

/// `source` with comments and the contents of string and character literals replaced by spaces;
/// newlines stay, so that line numbers hold.
pub(super) fn code_only(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut after_word = false;
    while let Some(first) = rest.chars().next() {
        let skipped = if after_word { 0 } else { raw_string(rest) };
        let skipped = if skipped == 0 { literal_or_comment(rest) } else { skipped };
        if skipped > 0 {
            let (blanked, tail) = rest.split_at(skipped);
            out.extend(blanked.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = tail;
            after_word = false;
        } else {
            out.push(first);
            after_word = first.is_alphanumeric() || first == '_';
            rest = &rest[first.len_utf8()..];
        }
    }
    out
}

/// Bytes of the comment, string or character literal that `rest` starts with; 0 if none.
fn literal_or_comment(rest: &str) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    if let Some(inside) = rest.strip_prefix('\'') {
        // A lifetime has no closing quote after one character or escape.
        let mut chars = inside.chars();
        let literal = match chars.next() {
            Some('\\') => true,
            Some(_) => chars.next() == Some('\''),
            None => false,
        };
        return if literal { quoted(rest, '\'') } else { 0 };
    }
    0
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return i + 1,
            _ => {}
        }
    }
    rest.len()
}

fn block_comment(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut depth, mut i) = (0_usize, 0);
    while i + 1 < bytes.len() {
        match &bytes[i..i + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
        if depth == 0 {
            return i;
        }
    }
    rest.len()
}

/// Bytes of the raw string (`r"…"`, `br#"…"#`, `cr"…"`) that `rest` starts with; 0 if none.
fn raw_string(rest: &str) -> usize {
    let Some(start) = ["r", "br", "cr"].iter().find_map(|prefix| rest.strip_prefix(prefix)) else {
        return 0;
    };
    let hashes = start.len() - start.trim_start_matches('#').len();
    let Some(inside) = start[hashes..].strip_prefix('"') else { return 0 };
    let end = format!("\"{}", "#".repeat(hashes));
    let from = rest.len() - inside.len();
    inside.find(&end).map_or(rest.len(), |at| from + at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, kept: &[&str], gone: &[&str]) {
        let code = code_only(source);
        assert_eq!(code.lines().count(), source.lines().count());
        for word in kept {
            assert!(code.contains(word), "{word} is code in {source}: {code}");
        }
        for word in gone {
            assert!(!code.contains(word), "{word} is no code in {source}: {code}");
        }
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        check("let a = 1; // gone\nb();", &["let a", "b()"], &["gone"]);
        check("/* gone /* too */ gone */ kept", &["kept"], &["gone", "too"]);
        check(r#"f("gone \" gone", kept)"#, &["kept"], &["gone"]);
        check("f(r#\"gone \" gone\"#, kept)", &["kept"], &["gone"]);
        check("let br = for_r\n;", &["br", "for_r"], &[]);
        check("fn f<'a>(x: &'a str) -> char { '\\'' } kept", &["'a>", "kept"], &[]);
        check("let c = '\"'; kept; let d = '\"';", &["kept"], &[]);
        check("let u = '\u{e9}'; kept", &["kept"], &["\u{e9}"]);
    }
}
