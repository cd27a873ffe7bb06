//! Decoded bytes of tokens.

use super::ESCAPED_SPACE;
use super::attributes::Attributes;
use super::slices::Slices;
use super::tokens::Tokens;
use crate::byte_map::strict_token_bytes;

/// Tokens that decode to their text.
const SHOWN: Attributes = Attributes::MATCHED.with(Attributes::NORMAL);

/// Decoded bytes of tokens, by id.
#[derive(Debug, Clone)]
pub(super) struct Pieces {
    /// Empty for tokens that decode to their text or to nothing.
    own: Slices,
}

impl Pieces {
    /// `is_printable`: ordinary tokens are in GPT-2's printable form.
    pub(super) fn new(tokens: &Tokens, is_printable: bool) -> Self {
        let mut own = Slices::with_capacity(tokens.len(), 0);
        for id in tokens.ids() {
            let attributes = tokens.attributes(id);
            if attributes.any(Attributes::MATCHED) {
                own.push(&[]);
            } else if attributes.any(Attributes::NORMAL) {
                let text = tokens.text(id);
                own.push(&if is_printable { unprintable(text) } else { unescaped(text) });
            } else if attributes.any(Attributes::BYTE) {
                own.push(byte(tokens.text(id)).as_slice());
            } else {
                own.push(&[]);
            }
        }
        own.shrink();
        Self { own }
    }

    /// Decoded bytes of the token; empty for ids without one.
    pub(super) fn get<'t>(&'t self, tokens: &'t Tokens, id: u32) -> &'t [u8] {
        let own = self.own.get(id);
        if own.is_empty() && tokens.attributes(id).any(SHOWN) {
            tokens.texts().get(id)
        } else {
            own
        }
    }
}

/// Bytes of a token in its printable form, if they differ from its text.
fn unprintable(text: &str) -> Vec<u8> {
    // Characters that differ from their byte are beyond ASCII.
    if text.is_ascii() { Vec::new() } else { strict_token_bytes(text).unwrap_or_default() }
}

/// The bytes of a token with its spaces unescaped, if there are any.
fn unescaped(text: &str) -> Vec<u8> {
    if text.contains(ESCAPED_SPACE) {
        text.replace(ESCAPED_SPACE, " ").into_bytes()
    } else {
        Vec::new()
    }
}

/// Byte of a byte token.
fn byte(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'))?;
    u8::from_str_radix(hex, 16).ok()
}
