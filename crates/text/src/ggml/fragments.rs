//! Cutting text at the tokens that are matched as a whole.
//!
//! Source: `tokenizer_st_partition` of llama.cpp `src/llama-vocab.cpp`: one token after the other,
//! longest text first, each over the fragments of text that remain.

use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, MatchKind};

use super::attributes::Attributes;
use super::tokens::Tokens;

/// Fragment of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    Token(u32),
    Text(&'t str),
}

/// The tokens to cut at, longest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Partition {
    ids: Vec<u32>,
    /// Finds which of them occur at all; built when first needed.
    finder: OnceLock<Option<AhoCorasick>>,
}

impl Partition {
    pub(super) fn new(tokens: &Tokens) -> Self {
        let matched = |id: &u32| tokens.attributes(*id).any(Attributes::MATCHED);
        let mut ids: Vec<u32> = tokens.ids().filter(matched).collect();
        ids.sort_by_key(|&id| std::cmp::Reverse(tokens.text(id).len()));
        Self { ids, finder: OnceLock::new() }
    }

    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The fragments of `text`, none of them empty.
    pub(super) fn cut<'t>(
        &self,
        tokens: &Tokens,
        text: &'t str,
        with_special: bool,
    ) -> Vec<Fragment<'t>> {
        let mut fragments = Vec::new();
        if !text.is_empty() {
            fragments.push(Fragment::Text(text));
        }
        for rank in self.present(tokens, text) {
            let id = self.ids[rank];
            if !with_special && tokens.attributes(id).any(Attributes::SPECIAL) {
                continue;
            }
            let mut cut = Vec::with_capacity(fragments.len() + 2);
            for fragment in fragments {
                match fragment {
                    Fragment::Text(part) => cut_at(tokens, id, part, &mut cut),
                    Fragment::Token(_) => cut.push(fragment),
                }
            }
            fragments = cut;
        }
        fragments
    }

    /// Indices into `ids`, ascending, of the tokens whose text occurs in `text`.
    fn present(&self, tokens: &Tokens, text: &str) -> Vec<usize> {
        let finder = self.finder.get_or_init(|| {
            let texts = self.ids.iter().map(|&id| tokens.text(id));
            // Building fails only past 2^31 pattern bytes; then every token is looked for.
            AhoCorasick::builder().match_kind(MatchKind::Standard).build(texts).ok()
        });
        let Some(finder) = finder else { return (0..self.ids.len()).collect() };
        let mut seen = vec![false; self.ids.len()];
        for found in finder.find_overlapping_iter(text) {
            seen[found.pattern().as_usize()] = true;
        }
        (0..seen.len()).filter(|&rank| seen[rank]).collect()
    }
}

/// Cuts one text at every occurrence of one token.
fn cut_at<'t>(tokens: &Tokens, id: u32, mut rest: &'t str, out: &mut Vec<Fragment<'t>>) {
    // The white space of C's `isspace`.
    let is_space = |c: char| matches!(c, '\t'..='\r' | ' ');
    let (token, attributes) = (tokens.text(id), tokens.attributes(id));
    while let Some(at) = rest.find(token) {
        let mut left = &rest[..at];
        if attributes.any(Attributes::LSTRIP) {
            left = left.trim_end_matches(is_space);
        }
        if !left.is_empty() {
            out.push(Fragment::Text(left));
        }
        out.push(Fragment::Token(id));
        rest = &rest[at + token.len()..];
        if attributes.any(Attributes::RSTRIP) {
            rest = rest.trim_start_matches(is_space);
        }
    }
    if !rest.is_empty() {
        out.push(Fragment::Text(rest));
    }
}
