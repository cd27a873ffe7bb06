//! Many short byte strings in one allocation.

/// Byte strings by number. Together they are at most `u32::MAX` bytes long.
#[derive(Debug, Clone)]
pub(super) struct Slices {
    bytes: Vec<u8>,
    /// Start of each one, then the end of the last.
    starts: Vec<u32>,
}

impl Slices {
    /// None yet, with room for `n` of `n_bytes` in total.
    pub(super) fn with_capacity(n: usize, n_bytes: usize) -> Self {
        let mut starts = Vec::with_capacity(n + 1);
        starts.push(0);
        Self { bytes: Vec::with_capacity(n_bytes), starts }
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.starts.push(self.bytes.len() as u32);
    }

    /// The bytes of a number; none where nothing was pushed.
    pub(super) fn get(&self, number: u32) -> &[u8] {
        match self.starts.get(number as usize..) {
            Some(&[start, end, ..]) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }

    /// Gives spare memory back.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.starts.shrink_to_fit();
    }
}
