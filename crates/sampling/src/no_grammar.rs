//! API of `grammar.rs` in a build without grammars: compiling a grammar is an error.

use std::sync::Arc;

use crate::Error;
use crate::grammar_source::{GrammarSource, TokenText};
use crate::grammar_start::GrammarStart;
use crate::sampler::{SampleScratch, Sampler};

/// Vocabulary for grammars; unused in this build.
#[derive(Debug, Clone)]
pub struct TokenTable;

/// Grammar compiled for a vocabulary. Has no value in this build (feature `grammar`).
#[derive(Debug, Clone)]
pub enum CompiledGrammar {}

/// The state of one text under a grammar that may start later. Has no value in this build (feature `grammar`).
#[derive(Debug, Clone)]
pub enum LazyGrammar {}

/// The state of one text under a grammar. Has no value in this build (feature `grammar`).
#[derive(Debug, Clone)]
pub enum Grammar {}

/// Returns the schema.
///
/// # Errors
/// None in this build.
pub fn embedded_schema(schema: serde_json::Value) -> Result<serde_json::Value, Error> {
    Ok(schema)
}

impl TokenTable {
    /// Does nothing.
    ///
    /// # Errors
    /// None in this build.
    pub fn new(_tokens: &[TokenText<'_>], _eos: &[u32]) -> Result<Self, Error> {
        Ok(Self)
    }
}

impl CompiledGrammar {
    /// Fails.
    ///
    /// # Errors
    /// [`Error::Grammar`] that names the feature `grammar`.
    pub fn new(source: &GrammarSource, _tokens: &TokenTable) -> Result<Self, Error> {
        let message = "this build has no grammars (feature `grammar`)".to_owned();
        Err(Error::Grammar { kind: source.kind(), message })
    }

    /// State of the empty text.
    #[must_use]
    pub fn start(&self) -> Grammar {
        match *self {}
    }
}

impl Grammar {
    /// Sets the logits of tokens that cannot come next to −∞.
    ///
    /// # Errors
    /// None in this build.
    pub fn mask(&mut self, _logits: &mut [f32]) -> Result<(), Error> {
        match *self {}
    }

    /// Whether `token` may come next.
    ///
    /// # Errors
    /// None in this build.
    pub fn allows(&mut self, _token: u32) -> Result<bool, Error> {
        match *self {}
    }

    /// Goes on with `token`.
    ///
    /// # Errors
    /// None in this build.
    pub fn accept(&mut self, _token: u32) -> Result<(), Error> {
        match *self {}
    }

    /// Goes on with bytes.
    ///
    /// # Errors
    /// None in this build.
    pub fn accept_bytes(&mut self, _bytes: &[u8]) -> Result<bool, Error> {
        match *self {}
    }

    /// Draws a token that the grammar allows.
    ///
    /// # Errors
    /// None in this build.
    pub fn sample(
        &mut self,
        _sampler: &mut Sampler,
        _logits: &mut [f32],
        _scratch: &mut SampleScratch,
    ) -> Result<u32, Error> {
        match *self {}
    }

    /// Whether the text is complete and nothing but an end token can come.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match *self {}
    }
}

impl LazyGrammar {
    /// State of the empty text.
    ///
    /// # Errors
    /// None in this build.
    pub fn new(grammar: &Arc<CompiledGrammar>, _start: &GrammarStart) -> Result<Self, Error> {
        match **grammar {}
    }

    /// Whether the grammar has started.
    #[must_use]
    pub fn is_active(&self) -> bool {
        match *self {}
    }

    /// Whether the text is complete.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match *self {}
    }

    /// Whether the text may not end.
    #[must_use]
    pub fn forbids_end(&self) -> bool {
        match *self {}
    }

    /// Whether `token` may come next.
    ///
    /// # Errors
    /// None in this build.
    pub fn allows(&mut self, _token: u32) -> Result<bool, Error> {
        match *self {}
    }

    /// Draws a token.
    ///
    /// # Errors
    /// None in this build.
    pub fn sample(
        &mut self,
        _sampler: &mut Sampler,
        _logits: &mut [f32],
        _scratch: &mut SampleScratch,
    ) -> Result<u32, Error> {
        match *self {}
    }

    /// Goes on with `token`.
    ///
    /// # Errors
    /// None in this build.
    pub fn accept(&mut self, _token: u32, _bytes: &[u8]) -> Result<(), Error> {
        match *self {}
    }

    /// Goes on with the end of a token.
    ///
    /// # Errors
    /// None in this build.
    pub fn accept_rest(&mut self, _bytes: &[u8]) -> Result<(), Error> {
        match *self {}
    }

    /// Forgets the beginning of a trigger.
    pub fn interrupt(&mut self) {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_feature() {
        let tokens = TokenTable::new(&[], &[]).unwrap();
        let error =
            CompiledGrammar::new(&GrammarSource::Gbnf("root ::= \"a\"".to_owned()), &tokens)
                .unwrap_err();
        assert_eq!(error.to_string(), "GBNF: this build has no grammars (feature `grammar`)");
    }
}
