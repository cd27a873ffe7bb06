//! Post-processor of Hugging Face's `tokenizer.json`: tokens around a text.

use serde_json::Value;

use crate::byte_level::Around;
use crate::error::{Error, Result};
use crate::hf_json::{flat, type_of};

/// Most tokens around a text; published files have at most eight.
const MAX_TOKENS: usize = 64;

/// The tokens that a post-processor puts around a text.
pub(crate) fn around(post_processor: Option<&Value>) -> Result<Around> {
    let mut parts = Vec::new();
    flat(post_processor, "processors", &mut parts);
    let mut found = None;
    for part in parts {
        let kind = type_of(part);
        let around = match kind.as_str() {
            // Offsets only.
            "ByteLevel" => continue,
            "TemplateProcessing" => template(part),
            "BertProcessing" | "RobertaProcessing" => ends(part),
            _ => None,
        };
        if around.is_none() || found.is_some() {
            let expected = "one post-processor that puts tokens around a text";
            return Err(Error::Unsupported { expected, got: kind });
        }
        found = around;
    }
    Ok(found.unwrap_or_default())
}

fn template(part: &Value) -> Option<Around> {
    let (mut tokens, mut n_before) = (Vec::new(), None);
    for piece in part["single"].as_array()? {
        if let Some(sequence) = piece.get("Sequence") {
            let is_second = n_before.replace(tokens.len()).is_some();
            if is_second || sequence["id"] != "A" {
                return None;
            }
            continue;
        }
        let name = piece["SpecialToken"]["id"].as_str()?;
        for token in part["special_tokens"][name]["ids"].as_array()? {
            tokens.push(id(token)?);
            if tokens.len() > MAX_TOKENS {
                return None;
            }
        }
    }
    let after = tokens.split_off(n_before?);
    Some(Around { before: tokens, after })
}

/// Tokens named `cls` and `sep`, each as its text and id.
fn ends(part: &Value) -> Option<Around> {
    let token = |name: &str| id(&part[name][1]);
    Some(Around { before: vec![token("cls")?], after: vec![token("sep")?] })
}

fn id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}
