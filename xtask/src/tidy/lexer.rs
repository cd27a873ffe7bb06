//! Code apart from comments, with or without literals.

use proc_macro2::{TokenStream, TokenTree};

/// `source` with everything but identifiers and punctuation replaced by spaces; newlines stay, so that line
/// numbers hold. Nothing of a file that is no Rust.
pub(super) fn code_only(source: &str) -> String {
    blanked(source, false)
}

/// As [`code_only`], with literals.
pub(super) fn without_comments(source: &str) -> String {
    blanked(source, true)
}

fn blanked(source: &str, has_literals: bool) -> String {
    let Ok(tokens) = source.parse::<TokenStream>() else { return String::new() };
    let mut code: Vec<u8> = source.bytes().map(|b| if b == b'\n' { b } else { b' ' }).collect();
    keep(tokens, source, has_literals, &mut code);
    String::from_utf8(code).unwrap_or_default()
}

/// Copies the code of `tokens` from `source`.
fn keep(tokens: TokenStream, source: &str, has_literals: bool, code: &mut [u8]) {
    let mut tokens = tokens.into_iter();
    while let Some(token) = tokens.next() {
        let spans = match &token {
            // A doc comment is an attribute whose first token spans the comment.
            TokenTree::Punct(punct) if source[punct.span().byte_range()] != *token.to_string() => {
                tokens.by_ref().find(|token| matches!(token, TokenTree::Group(_)));
                continue;
            }
            TokenTree::Group(group) => vec![group.span_open(), group.span_close()],
            TokenTree::Literal(_) if !has_literals => continue,
            _ => vec![token.span()],
        };
        for range in spans.into_iter().map(|span| span.byte_range()) {
            code[range.clone()].copy_from_slice(source[range].as_bytes());
        }
        if let TokenTree::Group(group) = token {
            keep(group.stream(), source, has_literals, code);
        }
    }
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
        check(
            "/// gone\n//! gone too\nfn kept() {}",
            &["fn kept"],
            &["gone", "/", "!", "#", "doc"],
        );
        check("/* gone /* too */ gone */ kept", &["kept"], &["gone", "too"]);
        check(r#"f("gone \" gone", kept)"#, &["kept"], &["gone"]);
        check("f(r#\"gone \" gone\"#, kept)", &["kept"], &["gone"]);
        check("let br = for_r\n;", &["br", "for_r"], &[]);
        check("fn f<'a>(x: &'a str) -> char { '\\'' } kept", &["'a>", "kept"], &[]);
        check("let c = '\"'; kept; let d = '\"';", &["kept"], &[]);
        check("let u = '\u{e9}'; kept", &["kept"], &["\u{e9}"]);
    }

    #[test]
    fn literals_are_kept_where_only_comments_go() {
        let code = without_comments("/// gone\nf(\"kept\", 1); // gone\n");
        assert_eq!(code, "        \nf(\"kept\", 1);        \n");
    }
}
