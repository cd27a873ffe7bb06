//! A vocabulary: token bytes by id and ids by bytes.

use std::collections::HashMap;

use crate::byte_map::strict_token_bytes;
use crate::error::{Error, Result};

/// Ordinary (not special) tokens. Ids may have gaps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vocab {
    tokens: Vec<Option<Box<[u8]>>>,
    ids: HashMap<Box<[u8]>, u32>,
    /// The same for tokens that no text is encoded as.
    never_encoded: HashMap<Box<[u8]>, u32>,
}

impl Vocab {
    pub(crate) fn with_capacity(n_tokens: usize) -> Self {
        let ids = HashMap::with_capacity(n_tokens);
        Self { tokens: Vec::with_capacity(n_tokens), ids, never_encoded: HashMap::new() }
    }

    /// Adds a token. When two ids have equal bytes, encoding uses the one added first.
    ///
    /// The caller bounds `id` (the table is as long as the highest id).
    pub(crate) fn insert(&mut self, id: u32, bytes: &[u8]) -> Result<()> {
        self.set(id, bytes)?;
        self.ids.entry(bytes.into()).or_insert(id);
        Ok(())
    }

    /// As [`insert`](Self::insert), of a token in GPT-2's printable form. A token with a character outside of that form
    /// stands for its text, but comes out of no merging.
    pub(crate) fn insert_printable(&mut self, id: u32, token: &str) -> Result<()> {
        if let Some(bytes) = strict_token_bytes(token) {
            return self.insert(id, &bytes);
        }
        self.set(id, token.as_bytes())?;
        self.never_encoded.entry(token.as_bytes().into()).or_insert(id);
        Ok(())
    }

    fn set(&mut self, id: u32, bytes: &[u8]) -> Result<()> {
        let index = id as usize;
        if index >= self.tokens.len() {
            self.tokens.resize(index + 1, None);
        }
        if let Some(first) = &self.tokens[index] {
            return Err(Error::DuplicateId {
                id,
                first: String::from_utf8_lossy(first).into_owned(),
                second: String::from_utf8_lossy(bytes).into_owned(),
            });
        }
        self.tokens[index] = Some(bytes.into());
        Ok(())
    }

    /// Forgets a token: its id turned out to be special.
    pub(crate) fn remove(&mut self, id: u32) {
        let Some(bytes) = self.tokens.get_mut(id as usize).and_then(Option::take) else { return };
        if self.ids.get(&bytes) == Some(&id) {
            self.ids.remove(&bytes);
        }
    }

    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize)?.as_deref()
    }

    /// The token that these bytes are encoded as, if one covers them all.
    pub(crate) fn id(&self, bytes: &[u8]) -> Option<u32> {
        self.ids.get(bytes).copied()
    }

    /// The token with these bytes.
    pub(crate) fn id_of_any(&self, bytes: &[u8]) -> Option<u32> {
        let ids = [self.id(bytes), self.never_encoded.get(bytes).copied()];
        ids.into_iter().flatten().min()
    }

    /// Highest id + 1.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The token of each single byte.
    pub(crate) fn byte_ids(&self) -> [Option<u32>; 256] {
        std::array::from_fn(|byte| self.id(&[byte as u8]))
    }
}
