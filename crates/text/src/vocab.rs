//! A vocabulary: token bytes by id and ids by bytes.

use std::collections::HashMap;

use crate::error::{Error, Result};

/// Ordinary (not special) tokens. Ids may have gaps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vocab {
    tokens: Vec<Option<Box<[u8]>>>,
    ids: HashMap<Box<[u8]>, u32>,
}

impl Vocab {
    pub(crate) fn with_capacity(n_tokens: usize) -> Self {
        Self { tokens: Vec::with_capacity(n_tokens), ids: HashMap::with_capacity(n_tokens) }
    }

    /// Adds a token. When two ids have equal bytes, encoding uses the one added first.
    ///
    /// The caller bounds `id` (the table is as long as the highest id).
    pub(crate) fn insert(&mut self, id: u32, bytes: &[u8]) -> Result<()> {
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
        self.ids.entry(bytes.into()).or_insert(id);
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

    pub(crate) fn id(&self, bytes: &[u8]) -> Option<u32> {
        self.ids.get(bytes).copied()
    }

    /// Highest id + 1.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The token of each single byte.
    pub(crate) fn byte_ids(&self) -> Result<[u32; 256]> {
        let mut ids = [0; 256];
        for byte in 0..=u8::MAX {
            ids[usize::from(byte)] = self.id(&[byte]).ok_or(Error::MissingByte { byte })?;
        }
        Ok(ids)
    }
}
