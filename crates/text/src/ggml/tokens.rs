//! The tokens of the file: texts and flags.

use super::GgmlVocabulary;
use super::attributes::Attributes;
use super::index::Index;
use super::slices::Slices;

/// Tokens by id, and ids by text; the last id for equal texts.
#[derive(Debug, Clone)]
pub(super) struct Tokens {
    texts: Slices,
    index: Index,
    attributes: Vec<Attributes>,
}

impl Tokens {
    /// The tokens of a checked vocabulary.
    pub(super) fn new(vocabulary: &GgmlVocabulary<'_>) -> Self {
        let n_tokens = vocabulary.tokens.len();
        let n_bytes = vocabulary.tokens.iter().map(String::len).sum();
        let mut texts = Slices::with_capacity(n_tokens, n_bytes);
        let mut index = Index::with_capacity(n_tokens);
        for (id, text) in (0..).zip(vocabulary.tokens.iter()) {
            if text.is_empty() {
                texts.push(format!("[EMPTY_{id}]").as_bytes());
            } else {
                texts.push(text.as_bytes());
            }
            index.insert(&texts, id);
        }
        let attributes = |id| match vocabulary.token_types.get(id) {
            Some(&token_type) => Attributes::from_type(token_type),
            None => Attributes::NORMAL,
        };
        Self { texts, index, attributes: (0..n_tokens).map(attributes).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// All ids.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.len() as u32
    }

    /// The texts by id.
    pub(super) fn texts(&self) -> &Slices {
        &self.texts
    }

    /// The token's text; empty for ids without a token.
    pub(super) fn text(&self, id: u32) -> &str {
        std::str::from_utf8(self.texts.get(id)).expect("tokens are made from strings")
    }

    /// The token with this text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.index.find(&self.texts, text.as_bytes())
    }

    /// Length in bytes of the longest text.
    pub(super) fn longest(&self) -> usize {
        self.ids().map(|id| self.texts.get(id).len()).max().unwrap_or(0)
    }

    /// Flags of the token; none for ids without one.
    pub(super) fn attributes(&self, id: u32) -> Attributes {
        self.attributes.get(id as usize).copied().unwrap_or_default()
    }

    /// The attributes of an id that has a token.
    pub(super) fn attributes_mut(&mut self, id: u32) -> &mut Attributes {
        &mut self.attributes[id as usize]
    }
}
