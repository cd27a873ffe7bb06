//! The metadata that a tokenizer is made from.

use super::Token;
use super::attributes::Attributes;
use crate::error::{Error, Result};

/// The `tokenizer.ggml.*` metadata of a GGUF file. What the file lacks stays at its default.
#[derive(Debug, Clone, Default)]
pub struct GgmlVocabulary {
    /// `tokenizer.ggml.model`: `gpt2`, `gemma4`, `whitespace` (BPE), `llama` (SentencePiece BPE),
    /// `bert` (WordPiece) or `t5` (unigram).
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is cut before BPE merges it.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`, by id, or empty.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, by id, or empty.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, best first.
    pub merges: Vec<String>,
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
    pub precompiled_charsmap: Vec<u8>,
    /// `tokenizer.ggml.normalizer.lowercase`, for WordPiece.
    pub lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents`, for WordPiece.
    pub strip_accents: Option<bool>,
    /// `general.name`: phi-3's special tokens swallow the white space after them, which the file
    /// does not say otherwise.
    pub name: Option<String>,
    /// `general.architecture`, for the same reason.
    pub architecture: Option<String>,
}

impl GgmlVocabulary {
    /// The same with lists of equal length and ids inside the vocabulary.
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
        self.scores.resize(n_tokens, 0.0);
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

    pub(super) fn tokens(&self) -> Vec<Token> {
        let token = |(id, text): (usize, &String)| Token {
            text: if text.is_empty() {
                format!("[EMPTY_{id}]").into_boxed_str()
            } else {
                text.as_str().into()
            },
            attributes: match self.token_types.get(id) {
                Some(&token_type) => Attributes::from_type(token_type),
                None => Attributes::NORMAL,
            },
        };
        self.tokens.iter().enumerate().map(token).collect()
    }
}
