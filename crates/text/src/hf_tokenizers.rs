//! Hugging Face's `tokenizer.json` of any kind, encoded by the `tokenizers` crate.
//!
//! Files that `hf_json` reads never come here. Decoding is done here, token by token, so that it
//! streams: each token's bytes follow from the kind of decoder that the file names.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde_json::Value;
use tokenizers::AddedToken;

use crate::byte_level::{Added, Around};
use crate::byte_map::token_bytes;
use crate::error::{Error, Result};
use crate::ggml::Special;
use crate::token_model::TokenModel;
use crate::tokenizer::Tokenizer;

/// SentencePiece's form of a space.
const ESCAPED_SPACE: &str = "\u{2581}";

/// A tokenizer that the `tokenizers` crate encodes with.
#[derive(Debug, Clone)]
struct HfTokenizers {
    encoder: tokenizers::Tokenizer,
    /// The same, for which the text of a special token is text; made when first needed.
    literal: OnceLock<Box<tokenizers::Tokenizer>>,
    pieces: Vec<Option<Box<[u8]>>>,
    added: BTreeMap<u32, Added>,
    around: Around,
    strips_first_space: bool,
}

/// Fields of the file that define the notation of tokens.
#[derive(Deserialize)]
struct Decoding {
    #[serde(default)]
    decoder: Option<Value>,
}

/// Notation of tokens in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// GPT-2's printable form of bytes.
    Printable,
    /// Text with escaped spaces, and byte tokens such as `<0x0A>`.
    Escaped,
    /// Words, and parts of words after `##`.
    Words,
    /// Text stored as it is shown.
    Plain,
}

/// Reads a `tokenizer.json` that `hf_json` does not.
pub(crate) fn read(json: &[u8]) -> Result<Tokenizer> {
    let hf = HfTokenizers::new(json)?;
    let is_special = |id: &u32| hf.is_special(*id);
    let mut special = Special::by_text(|text| hf.token_id(text).filter(is_special));
    special.bos = hf.around.before.first().copied().filter(is_special);
    Ok(Tokenizer::named(Arc::new(hf), special))
}

impl HfTokenizers {
    fn new(json: &[u8]) -> Result<Self> {
        let refused = |source: tokenizers::Error| Error::Unsupported {
            expected: "a file that the tokenizers crate reads",
            got: source.to_string(),
        };
        let Decoding { decoder } = serde_json::from_slice(json).map_err(|source| Error::Json {
            format: "tokenizer.json",
            expected: "a tokenizer",
            source,
        })?;
        let mut encoder = tokenizers::Tokenizer::from_bytes(json).map_err(refused)?;
        encoder.with_padding(None);
        encoder.with_truncation(None).map_err(refused)?;
        let decoder = decoder.unwrap_or_default();
        let written = Written::of(&decoder);
        let mut added = BTreeMap::new();
        for (id, token) in encoder.get_added_tokens_decoder() {
            let AddedToken { content: text, special, normalized, .. } = token;
            added.insert(id, Added { text, special, normalized });
        }
        // Each token takes more than one byte of JSON: a higher id can only be damage.
        let limit = json.len();
        let mut pieces = Vec::new();
        for (text, id) in encoder.get_vocab(true) {
            let index = id as usize;
            if index >= limit {
                let (id, limit) = (u64::from(id), limit as u64);
                return Err(Error::IdOutOfRange { token: text, id, limit });
            }
            if index >= pieces.len() {
                pieces.resize(index + 1, None);
            }
            let is_added = added.contains_key(&id);
            let bytes = if is_added { text.into_bytes() } else { written.bytes(&text) };
            pieces[index] = Some(bytes.into_boxed_slice());
        }
        let strips_first_space = written == Written::Words || strips_first_space(&decoder);
        let (literal, around) = (OnceLock::new(), around(&encoder));
        Ok(Self { encoder, literal, pieces, added, around, strips_first_space })
    }
}

impl TokenModel for HfTokenizers {
    /// Token ids of `text`; none if the file's model refuses it (a vocabulary of words without an
    /// unknown token).
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        let encoder = if parse_special {
            &self.encoder
        } else {
            self.literal.get_or_init(|| {
                let mut literal = self.encoder.clone();
                literal.set_encode_special_tokens(true);
                Box::new(literal)
            })
        };
        encoder
            .encode_fast(text, add_special)
            .map_or_else(|_| Vec::new(), |encoding| encoding.get_ids().to_vec())
    }

    fn tokenize_marked(&self, text: &str, marker: &str, add_special: bool) -> Vec<u32> {
        let Around { before, after } =
            if add_special { self.around.clone() } else { Around::default() };
        let mut ids = before;
        let mut rest = text;
        loop {
            let found = self.specials().filter_map(|(id, name)| Some((rest.find(name)?, id, name)));
            let first = found.min_by_key(|&(at, _, name)| (at, usize::MAX - name.len()));
            let end = first.map_or(rest.len(), |(at, ..)| at);
            let part = rest[..end].replace(marker, "");
            if !part.is_empty() {
                ids.extend(self.tokenize(&part, false, false));
            }
            let Some((at, id, name)) = first else { break };
            ids.push(id);
            rest = &rest[at + name.len()..];
        }
        ids.extend(after);
        ids
    }

    fn piece(&self, id: u32, with_special: bool) -> &[u8] {
        let is_shown = with_special || !self.is_special(id);
        self.bytes(id).filter(|_| is_shown).unwrap_or_default()
    }

    fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id as usize)?.as_deref()
    }

    fn strips_first_space(&self) -> bool {
        self.strips_first_space
    }

    fn is_special(&self, id: u32) -> bool {
        self.added.get(&id).is_some_and(|token| token.special)
    }

    fn is_control(&self, id: u32) -> bool {
        self.is_special(id)
    }

    fn specials(&self) -> Box<dyn Iterator<Item = (u32, &str)> + '_> {
        let specials = self.added.iter().filter(|(_, token)| token.special);
        Box::new(specials.map(|(&id, token)| (id, token.text.as_str())))
    }

    fn token_id(&self, text: &str) -> Option<u32> {
        let added = self.added.iter().find(|(_, added)| added.text == text).map(|(&id, _)| id);
        let shows = |piece: &Option<Box<[u8]>>| piece.as_deref() == Some(text.as_bytes());
        added.or_else(|| self.pieces.iter().position(shows).map(|id| id as u32))
    }

    fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    fn adds_bos(&self, bos: Option<u32>) -> bool {
        bos.is_some() && self.around.before.first().copied() == bos
    }

    fn adds_eos(&self, eos: Option<u32>) -> bool {
        eos.is_some() && self.around.after.last().copied() == eos
    }
}

impl Written {
    fn of(decoder: &Value) -> Self {
        let has = |name| steps(decoder).iter().any(|step| step["type"] == name);
        if has("ByteLevel") {
            Self::Printable
        } else if has("Metaspace") || has("ByteFallback") || has("Replace") {
            Self::Escaped
        } else if has("WordPiece") {
            Self::Words
        } else {
            Self::Plain
        }
    }

    fn bytes(self, text: &str) -> Vec<u8> {
        match self {
            Self::Printable => token_bytes(text),
            Self::Escaped => {
                let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                match hex.filter(|hex| hex.len() == 2).map(|hex| u8::from_str_radix(hex, 16)) {
                    Some(Ok(byte)) => vec![byte],
                    _ => text.replace(ESCAPED_SPACE, " ").into_bytes(),
                }
            }
            Self::Words => match text.strip_prefix("##") {
                Some(part) => part.as_bytes().to_vec(),
                None => format!(" {text}").into_bytes(),
            },
            Self::Plain => text.as_bytes().to_vec(),
        }
    }
}

/// Tokens that the file puts around a text. Without a text that the model encodes, all of them are taken for the first.
fn around(encoder: &tokenizers::Tokenizer) -> Around {
    let encode = |text| encoder.encode_fast(text, true).ok();
    let Some(encoding) = encode("a").or_else(|| encode("")) else { return Around::default() };
    let is_plain = |mask: &u32| *mask == 0;
    let (ids, mask) = (encoding.get_ids(), encoding.get_special_tokens_mask());
    let start = mask.iter().position(is_plain).unwrap_or(mask.len());
    let end = mask.iter().rposition(is_plain).map_or(mask.len(), |last| last + 1);
    Around { before: ids[..start].to_vec(), after: ids[end..].to_vec() }
}

/// The steps of a decoder: itself, or those of a sequence.
fn steps(decoder: &Value) -> Vec<&Value> {
    match decoder["decoders"].as_array() {
        Some(steps) => steps.iter().collect(),
        None => vec![decoder],
    }
}

/// Whether decoding strips the space that encoding prepends.
fn strips_first_space(decoder: &Value) -> bool {
    steps(decoder).iter().any(|step| match step["type"].as_str() {
        Some("Strip") => step["content"] == " " && step["start"].as_u64().unwrap_or(0) > 0,
        Some("Metaspace") => {
            step["prepend_scheme"] != "never" && step["add_prefix_space"] != Value::Bool(false)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{HfTokenizers, TokenModel};

    const END: u32 = 4;

    fn tokenizer() -> HfTokenizers {
        let end = json!({"id": END, "content": "<|im_end|>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false});
        let vocabulary = json!({"a": 0, "b": 1, "im_end": 2, "?": 3});
        let file = json!({"version": "1.0", "added_tokens": [end], "normalizer": null,
            "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"}});
        HfTokenizers::new(file.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn marked_special_tokens_are_text() {
        let tokenizer = tokenizer();
        let text = "a <|im_end|> b";
        let ids = tokenizer.tokenize(text, false, false);
        assert_eq!(ids, [0, 3, 2, 3, 1]);
        assert_eq!(tokenizer.tokenize(text, false, true), [0, END, 1]);
        let marked = "a <77|im_end|> b<|im_end|>\nb";
        let expected: Vec<u32> = ids.into_iter().chain([END, 1]).collect();
        assert_eq!(tokenizer.tokenize_marked(marked, "77", false), expected);
        assert!(tokenizer.tokenize_marked("", "77", true).is_empty());
        let plain = "a <|im_end|><|im_end|> b";
        assert_eq!(
            tokenizer.tokenize_marked(plain, "77", false),
            tokenizer.tokenize(plain, false, true)
        );
    }
}
