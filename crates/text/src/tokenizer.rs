//! The public type: encode, decode, look up.

use std::sync::Arc;

use crate::byte_level::ByteLevel;
use crate::error::{Error, Result};
use crate::ggml::{FimTokens, Ggml, GgmlVocabulary, Special};
use crate::marked_text::MarkedText;
use crate::token_model::TokenModel;

/// Tokenizer of any vocabulary.
///
/// Two kinds of tokens: ordinary ones stand for text; *special* ones (`<|en|>`, `<|im_end|>`) have
/// a text of their own and steer the model. Special tokens are produced only on request
/// ([`encode_with_special`](Self::encode_with_special), `parse_special`) and shown only by
/// [`decode_with_special`](Self::decode_with_special). A file may also name added tokens that are
/// not special: those are matched as a whole by every encoder and shown by every decoder.
///
/// ```
/// # fn main() -> stonechat_text::Result<()> {
/// // A vocabulary of the 256 bytes, one merge, and one special token.
/// let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
/// tokens.push(b"hi".to_vec());
/// let tokenizer =
///     stonechat_text::Tokenizer::from_ranked(&tokens)?.with_special([(300, "<|en|>".to_owned())])?;
/// assert_eq!(tokenizer.encode("hi!"), [256, 33]);
/// assert_eq!(tokenizer.encode_with_special("<|en|>hi"), [300, 256]);
/// assert_eq!(tokenizer.decode(&[300, 256, 33]), "hi!");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    kind: Kind,
    special: Special,
}

#[derive(Debug, Clone)]
enum Kind {
    ByteLevel(Box<ByteLevel>),
    /// A vocabulary that names its special tokens itself.
    Named(Arc<dyn TokenModel>),
}

impl From<ByteLevel> for Tokenizer {
    fn from(byte_level: ByteLevel) -> Self {
        let is_special = |id: &u32| byte_level.is_special(*id);
        let mut special = Special::by_text(|text| byte_level.token_id(text).filter(is_special));
        special.bos = byte_level.bos().filter(is_special);
        Self { kind: Kind::ByteLevel(Box::new(byte_level)), special }
    }
}

impl Tokenizer {
    /// A ranked vocabulary: the bytes of each token in id order, where the id is also the merge
    /// rank (whisper.cpp `.bin` files; OpenAI's `.tiktoken` files once decoded). It names no
    /// special tokens: add them with [`with_special`](Self::with_special). Empty entries only
    /// hold their id.
    ///
    /// # Errors
    /// If a byte has no token or there are more than `u32::MAX` tokens.
    pub fn from_ranked<T: AsRef<[u8]>>(tokens: &[T]) -> Result<Self> {
        Ok(ByteLevel::from_ranked(tokens)?.into())
    }

    /// The vocabulary of a GGUF file; encodes and decodes as llama.cpp does.
    ///
    /// # Errors
    /// If the kind of vocabulary or its pre-tokenizer is not known, or its lists differ in length.
    pub fn from_ggml(vocabulary: GgmlVocabulary<'_>) -> Result<Self> {
        let ggml = Ggml::new(vocabulary)?;
        let special = ggml.special().clone();
        Ok(Self::named(Arc::new(ggml), special))
    }

    /// A tokenizer of a vocabulary that names its special tokens, which are `special` by their roles.
    pub(crate) fn named(model: Arc<dyn TokenModel>, special: Special) -> Self {
        Self { kind: Kind::Named(model), special }
    }

    fn model(&self) -> &dyn TokenModel {
        match &self.kind {
            Kind::ByteLevel(byte_level) => &**byte_level,
            Kind::Named(model) => &**model,
        }
    }

    /// Sets the BOS token and the tokens that end a generation, for vocabularies whose file does not
    /// name them (`bos_token_id` and `eos_token_id` of `config.json` or
    /// `generation_config.json`). The ends add to those known by their text.
    #[must_use]
    pub fn with_roles(mut self, bos: Option<u32>, ends: &[u32]) -> Self {
        self.special.bos = bos.or(self.special.bos);
        self.special.eos = ends.first().copied().or(self.special.eos);
        self.special.ends.extend(ends);
        self
    }

    /// Names special tokens by id, in addition to those of the file or in their place.
    ///
    /// # Errors
    /// If a text is empty, an id was the only token of a byte, or the vocabulary is one that names
    /// its special tokens itself ([`from_ggml`](Self::from_ggml), a `tokenizer.json` of another kind than byte-level BPE).
    pub fn with_special(self, tokens: impl IntoIterator<Item = (u32, String)>) -> Result<Self> {
        match self.kind {
            Kind::ByteLevel(byte_level) => Ok(byte_level.with_special(tokens)?.into()),
            Kind::Named(_) => Err(Error::Unsupported {
                expected: "a vocabulary of bytes",
                got: "a vocabulary that names its special tokens".to_owned(),
            }),
        }
    }

    /// Token ids of `text`, as llama.cpp's `llama_tokenize` gives them. `add_special` puts BOS,
    /// EOS or separators around them where the vocabulary says so; with `parse_special`, the text
    /// of a special token becomes that token.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        self.model().tokenize(text, add_special, parse_special)
    }

    /// Token ids of a text, in which the text of a special token becomes that token unless it is
    /// marked; `add_special` as in [`tokenize`](Self::tokenize).
    pub fn tokenize_marked(&self, text: &MarkedText, add_special: bool) -> Vec<u32> {
        let (text, marker) = text.parts();
        if marker.is_empty() || !text.contains(marker) {
            return self.tokenize(text, add_special, true);
        }
        self.model().tokenize_marked(text, marker, add_special)
    }

    /// Token ids of `text`, in which the text of a special token is ordinary text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenize(text, false, false)
    }

    /// Token ids of `text`, in which the text of a special token becomes that token.
    pub fn encode_with_special(&self, text: &str) -> Vec<u32> {
        self.tokenize(text, false, true)
    }

    /// Text of `ids` without special tokens. Ids without a token are skipped. Bytes that are not
    /// UTF-8 once all tokens are joined become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.decode_bytes(ids)).into_owned()
    }

    /// Like [`decode`](Self::decode), with special tokens shown as their text.
    pub fn decode_with_special(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.joined(ids, true)).into_owned()
    }

    /// The joined bytes of `ids` without special tokens.
    pub fn decode_bytes(&self, ids: &[u32]) -> Vec<u8> {
        self.joined(ids, false)
    }

    fn joined(&self, ids: &[u32], with_special: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (index, &id) in ids.iter().enumerate() {
            bytes.extend_from_slice(self.decoded_piece(id, index == 0, with_special));
        }
        bytes
    }

    /// Bytes that a token adds to decoded text. Vocabularies that put a space before text lose it again
    /// from the first token, as in `llama_detokenize`.
    pub(crate) fn decoded_piece(&self, id: u32, is_first: bool, with_special: bool) -> &[u8] {
        let piece = self.token_piece(id, with_special);
        if is_first && self.model().strips_first_space() {
            piece.strip_prefix(b" ").unwrap_or(piece)
        } else {
            piece
        }
    }

    /// The bytes that a token shows, as llama.cpp's `llama_token_to_piece` gives them: none for
    /// unknown ids, and for special tokens only if `with_special`.
    pub fn token_piece(&self, id: u32, with_special: bool) -> &[u8] {
        self.model().piece(id, with_special)
    }

    /// The bytes of a token (of a special token: its text), or `None` if the id has none.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.model().bytes(id)
    }

    /// The id of a special or added token with this text, else of the ordinary token with exactly
    /// these bytes.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.model().token_id(token)
    }

    /// Whether the id is a special token: one that plain encoding never gives and plain decoding
    /// never shows.
    pub fn is_special(&self, id: u32) -> bool {
        self.model().is_special(id)
    }

    /// Whether the id is a control token: a special token other than the unknown token.
    pub fn is_control(&self, id: u32) -> bool {
        self.model().is_control(id)
    }

    /// The special tokens with their texts, by ascending id.
    pub fn specials(&self) -> impl Iterator<Item = (u32, &str)> {
        self.model().specials()
    }

    /// The highest id + 1, special tokens included. A model's embedding may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.model().vocab_size()
    }

    /// Whether generation ends with this token (llama.cpp's `llama_vocab_is_eog`): those the file
    /// names as the end of a text, a turn or a message, and those known by their text.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.special.ends.contains(&id)
    }

    /// The tokens for which [`is_end_of_generation`](Self::is_end_of_generation) holds, by
    /// ascending id.
    pub fn ends_of_generation(&self) -> impl Iterator<Item = u32> {
        self.special.ends.iter().copied()
    }

    /// The token that starts a text.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    /// The token that ends a turn.
    pub fn eot(&self) -> Option<u32> {
        self.special.eot
    }

    /// Whether [`tokenize`](Self::tokenize) starts with BOS when asked to add special tokens.
    pub fn adds_bos(&self) -> bool {
        self.model().adds_bos(self.special.bos)
    }

    /// Whether [`tokenize`](Self::tokenize) ends with EOS when asked to add special tokens.
    pub fn adds_eos(&self) -> bool {
        self.model().adds_eos(self.special.eos)
    }

    /// The tokens for filling in the middle, if the vocabulary has them.
    pub fn fim(&self) -> Option<&FimTokens> {
        self.special.fim.as_ref()
    }
}
