//! Logit filters of the outputs of a step.
//!
//! ```text
//! suppressed   of rules A ........ | eot | of rules B ....... | 17 18      tokens of every row of rules, once; of one row alone
//! rows         kept text and timestamps, both ranges of `suppressed`
//! ```

use std::ops::Range;
use std::sync::Arc;

use stonechat_nn::LogitFilter;

use crate::rules::Rules;

/// Filters of the outputs of a step, in host memory that is reused.
#[derive(Debug)]
pub(crate) struct LogitFilters {
    vocab_size: u32,
    rows: Vec<LogitFilter>,
    suppressed: Vec<u32>,
    /// Rules whose tokens are in the list, and their places.
    rules: Vec<(Arc<Rules>, Range<u32>)>,
}

impl LogitFilters {
    pub(crate) fn new(vocab_size: usize) -> Self {
        let (rows, suppressed, rules) = (Vec::new(), Vec::new(), Vec::new());
        Self { vocab_size: vocab_size as u32, rows, suppressed, rules }
    }

    /// Filter of each output.
    pub(crate) fn rows(&self) -> &[LogitFilter] {
        &self.rows
    }

    /// The list of tokens that filters index.
    pub(crate) fn suppressed(&self) -> &[u32] {
        &self.suppressed
    }

    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.suppressed.clear();
        self.rules.clear();
    }

    /// Adds outputs that any token may follow, up to `n`.
    pub(crate) fn resize(&mut self, n: usize) {
        self.rows.resize(n, LogitFilter::none(self.vocab_size));
    }

    /// Sets the filter of the last output, which follows `sampled`, the tokens of the window so far.
    pub(crate) fn set_last(
        &mut self,
        rules: &Arc<Rules>,
        sampled: &[u32],
        min_end_timestamp: Option<u32>,
    ) {
        let Self { rows, suppressed, rules: known, .. } = self;
        let of_rules = match known.iter().find(|(other, _)| Arc::ptr_eq(other, rules)) {
            Some((_, range)) => range.clone(),
            None => {
                let first = suppressed.len() as u32;
                suppressed.extend(rules.suppressed());
                let range = first..suppressed.len() as u32;
                known.push((Arc::clone(rules), range.clone()));
                range
            }
        };
        let first = suppressed.len() as u32;
        rules.suppress_after(sampled, min_end_timestamp, suppressed);
        let of_row = first..suppressed.len() as u32;
        let last = rows.last_mut().expect("an output");
        *last = LogitFilter { kept: rules.ranges(sampled), suppressed: [of_rules, of_row] };
    }
}
