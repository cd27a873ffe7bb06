//! Streaming detokenizer that emits whole code points only.

use std::ops::Deref;
use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// Decodes a stream of tokens.
///
/// Bytes of an unfinished code point are pending until the next token. The joined results of
/// [`push`](Self::push) and [`flush`](Self::flush) equal [`Tokenizer::decode`] of the same ids (and
/// [`Tokenizer::decode_with_special`] once [`with_special`](Self::with_special) was called).
#[derive(Debug, Clone)]
pub struct StreamDecoder<T> {
    tokenizer: T,
    pending: Vec<u8>,
    is_first: bool,
    with_special: bool,
    /// Special tokens that are shown in any case.
    visible: Arc<[u32]>,
}

impl<T: Deref<Target = Tokenizer>> StreamDecoder<T> {
    /// A decoder that has seen no token; `tokenizer` is a reference or an `Arc`.
    pub fn new(tokenizer: T) -> Self {
        let visible = Arc::default();
        Self { tokenizer, pending: Vec::new(), is_first: true, with_special: false, visible }
    }

    /// A decoder of tokens that follow others: a leading space of the first token is shown.
    pub fn continuing(tokenizer: T) -> Self {
        Self { is_first: false, ..Self::new(tokenizer) }
    }

    /// Shows special tokens as their text.
    #[must_use]
    pub fn with_special(self) -> Self {
        Self { with_special: true, ..self }
    }

    /// Shows these special tokens as their text.
    #[must_use]
    pub fn with_visible(self, visible: impl Into<Arc<[u32]>>) -> Self {
        Self { visible: visible.into(), ..self }
    }

    /// Whether no code point is unfinished.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.pending.is_empty()
    }

    /// The text completed by this token, if any. Unknown ids add none, nor do special ones unless
    /// asked for; bytes that no continuation can make valid become U+FFFD.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let with_special = self.with_special || self.visible.contains(&id);
        let piece = self.tokenizer.decoded_piece(id, self.is_first, with_special);
        self.is_first = false;
        self.pending.extend_from_slice(piece);
        let unfinished = unfinished_len(&self.pending);
        let complete = self.pending.len() - unfinished;
        let text = String::from_utf8_lossy(&self.pending[..complete]).into_owned();
        self.pending.drain(..complete);
        (!text.is_empty()).then_some(text)
    }

    /// The rest at the end of the stream: an unfinished code point becomes U+FFFD.
    pub fn flush(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.pending);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }
}

/// Length of an incomplete code point at the end of `bytes`.
fn unfinished_len(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Err(error) = std::str::from_utf8(rest) {
        rest = &rest[error.valid_up_to()..];
        match error.error_len() {
            Some(invalid) => rest = &rest[invalid..],
            None => return rest.len(),
        }
    }
    0
}
