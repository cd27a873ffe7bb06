//! Constrained decoding by token masks: GBNF, JSON schema, regular expressions and Lark.
//!
//! The parser is `llguidance` (Earley over a derivative-based lexer); `gbnf` translates GBNF to its Lark dialect.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::grammar_source::{GrammarSource, TokenText};
use crate::sampler::{SampleScratch, Sampler};
use crate::{Error, gbnf};

mod schema;

/// Longest token that a grammar can match.
const MAX_TOKEN_BYTES: usize = 512;
/// Maximum bytes of the source of a grammar.
const MAX_SOURCE_BYTES: usize = 4 << 20;
/// Maximum Earley items per token mask. More would stall the other sequences of a batch, so they end the text with an error.
/// Grammars for JSON, programs and prose need less than 50,000, also with a vocabulary of 262,144 tokens.
const MAX_ITEMS: usize = 200_000;

/// Vocabulary indexed for grammars (a token trie). Built once per model; clones share it.
#[derive(Clone)]
pub struct TokenTable {
    factory: Arc<ParserFactory>,
    special: Arc<[(String, u32)]>,
}

/// Grammar compiled for a vocabulary. Clones share it.
#[derive(Clone)]
pub struct CompiledGrammar {
    /// State of the empty text.
    start: Matcher,
    vocab_size: usize,
}

/// Parser state of one text under a grammar.
///
/// Clones share the compiled grammar and have their own state, as beams need.
#[derive(Clone)]
pub struct Grammar {
    state: Matcher,
    vocab_size: usize,
}

/// Prepares a JSON schema for `%json` in Lark, with the rules of [`GrammarSource::JsonSchema`].
///
/// # Errors
/// [`Error::Grammar`] if a pattern is invalid.
pub fn embedded_schema(schema: serde_json::Value) -> Result<serde_json::Value, Error> {
    schema::prepared(schema).map_err(|message| Error::Grammar { kind: "JSON schema", message })
}

impl TokenTable {
    /// Indexes a vocabulary: `tokens[i]` is the text of token `i`; any of `eos` ends a text.
    ///
    /// # Errors
    /// [`Error::Grammar`] if `eos` is empty or contains an id out of range.
    pub fn new(tokens: &[TokenText<'_>], eos: &[u32]) -> Result<Self, Error> {
        let missing = eos.iter().find(|&&token| token as usize >= tokens.len());
        if missing.is_some() || eos.is_empty() {
            let message = format!("expected end tokens below {}, got {eos:?}", tokens.len());
            return Err(Error::Grammar { kind: "vocabulary", message });
        }
        let mut special = Vec::new();
        let mut words = Vec::with_capacity(tokens.len());
        for (token, id) in tokens.iter().zip(0..) {
            let mut word = match *token {
                // A leading 0xff marks special tokens in the trie; it is not valid in UTF-8.
                TokenText::Bytes(bytes) if bytes.first() != Some(&0xff) => bytes.to_vec(),
                TokenText::Bytes(_) | TokenText::Unused => Vec::new(),
                TokenText::Special(name) => {
                    special.push((name.to_owned(), id));
                    [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
                }
            };
            if word.len() > MAX_TOKEN_BYTES {
                word.clear();
            }
            words.push(word);
        }
        let info = TokRxInfo::new(words.len() as u32, eos[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(eos);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| refused("vocabulary", &error))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.step_max_items = MAX_ITEMS;
        limits.step_lexer_fuel = 2_000_000;
        limits.verbose_errors = false;
        Ok(Self { factory: Arc::new(factory), special: special.into() })
    }

    fn token_id(&self, name: &str) -> Option<u32> {
        self.special.iter().find(|(special, _)| special == name).map(|&(_, id)| id)
    }
}

impl std::fmt::Debug for TokenTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("TokenTable").field("tokens", &tokens).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledGrammar").finish_non_exhaustive()
    }
}

impl CompiledGrammar {
    /// Compiles a grammar for a vocabulary.
    ///
    /// # Errors
    /// [`Error::Grammar`] with the cause and its place in the source.
    pub fn new(source: &GrammarSource, tokens: &TokenTable) -> Result<Self, Error> {
        let kind = source.kind();
        let message = |message: String| Error::Grammar { kind, message };
        if source.text().len() > MAX_SOURCE_BYTES {
            return Err(message(format!("longer than {MAX_SOURCE_BYTES} bytes")));
        }
        let grammar = match source {
            GrammarSource::Gbnf(text) => {
                let lark = gbnf::to_lark(text, |name| tokens.token_id(name)).map_err(message)?;
                TopLevelGrammar::from_lark(lark)
            }
            GrammarSource::JsonSchema(text) => {
                let schema = serde_json::from_str(text).map_err(|error| refused(kind, &error))?;
                TopLevelGrammar::from_json_schema(schema::prepared(schema).map_err(message)?)
            }
            GrammarSource::Regex(text) => {
                schema::check_regex(text).map_err(message)?;
                TopLevelGrammar::from_regex(text)
            }
            GrammarSource::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        // The compiler may panic on invalid grammars.
        let parser = catch_unwind(AssertUnwindSafe(|| tokens.factory.create_parser(grammar)));
        let parser = match parser {
            Ok(parser) => parser.map_err(|error| refused(kind, &error))?,
            Err(_) => return Err(message("the grammar compiler failed on it".to_owned())),
        };
        let start = Matcher::new(Ok(parser));
        if let Some(error) = start.get_error() {
            return Err(message(error));
        }
        let vocab_size = tokens.factory.tok_env().tok_trie().vocab_size();
        Ok(Self { start, vocab_size })
    }

    /// State of the empty text.
    #[must_use]
    pub fn start(&self) -> Grammar {
        Grammar { state: self.start.clone(), vocab_size: self.vocab_size }
    }
}

impl Grammar {
    /// Sets the logits of disallowed tokens to −∞, including those beyond the vocabulary. End tokens are allowed if the
    /// text may end, and they alone if it must.
    ///
    /// # Errors
    /// [`Error::Grammar`] if the parser exceeds its limits; the state is lost then.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        let allowed = self.state.compute_mask_or_eos().map_err(|e| refused("mask", &e))?;
        let known = logits.len().min(self.vocab_size);
        for (token, logit) in logits[..known].iter_mut().enumerate() {
            if !allowed.is_allowed(token as u32) {
                *logit = f32::NEG_INFINITY;
            }
        }
        logits[known..].fill(f32::NEG_INFINITY);
        Ok(())
    }

    /// Whether `token` may come next; an end token may if the text may end. Cheaper than a mask.
    ///
    /// # Errors
    /// [`Error::Grammar`] if the parser exceeds its limits; the state is lost then.
    pub fn allows(&mut self, token: u32) -> Result<bool, Error> {
        if token as usize >= self.vocab_size {
            return Ok(false);
        }
        if self.is_finished() {
            return Ok(self.is_end(token));
        }
        let allowed = self.state.validate_tokens(&[token]);
        Ok(allowed.map_err(|error| refused("token", &error))? == 1)
    }

    /// Appends `token` to the text.
    ///
    /// # Errors
    /// [`Error::Grammar`] if the token is not allowed; the state is unchanged.
    pub fn accept(&mut self, token: u32) -> Result<(), Error> {
        if !self.allows(token)? {
            let message = format!("token {token} cannot come next");
            return Err(Error::Grammar { kind: "token", message });
        }
        if self.is_finished() {
            return Ok(());
        }
        self.state.consume_token(token).map_err(|error| refused("token", &error))
    }

    /// Appends bytes, which need not be whole tokens, if they may come next; returns whether they may.
    ///
    /// # Errors
    /// [`Error::Grammar`] if the parser exceeds its limits; the state is lost then.
    pub fn accept_bytes(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        if bytes.is_empty() || self.is_finished() {
            return Ok(bytes.is_empty());
        }
        let refused = |error: &dyn std::fmt::Display| refused("text", error);
        let env = self.state.tok_env().map_err(|error| refused(&error))?;
        let tokens = env.tokenize_bytes(bytes);
        let trie = env.tok_trie();
        // Bytes that no token has are left out, and the marker of special tokens is no text.
        let len: usize = tokens.iter().map(|&token| trie.token_len(token)).sum();
        if len != bytes.len() || bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
            return Ok(false);
        }
        let allowed = self.state.validate_tokens(&tokens).map_err(|error| refused(&error))?;
        if allowed < tokens.len() {
            return Ok(false);
        }
        self.state.consume_tokens(&tokens).map_err(|error| refused(&error))?;
        Ok(true)
    }

    /// Draws an allowed token: first without the mask, and again with it if that token is not allowed, which is rare.
    /// `logits` may be masked afterwards.
    ///
    /// # Errors
    /// As [`Grammar::mask`].
    pub fn sample(
        &mut self,
        sampler: &mut Sampler,
        logits: &mut [f32],
        scratch: &mut SampleScratch,
    ) -> Result<u32, Error> {
        let token = sampler.sample(logits, scratch);
        if self.allows(token)? {
            return Ok(token);
        }
        self.mask(logits)?;
        Ok(sampler.sample(logits, scratch))
    }

    /// Whether the text is complete: only an end token is allowed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state.is_stopped()
    }

    fn is_end(&self, token: u32) -> bool {
        let env = self.state.tok_env();
        env.is_ok_and(|env| env.tok_trie().eos_tokens().contains(&token))
    }
}

fn refused(kind: &'static str, error: &dyn std::fmt::Display) -> Error {
    Error::Grammar { kind, message: error.to_string().trim_end().to_owned() }
}

#[cfg(test)]
mod tests;
