//! GPT-2's printable form of bytes: each byte is written as one character, so that a token of
//! arbitrary bytes fits in a text file. Printable Latin-1 characters stand for themselves; the
//! other 68 bytes become U+0100 and up, in order.
//!
//! Source: `bytes_to_unicode` of openai/gpt-2 `encoder.py`.

/// The first character of the bytes that do not stand for themselves.
const SHIFT: u32 = 0x100;
/// Number of bytes that do not stand for themselves.
const N_SHIFTED: usize = 68;

const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The bytes written as `SHIFT + index`.
const SHIFTED: [u8; N_SHIFTED] = {
    let mut table = [0u8; N_SHIFTED];
    let mut n = 0;
    let mut byte = 0usize;
    while byte < 256 {
        if !stands_for_itself(byte as u8) {
            table[n] = byte as u8;
            n += 1;
        }
        byte += 1;
    }
    assert!(n == N_SHIFTED);
    table
};

/// The character of each byte.
const CHARACTERS: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut n_shifted = 0;
    let mut byte = 0usize;
    while byte < 256 {
        let mut code = byte as u32;
        if !stands_for_itself(byte as u8) {
            code = SHIFT + n_shifted;
            n_shifted += 1;
        }
        table[byte] = char::from_u32(code).expect("the codes are below the surrogates");
        byte += 1;
    }
    table
};

/// The byte that `c` is written for, or `None` if it is not a character of the printable form.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    if code < SHIFT {
        let byte = code as u8;
        return stands_for_itself(byte).then_some(byte);
    }
    SHIFTED.get((code - SHIFT) as usize).copied()
}

/// The bytes of a token in its printable form. A token with a character outside of it is taken
/// as plain text, as Hugging Face's byte-level decoder does (words added after training).
pub(crate) fn token_bytes(printable: &str) -> Vec<u8> {
    strict_token_bytes(printable).unwrap_or_else(|| printable.as_bytes().to_vec())
}

/// The bytes of a token in its printable form, or `None` if it has a character outside of it.
pub(crate) fn strict_token_bytes(printable: &str) -> Option<Vec<u8>> {
    printable.chars().map(byte_of).collect()
}

/// The printable form of `bytes`.
pub(crate) fn printable(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| CHARACTERS[usize::from(byte)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_exactly_one_character() {
        let mut seen = [0u32; 256];
        for code in 0..0x300 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of) {
                seen[usize::from(byte)] += 1;
            }
        }
        assert_eq!(seen, [1; 256]);
    }

    #[test]
    fn the_printable_form_round_trips() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(token_bytes(&printable(&bytes)), bytes);
        assert_eq!(printable(b" the"), "Ġthe");
    }

    #[test]
    fn known_characters() {
        assert_eq!(token_bytes("Ġthe"), b" the");
        assert_eq!(token_bytes("Ċ"), b"\n");
        assert_eq!(token_bytes("Ã©"), "é".as_bytes());
        assert_eq!(token_bytes("ĀŃ"), [0x00, 0xAD]);
        assert_eq!(token_bytes("東京"), "東京".as_bytes());
        assert_eq!(token_bytes(""), b"");
    }
}
