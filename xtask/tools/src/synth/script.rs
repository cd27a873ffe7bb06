//! A model that writes given answers: tests of clients know what it says, and the server runs it as any other model.
//!
//! The chat template ends a prompt with a marker that depends on the conversation; the answer to the marker is a chain of
//! tokens, each with one successor:
//!
//! ```text
//! embedding[t]  random signs, different for each token of a chain; the last value marks a token without a successor
//! layer         adds zero
//! output[t]     the embedding of the token before t; of the end token: the last value alone
//! ```
//!
//! Two embeddings of `D` random signs have a product of about 0 ± sqrt(D), a token with itself D: the successor is certain
//! at temperature 1, too. The text of a prompt is read as bytes and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::language::{CONTROL, NORMAL};
use super::shapes::{Biases, Language};
use super::{Plan, Values, blocks, language, vocabulary};

/// Width of the model. The last value of an embedding marks a token without a successor.
const D_MODEL: usize = 256;
/// Least bytes of a token of an answer: short, so that clients see answers in parts.
const PIECE: usize = 4;
/// Tokens of the context: prompts of agents take 40,000 bytes.
const N_CTX: usize = 131_072;

/// Script of a model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Script {
    /// File of the chat template, which ends prompts with the markers, beside the script.
    template: PathBuf,
    /// Answer after each marker.
    pub(super) answers: BTreeMap<String, String>,
}

impl Script {
    /// Reads a script and its template.
    pub(super) fn read(path: &Path) -> Result<(Self, String)> {
        let read = |path: &Path| {
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let script: Self = serde_json::from_str(&read(path)?)
            .with_context(|| format!("{}: no script", path.display()))?;
        let template = read(&path.with_file_name(&script.template))?;
        Ok((script, template))
    }
}

/// Tokens of a script.
struct Tokens {
    texts: Vec<String>,
    types: Vec<i32>,
    known: BTreeSet<String>,
    /// The token after each token that has one.
    successors: BTreeMap<usize, usize>,
}

impl Tokens {
    fn push(&mut self, text: String, kind: i32) -> Result<usize> {
        ensure!(self.known.insert(text.clone()), "expected different markers, got {text:?} twice");
        self.texts.push(text);
        self.types.push(kind);
        Ok(self.texts.len() - 1)
    }

    /// Adds the chain of an answer after `marker`, and the end token.
    fn chain(&mut self, marker: usize, answer: &str, end: usize) -> Result<()> {
        let bytes = vocabulary::tokens(256);
        let spelled: Vec<&str> =
            answer.bytes().map(|byte| bytes[usize::from(byte)].as_str()).collect();
        let mut last = marker;
        for piece in self.pieces(&spelled)? {
            let token = self.push(piece, NORMAL)?;
            self.successors.insert(last, token);
            last = token;
        }
        self.successors.insert(last, end);
        Ok(())
    }

    /// Pieces of an answer that are no tokens yet, all different.
    fn pieces(&self, spelled: &[&str]) -> Result<Vec<String>> {
        let mut pieces: Vec<String> = Vec::new();
        let mut piece = String::new();
        for (i, character) in spelled.iter().enumerate() {
            piece += character;
            let is_new = !self.known.contains(&piece) && !pieces.contains(&piece);
            if is_new && piece.chars().count() >= PIECE {
                pieces.push(std::mem::take(&mut piece));
            } else if i + 1 == spelled.len() && !is_new {
                // The end is a token already: it is one with the piece before it.
                while self.known.contains(&piece) || pieces.contains(&piece) {
                    let before = pieces.pop();
                    let before = before.context("expected an answer that is no token")?;
                    piece.insert_str(0, &before);
                }
            }
        }
        pieces.extend(Some(piece).filter(|piece| !piece.is_empty()));
        Ok(pieces)
    }
}

/// Metadata and tensors of the model of a script.
pub(super) fn plan(answers: &BTreeMap<String, String>, template: &str) -> Result<Plan> {
    let texts = vocabulary::tokens(256);
    let (types, known) = (vec![NORMAL; texts.len()], texts.iter().cloned().collect());
    let mut tokens = Tokens { texts, types, known, successors: BTreeMap::new() };
    let end = tokens.push("<|endoftext|>".to_owned(), CONTROL)?;
    for (marker, answer) in answers {
        let marker = tokens.push(marker.clone(), CONTROL)?;
        tokens.chain(marker, answer, end)?;
    }
    let sizes = Language {
        architecture: "llama",
        pre_tokenizer: "gpt-2",
        n_ctx: N_CTX,
        d_model: D_MODEL,
        n_layers: 1,
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 64,
        n_rot: 64,
        d_ff: D_MODEL,
        experts: None,
        vocab_size: tokens.texts.len(),
        is_tied: false,
        biases: Biases::None,
        window: None,
        norm_eps: 1e-6,
        freq_base: 10_000.0,
        yarn: None,
    };
    let mut plan = language::plan(&sizes)?;
    let mut embeddings = embeddings(&tokens);
    let mut outputs = outputs(&tokens, &embeddings, end);
    for tensor in &mut plan.tensors {
        tensor.values = match tensor.info.name.as_str() {
            "token_embd.weight" => Values::Given(std::mem::take(&mut embeddings)),
            "output.weight" => Values::Given(std::mem::take(&mut outputs)),
            name if name.contains("norm") => Values::Ones,
            _ => Values::Zeros,
        };
    }
    let metadata = &mut plan.metadata;
    metadata.set("tokenizer.ggml.tokens", tokens.texts);
    metadata.set("tokenizer.ggml.token_type", tokens.types);
    metadata.set("tokenizer.ggml.eos_token_id", end as u32);
    metadata.set("tokenizer.ggml.bos_token_id", end as u32);
    metadata.set("tokenizer.chat_template", template);
    metadata.set("general.name", "scripted answers");
    Ok(plan)
}

/// `[V, D]`: signs of the tokens of chains; the last value of the others.
fn embeddings(tokens: &Tokens) -> Vec<f32> {
    let mut rows = vec![0.0; tokens.texts.len() * D_MODEL];
    for (token, row) in rows.chunks_exact_mut(D_MODEL).enumerate() {
        if tokens.successors.contains_key(&token) {
            let bits = (0..).map(|word| blocks::stream(token as u64, word));
            let signs = bits.flat_map(|bits| (0..64).map(move |i| bits >> i & 1));
            let values = row[..D_MODEL - 1].iter_mut().zip(signs);
            values.for_each(|(value, sign)| *value = if sign == 1 { 1.0 } else { -1.0 });
        } else {
            row[D_MODEL - 1] = 1.0;
        }
    }
    rows
}

/// `[V, D]`: the embedding of the token before each one.
fn outputs(tokens: &Tokens, embeddings: &[f32], end: usize) -> Vec<f32> {
    let mut rows = vec![0.0; embeddings.len()];
    for (&before, &token) in &tokens.successors {
        let (from, to) = (before * D_MODEL, token * D_MODEL);
        // The end token follows several.
        for (value, add) in rows[to..][..D_MODEL].iter_mut().zip(&embeddings[from..][..D_MODEL]) {
            *value += add;
        }
    }
    rows[(end + 1) * D_MODEL - 1] = D_MODEL as f32;
    rows
}
