//! Byte-pair encoding with an explicit list of merges (`tokenizer.ggml.model` `gpt2`, `gemma4`).
//!
//! Source: `llm_tokenizer_bpe_session` of llama.cpp `src/llama-vocab.cpp`. There, symbols are
//! strings in GPT-2's printable form; here they are numbers, and the printable form is undone when
//! the vocabulary is read.

use std::collections::HashMap;

use super::pre_types::PreType;
use super::split::{Splitter, split};
use super::{Token, byte_token_text};
use crate::byte_map::{byte_of, strict_token_bytes};
use crate::merge::Merger;

/// A symbol that is no token and takes part in no merge.
const NO_SYMBOL: u32 = u32::MAX;

/// The vocabulary as merging sees it.
#[derive(Debug, Clone)]
pub(super) struct Merged {
    splitters: Vec<Splitter>,
    /// Symbols by their bytes: tokens by their id, then what only merges name.
    symbols: HashMap<Box<[u8]>, u32>,
    n_tokens: u32,
    /// (left, right) to (rank, result).
    pairs: HashMap<(u32, u32), (u32, u32)>,
    /// The token that stands for a byte of a symbol that is no token.
    byte_ids: Vec<Option<u32>>,
    /// The symbol of each byte.
    byte_symbols: Vec<u32>,
    raw_text: bool,
    whole_pieces: bool,
    whole_line_breaks: bool,
}

impl Merged {
    pub(super) fn new(
        tokens: &[Token],
        ids: &HashMap<Box<str>, u32>,
        merges: &[String],
        pre_type: &PreType,
    ) -> Self {
        let raw_text = pre_type.raw_text;
        let bytes_of = |text: &str| {
            if raw_text { Some(text.as_bytes().to_vec()) } else { strict_token_bytes(text) }
        };
        let mut symbols = HashMap::with_capacity(tokens.len());
        for (id, token) in (0..).zip(tokens) {
            if let Some(bytes) = bytes_of(&token.text) {
                symbols.insert(bytes.into_boxed_slice(), id);
            }
        }
        let n_tokens = tokens.len() as u32;
        let mut n_symbols = n_tokens;
        let mut symbol_of = |bytes: &[u8]| match symbols.get(bytes) {
            Some(&symbol) => symbol,
            None => {
                symbols.insert(bytes.into(), n_symbols);
                n_symbols += 1;
                n_symbols - 1
            }
        };
        let mut pairs = HashMap::with_capacity(merges.len());
        for (rank, merge) in (0..).zip(merges) {
            // The first character belongs to the left side, even where it is a space.
            let Some(space) = merge.bytes().skip(1).position(|byte| byte == b' ') else { continue };
            let (left, right) = (&merge[..=space], &merge[space + 2..]);
            let (Some(mut left), Some(right)) = (bytes_of(left), bytes_of(right)) else { continue };
            let sides = (symbol_of(&left), symbol_of(&right));
            left.extend_from_slice(&right);
            pairs.entry(sides).or_insert((rank, symbol_of(&left)));
        }
        let byte_symbols = (0..=u8::MAX).map(|byte| symbol_of(&[byte])).collect();
        let byte_id = |byte: u8| {
            if raw_text {
                ids.get(&*byte_token_text(byte)).copied()
            } else {
                // llama.cpp looks up single bytes of the printable form, so only ASCII is found.
                let text = char::from(byte).to_string();
                (byte.is_ascii() && byte_of(char::from(byte)).is_some())
                    .then(|| ids.get(text.as_str()).copied())
                    .flatten()
            }
        };
        Self {
            splitters: pre_type.steps.iter().map(Splitter::new).collect(),
            n_tokens,
            pairs,
            byte_ids: (0..=u8::MAX).map(byte_id).collect(),
            byte_symbols,
            symbols,
            raw_text,
            whole_pieces: pre_type.whole_pieces,
            whole_line_breaks: pre_type.whole_line_breaks,
        }
    }

    /// The token with exactly these bytes.
    pub(super) fn id(&self, bytes: &[u8]) -> Option<u32> {
        self.symbols.get(bytes).copied().filter(|&symbol| symbol < self.n_tokens)
    }

    /// Appends the tokens of `text` to `out`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut merger = Merger::default();
        split(&self.splitters, text, |piece| self.encode_piece(piece, &mut merger, out));
    }

    fn encode_piece(&self, piece: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        let line_breaks = self.whole_line_breaks && piece.bytes().all(|byte| byte == b'\n');
        if (self.whole_pieces || line_breaks)
            && let Some(id) = self.id(piece.as_bytes())
        {
            out.push(id);
            return;
        }
        let ranked = |left: crate::merge::Symbol, right: crate::merge::Symbol| {
            self.pairs.get(&(left.id, right.id)).copied()
        };
        let mut push = |symbol: crate::merge::Symbol| {
            if symbol.id < self.n_tokens {
                out.push(symbol.id);
                return;
            }
            let range = symbol.start as usize..(symbol.start + symbol.len) as usize;
            let bytes = &piece.as_bytes()[range];
            out.extend(bytes.iter().filter_map(|&byte| self.byte_ids[usize::from(byte)]));
        };
        if self.raw_text {
            let characters = piece.char_indices().map(|(at, c)| {
                let bytes = &piece.as_bytes()[at..at + c.len_utf8()];
                let symbol = self.symbols.get(bytes).copied().unwrap_or(NO_SYMBOL);
                (symbol, bytes.len() as u32)
            });
            merger.merge(characters, ranked).for_each(&mut push);
        } else {
            let bytes = piece.bytes().map(|byte| (self.byte_symbols[usize::from(byte)], 1));
            merger.merge(bytes, ranked).for_each(&mut push);
        }
    }
}
