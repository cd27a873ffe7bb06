//! `/tokenize` and `/detokenize`.

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stonechat::text::Tokenizer;

use crate::tasks::blocking;
use crate::{ApiError, ApiResult, AppState, Json};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/tokenize", post(tokenize)).route("/detokenize", post(detokenize))
}

/// Text, or texts and tokens in turn.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "expected a string, or a list of strings and token ids")]
enum Content {
    /// A text.
    Text(String),
    /// Texts and tokens.
    Mixed(Vec<Item>),
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "expected a string or a token id")]
enum Item {
    /// A token.
    Token(u32),
    /// A text.
    Text(String),
}

/// Body of `/tokenize`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct TokenizeBody {
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
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Tokens {
    /// Token ids, or objects `{id, piece}`; a piece that is no UTF-8 is a list of bytes.
    #[cfg_attr(test, schema(value_type = Vec<Object>))]
    tokens: Vec<Value>,
}

/// Tokens of a text
#[cfg_attr(test, utoipa::path(post, path = "/tokenize", tag = "text", request_body = TokenizeBody, responses(
    (status = 200, body = Tokens),
)))]
pub(crate) async fn tokenize(
    State(state): State<AppState>,
    Json(body): Json<TokenizeBody>,
) -> ApiResult<Json<Tokens>> {
    let model = state.language(body.model.as_deref()).await?;
    let tokenizer = model.info().model.tokenizer();
    let ids = blocking(|| ids(tokenizer, &body))?;
    let entry = |id: u32| match body.with_pieces {
        true => json!({"id": id, "piece": piece(tokenizer.token_piece(id, true))}),
        false => json!(id),
    };
    Ok(Json(Tokens { tokens: ids.into_iter().map(entry).collect() }))
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

/// Text of a token, or its bytes if it is part of a character.
fn piece(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!(bytes),
    }
}

/// Body of `/detokenize`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct DetokenizeBody {
    /// Name of the model.
    model: Option<String>,
    /// Token ids.
    tokens: Vec<u32>,
}

/// Answer of `/detokenize`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Text {
    /// Text of the tokens.
    content: String,
}

/// Text of tokens
#[cfg_attr(test, utoipa::path(post, path = "/detokenize", tag = "text", request_body = DetokenizeBody, responses(
    (status = 200, body = Text),
)))]
pub(crate) async fn detokenize(
    State(state): State<AppState>,
    Json(body): Json<DetokenizeBody>,
) -> ApiResult<Json<Text>> {
    let model = state.language(body.model.as_deref()).await?;
    let tokenizer = model.info().model.tokenizer();
    for (i, &id) in body.tokens.iter().enumerate() {
        checked(tokenizer, id, &format!("tokens[{i}]"))?;
    }
    Ok(Json(Text { content: tokenizer.decode_with_special(&body.tokens) }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::piece;

    #[test]
    fn a_piece_that_is_part_of_a_character_is_bytes() {
        let snowman = "☃".as_bytes();
        assert_eq!(piece(snowman), json!("☃"));
        assert_eq!(piece(&snowman[..2]), json!([226, 152]));
        assert_eq!(piece(b""), json!(""));
    }
}
