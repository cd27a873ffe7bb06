//! GBNF, llama.cpp's grammar format: parsing and translation to Lark for `llguidance`.
//!
//! The language is that of llama.cpp's `grammars/README.md`: rules of characters, classes, references, groups and
//! repetitions; the start rule is `root`. Left recursion, nested repetitions with a product above 2000 and undefined
//! rules are errors, as there.
//!
//! | file | holds |
//! |---|---|
//! | `gbnf/parse.rs` | text to [`Rules`] |
//! | `gbnf/analysis.rs` | first and follow sets, left recursion |
//! | `gbnf/lark.rs` | [`Rules`] to Lark |
//! | `gbnf/char_set.rs` | sets of code points |

mod analysis;
mod char_set;
mod lark;
mod parse;

use char_set::CharSet;

/// Result with an error message.
type Result<T> = std::result::Result<T, String>;

/// A parsed grammar.
#[derive(Debug)]
struct Rules {
    names: Vec<String>,
    bodies: Vec<Expr>,
    root: usize,
}

/// The right side of a rule.
#[derive(Debug, Clone, PartialEq)]
enum Expr {
    /// One character of the set.
    Chars(CharSet),
    /// A token by its id or name, `<[12]>` or `<think>`, or any but that one.
    Token { text: String, negated: bool },
    /// Reference to a rule by index.
    Rule(usize),
    /// Concatenation.
    Sequence(Vec<Expr>),
    /// Alternatives.
    Choice(Vec<Expr>),
    /// Repetition, `min` to `max` times.
    Repeat { inner: Box<Expr>, min: u32, max: Option<u32> },
}

/// Translates a grammar to Lark. `token_id` maps the name of a special token to its id.
pub(super) fn to_lark(gbnf: &str, token_id: impl Fn(&str) -> Option<u32>) -> Result<String> {
    let rules = parse::parse(gbnf)?;
    let analysis = analysis::Analysis::new(&rules)?;
    lark::translate(&rules, &analysis, &token_id)
}

#[cfg(test)]
mod tests;
