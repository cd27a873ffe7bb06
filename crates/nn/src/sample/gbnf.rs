//! GBNF, llama.cpp's grammar format: parsing and translation to Lark for `llguidance`.
//!
//! The language is that of llama.cpp's `grammars/README.md`: rules of characters, classes,
//! references, groups and repetitions; `root` is where a text starts. Left recursion, repetitions
//! that multiply to more than 2000 and rules that are used but not there are errors, as there.
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

/// What can go wrong, in words.
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
    /// A token by its id or name, `<[12]>` or `<think>`, or any other one.
    Token { text: String, negated: bool },
    /// The rule of this index.
    Rule(usize),
    /// All of them, one after the other.
    Sequence(Vec<Expr>),
    /// One of them.
    Choice(Vec<Expr>),
    /// At least `min` times, at most `max` times.
    Repeat { inner: Box<Expr>, min: u32, max: Option<u32> },
}

/// Translates a grammar to Lark. `token_id` finds the id of a special token's name.
pub(super) fn to_lark(gbnf: &str, token_id: impl Fn(&str) -> Option<u32>) -> Result<String> {
    let rules = parse::parse(gbnf)?;
    let analysis = analysis::Analysis::new(&rules)?;
    lark::translate(&rules, &analysis, &token_id)
}

#[cfg(test)]
mod tests;
