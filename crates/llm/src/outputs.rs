//! Results of the tokens of a step, read from the device in one round trip.
//!
//! ```text
//! plan order      row 0: logits   row 1: top-k   row 2: hidden   row 3: top-k
//! device order    top-k (1, 3) | logits (0) | hidden (2)      places = [2, 0, 3, 1]
//!                 '-- rows of the projection --'
//! ```

use stonechat_nn::TopKEntry;

/// Result of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputRequest {
    /// Logits of the next token, `[V]`.
    Logits,
    /// The top `1..=max_top_k` logits of the next token, found on the device.
    TopK(usize),
    /// Hidden state after the last norm, `[D]`.
    Hidden,
}

/// Result of one token, in the kind of its [`OutputRequest`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum OutputRow<'a> {
    /// Logits of the next token, `[V]`, after the soft cap.
    Logits(&'a [f32]),
    /// The top-k logits in descending order; of equal logits the lower token id comes first.
    TopK(&'a [TopKEntry]),
    /// Hidden state after the last norm, `[D]`.
    Hidden(&'a [f32]),
}

/// Output rows of a step: requests in plan order, rows in device order.
#[derive(Debug, Default)]
pub(crate) struct OutputLayout {
    requests: Vec<OutputRequest>,
    /// Index in device order of each request.
    places: Vec<usize>,
    /// Rows of the step in device order.
    pub(crate) rows: Vec<usize>,
    pub(crate) n_top_k: usize,
    pub(crate) n_logits: usize,
    pub(crate) n_hidden: usize,
    /// Largest `k`; 0 without top-k rows.
    pub(crate) k: usize,
}

impl OutputLayout {
    pub(crate) fn with_capacity(n: usize) -> Self {
        Self {
            requests: Vec::with_capacity(n),
            places: Vec::with_capacity(n),
            rows: Vec::with_capacity(n),
            ..Self::default()
        }
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.places.clear();
        self.rows.clear();
        (self.n_top_k, self.n_logits, self.n_hidden, self.k) = (0, 0, 0, 0);
    }

    /// Appends `n` outputs of one kind.
    pub(crate) fn push(&mut self, request: OutputRequest, n: usize) {
        self.requests.extend((0..n).map(|_| request));
        match request {
            OutputRequest::Logits => self.n_logits += n,
            OutputRequest::TopK(k) => {
                self.n_top_k += n;
                self.k = self.k.max(if n > 0 { k } else { 0 });
            }
            OutputRequest::Hidden => self.n_hidden += n,
        }
    }

    /// Rows of the vocabulary projection.
    pub(crate) fn n_projected(&self) -> usize {
        self.n_top_k + self.n_logits
    }

    /// Brings `outputs`, the rows of the requests, into device order.
    pub(crate) fn arrange(&mut self, outputs: &[usize]) {
        let Self { requests, places, rows, n_top_k, n_logits, .. } = self;
        let mut next = [0, *n_top_k, *n_top_k + *n_logits];
        rows.resize(outputs.len(), 0);
        for (request, &row) in requests.iter().zip(outputs) {
            let next = match request {
                OutputRequest::TopK(_) => &mut next[0],
                OutputRequest::Logits => &mut next[1],
                OutputRequest::Hidden => &mut next[2],
            };
            rows[*next] = row;
            places.push(*next);
            *next += 1;
        }
    }
}

/// Host memory of the outputs of a step.
#[derive(Debug, Default)]
pub(crate) struct OutputData {
    /// `[n_top_k, 2k]`: logits, then tokens.
    pub(crate) top_k: Vec<f32>,
    /// `[n_top_k, k]`.
    entries: Vec<TopKEntry>,
    /// `[n_logits, V]`.
    pub(crate) logits: Vec<f32>,
    /// `[n_hidden, D]`.
    pub(crate) hidden: Vec<f32>,
}

impl OutputData {
    /// Sizes the memory for `layout`.
    pub(crate) fn resize(&mut self, layout: &OutputLayout, vocab_size: usize, d_model: usize) {
        self.top_k.resize(layout.n_top_k * 2 * layout.k, 0.0);
        self.logits.resize(layout.n_logits * vocab_size, 0.0);
        self.hidden.resize(layout.n_hidden * d_model, 0.0);
    }

    /// Converts what the device wrote: top-k entries.
    pub(crate) fn convert(&mut self, layout: &OutputLayout) {
        self.entries.clear();
        if layout.k > 0 {
            for row in self.top_k.chunks_exact(2 * layout.k) {
                let (values, tokens) = row.split_at(layout.k);
                let entry =
                    |(&value, &token): (&f32, &f32)| TopKEntry { index: token as u32, value };
                self.entries.extend(values.iter().zip(tokens).map(entry));
            }
        }
    }
}

/// Outputs of a step, in the order of its plan.
#[derive(Debug, Clone, Copy)]
pub struct Outputs<'a> {
    pub(crate) layout: &'a OutputLayout,
    pub(crate) data: &'a OutputData,
}

impl<'a> Outputs<'a> {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.requests.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layout.requests.is_empty()
    }

    /// Row `index`.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, index: usize) -> OutputRow<'a> {
        let (layout, data) = (self.layout, self.data);
        let place = layout.places[index];
        let row = |values: &'a [f32], first: usize, n: usize| {
            let len = values.len() / n;
            &values[(place - first) * len..(place - first + 1) * len]
        };
        match layout.requests[index] {
            OutputRequest::TopK(k) => {
                OutputRow::TopK(&data.entries[place * layout.k..place * layout.k + k])
            }
            OutputRequest::Logits => {
                OutputRow::Logits(row(&data.logits, layout.n_top_k, layout.n_logits))
            }
            OutputRequest::Hidden => {
                OutputRow::Hidden(row(&data.hidden, layout.n_projected(), layout.n_hidden))
            }
        }
    }

    /// Rows of a range.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn rows(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = OutputRow<'a>> {
        let outputs = *self;
        range.map(move |index| outputs.row(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_different_kinds_are_found_in_plan_order() {
        let mut layout = OutputLayout::with_capacity(8);
        layout.push(OutputRequest::Logits, 1);
        layout.push(OutputRequest::TopK(1), 1);
        layout.push(OutputRequest::Hidden, 2);
        layout.push(OutputRequest::TopK(2), 1);
        layout.push(OutputRequest::TopK(9), 0);
        layout.arrange(&[3, 4, 6, 7, 9]);
        assert_eq!(layout.rows, [4, 9, 3, 6, 7]);
        assert_eq!((layout.n_projected(), layout.k), (3, 2));
        let mut data = OutputData::default();
        data.resize(&layout, 3, 2);
        data.top_k.copy_from_slice(&[0.9, 0.8, 5.0, 6.0, 0.7, 0.6, 7.0, 8.0]);
        data.logits.copy_from_slice(&[0.1, 0.2, 0.3]);
        data.hidden.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
        data.convert(&layout);
        let outputs = Outputs { layout: &layout, data: &data };
        let entry = |index, value| TopKEntry { index, value };
        assert_eq!(outputs.len(), 5);
        assert_eq!(outputs.row(0), OutputRow::Logits(&[0.1, 0.2, 0.3]));
        assert_eq!(outputs.row(1), OutputRow::TopK(&[entry(5, 0.9)]));
        assert_eq!(outputs.row(3), OutputRow::Hidden(&[3.0, 4.0]));
        assert_eq!(outputs.row(4), OutputRow::TopK(&[entry(7, 0.7), entry(8, 0.6)]));
        assert_eq!(outputs.rows(2..3).next(), Some(OutputRow::Hidden(&[1.0, 2.0])));
    }
}
