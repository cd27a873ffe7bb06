//! Tokenizer and chat template of a model file.

use std::borrow::Cow;

use stonechat_formats::{Array, Format, Metadata, ModelFile, Value};
use stonechat_sampling::{TokenTable, TokenText};
use stonechat_text::{ChatTemplate, GgmlVocabulary, Tokenizer};

use crate::Error;

/// Reads the tokenizer of a GGUF file or a Hugging Face folder, without its weights.
///
/// # Errors
/// If the file has no tokenizer, or an unsupported or damaged one.
pub fn tokenizer(file: &ModelFile) -> Result<Tokenizer, Error> {
    if file.format() == Format::Gguf {
        return Ok(Tokenizer::from_ggml(vocabulary(file.metadata())?)?);
    }
    let json = file
        .companion("tokenizer.json")
        .ok_or_else(|| Error::config("tokenizer.json", "is missing beside the weights"))?;
    let (bos, ends) = roles(file);
    Ok(Tokenizer::from_hf_json(json)?.with_roles(bos, &ends))
}

/// BOS and end tokens of a Hugging Face folder; `tokenizer.json` does not name them.
fn roles(file: &ModelFile) -> (Option<u32>, Vec<u32>) {
    let (mut bos, mut ends) = (None, Vec::new());
    for name in ["generation_config.json", "config.json"] {
        let Some(text) = file.companion(name) else { continue };
        let Ok(json) = serde_json::from_slice::<serde_json::Value>(text) else { continue };
        let id = |value: &serde_json::Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        bos = bos.or(id(&json["bos_token_id"]));
        let eos = &json["eos_token_id"];
        ends.extend(id(eos));
        ends.extend(eos.as_array().into_iter().flatten().filter_map(id));
    }
    (bos, ends)
}

/// Whether tokens of one model are tokens of another one, of tokenizers and sizes of vocabularies: equal texts of all tokens.
/// The sizes may differ by unused tokens.
#[must_use]
pub fn same_vocabulary((a, n_a): (&Tokenizer, usize), (b, n_b): (&Tokenizer, usize)) -> bool {
    const MAX_DIFFERENCE: usize = 128;
    let is_same = |token| a.token_piece(token, true) == b.token_piece(token, true);
    n_a.abs_diff(n_b) <= MAX_DIFFERENCE && (0..n_a.min(n_b) as u32).all(is_same)
}

fn vocabulary(metadata: &Metadata) -> Result<GgmlVocabulary<'_>, Error> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let has = |name: &str| metadata.get(&key(name)).is_some();
    let id = |name: &str| {
        let name = format!("{name}_token_id");
        // Some converters write -1 for a missing token.
        Ok::<_, Error>(if has(&name) { metadata.u32(&key(&name)).ok() } else { None })
    };
    let flag = |name: &str| match has(name) {
        true => Ok::<_, Error>(Some(metadata.bool(&key(name))?)),
        false => Ok(None),
    };
    let strings = |name: &str| match has(name) {
        true => Ok::<_, Error>(metadata.strings(&key(name))?.into()),
        false => Ok(Cow::default()),
    };
    Ok(GgmlVocabulary {
        model: metadata.str(&key("model"))?.into(),
        pre: if has("pre") { Some(metadata.str(&key("pre"))?.into()) } else { None },
        tokens: metadata.strings(&key("tokens"))?.into(),
        scores: match metadata.get(&key("scores")) {
            Some(Value::Array(Array::F32(scores))) => scores.into(),
            _ => Cow::default(),
        },
        token_types: match metadata.get(&key("token_type")) {
            Some(Value::Array(Array::I32(types))) => types.into(),
            Some(Value::Array(Array::U32(types))) => types.iter().map(|&t| t as i32).collect(),
            _ => Cow::default(),
        },
        merges: strings("merges")?,
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unk: id("unknown")?,
        // `seperator` is GGUF's older key.
        sep: id("seperator")?.or(id("separator")?),
        pad: id("padding")?,
        cls: id("cls")?,
        mask: id("mask")?,
        fim_pre: id("fim_pre")?.or(id("prefix")?),
        fim_suf: id("fim_suf")?.or(id("suffix")?),
        fim_mid: id("fim_mid")?.or(id("middle")?),
        fim_pad: id("fim_pad")?,
        fim_rep: id("fim_rep")?,
        fim_sep: id("fim_sep")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_sep: flag("add_sep_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        precompiled_charsmap: match metadata.get(&key("precompiled_charsmap")) {
            Some(Value::Array(Array::U8(map))) => map.into(),
            Some(Value::Array(Array::I8(map))) => map.iter().map(|&byte| byte as u8).collect(),
            _ => Cow::default(),
        },
        lowercase: flag("normalizer.lowercase")?,
        strip_accents: flag("normalizer.strip_accents")?,
        name: metadata.str("general.name").ok().map(Cow::from),
        architecture: metadata.str("general.architecture").ok().map(Cow::from),
    })
}

/// Jinja source of the chat template of a GGUF file or a Hugging Face folder.
#[must_use]
pub fn chat_template(file: &ModelFile) -> Option<String> {
    if file.format() == Format::Gguf {
        return file.metadata().str("tokenizer.chat_template").ok().map(str::to_owned);
    }
    if let Some(jinja) = file.companion("chat_template.jinja") {
        return String::from_utf8(jinja.to_vec()).ok();
    }
    let config = file.companion("tokenizer_config.json")?;
    let json: serde_json::Value = serde_json::from_slice(config).ok()?;
    json["chat_template"].as_str().map(str::to_owned)
}

/// Compiles a chat template; `source` is Jinja or the name of a built-in one.
pub(crate) fn template(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
    let name = |id: Option<u32>| {
        let bytes = id.map_or(&[][..], |id| tokenizer.token_piece(id, true));
        String::from_utf8_lossy(bytes).into_owned()
    };
    let (bos, eos) = (name(tokenizer.bos()), name(tokenizer.eos()));
    if ChatTemplate::builtin_names().any(|builtin| builtin == source) {
        return Ok(ChatTemplate::builtin(source, &bos, &eos)?);
    }
    Ok(ChatTemplate::new(source, &bos, &eos)?)
}

/// Token table for grammars: control tokens by name, the others by their bytes.
pub(crate) fn token_table(tokenizer: &Tokenizer, vocab_size: usize) -> Result<TokenTable, Error> {
    let ends: Vec<u32> = tokenizer.ends_of_generation().collect();
    let ids = 0..vocab_size as u32;
    let name = |id| String::from_utf8_lossy(tokenizer.token_piece(id, true));
    let names: Vec<_> = ids.clone().filter(|&id| tokenizer.is_control(id)).map(name).collect();
    let mut names = names.iter();
    let tokens: Vec<TokenText<'_>> = ids
        .map(|id| {
            if tokenizer.is_control(id)
                && let Some(name) = names.next()
            {
                return TokenText::Special(name);
            }
            match tokenizer.token_piece(id, false) {
                [] => TokenText::Unused,
                bytes => TokenText::Bytes(bytes),
            }
        })
        .collect();
    Ok(TokenTable::new(&tokens, &ends)?)
}
