//! The vocabularies of GGUF files, encoded and decoded as llama.cpp does.
//!
//! Own code: no maintained crate gives llama.cpp's token ids for every vocabulary of a GGUF file.
//!
//! Source: llama.cpp `src/llama-vocab.cpp`. File map: `attributes` flags of tokens; `special` ids
//! by role and the ends of generation; `fragments` cutting text at special tokens; then one file
//! for each model of the text between them: `merged` (BPE, with `pairs`, `pre_types`, `split` and
//! `category`), `scored` (SentencePiece BPE), `words` (WordPiece), `unigram`. Shared by them:
//! `tokens` the texts by id and the ids by text, over `slices` and `index`; `pieces` the decoded
//! bytes of tokens.

mod attributes;
mod category;
mod fragments;
mod index;
mod merged;
mod pairs;
mod pieces;
mod pre_types;
mod scored;
mod slices;
mod special;
mod split;
mod tokens;
mod unigram;
mod vocabulary;
mod words;

use self::attributes::Attributes;
use self::fragments::{Fragment, Partition};
use self::merged::Merged;
use self::pieces::Pieces;
use self::pre_types::{PreType, pre_type};
use self::scored::Scored;
pub use self::special::FimTokens;
pub(crate) use self::special::Special;
use self::tokens::Tokens;
use self::unigram::Unigram;
pub use self::vocabulary::GgmlVocabulary;
use self::words::Words;
use crate::error::{Error, Result};
use crate::token_model::TokenModel;

/// SentencePiece's form of a space.
const ESCAPED_SPACE: &str = "\u{2581}";

/// Model for the text between special tokens.
#[derive(Debug, Clone)]
enum Method {
    Merged(Box<Merged>),
    Scored(Scored),
    Words(Words),
    Unigram(Unigram),
}

/// A tokenizer made from a GGUF file's vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct Ggml {
    tokens: Tokens,
    pieces: Pieces,
    method: Method,
    partition: Partition,
    special: Special,
    flags: Flags,
}

/// Flags of the file: added tokens, spaces, case.
#[derive(Debug, Clone, Copy)]
struct Flags {
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    escapes_spaces: bool,
    drops_spaces: bool,
    lowercases: bool,
}

impl Ggml {
    pub(crate) fn new(vocabulary: GgmlVocabulary<'_>) -> Result<Self> {
        let vocabulary = vocabulary.checked()?;
        let pre = vocabulary.pre.as_deref().unwrap_or_default();
        let is_gemma4 = vocabulary.model == "gemma4";
        let drops_spaces = vocabulary.model == "whitespace";
        let pre_type = match &*vocabulary.model {
            "gpt2" | "gemma4" | "whitespace" => {
                let name = if is_gemma4 { "gemma4" } else { pre };
                let found = pre_type(name);
                Some(found.ok_or_else(|| Error::UnknownPreTokenizer { name: name.to_owned() })?)
            }
            "llama" | "bert" | "t5" => None,
            other => return Err(Error::UnknownVocabulary { model: other.to_owned() }),
        };
        let mut tokens = Tokens::new(&vocabulary);
        let special = Special::find(&vocabulary, pre_type.as_ref(), &mut tokens);
        let flags = Flags::new(&vocabulary, pre_type.as_ref(), drops_spaces);
        let method = match (&pre_type, &*vocabulary.model) {
            (Some(pre_type), _) => {
                Method::Merged(Box::new(Merged::new(&tokens, &vocabulary.merges, pre_type)))
            }
            (None, "bert") => Method::Words(Words {
                lowercase: flags.lowercases,
                strip_accents: vocabulary.strip_accents.unwrap_or(flags.lowercases),
                longest: tokens.longest(),
                unk: special.unk,
            }),
            (None, "t5") => {
                Method::Unigram(Unigram::new(&vocabulary, &tokens, special.unk, flags)?)
            }
            (None, _) => Method::Scored(Scored::new(&vocabulary, &tokens, special.unk)),
        };
        let is_printable = pre_type.as_ref().is_some_and(|pre_type| !pre_type.escapes_spaces);
        let pieces = Pieces::new(&tokens, is_printable);
        let partition = Partition::new(&tokens);
        special::set_strip_flags(&vocabulary, partition.ids(), &mut tokens);
        Ok(Self { tokens, pieces, method, partition, special, flags })
    }

    /// The ids that `encode` adds, in the special tokens that the vocabulary puts around a text.
    fn tokenize_fragments(
        &self,
        add_special: bool,
        encode: impl FnOnce(&mut Vec<u32>),
    ) -> Vec<u32> {
        let mut ids = Vec::new();
        let is_words = matches!(self.method, Method::Words(_));
        if add_special && (self.flags.add_bos || is_words) {
            ids.extend(self.special.bos);
        }
        encode(&mut ids);
        if add_special {
            if is_words {
                ids.extend(self.special.sep);
            } else if self.flags.add_eos {
                ids.extend(self.special.eos);
            }
        }
        ids
    }

    /// Adds the tokens at which `text` is cut. `encode` adds the tokens of each part between them, and gets whether a token
    /// precedes the part.
    fn encode_fragments(
        &self,
        text: &str,
        parse_special: bool,
        ids: &mut Vec<u32>,
        mut encode: impl FnMut(&str, bool, &mut Vec<u32>),
    ) {
        let mut after_special = true;
        for fragment in self.partition.cut(&self.tokens, text, parse_special) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(part) => encode(part, after_special, ids),
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
    }

    fn encode_part(&self, part: &str, after_special: bool, ids: &mut Vec<u32>) {
        let tokens = &self.tokens;
        match &self.method {
            Method::Merged(merged) if self.flags.drops_spaces => {
                let lower =
                    if self.flags.lowercases { words::lowercased(part) } else { part.into() };
                lower.split_whitespace().for_each(|word| merged.encode(tokens, word, ids));
            }
            Method::Merged(merged) if self.flags.escapes_spaces => {
                merged.encode(tokens, &part.replace(' ', ESCAPED_SPACE), ids);
            }
            Method::Merged(merged) => merged.encode(tokens, part, ids),
            Method::Scored(scored) => {
                let prefix =
                    if self.flags.add_space_prefix && after_special { ESCAPED_SPACE } else { "" };
                let escaped = format!("{prefix}{}", part.replace(' ', ESCAPED_SPACE));
                scored.encode(tokens, &escaped, ids);
            }
            Method::Words(words) => words.encode(tokens, part, ids),
            Method::Unigram(unigram) => unigram.encode(tokens, part, ids),
        }
    }

    pub(crate) fn special(&self) -> &Special {
        &self.special
    }

    fn has(&self, id: u32, flags: Attributes) -> bool {
        self.tokens.attributes(id).any(flags)
    }
}

impl TokenModel for Ggml {
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        self.tokenize_fragments(add_special, |ids| {
            self.encode_fragments(text, parse_special, ids, |part, after_special, ids| {
                self.encode_part(part, after_special, ids);
            });
        })
    }

    fn tokenize_marked(&self, text: &str, marker: &str, add_special: bool) -> Vec<u32> {
        self.tokenize_fragments(add_special, |ids| {
            self.encode_fragments(text, true, ids, |part, after_special, ids| {
                if !part.contains(marker) {
                    return self.encode_part(part, after_special, ids);
                }
                let part = part.replace(marker, "");
                self.encode_fragments(&part, false, ids, |part, follows, ids| {
                    // The first part of a text in parts follows what the whole follows.
                    self.encode_part(part, after_special && follows, ids);
                });
            });
        })
    }

    fn piece(&self, id: u32, with_special: bool) -> &[u8] {
        if !with_special && self.is_special(id) {
            return &[];
        }
        self.pieces.get(&self.tokens, id)
    }

    fn strips_first_space(&self) -> bool {
        self.flags.add_space_prefix
    }

    fn adds_bos(&self, _bos: Option<u32>) -> bool {
        self.flags.add_bos || matches!(self.method, Method::Words(_))
    }

    fn adds_eos(&self, _eos: Option<u32>) -> bool {
        self.flags.add_eos
    }

    fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    fn is_control(&self, id: u32) -> bool {
        self.has(id, Attributes::CONTROL)
    }

    fn is_special(&self, id: u32) -> bool {
        self.has(id, Attributes::SPECIAL)
    }

    fn specials(&self) -> Box<dyn Iterator<Item = (u32, &str)> + '_> {
        let special = self.tokens.ids().filter(|&id| self.is_special(id));
        Box::new(special.map(|id| (id, self.tokens.text(id))))
    }

    fn bytes(&self, id: u32) -> Option<&[u8]> {
        ((id as usize) < self.vocab_size()).then(|| self.piece(id, true))
    }

    fn token_id(&self, text: &str) -> Option<u32> {
        let by_text = self.tokens.id(text);
        if let Some(id) = by_text.filter(|&id| self.has(id, Attributes::MATCHED)) {
            return Some(id);
        }
        let shown = match &self.method {
            Method::Merged(merged) if !self.flags.escapes_spaces => merged.id(&self.tokens, text),
            _ => self.tokens.id(&text.replace(' ', ESCAPED_SPACE)),
        };
        shown.or(by_text)
    }
}

impl Flags {
    fn new(
        vocabulary: &GgmlVocabulary<'_>,
        pre_type: Option<&PreType>,
        drops_spaces: bool,
    ) -> Self {
        let is_scored = vocabulary.model == "llama";
        let is_unigram = vocabulary.model == "t5";
        let default_bos = pre_type.map_or(!is_unigram, |pre_type| pre_type.add_bos);
        let forces_bos = pre_type.is_some_and(|pre_type| pre_type.forces_bos);
        Self {
            add_bos: forces_bos || vocabulary.add_bos.unwrap_or(default_bos),
            add_eos: vocabulary.add_eos.unwrap_or(is_unigram),
            add_space_prefix: vocabulary.add_space_prefix.unwrap_or(is_scored),
            escapes_spaces: pre_type.is_none_or(|pre_type| pre_type.escapes_spaces),
            drops_spaces,
            lowercases: vocabulary.lowercase.unwrap_or(!drops_spaces),
        }
    }
}

/// The name of a byte's token in vocabularies that hold text.
fn byte_token_text(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}
