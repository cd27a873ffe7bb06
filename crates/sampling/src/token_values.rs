//! Sparse values by token id.

/// Values by token id, `[V]`, with a list of the tokens whose value is not 0.
#[derive(Debug)]
pub(super) struct TokenValues {
    values: Vec<u32>,
    touched: Vec<u32>,
}

impl TokenValues {
    pub(super) fn new(vocab_size: usize) -> Self {
        Self { values: vec![0; vocab_size], touched: Vec::with_capacity(vocab_size) }
    }

    /// Sets all values to 0.
    pub(super) fn clear(&mut self) {
        for token in self.touched.drain(..) {
            self.values[token as usize] = 0;
        }
    }

    /// Replaces the value of `token` by `change(value)`, which is not 0. A token outside the vocabulary is ignored.
    pub(super) fn update(&mut self, token: u32, change: impl FnOnce(u32) -> u32) {
        if let Some(value) = self.values.get_mut(token as usize) {
            if *value == 0 {
                self.touched.push(token);
            }
            *value = change(*value);
        }
    }

    /// Value of `token`; 0 outside the vocabulary.
    pub(super) fn get(&self, token: u32) -> u32 {
        self.values.get(token as usize).copied().unwrap_or(0)
    }

    /// Tokens whose value is not 0, without duplicates.
    pub(super) fn touched(&self) -> &[u32] {
        &self.touched
    }
}

#[cfg(test)]
mod tests {
    use super::TokenValues;

    #[test]
    fn values_are_listed_once_and_cleared() {
        let mut values = TokenValues::new(4);
        values.update(2, |value| value + 1);
        values.update(0, |value| value + 5);
        values.update(2, |value| value + 1);
        values.update(9, |value| value + 1);
        assert_eq!([0, 1, 2, 3, 9].map(|token| values.get(token)), [5, 0, 2, 0, 0]);
        assert_eq!(values.touched(), [2, 0]);
        values.clear();
        assert_eq!([0, 2].map(|token| values.get(token)), [0, 0]);
        assert!(values.touched().is_empty());
    }
}
