//! The field `logit_bias` in the forms of OpenAI and llama-server.

use serde_json::Value;
use stonechat::text::Tokenizer;

use crate::{ApiError, ApiResult};

/// Biases by token: an object `{"id or text": bias}`, or a list of pairs `[id or text, bias]`. `false` forbids a token; a
/// text stands for all its tokens.
pub(super) fn parse(value: &Value, tokenizer: &Tokenizer) -> ApiResult<Vec<(u32, f32)>> {
    let mut biases = Vec::new();
    match value {
        Value::Null => {}
        Value::Object(entries) => {
            for (key, bias) in entries {
                let token =
                    key.parse::<u32>().map_or_else(|_| Value::from(key.as_str()), Value::from);
                add(&mut biases, &token, bias, tokenizer, &format!("logit_bias.{key}"))?;
            }
        }
        Value::Array(pairs) => {
            for (i, pair) in pairs.iter().enumerate() {
                let name = format!("logit_bias[{i}]");
                let [token, bias] = pair.as_array().map_or(&[][..], Vec::as_slice) else {
                    return Err(ApiError::field(&name, "a pair of token and bias", pair));
                };
                add(&mut biases, token, bias, tokenizer, &name)?;
            }
        }
        other => {
            let expected = "an object or a list of pairs";
            return Err(ApiError::field("logit_bias", expected, other));
        }
    }
    Ok(biases)
}

fn add(
    biases: &mut Vec<(u32, f32)>,
    token: &Value,
    bias: &Value,
    tokenizer: &Tokenizer,
    name: &str,
) -> ApiResult<()> {
    let bias = match bias {
        Value::Bool(false) => f32::NEG_INFINITY,
        Value::Number(bias) => bias.as_f64().unwrap_or(f64::NAN) as f32,
        other => return Err(ApiError::field(name, "a number or false as bias", other)),
    };
    match token {
        Value::Number(id) => {
            let n = tokenizer.vocab_size();
            let id =
                id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < n);
            let id =
                id.ok_or_else(|| ApiError::field(name, &format!("a token id below {n}"), token))?;
            biases.push((id, bias));
        }
        Value::String(text) => {
            biases.extend(tokenizer.tokenize(text, false, false).into_iter().map(|id| (id, bias)));
        }
        other => return Err(ApiError::field(name, "a token id or a text", other)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stonechat::text::Tokenizer;

    use super::parse;

    #[test]
    fn biases_are_pairs_or_an_object() {
        // A token for each byte.
        let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let tokenizer = Tokenizer::from_ranked(&bytes).unwrap();
        let expected = vec![(0, 1.5), (99, f32::NEG_INFINITY)];
        assert_eq!(parse(&json!([[0, 1.5], ["c", false]]), &tokenizer).unwrap(), expected);
        assert_eq!(parse(&json!({"0": 1.5, "c": false}), &tokenizer).unwrap(), expected);
        assert_eq!(parse(&json!(null), &tokenizer).unwrap(), []);
        for wrong in
            [json!([[0]]), json!([[256, 1]]), json!({"a": true}), json!(1), json!([[-1, 0]])]
        {
            assert!(parse(&wrong, &tokenizer).is_err(), "{wrong}");
        }
    }
}
