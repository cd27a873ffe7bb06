//! A vocabulary without merges: text becomes one token a byte, and what a model generates shows.

/// The bytes that GPT-2's byte-level form writes as themselves.
fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// `vocab_size` tokens in the byte-level form: the 256 bytes, then fillers, each a word of its own.
///
/// Source of the form: `bytes_to_unicode` of openai/gpt-2's `encoder.py`.
pub(super) fn tokens(vocab_size: usize) -> Vec<String> {
    let mut others = '\u{100}'..;
    let of_byte = |byte: u8| {
        if stands_for_itself(byte) {
            return char::from(byte).to_string();
        }
        others.next().map(String::from).unwrap_or_default()
    };
    let bytes = (0..=u8::MAX).map(of_byte);
    // U+0120 is the space.
    let fillers = (256..vocab_size).map(|token_id| format!("\u{120}t{token_id}"));
    bytes.chain(fillers).take(vocab_size).collect()
}
