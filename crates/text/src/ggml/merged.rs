//! Byte-pair encoding with an explicit list of merges (`tokenizer.ggml.model` `gpt2`, `gemma4`).
//!
//! Source: `llm_tokenizer_bpe_session` of llama.cpp `src/llama-vocab.cpp`. There, symbols are
//! strings in GPT-2's printable form; here they are numbers: a token's id, or a higher number for
//! a symbol that only merges name. The printable form is a bijection of bytes, so that equal texts
//! are equal symbols.

use super::byte_token_text;
use super::index::Index;
use super::pairs::Pairs;
use super::pre_types::PreType;
use super::slices::Slices;
use super::split::{Splitter, split};
use super::tokens::Tokens;
use crate::byte_map::{byte_of, printable};
use crate::merge::{Merger, Symbol};

/// Symbol that is no token and in no merge.
const NO_SYMBOL: u32 = u32::MAX;

/// Vocabulary for the merge loop.
#[derive(Debug, Clone)]
pub(super) struct Merged {
    splitters: Vec<Splitter>,
    symbols: Symbols,
    pairs: Pairs,
    /// Byte token, for a symbol that is no token.
    byte_ids: Vec<Option<u32>>,
    /// The symbol of each byte; none where tokens hold UTF-8.
    byte_symbols: Vec<u32>,
    raw_text: bool,
    whole_pieces: bool,
    whole_line_breaks: bool,
}

/// Symbols that only merges name, numbered after the tokens, by their texts.
#[derive(Debug, Clone)]
struct Symbols {
    n_tokens: u32,
    texts: Slices,
    index: Index,
}

impl Symbols {
    fn new(tokens: &Tokens) -> Self {
        let n_tokens = tokens.len() as u32;
        Self { n_tokens, texts: Slices::with_capacity(0, 0), index: Index::with_capacity(0) }
    }

    /// Symbol of a text: its token id, or an index past all tokens.
    fn find(&self, tokens: &Tokens, text: &str) -> Option<u32> {
        let beyond = || self.index.find(&self.texts, text.as_bytes());
        tokens.id(text).or_else(|| Some(self.n_tokens + beyond()?))
    }

    fn find_or_add(&mut self, tokens: &Tokens, text: &str) -> u32 {
        self.find(tokens, text).unwrap_or_else(|| {
            let number = self.texts.len() as u32;
            self.texts.push(text.as_bytes());
            self.index.insert(&self.texts, number);
            self.n_tokens + number
        })
    }
}

impl Merged {
    pub(super) fn new(tokens: &Tokens, merges: &[String], pre_type: &PreType) -> Self {
        let raw_text = pre_type.raw_text;
        let is_valid = |text: &str| raw_text || text.chars().all(|c| byte_of(c).is_some());
        let mut symbols = Symbols::new(tokens);
        let mut pairs = Pairs::with_capacity(merges.len());
        let mut joined = String::new();
        for merge in merges {
            // The first character belongs to the left side, even where it is a space.
            let Some(space) = merge.bytes().skip(1).position(|byte| byte == b' ') else { continue };
            let (left, right) = (&merge[..=space], &merge[space + 2..]);
            if !is_valid(left) || !is_valid(right) {
                continue;
            }
            joined.clear();
            joined.extend([left, right]);
            let mut symbol = |text| symbols.find_or_add(tokens, text);
            pairs.add(symbol(left), symbol(right), symbol(&joined));
        }
        let byte_symbols = if raw_text {
            Vec::new()
        } else {
            let text = |byte| printable(&[byte]);
            (0..=u8::MAX).map(|byte| symbols.find_or_add(tokens, &text(byte))).collect()
        };
        let byte_id = |byte: u8| {
            if raw_text {
                tokens.id(&byte_token_text(byte))
            } else {
                // llama.cpp looks up single bytes of the printable form, so only ASCII is found.
                let text = char::from(byte).to_string();
                let is_found = byte.is_ascii() && byte_of(char::from(byte)).is_some();
                tokens.id(&text).filter(|_| is_found)
            }
        };
        Self {
            splitters: pre_type.steps.iter().map(Splitter::new).collect(),
            pairs,
            byte_ids: (0..=u8::MAX).map(byte_id).collect(),
            byte_symbols,
            symbols,
            raw_text,
            whole_pieces: pre_type.whole_pieces,
            whole_line_breaks: pre_type.whole_line_breaks,
        }
    }

    /// Token of exactly this text.
    pub(super) fn id(&self, tokens: &Tokens, text: &str) -> Option<u32> {
        if self.raw_text { tokens.id(text) } else { tokens.id(&printable(text.as_bytes())) }
    }

    /// Appends the tokens of `text` to `out`.
    pub(super) fn encode(&self, tokens: &Tokens, text: &str, out: &mut Vec<u32>) {
        let mut merger = Merger::default();
        split(&self.splitters, text, |piece| self.encode_piece(tokens, piece, &mut merger, out));
    }

    fn encode_piece(&self, tokens: &Tokens, piece: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        let line_breaks = self.whole_line_breaks && piece.bytes().all(|byte| byte == b'\n');
        if (self.whole_pieces || line_breaks)
            && let Some(id) = self.id(tokens, piece)
        {
            out.push(id);
            return;
        }
        let ranked = |left: Symbol, right: Symbol| self.pairs.get(left.id, right.id);
        let mut push = |symbol: Symbol| {
            if symbol.id < self.symbols.n_tokens {
                out.push(symbol.id);
                return;
            }
            let range = symbol.start as usize..(symbol.start + symbol.len) as usize;
            let bytes = &piece.as_bytes()[range];
            out.extend(bytes.iter().filter_map(|&byte| self.byte_ids[usize::from(byte)]));
        };
        if self.raw_text {
            let characters = piece.char_indices().map(|(at, c)| {
                let text = &piece[at..at + c.len_utf8()];
                let symbol = self.symbols.find(tokens, text).unwrap_or(NO_SYMBOL);
                (symbol, text.len() as u32)
            });
            merger.merge(characters, ranked).for_each(&mut push);
        } else {
            let bytes = piece.bytes().map(|byte| (self.byte_symbols[usize::from(byte)], 1));
            merger.merge(bytes, ranked).for_each(&mut push);
        }
    }
}
