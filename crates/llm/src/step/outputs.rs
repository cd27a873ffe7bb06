//! Results of the tokens of a step, read from the device in one round trip.
//!
//! ```text
//! plan order      row 0: logits   row 1: top-k   row 2: hidden   row 3: top-k
//! device order    log-probs | top-k (1, 3) | logits (0) | hidden (2)      places = [2, 0, 3, 1]
//!                 '------- rows of the projection -------'
//! ```

use std::ops::Range;

use stonechat_nn::TopKEntry;

/// Result of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputRequest {
    /// Logits of the next token, `[V]`.
    Logits,
    /// The top `1..=max_top_k` logits of the next token, found on the device.
    TopK(usize),
    /// [`TopK`](Self::TopK) with the log-sum-exp of all logits, for log-probabilities.
    LogProbs(usize),
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
    /// The top-k logits, and the log-sum-exp of all: `logit - log_sum_exp` is the log-probability of a token.
    LogProbs {
        /// As [`TopK`](Self::TopK).
        top_k: &'a [TopKEntry],
        /// `ln Σ exp(logit)`.
        log_sum_exp: f32,
    },
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
    /// Top-k rows with a log-sum-exp.
    pub(crate) n_log_probs: usize,
    /// All top-k rows.
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
        (self.n_log_probs, self.n_top_k, self.n_logits, self.n_hidden) = (0, 0, 0, 0);
        self.k = 0;
    }

    /// Appends `n` outputs of one kind.
    pub(crate) fn push(&mut self, request: OutputRequest, n: usize) {
        self.requests.extend((0..n).map(|_| request));
        match request {
            OutputRequest::Logits => self.n_logits += n,
            OutputRequest::TopK(k) | OutputRequest::LogProbs(k) => {
                self.n_top_k += n;
                self.k = self.k.max(if n > 0 { k } else { 0 });
            }
            OutputRequest::Hidden => self.n_hidden += n,
        }
        if let OutputRequest::LogProbs(_) = request {
            self.n_log_probs += n;
        }
    }

    /// Rows of the vocabulary projection.
    pub(crate) fn n_projected(&self) -> usize {
        self.n_top_k + self.n_logits
    }

    /// Brings `outputs`, the rows of the requests, into device order.
    pub(crate) fn arrange(&mut self, outputs: &[usize]) {
        let mut next = [0, self.n_log_probs, self.n_top_k, self.n_projected()];
        let Self { requests, places, rows, .. } = self;
        rows.resize(outputs.len(), 0);
        for (request, &row) in requests.iter().zip(outputs) {
            let next = &mut next[match request {
                OutputRequest::LogProbs(_) => 0,
                OutputRequest::TopK(_) => 1,
                OutputRequest::Logits => 2,
                OutputRequest::Hidden => 3,
            }];
            rows[*next] = row;
            places.push(*next);
            *next += 1;
        }
    }

    /// Place of the most probable token of row `index` among the top-k logits of the step, and their `k`.
    ///
    /// # Panics
    /// If there is no such row of top-k logits.
    pub(crate) fn most_probable(&self, index: usize) -> (usize, usize) {
        let request = self.requests[index];
        let is_top_k = matches!(request, OutputRequest::TopK(_) | OutputRequest::LogProbs(_));
        assert!(is_top_k, "row {index}: expected top-k logits, got {request:?}");
        (self.places[index], self.k)
    }

    /// Numbers of values on the device: of top-k rows, log-sum-exps, logits, hidden states.
    pub(crate) fn n_values(&self, vocab_size: usize, d_model: usize) -> [usize; 4] {
        [
            self.n_top_k * 2 * self.k,
            self.n_log_probs,
            self.n_logits * vocab_size,
            self.n_hidden * d_model,
        ]
    }
}

/// Values of the steps that were read together, and the part of them that is of the last one.
#[derive(Debug, Default)]
pub(crate) struct OutputData {
    /// Of each step: top-k logits and their tokens, `[n_top_k, 2k]`; log-sum-exps, `[n_log_probs]`; logits, `[n_logits, V]`;
    /// hidden states, `[n_hidden, D]`.
    values: Vec<f32>,
    /// First values of each kind of the step, and the end.
    bounds: [usize; 5],
    /// `[n_top_k, k]`.
    entries: Vec<TopKEntry>,
}

impl OutputData {
    /// Whether all steps that were read together have been passed.
    pub(crate) fn is_used_up(&self) -> bool {
        self.bounds[4] >= self.values.len()
    }

    /// Memory for the values of the next steps.
    pub(crate) fn replace(&mut self) -> &mut Vec<f32> {
        self.bounds = [0; 5];
        &mut self.values
    }

    /// Passes to the next step, of `layout` and [`n_values`](OutputLayout::n_values).
    pub(crate) fn advance(&mut self, layout: &OutputLayout, n_values: [usize; 4]) {
        self.bounds[0] = self.bounds[4];
        for (i, n) in n_values.into_iter().enumerate() {
            self.bounds[i + 1] = self.bounds[i] + n;
        }
        self.entries.clear();
        for row in self.values[self.bounds[0]..self.bounds[1]].chunks_exact(2 * layout.k.max(1)) {
            let (values, tokens) = row.split_at(layout.k);
            let entry = |(&value, &token): (&f32, &f32)| TopKEntry { index: token as u32, value };
            self.entries.extend(values.iter().zip(tokens).map(entry));
        }
    }

    /// Values of kind `kind`.
    fn part(&self, kind: usize) -> &[f32] {
        &self.values[self.bounds[kind]..self.bounds[kind + 1]]
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
        let entries = |k: usize| &data.entries[place * layout.k..place * layout.k + k];
        let row = |values: &'a [f32], first: usize, n: usize| {
            let len = values.len() / n;
            &values[(place - first) * len..(place - first + 1) * len]
        };
        match layout.requests[index] {
            OutputRequest::TopK(k) => OutputRow::TopK(entries(k)),
            OutputRequest::LogProbs(k) => {
                OutputRow::LogProbs { top_k: entries(k), log_sum_exp: data.part(1)[place] }
            }
            OutputRequest::Logits => {
                OutputRow::Logits(row(data.part(2), layout.n_top_k, layout.n_logits))
            }
            OutputRequest::Hidden => {
                OutputRow::Hidden(row(data.part(3), layout.n_projected(), layout.n_hidden))
            }
        }
    }

    /// Rows of a range.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn rows(&self, range: Range<usize>) -> impl Iterator<Item = OutputRow<'a>> {
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
        layout.push(OutputRequest::LogProbs(2), 1);
        layout.push(OutputRequest::TopK(9), 0);
        layout.arrange(&[3, 4, 6, 7, 9]);
        assert_eq!(layout.rows, [9, 4, 3, 6, 7]);
        assert_eq!((layout.n_projected(), layout.k), (3, 2));
        assert_eq!([1, 4].map(|index| layout.most_probable(index)), [(1, 2), (0, 2)]);
        let n_values = layout.n_values(3, 2);
        assert_eq!(n_values, [8, 1, 3, 4]);
        let mut data = OutputData::default();
        // Of a step before.
        data.replace().extend([9.0; 5]);
        data.values.extend([0.7, 0.6, 7.0, 8.0, 0.9, 0.8, 5.0, 6.0]);
        data.values.extend([1.5]);
        data.values.extend([0.1, 0.2, 0.3]);
        data.values.extend([1.0, 2.0, 3.0, 4.0]);
        data.advance(&OutputLayout::default(), [0, 0, 3, 2]);
        assert!(!data.is_used_up());
        data.advance(&layout, n_values);
        assert!(data.is_used_up());
        let outputs = Outputs { layout: &layout, data: &data };
        let entry = |index, value| TopKEntry { index, value };
        assert_eq!(outputs.len(), 5);
        assert_eq!(outputs.row(0), OutputRow::Logits(&[0.1, 0.2, 0.3]));
        assert_eq!(outputs.row(1), OutputRow::TopK(&[entry(5, 0.9)]));
        assert_eq!(outputs.row(3), OutputRow::Hidden(&[3.0, 4.0]));
        let top_k = &[entry(7, 0.7), entry(8, 0.6)];
        assert_eq!(outputs.row(4), OutputRow::LogProbs { top_k, log_sum_exp: 1.5 });
        assert_eq!(outputs.rows(2..3).next(), Some(OutputRow::Hidden(&[1.0, 2.0])));
    }
}
