//! Prompt cache: tokens and KV pages of a text in a file.
//!
//! ```text
//! "stonekv2"  u64 fingerprint of model and configuration  u64 KV type (0 f32, 1 f16, 2 q8_0)  u64 n_tokens  u64 cache salt
//! u32 token[n_tokens]
//! KV page [ceil(n_tokens / PAGE_LEN)], all layers in order
//! ```
//! Numbers are little-endian.

use std::io::Write;
use std::path::Path;

use stonechat_formats::AtomicFile;
use stonechat_nn::{KvDType, PAGE_LEN, Slot};

use crate::{Error, ModelInfo, State, StateOptions};

const MAGIC: &[u8; 8] = b"stonekv2";
/// Magic, fingerprint, KV type, number of tokens, cache salt.
const HEADER_BYTES: usize = 40;

/// A text, and the salt under which the prefix cache has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SaltedText<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) salt: u64,
}

/// Saves the tokens of a sequence and their KV pages; returns the bytes of the file.
pub(crate) async fn save(
    model: &ModelInfo,
    state: &mut State,
    slot: Slot,
    SaltedText { tokens, salt }: SaltedText<'_>,
    path: &Path,
) -> Result<usize, Error> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    let options = state.options();
    let (fingerprint, kind) = (model.kv_fingerprint(options.n_ctx), kv_code(options.kv_dtype));
    for value in [fingerprint, kind, tokens.len() as u64, salt] {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    for index in 0..tokens.len().div_ceil(PAGE_LEN) {
        state.read_page(slot, index, &mut bytes).await?;
    }
    let mut file = AtomicFile::create(path)?;
    file.write_all(&bytes).map_err(|e| problem(path, &e.to_string()))?;
    file.commit()?;
    Ok(bytes.len())
}

/// A text that was read from a file.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) tokens: Vec<u32>,
    /// Salt of the prefix cache.
    pub(crate) salt: u64,
    /// Bytes of the file.
    pub(crate) n_bytes: usize,
}

/// Loads a saved text into an empty sequence, which stays empty on an error.
pub(crate) fn restore(
    model: &ModelInfo,
    state: &mut State,
    slot: Slot,
    path: &Path,
) -> Result<Restored, Error> {
    let bytes = std::fs::read(path).map_err(|e| problem(path, &e.to_string()))?;
    let (tokens, salt) = check(model, state.options(), path, &bytes)?;
    let pages = &bytes[HEADER_BYTES + 4 * tokens.len()..];
    let n_bytes = bytes.len();
    let used = tokens.len().div_ceil(PAGE_LEN);
    if used == 0 {
        return Ok(Restored { tokens, salt, n_bytes });
    }
    let pages: Vec<&[u8]> = pages.chunks(pages.len().div_ceil(used).max(1)).collect();
    if pages.len() != used {
        return Err(problem(path, "ends too early"));
    }
    let restored = state.restore(slot, tokens.len(), &pages);
    restored.map_err(|error| problem(path, &error.to_string()))?;
    Ok(Restored { tokens, salt, n_bytes })
}

/// Tokens of a saved text and its salt, after checks of its header.
fn check(
    model: &ModelInfo,
    options: StateOptions,
    path: &Path,
    bytes: &[u8],
) -> Result<(Vec<u32>, u64), Error> {
    let Some((magic, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(problem(path, "ends too early"));
    };
    if magic != MAGIC {
        let is_older = magic.starts_with(b"stonekv");
        let reason = if is_older { "was saved by another version" } else { "is no prompt cache" };
        return Err(problem(path, reason));
    }
    let number = |i: usize| {
        let bytes = rest.get(i * 8..).and_then(|rest| rest.first_chunk::<8>());
        bytes.map(|bytes| u64::from_le_bytes(*bytes))
    };
    let header = (number(0), number(1), number(2), number(3));
    let (Some(fingerprint), Some(kind), Some(n), Some(salt)) = header else {
        return Err(problem(path, "ends too early"));
    };
    if fingerprint != model.kv_fingerprint(options.n_ctx) {
        return Err(problem(path, "was saved with another model or other RoPE settings"));
    }
    if kind != kv_code(options.kv_dtype) {
        return Err(problem(path, "was saved with another type of keys and values"));
    }
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    if n > options.n_ctx {
        return Err(Error::ContextFull { tokens: n, n_ctx: options.n_ctx });
    }
    let tokens = bytes.get(HEADER_BYTES..).and_then(|rest| rest.get(..4 * n));
    let tokens = tokens.ok_or_else(|| problem(path, "ends too early"))?;
    let tokens: Vec<u32> =
        tokens.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let vocab_size = model.config().vocab_size;
    if tokens.iter().any(|&token| token as usize >= vocab_size) {
        return Err(problem(path, "holds tokens that the model does not have"));
    }
    Ok((tokens, salt))
}

fn kv_code(dtype: KvDType) -> u64 {
    match dtype {
        KvDType::F32 => 0,
        KvDType::F16 => 1,
        KvDType::Q8_0 => 2,
    }
}

fn problem(path: &Path, problem: &str) -> Error {
    Error::PromptCache { path: path.display().to_string(), problem: problem.to_owned() }
}
