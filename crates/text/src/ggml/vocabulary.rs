//! The metadata that a tokenizer is made from.

use std::borrow::Cow;

use crate::error::{Error, Result};

/// The `tokenizer.ggml.*` metadata of a GGUF file. Entries that the file lacks stay at their default.
///
/// Lists and texts may be borrowed from the file: a tokenizer keeps its own, smaller form.
#[derive(Debug, Clone, Default)]
pub struct GgmlVocabulary<'a> {
    /// `tokenizer.ggml.model`: `gpt2`, `gemma4`, `whitespace` (BPE), `llama` (SentencePiece BPE),
    /// `bert` (WordPiece) or `t5` (unigram).
    pub model: Cow<'a, str>,
    /// `tokenizer.ggml.pre`: the pre-tokenizer of BPE.
    pub pre: Option<Cow<'a, str>>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Cow<'a, [String]>,
    /// `tokenizer.ggml.scores`, by id, or empty.
    pub scores: Cow<'a, [f32]>,
    /// `tokenizer.ggml.token_type`, by id, or empty.
    pub token_types: Cow<'a, [i32]>,
    /// `tokenizer.ggml.merges`, best first.
    pub merges: Cow<'a, [String]>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.seperator_token_id`.
    pub sep: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.cls_token_id`.
    pub cls: Option<u32>,
    /// `tokenizer.ggml.mask_token_id`.
    pub mask: Option<u32>,
    /// `tokenizer.ggml.fim_pre_token_id`, or `prefix_token_id`.
    pub fim_pre: Option<u32>,
    /// `tokenizer.ggml.fim_suf_token_id`, or `suffix_token_id`.
    pub fim_suf: Option<u32>,
    /// `tokenizer.ggml.fim_mid_token_id`, or `middle_token_id`.
    pub fim_mid: Option<u32>,
    /// `tokenizer.ggml.fim_pad_token_id`.
    pub fim_pad: Option<u32>,
    /// `tokenizer.ggml.fim_rep_token_id`.
    pub fim_rep: Option<u32>,
    /// `tokenizer.ggml.fim_sep_token_id`.
    pub fim_sep: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_sep_token`.
    pub add_sep: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces`.
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.ggml.precompiled_charsmap`: the normalization of unigram vocabularies.
    pub precompiled_charsmap: Cow<'a, [u8]>,
    /// `tokenizer.ggml.normalizer.lowercase`, for WordPiece.
    pub lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents`, for WordPiece.
    pub strip_accents: Option<bool>,
    /// `general.name`: phi-3's special tokens swallow the white space after them, which the file
    /// does not say otherwise.
    pub name: Option<Cow<'a, str>>,
    /// `general.architecture`, for the same reason.
    pub architecture: Option<Cow<'a, str>>,
}

impl GgmlVocabulary<'_> {
    /// The same with lists long enough, texts not too long, and ids inside the vocabulary.
    pub(super) fn checked(mut self) -> Result<Self> {
        let n_tokens = self.tokens.len();
        if n_tokens == 0 || u32::try_from(n_tokens).is_err() {
            return Err(Error::ListLength { list: "tokens", expected: 1, got: n_tokens });
        }
        let lists = [("scores", self.scores.len()), ("token_type", self.token_types.len())];
        for (list, got) in lists {
            if got != 0 && got < n_tokens {
                return Err(Error::ListLength { list, expected: n_tokens, got });
            }
        }
        // An empty text is replaced by one of up to 18 bytes; merges add both sides and the result.
        let token_bytes: u64 = self.tokens.iter().map(|text| text.len().max(18) as u64).sum();
        let merge_bytes: u64 = self.merges.iter().map(|merge| merge.len() as u64 * 2).sum();
        for (list, got) in [("tokens", token_bytes), ("merges", merge_bytes)] {
            if u32::try_from(got).is_err() {
                return Err(Error::TextLength { list, got });
            }
        }
        for id in [
            &mut self.bos,
            &mut self.eos,
            &mut self.eot,
            &mut self.eom,
            &mut self.unk,
            &mut self.sep,
            &mut self.pad,
            &mut self.cls,
            &mut self.mask,
            &mut self.fim_pre,
            &mut self.fim_suf,
            &mut self.fim_mid,
            &mut self.fim_pad,
            &mut self.fim_rep,
            &mut self.fim_sep,
        ] {
            *id = id.filter(|&id| (id as usize) < n_tokens);
        }
        Ok(self)
    }

    /// The token's score; 0 where the file has none.
    pub(super) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }
}
