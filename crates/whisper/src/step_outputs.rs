//! Outputs of a decoder step on the host: log-sum-exp and largest logits of every row, logits where they are needed.

use std::ops::Range;

use stonechat_nn::op::{Count, Port};
use stonechat_nn::{Counts, Executable, PortRange};

use crate::error::Error;
use crate::sampling::LogitStats;

/// Outputs of the last step.
///
/// ```text
/// values   requested logits | log-sum-exp [P] | [P, 2k]: k largest logits, then their tokens
/// ```
#[derive(Debug, Default)]
pub(crate) struct StepOutputs {
    values: Vec<f32>,
    ranges: Vec<PortRange>,
    /// Number of requested logits.
    n_logits: usize,
    n_rows: usize,
    k: usize,
}

impl StepOutputs {
    /// Starts the next step.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        (self.n_logits, self.n_rows, self.k) = (0, 0, 0);
    }

    /// Requests values of the filtered logits, `[P, V]`; returns their place for [`logits`](Self::logits).
    pub(crate) fn request_logits(&mut self, range: Range<usize>) -> Range<usize> {
        self.ranges.push(PortRange { port: Port::LOGITS, offset: range.start, len: range.len() });
        let first = self.n_logits;
        self.n_logits += range.len();
        first..self.n_logits
    }

    /// Requests the log-sum-exp of every row, and its `k` largest logits or more.
    pub(crate) fn request_stats(&mut self, n_rows: usize, k: usize) {
        (self.n_rows, self.k) = (n_rows, self.k.max(k));
    }

    /// Sets the numbers of rows of a step.
    pub(crate) fn set_counts(&self, counts: &mut Counts) {
        counts[Count::LogProbs] = self.n_rows;
        counts[Count::TopK] = if self.k > 0 { self.n_rows } else { 0 };
    }

    /// Largest logits of a row in the step.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// Reads what was requested, in one round trip to the device.
    pub(crate) async fn read(&mut self, executable: &mut dyn Executable) -> Result<(), Error> {
        self.ranges.push(PortRange::first(Port::LOG_SUM_EXP, self.n_rows));
        self.ranges.push(PortRange::first(Port::TOP_K, 2 * self.k * self.n_rows));
        Ok(executable.read(&self.ranges, &mut self.values).await?)
    }

    /// Requested logits.
    pub(crate) fn logits(&self, place: Range<usize>) -> &[f32] {
        &self.values[place]
    }

    /// Log-sum-exp of a row.
    pub(crate) fn log_sum_exp(&self, row: usize) -> f32 {
        self.values[self.n_logits..][row]
    }

    /// Copies the log-sum-exp of a row and its largest logits, at most `k`.
    pub(crate) fn copy_stats(&self, row: usize, k: usize, stats: &mut LogitStats) {
        stats.log_sum_exp = self.log_sum_exp(row);
        stats.top.clear();
        if k > 0 {
            let top_k =
                &self.values[self.n_logits + self.n_rows..][2 * self.k * row..][..2 * self.k];
            let (logits, tokens) = top_k.split_at(self.k);
            let entries = tokens.iter().map(|&token| token as u32).zip(logits.iter().copied());
            let is_allowed = |&(_, logit): &(u32, f32)| logit > f32::NEG_INFINITY;
            stats.top.extend(entries.take(k).take_while(is_allowed));
        }
    }
}
