//! Grammars as token masks: GBNF, JSON schema, regular expressions and Lark.
//!
//! The parser is `llguidance` (Earley over a derivative-based lexer); GBNF is translated to its
//! Lark dialect by `gbnf`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value, json};

use super::gbnf;
use super::grammar_source::{GrammarSource, TokenText};
use super::sampler::Sampler;
use crate::Error;

/// Longer tokens are left out of grammars.
const MAX_TOKEN_BYTES: usize = 512;
/// Longer grammars are refused.
const MAX_SOURCE_BYTES: usize = 4 << 20;

/// The bytes of a vocabulary, indexed for grammars. Made once for each model; clones are cheap.
#[derive(Clone)]
pub struct TokenTable {
    factory: Arc<ParserFactory>,
    special: Arc<[(String, u32)]>,
}

/// What may stand between the tokens of a JSON text, if anything does: as llama.cpp has it. Where any white space
/// may, a model can fill a text with blank lines.
const JSON_SPACE: &str = " |\n{1,2}[ \t]{0,20}";

/// The state of one text under a grammar.
///
/// Clones start from the same state and go their own way, as beams do; they share what is
/// computed from the grammar.
#[derive(Clone)]
pub struct Grammar {
    state: Matcher,
    start: Matcher,
    vocab_size: usize,
}

impl TokenTable {
    /// Indexes a vocabulary: token `i` reads as `tokens[i]`; any of `eos` ends a text.
    ///
    /// # Errors
    /// [`Error::Grammar`] if `eos` is empty or names a token that is not there.
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
                // A lone 0xff marks special tokens and is no part of UTF-8.
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
        // A character-wise grammar makes an item for each byte of the vocabulary's tokens.
        limits.step_max_items = 20_000_000;
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

impl Grammar {
    /// Compiles a grammar for a vocabulary.
    ///
    /// # Errors
    /// [`Error::Grammar`] with what is wrong with the grammar, and where.
    pub fn new(source: GrammarSource<'_>, tokens: &TokenTable) -> Result<Self, Error> {
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
                TopLevelGrammar::from_json_schema(with_json_space(schema))
            }
            GrammarSource::Regex(text) => TopLevelGrammar::from_regex(text),
            GrammarSource::Lark(text) => TopLevelGrammar::from_lark(text.to_owned()),
        };
        // The compiler asserts what it expects; a grammar that breaks that is an error here.
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
        Ok(Self { state: start.clone(), start, vocab_size })
    }

    /// Sets the logits of tokens that cannot come next to −∞. Where the text may end, the end
    /// tokens stay; where it must, only they do. Logits past the table's tokens become −∞.
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

    /// Whether `token` may come next; cheaper than a mask.
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

    /// Goes on with `token`.
    ///
    /// # Errors
    /// [`Error::Grammar`] if the token cannot come next; the state stays as it was.
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

    /// Draws a token that the grammar allows: first without it, and with its mask only where the
    /// draw is refused, since most are not. `logits` may be masked afterwards.
    ///
    /// # Errors
    /// As [`Grammar::mask`].
    pub fn sample(&mut self, sampler: &mut Sampler, logits: &mut [f32]) -> Result<u32, Error> {
        let token = sampler.sample(logits);
        if self.allows(token)? {
            return Ok(token);
        }
        self.mask(logits)?;
        Ok(sampler.sample(logits))
    }

    /// Whether the text is complete and nothing but an end token can come.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state.is_stopped()
    }

    /// Whether the text may end here.
    ///
    /// # Errors
    /// [`Error::Grammar`] if the parser exceeds its limits; the state is lost then.
    pub fn may_end(&mut self) -> Result<bool, Error> {
        Ok(self.is_finished() || self.state.is_accepting().map_err(|e| refused("state", &e))?)
    }

    /// Back to the empty text.
    pub fn reset(&mut self) {
        self.state = self.start.clone();
    }

    fn is_end(&self, token: u32) -> bool {
        let env = self.state.tok_env();
        env.is_ok_and(|env| env.tok_trie().eos_tokens().contains(&token))
    }
}

impl<'a> GrammarSource<'a> {
    fn text(&self) -> &'a str {
        match self {
            Self::Gbnf(text) | Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => {
                text
            }
        }
    }
}

/// A schema whose texts have [`JSON_SPACE`] between their tokens, unless it has a rule of its own.
fn with_json_space(schema: Value) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => Map::new(),
        Value::Object(members) => members,
        other => return other,
    };
    let own = schema.entry("x-guidance").or_insert_with(|| json!({}));
    if let Value::Object(own) = own
        && !own.contains_key("whitespace_flexible")
    {
        own.entry("whitespace_pattern").or_insert_with(|| JSON_SPACE.into());
    }
    Value::Object(schema)
}

fn refused(kind: &'static str, error: &dyn std::fmt::Display) -> Error {
    Error::Grammar { kind, message: error.to_string().trim_end().to_owned() }
}

#[cfg(test)]
mod tests;
