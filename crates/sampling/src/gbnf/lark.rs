//! Translation of rules to Lark.
//!
//! `llguidance` runs a longest-match lexer before its parser. GBNF has no lexer. So a terminal is a single character,
//! except for repetitions without conflicts in the analysis: these become one regular expression, which makes strings and
//! numbers fast.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::analysis::Analysis;
use super::{Expr, Result, Rules};

/// Longest regular expression, in bytes; a longer repetition is left to the parser.
const MAX_REGEX: usize = 4096;

pub(super) fn translate(
    rules: &Rules,
    analysis: &Analysis,
    token_id: &dyn Fn(&str) -> Option<u32>,
) -> Result<String> {
    let mut writer = Writer {
        rules,
        analysis,
        token_id,
        terminals: HashMap::new(),
        n_groups: 0,
        lark: format!("start: r{}\n", rules.root),
    };
    for (i, body) in rules.bodies.iter().enumerate() {
        let body = writer.expr(body, !analysis.by_character[i])?;
        let _ = writeln!(writer.lark, "r{i}: {body}");
    }
    for (regex, i) in &writer.terminals {
        let _ = writeln!(writer.lark, "T{i}: /{regex}/");
    }
    Ok(writer.lark)
}

struct Writer<'a> {
    rules: &'a Rules,
    analysis: &'a Analysis,
    token_id: &'a dyn Fn(&str) -> Option<u32>,
    /// Regular expression to index of its terminal.
    terminals: HashMap<String, usize>,
    n_groups: usize,
    lark: String,
}

impl Writer<'_> {
    /// Translates an expression to Lark; with `merge`, repetitions become regular expressions.
    fn expr(&mut self, expr: &Expr, merge: bool) -> Result<String> {
        Ok(match expr {
            Expr::Chars(set) if set.is_empty() => {
                return Err("an empty class matches nothing".into());
            }
            Expr::Chars(set) => self.terminal(set.to_regex()),
            Expr::Token { text, negated } => self.token(text, *negated)?,
            Expr::Rule(rule) => format!("r{rule}"),
            Expr::Sequence(items) if items.is_empty() => "\"\"".to_owned(),
            Expr::Sequence(items) => {
                let items: Result<Vec<_>> =
                    items.iter().map(|item| self.atom(item, merge)).collect();
                items?.join(" ")
            }
            Expr::Choice(choices) => {
                let choices: Result<Vec<_>> =
                    choices.iter().map(|choice| self.expr(choice, merge)).collect();
                choices?.join(" | ")
            }
            Expr::Repeat { max: Some(0), .. } => "\"\"".to_owned(),
            Expr::Repeat { inner, min, max } => {
                if merge
                    && *max != Some(1)
                    && let Some(regex) = self.regex(inner, MAX_REGEX)
                {
                    let max = max.map_or(String::new(), |max| max.to_string());
                    let least = (*min).max(1);
                    let terminal = self.terminal(format!("(?:{regex}){{{least},{max}}}"));
                    return Ok(if *min == 0 { format!("{terminal}?") } else { terminal });
                }
                let inner = self.atom(inner, merge)?;
                match (min, max) {
                    (0, Some(1)) => format!("{inner}?"),
                    (0, None) => format!("{inner}*"),
                    (1, None) => format!("{inner}+"),
                    (min, None) => format!("{inner}{{{min},}}"),
                    (min, Some(max)) => format!("{inner}{{{min},{max}}}"),
                }
            }
        })
    }

    /// Translates an expression to an operand of a postfix operator: groups become rules.
    fn atom(&mut self, expr: &Expr, merge: bool) -> Result<String> {
        let text = self.expr(expr, merge)?;
        if matches!(expr, Expr::Chars(_) | Expr::Token { .. } | Expr::Rule(_)) {
            return Ok(text);
        }
        let group = self.n_groups;
        self.n_groups += 1;
        let _ = writeln!(self.lark, "g{group}: {text}");
        Ok(format!("g{group}"))
    }

    fn terminal(&mut self, regex: String) -> String {
        let next = self.terminals.len();
        format!("T{}", self.terminals.entry(regex).or_insert(next))
    }

    fn token(&self, text: &str, negated: bool) -> Result<String> {
        let inner = &text[1..text.len() - 1];
        let by_number = inner.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
        let id = match by_number {
            Some(number) => number.parse().ok(),
            None => (self.token_id)(text),
        };
        let id = id.ok_or_else(|| format!("the vocabulary has no special token `{text}`"))?;
        Ok(if negated { format!("<[^{id}]>") } else { format!("<[{id}]>") })
    }

    /// Translates an expression to a regular expression of at most `limit` bytes, if possible.
    fn regex(&self, expr: &Expr, limit: usize) -> Option<String> {
        let join = |items: &[Expr], separator: &str| {
            let mut regex = String::from("(?:");
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    regex.push_str(separator);
                }
                regex.push_str(&self.regex(item, limit.checked_sub(regex.len())?)?);
            }
            regex.push(')');
            Some(regex)
        };
        let regex = match expr {
            Expr::Token { .. } => return None,
            Expr::Chars(set) if set.is_empty() => return None,
            Expr::Chars(set) => set.to_regex(),
            Expr::Rule(rule) => {
                if self.analysis.recursive[*rule] || self.analysis.by_character[*rule] {
                    return None;
                }
                self.regex(&self.rules.bodies[*rule], limit)?
            }
            Expr::Sequence(items) => join(items, "")?,
            Expr::Choice(choices) => join(choices, "|")?,
            Expr::Repeat { inner, min, max } => {
                let max = max.map_or(String::new(), |max| max.to_string());
                format!("(?:{}){{{min},{max}}}", self.regex(inner, limit)?)
            }
        };
        (regex.len() <= limit).then_some(regex)
    }
}
