//! Prompt cache: tokens and KV pages of a text in a file.
//!
//! ```text
//! "stonekv1"  u64 model fingerprint  u64 KV type (0 f32, 1 f16, 2 q8_0)  u64 n_tokens
//! u32 token[n_tokens]
//! KV page [ceil(n_tokens / PAGE_LEN)], all layers in order
//! ```
//! Numbers are little-endian.

use std::io::Write;
use std::path::Path;

use stonechat_formats::AtomicFile;
use stonechat_nn::{KvDType, PAGE_LEN, Slot};

use crate::session::TEXT;
use crate::{Error, ModelInfo, Session, State, StateOptions};

const MAGIC: &[u8; 8] = b"stonekv1";
/// Magic, fingerprint, KV type, number of tokens.
const HEADER_BYTES: usize = 32;

impl Session {
    /// Saves the session's tokens and their KV pages; replaces a file of that name once the new one
    /// is complete.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub async fn save(&mut self, path: &Path) -> Result<(), Error> {
        let Self { model, state, tokens, .. } = self;
        save(model, state, TEXT, &tokens[TEXT.index()], path).await.map(|_| ())
    }

    /// Replaces the content of the session by a saved text; returns its number of tokens.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, was saved with another model or KV type, or is longer
    /// than the context. The session is empty then.
    pub fn restore(&mut self, path: &Path) -> Result<usize, Error> {
        self.clear();
        let Restored { tokens, .. } = restore(&self.model, &mut self.state, TEXT, path)?;
        let n = tokens.len();
        self.tokens[TEXT.index()] = tokens;
        Ok(n)
    }
}

/// Saves the tokens of a sequence and their KV pages; returns the bytes of the file.
pub(crate) async fn save(
    model: &ModelInfo,
    state: &mut State,
    slot: Slot,
    tokens: &[u32],
    path: &Path,
) -> Result<usize, Error> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    let kind = kv_code(state.options().kv_dtype);
    for value in [model.summary().fingerprint, kind, tokens.len() as u64] {
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
    let tokens = check(model, state.options(), path, &bytes)?;
    let pages = &bytes[HEADER_BYTES + 4 * tokens.len()..];
    let n_bytes = bytes.len();
    let used = tokens.len().div_ceil(PAGE_LEN);
    if used == 0 {
        return Ok(Restored { tokens, n_bytes });
    }
    let pages: Vec<&[u8]> = pages.chunks(pages.len().div_ceil(used).max(1)).collect();
    if pages.len() != used {
        return Err(problem(path, "ends too early"));
    }
    let restored = state.restore(slot, tokens.len(), &pages);
    restored.map_err(|error| problem(path, &error.to_string()))?;
    Ok(Restored { tokens, n_bytes })
}

/// Tokens of a saved text, after checks of its header.
fn check(
    model: &ModelInfo,
    options: StateOptions,
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<u32>, Error> {
    let Some((magic, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(problem(path, "ends too early"));
    };
    if magic != MAGIC {
        return Err(problem(path, "is no prompt cache"));
    }
    let number = |i: usize| {
        let bytes = rest.get(i * 8..).and_then(|rest| rest.first_chunk::<8>());
        bytes.map(|bytes| u64::from_le_bytes(*bytes))
    };
    let (Some(fingerprint), Some(kind), Some(n)) = (number(0), number(1), number(2)) else {
        return Err(problem(path, "ends too early"));
    };
    if fingerprint != model.summary().fingerprint {
        return Err(problem(path, "was saved with another model"));
    }
    if kind != kv_code(options.kv_dtype) {
        return Err(problem(path, "was saved with another type of keys and values"));
    }
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    if n > options.n_ctx {
        return Err(Error::ContextFull { tokens: n, n_ctx: options.n_ctx });
    }
    let tokens = bytes.get(HEADER_BYTES..HEADER_BYTES + 4 * n);
    let tokens = tokens.ok_or_else(|| problem(path, "ends too early"))?;
    let tokens: Vec<u32> =
        tokens.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let vocab_size = model.config().vocab_size;
    if tokens.iter().any(|&token| token as usize >= vocab_size) {
        return Err(problem(path, "holds tokens that the model does not have"));
    }
    Ok(tokens)
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
