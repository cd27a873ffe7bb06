//! Hugging Face's `tokenizer.json`, for byte-level BPE.
//!
//! Read: the vocabulary, the merges and the added tokens; by `hf_text` and `hf_around` the normalizer, the pre-tokenizer and
//! the post-processor. Anything in the file that would change the result in a way not implemented here leaves the file to
//! `hf_tokenizers`.
//!
//! Own reader: OpenAI's multilingual files lack their first merge, which is repaired here; the vocabularies of whisper.cpp and
//! CTranslate2 files share the encoder; the `tokenizers` crate with its engines is a tenth of a browser's binary.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::bpe::MergeRule;
use crate::byte_level::{Added, Around, ByteLevel, TextRules};
use crate::error::{Error, Result};
use crate::hf_around::around;
use crate::tokenizer::Tokenizer;
use crate::vocab::Vocab;
use crate::{hf_text, hf_tokenizers};

/// Parts of the file that are read.
#[derive(Deserialize)]
pub(crate) struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(crate) normalizer: Option<Value>,
    #[serde(default)]
    pub(crate) pre_tokenizer: Option<Value>,
    #[serde(default)]
    post_processor: Option<Value>,
    #[serde(default)]
    decoder: Option<Value>,
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
    normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(borrow)]
    vocab: Entries<'a>,
    #[serde(borrow)]
    merges: Vec<Merge<'a>>,
}

/// Rules for text, where they are not GPT-2's, and tokens around it.
type Text = (Option<Arc<dyn TextRules>>, Around);

impl Tokenizer {
    /// Reads a Hugging Face `tokenizer.json`.
    ///
    /// Byte-level BPE is read here, which also repairs the files of OpenAI's multilingual speech models (they lack their first
    /// merge); every other file is encoded by the `tokenizers` crate. The file names no end of generation: see
    /// [`with_roles`](Self::with_roles).
    ///
    /// # Errors
    /// If the JSON has another shape, needs something not implemented (named in the error), or
    /// its vocabulary and merges contradict each other.
    pub fn from_hf_json(json: &[u8]) -> Result<Self> {
        let text = |file: &File<'_>| {
            check_decoder(file.decoder.as_ref())?;
            Ok((hf_text::rules(file)?, around(file.post_processor.as_ref())?))
        };
        match read(json, text) {
            Ok(byte_level) => Ok(byte_level.into()),
            Err(Error::Unsupported { expected, got }) => {
                hf_tokenizers::read(json).map_err(|error| {
                    let got = format!("{got} ({error})");
                    Error::Unsupported { expected, got }
                })
            }
            // Models other than BPE have another shape.
            Err(Error::Json { source, .. }) if source.is_data() => hf_tokenizers::read(json),
            Err(error) => Err(error),
        }
    }

    /// Reads a Hugging Face `tokenizer.json` of byte-level BPE with GPT-2's pieces, such as those of speech models. A program
    /// that reads no other kind links neither the `tokenizers` crate nor pre-tokenizers. The tokens that the file puts around
    /// a text are not read.
    ///
    /// # Errors
    /// As [`from_hf_json`](Self::from_hf_json), and for every other kind of tokenizer.
    pub fn from_byte_level_json(json: &[u8]) -> Result<Self> {
        let text = |file: &File<'_>| gpt2_only(file).map(|()| (None, Around::default()));
        Ok(read(json, text)?.into())
    }
}

/// Reads the byte-level BPE that is implemented here; `text` reads what surrounds the model.
fn read(json: &[u8], text: impl FnOnce(&File<'_>) -> Result<Text>) -> Result<ByteLevel> {
    let file: File<'_> = serde_json::from_slice(json).map_err(|source| Error::Json {
        format: "tokenizer.json",
        expected: "a BPE tokenizer",
        source,
    })?;
    check_model(&file.model)?;
    let (rules, around) = text(&file)?;
    // Each token takes more than one byte of JSON: a higher id can only be damage, and would
    // make the table larger than the file justifies.
    let limit = u32::try_from(json.len()).unwrap_or(u32::MAX);
    let vocab = vocabulary(&file.model.vocab.0, limit)?;
    let added = added_tokens(&file, &vocab, rules.as_deref(), limit)?;
    let merges = merge_rules(&file.model.merges, &file.model.vocab.0)?;
    let has_every_byte = vocab.byte_ids().iter().all(Option::is_some);
    let may_repair = rules.is_none() && has_every_byte;
    let rule = if may_repair && lacks_a_rule(&merges, &vocab) && ids_are_ranks(&merges) {
        MergeRule::RankIsId
    } else {
        let ranked = merges.iter().zip(0..);
        // A rule given twice counts at its last place, as in Hugging Face's map.
        let pairs = ranked.map(|(rule, rank)| (rule.sides, (rank, rule.merged))).collect();
        let unknown = if has_every_byte { None } else { unknown(&file.model)? };
        MergeRule::Pairs { pairs, whole_pieces: file.model.ignore_merges, unknown }
    };
    let is_token = |id: &u32| vocab.bytes(*id).is_some() || added.contains_key(id);
    if let Some(id) = around.before.iter().chain(&around.after).find(|id| !is_token(id)) {
        return refuse("a post-processor with tokens of the vocabulary", id);
    }
    Ok(ByteLevel::assemble(vocab, rule, added)?.with_text(rules, around))
}

fn refuse<T>(expected: &'static str, got: impl ToString) -> Result<T> {
    Err(Error::Unsupported { expected, got: got.to_string() })
}

fn check_id(token: &str, id: u32, limit: u32) -> Result<()> {
    if id < limit {
        return Ok(());
    }
    let (id, limit) = (u64::from(id), u64::from(limit));
    Err(Error::IdOutOfRange { token: token.to_owned(), id, limit })
}

fn vocabulary(entries: &HashMap<Cow<'_, str>, u32>, limit: u32) -> Result<Vocab> {
    let mut tokens: Vec<(u32, &str)> = entries.iter().map(|(token, &id)| (id, &**token)).collect();
    tokens.sort_unstable();
    let mut vocab = Vocab::with_capacity(tokens.len());
    for (id, token) in tokens {
        check_id(token, id, limit)?;
        vocab.insert_printable(id, token)?;
    }
    Ok(vocab)
}

/// The added tokens by id. Each has one id and one text, in the vocabulary too.
fn added_tokens(
    file: &File<'_>,
    vocab: &Vocab,
    rules: Option<&dyn TextRules>,
    limit: u32,
) -> Result<BTreeMap<u32, Added>> {
    let mut added = BTreeMap::new();
    let mut texts = HashSet::new();
    for token in &file.added_tokens {
        let (id, text) = (token.id, token.content.as_str());
        check_id(text, id, limit)?;
        if token.lstrip || token.rstrip || token.single_word {
            return refuse("added tokens without lstrip, rstrip, single_word", text);
        }
        let in_vocabulary = file.model.vocab.0.get(text);
        let is_taken = in_vocabulary.is_none() && vocab.bytes(id).is_some();
        if is_taken || in_vocabulary.is_some_and(|&other| other != id) || !texts.insert(text) {
            return refuse("one text for each id and one id for each text of added tokens", text);
        }
        if token.normalized && rules.is_some_and(|rules| rules.normalized(text) != text) {
            return refuse("added tokens that are normalized", text);
        }
        if let Some(Added { text: first, .. }) = added.get(&id) {
            let (first, second) = (first.clone(), text.to_owned());
            return Err(Error::DuplicateId { id, first, second });
        }
        let (special, normalized) = (token.special, token.normalized);
        added.insert(id, Added { text: text.to_owned(), special, normalized });
    }
    Ok(added)
}

/// The token of bytes without one of their own.
fn unknown(model: &Model<'_>) -> Result<Option<u32>> {
    let Some(token) = &model.unk_token else { return Ok(None) };
    match model.vocab.0.get(token.as_str()) {
        Some(&id) if !model.fuse_unk => Ok(Some(id)),
        Some(_) => refuse("fuse_unk false where bytes have no token", "true"),
        None => refuse("unk_token in the vocabulary", token),
    }
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

fn check_model(model: &Model<'_>) -> Result<()> {
    if let Some(kind) = model.kind.as_deref().filter(|&kind| kind != "BPE") {
        return refuse("model type BPE", kind);
    }
    if model.byte_fallback {
        return refuse("a byte-level model", "byte_fallback");
    }
    let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
    if let Some(affix) = affixes.into_iter().flatten().find(|affix| !affix.is_empty()) {
        return refuse("no subword prefix or suffix", affix);
    }
    match model.dropout.filter(|&dropout| dropout != 0.0) {
        Some(dropout) => refuse("no dropout", dropout),
        None => Ok(()),
    }
}

/// Refuses every text but GPT-2's pieces of text as given.
pub(crate) fn gpt2_only(file: &File<'_>) -> Result<()> {
    if let Some(normalizer) = &file.normalizer {
        return refuse("no normalizer", type_of(normalizer));
    }
    let Some(pre_tokenizer) = &file.pre_tokenizer else {
        return refuse("pre-tokenizer ByteLevel", "none");
    };
    if type_of(pre_tokenizer) != "ByteLevel" {
        return refuse("pre-tokenizer ByteLevel", type_of(pre_tokenizer));
    }
    let flag = |name: &str| pre_tokenizer.get(name).and_then(Value::as_bool);
    // Both are true in Hugging Face's files when they are missing.
    if flag("add_prefix_space").unwrap_or(true) {
        return refuse("add_prefix_space false", "true");
    }
    if !flag("use_regex").unwrap_or(true) {
        return refuse("use_regex true", "false");
    }
    Ok(())
}

/// Refuses decoders other than the one that follows from the model.
fn check_decoder(decoder: Option<&Value>) -> Result<()> {
    let mut parts = Vec::new();
    flat(decoder, "decoders", &mut parts);
    match parts.iter().find(|part| type_of(part) != "ByteLevel") {
        Some(other) => refuse("decoder ByteLevel", type_of(other)),
        None => Ok(()),
    }
}

/// The parts of a sequence in order, or the only part; none of nothing.
pub(crate) fn flat<'v>(part: Option<&'v Value>, list: &str, parts: &mut Vec<&'v Value>) {
    let Some(part) = part else { return };
    match part[list].as_array() {
        Some(inner) if part["type"] == "Sequence" => {
            inner.iter().for_each(|part| flat(Some(part), list, parts));
        }
        _ => parts.push(part),
    }
}

/// Name of a part, or its beginning if it has none.
pub(crate) fn type_of(value: &Value) -> String {
    let name = value.get("type").and_then(Value::as_str);
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
                while let Some((key, id)) = map.next_entry::<Name<'de>, u32>()? {
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
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

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
                    let text: Option<Name<'de>> = seq.next_element()?;
                    text.ok_or_else(|| serde::de::Error::invalid_length(n, &self))
                };
                Ok(Merge::Pair(side(0)?.0, side(1)?.0))
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}
