//! `/tokenize` and `/detokenize` of llama-server.

use serde::{Deserialize, Serialize};
use stonechat::llm::ModelInfo;
use stonechat::text::Tokenizer;

use crate::{ApiError, ApiResult};

/// Text, or texts and tokens in turn.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "expected a string, or a list of strings and token ids")]
enum Content {
    /// A text.
    Text(String),
    /// Texts and tokens.
    Mixed(Vec<Item>),
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "expected a string or a token id")]
enum Item {
    /// A token.
    Token(u32),
    /// A text.
    Text(String),
}

/// Body of `/tokenize`.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TokenizeBody {
    /// Name of the model.
    model: Option<String>,
    /// Text to tokenize.
    content: Content,
    /// Whether BOS and EOS are added where the model has them.
    #[serde(default)]
    add_special: bool,
    /// Whether the names of special tokens become those tokens.
    #[serde(default = "yes")]
    parse_special: bool,
    /// Whether the answer has the text of each token.
    #[serde(default)]
    with_pieces: bool,
}

fn yes() -> bool {
    true
}

/// Answer of `/tokenize`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Tokens {
    /// Token ids, or objects `{id, piece}`; a piece that is no UTF-8 is a list of bytes.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    tokens: Vec<Token>,
}

/// Token of an answer.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Token {
    Id(u32),
    WithPiece { id: u32, piece: Piece },
}

/// Text of a token, or its bytes if it is part of a character.
#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

impl TokenizeBody {
    /// Name of the model; `None`: the only one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Tokens of the text.
    ///
    /// # Errors
    /// 400 if a token id is not of the vocabulary.
    pub fn answer(&self, model: &ModelInfo) -> ApiResult<Tokens> {
        let tokenizer = model.tokenizer();
        let entry = |id: u32| match self.with_pieces {
            true => Token::WithPiece { id, piece: piece(tokenizer.token_piece(id, true)) },
            false => Token::Id(id),
        };
        Ok(Tokens { tokens: ids(tokenizer, self)?.into_iter().map(entry).collect() })
    }
}

fn ids(tokenizer: &Tokenizer, body: &TokenizeBody) -> ApiResult<Vec<u32>> {
    let items = match &body.content {
        Content::Text(text) => {
            return Ok(tokenizer.tokenize(text, body.add_special, body.parse_special));
        }
        Content::Mixed(items) => items,
    };
    let mut ids = Vec::new();
    for (i, item) in items.iter().enumerate() {
        match item {
            Item::Token(id) => ids.push(checked(tokenizer, *id, &format!("content[{i}]"))?),
            Item::Text(text) => {
                // BOS is that of the whole.
                let add_special = body.add_special && i == 0;
                ids.extend(tokenizer.tokenize(text, add_special, body.parse_special));
            }
        }
    }
    Ok(ids)
}

fn checked(tokenizer: &Tokenizer, id: u32, name: &str) -> ApiResult<u32> {
    let n = tokenizer.vocab_size();
    if (id as usize) < n {
        return Ok(id);
    }
    Err(ApiError::field(name, &format!("a token id below {n}"), id))
}

fn piece(bytes: &[u8]) -> Piece {
    match std::str::from_utf8(bytes) {
        Ok(text) => Piece::Text(text.to_owned()),
        Err(_) => Piece::Bytes(bytes.to_vec()),
    }
}

/// Body of `/detokenize`.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DetokenizeBody {
    /// Name of the model.
    model: Option<String>,
    /// Token ids.
    tokens: Vec<u32>,
}

/// Answer of `/detokenize`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Text {
    /// Text of the tokens.
    content: String,
}

impl DetokenizeBody {
    /// Name of the model; `None`: the only one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Text of the tokens.
    ///
    /// # Errors
    /// 400 if a token id is not of the vocabulary.
    pub fn answer(&self, model: &ModelInfo) -> ApiResult<Text> {
        let tokenizer = model.tokenizer();
        for (i, &id) in self.tokens.iter().enumerate() {
            checked(tokenizer, id, &format!("tokens[{i}]"))?;
        }
        Ok(Text { content: tokenizer.decode_with_special(&self.tokens) })
    }
}

#[cfg(test)]
mod tests {
    use super::{Piece, piece};

    #[test]
    fn a_piece_that_is_part_of_a_character_is_bytes() {
        let snowman = "☃".as_bytes();
        assert_eq!(piece(snowman), Piece::Text("☃".to_owned()));
        assert_eq!(piece(&snowman[..2]), Piece::Bytes(vec![226, 152]));
        assert_eq!(piece(b""), Piece::Text(String::new()));
    }
}
