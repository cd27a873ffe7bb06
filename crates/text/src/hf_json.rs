//! Hugging Face's `tokenizer.json`, for byte-level BPE.
//!
//! Read: the vocabulary, the merges and the added tokens. Anything in the file that would change
//! the result in a way not implemented here leaves the file to `hf_tokenizers`. The post-processor
//! (which wraps text in special tokens) and the decoder (which follows from the model) are not used.
//!
//! Own reader: OpenAI's multilingual files lack their first merge, which is repaired here; the
//! vocabularies of whisper.cpp and CTranslate2 files share the encoder.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use crate::bpe::MergeRule;
use crate::byte_level::{Added, ByteLevel};
use crate::byte_map::token_bytes;
use crate::error::{Error, Result};
use crate::hf_tokenizers;
use crate::tokenizer::Tokenizer;
use crate::vocab::Vocab;

#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Option<serde_json::Value>,
    #[serde(default)]
    pre_tokenizer: Option<serde_json::Value>,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(borrow)]
    vocab: Entries<'a>,
    #[serde(borrow)]
    merges: Vec<Merge<'a>>,
}

impl Tokenizer {
    /// Reads a Hugging Face `tokenizer.json`.
    ///
    /// Byte-level BPE with GPT-2's pieces is read here, which also repairs the files of OpenAI's
    /// multilingual speech models (they lack their first merge); every other file is encoded by
    /// the `tokenizers` crate. The file names no BOS and no end of generation: see
    /// [`with_roles`](Self::with_roles).
    ///
    /// # Errors
    /// If the JSON has another shape, needs something not implemented (named in the error), or
    /// its vocabulary and merges contradict each other.
    pub fn from_hf_json(json: &[u8]) -> Result<Self> {
        match read(json) {
            Ok(byte_level) => Ok(byte_level.into()),
            Err(Error::Unsupported { expected, got }) => {
                hf_tokenizers::read(json).map_err(|error| {
                    let got = format!("{got} ({error})");
                    Error::Unsupported { expected, got }
                })
            }
            // Byte-level vocabularies may lack bytes that never occur in text.
            Err(Error::MissingByte { .. }) => hf_tokenizers::read(json),
            // Models other than BPE have another shape.
            Err(Error::Json { source, .. }) if source.is_data() => hf_tokenizers::read(json),
            Err(error) => Err(error),
        }
    }

    /// Reads a Hugging Face `tokenizer.json` of byte-level BPE with GPT-2's pieces, such as those of speech models. A program
    /// that reads no other kind links neither the `tokenizers` crate nor pre-tokenizers.
    ///
    /// # Errors
    /// As [`from_hf_json`](Self::from_hf_json), and for every other kind of tokenizer.
    pub fn from_byte_level_json(json: &[u8]) -> Result<Self> {
        Ok(read(json)?.into())
    }
}

/// Reads the byte-level BPE that is implemented here.
fn read(json: &[u8]) -> Result<ByteLevel> {
    let file: File<'_> = serde_json::from_slice(json).map_err(|source| Error::Json {
        format: "tokenizer.json",
        expected: "a BPE tokenizer",
        source,
    })?;
    check_supported(&file)?;
    // Each token takes more than one byte of JSON: a higher id can only be damage, and would
    // make the table larger than the file justifies.
    let limit = u32::try_from(json.len()).unwrap_or(u32::MAX);
    let in_range = |token: &str, id: u32| {
        let (id_wide, limit_wide) = (u64::from(id), u64::from(limit));
        if id < limit {
            return Ok(());
        }
        Err(Error::IdOutOfRange { token: token.to_owned(), id: id_wide, limit: limit_wide })
    };

    let entries = file.model.vocab.0;
    let mut vocab = Vocab::with_capacity(entries.len());
    for (token, id) in &entries {
        in_range(token, *id)?;
        vocab.insert(*id, &token_bytes(token))?;
    }
    let merges = merge_rules(&file.model.merges, &entries)?;
    let mut added = BTreeMap::new();
    for token in file.added_tokens {
        in_range(&token.content, token.id)?;
        added.insert(token.id, Added { text: token.content, special: token.special });
    }
    let rule = if lacks_a_rule(&merges, &vocab) && ids_are_ranks(&merges) {
        MergeRule::RankIsId
    } else {
        let ranked = merges.iter().zip(0..);
        // A rule given twice counts at its last place, as in Hugging Face's map.
        let pairs = ranked.map(|(rule, rank)| (rule.sides, (rank, rule.merged))).collect();
        MergeRule::Pairs { pairs, whole_pieces: file.model.ignore_merges }
    };
    ByteLevel::assemble(vocab, rule, added)
}

/// A merge by ids.
struct Rule {
    sides: (u32, u32),
    merged: u32,
}

/// The merges in rank order: both sides and the result looked up by their printable form.
fn merge_rules(merges: &[Merge<'_>], entries: &HashMap<Cow<'_, str>, u32>) -> Result<Vec<Rule>> {
    let mut rules = Vec::with_capacity(merges.len());
    let mut merged = String::new();
    for (index, merge) in merges.iter().enumerate() {
        let (left, right) = merge.sides(index)?;
        let id_of = |token: &str| {
            let missing = || Error::MergeToken { index, token: token.to_owned() };
            entries.get(token).copied().ok_or_else(missing)
        };
        merged.clear();
        merged.push_str(left);
        merged.push_str(right);
        rules.push(Rule { sides: (id_of(left)?, id_of(right)?), merged: id_of(&merged)? });
    }
    Ok(rules)
}

/// Whether a rule needs a token that no rule produces, so that it can never apply.
///
/// The published files of OpenAI's multilingual speech models lack their first rule, a space and
/// `t`, which was dropped as a header: " the" would become two tokens that the model has not seen
/// together.
fn lacks_a_rule(rules: &[Rule], vocab: &Vocab) -> bool {
    let made: HashSet<u32> = rules.iter().map(|rule| rule.merged).collect();
    let is_byte = |id: u32| vocab.bytes(id).is_some_and(|bytes| bytes.len() == 1);
    let never_made = |id: u32| !made.contains(&id) && !is_byte(id);
    rules.iter().any(|rule| never_made(rule.sides.0) || never_made(rule.sides.1))
}

/// Whether ids ascend with the rules, so that ids can replace ranks.
fn ids_are_ranks(rules: &[Rule]) -> bool {
    rules.is_sorted_by(|a, b| a.merged < b.merged)
}

fn check_supported(file: &File<'_>) -> Result<()> {
    let refuse = |expected, got: String| Err(Error::Unsupported { expected, got });
    let model = &file.model;
    if let Some(kind) = model.kind.as_deref().filter(|&kind| kind != "BPE") {
        return refuse("model type BPE", kind.to_owned());
    }
    if model.byte_fallback {
        return refuse("a byte-level model", "byte_fallback".to_owned());
    }
    let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
    if let Some(affix) = affixes.into_iter().flatten().find(|affix| !affix.is_empty()) {
        return refuse("no subword prefix or suffix", affix.clone());
    }
    if let Some(normalizer) = &file.normalizer {
        return refuse("no normalizer", type_of(normalizer));
    }
    let Some(pre_tokenizer) = &file.pre_tokenizer else {
        return refuse("pre-tokenizer ByteLevel", "none".to_owned());
    };
    if type_of(pre_tokenizer) != "ByteLevel" {
        return refuse("pre-tokenizer ByteLevel", type_of(pre_tokenizer));
    }
    let flag = |name: &str| pre_tokenizer.get(name).and_then(serde_json::Value::as_bool);
    // Both are true in Hugging Face's files when they are missing.
    if flag("add_prefix_space").unwrap_or(true) {
        return refuse("add_prefix_space false", "true".to_owned());
    }
    if !flag("use_regex").unwrap_or(true) {
        return refuse("use_regex true", "false".to_owned());
    }
    let strips = |token: &&AddedToken| token.lstrip || token.rstrip || token.single_word;
    if let Some(token) = file.added_tokens.iter().find(strips) {
        return refuse("added tokens without lstrip, rstrip, single_word", token.content.clone());
    }
    Ok(())
}

fn type_of(value: &serde_json::Value) -> String {
    let name = value.get("type").and_then(serde_json::Value::as_str);
    name.map_or_else(|| value.to_string().chars().take(40).collect(), str::to_owned)
}

/// The vocabulary object, borrowing keys that have no escapes.
struct Entries<'a>(HashMap<Cow<'a, str>, u32>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tokens and ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = HashMap::new();
                while let Some((key, id)) = map.next_entry::<Text<'de>, u32>()? {
                    entries.insert(key.0, id);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// A string, borrowed where the JSON has it without escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A merge rule: `"a b"` in older files, `["a", "b"]` in newer ones.
enum Merge<'a> {
    Joined(Cow<'a, str>),
    Pair(Cow<'a, str>, Cow<'a, str>),
}

impl Merge<'_> {
    fn sides(&self, index: usize) -> Result<(&str, &str)> {
        match self {
            Self::Pair(left, right) => Ok((left, right)),
            Self::Joined(joined) => match joined.split_once(' ') {
                Some((left, right)) if !right.contains(' ') => Ok((left, right)),
                _ => Err(Error::MergeShape { index, got: joined.clone().into_owned() }),
            },
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens, joined by a space or in an array")
            }

            fn visit_borrowed_str<E>(self, joined: &'de str) -> Result<Self::Value, E> {
                Ok(Merge::Joined(Cow::Borrowed(joined)))
            }

            fn visit_str<E>(self, joined: &str) -> Result<Self::Value, E> {
                Ok(Merge::Joined(Cow::Owned(joined.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut side = |n| {
                    let text: Option<Text<'de>> = seq.next_element()?;
                    text.ok_or_else(|| serde::de::Error::invalid_length(n, &self))
                };
                Ok(Merge::Pair(side(0)?.0, side(1)?.0))
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}
