//! Whether drafts pay, by measurement: the duration of steps by their rows, and the accepted tokens of each text.
//!
//! ```text
//! a step of N texts takes t(N), with a draft of k tokens t(N + k), and gives A tokens more, the mean of recent drafts
//! the draft pays if (N + A) / N > t(N + k) / t(N)
//! ```
//!
//! A text whose drafts do not pay has none for some tokens, then tries one again, each time after twice as many.

/// Part of the sums that each new step replaces.
const DECAY: f64 = 0.95;
/// Steps from which the line is used.
const MIN_STEPS: f64 = 4.0;
/// Drafts of a text before it may pause.
const MIN_DRAFTS: usize = 2;
/// Tokens of the first pause, and of the longest.
const PAUSE: usize = 16;
const MAX_PAUSE: usize = 512;

/// Duration of steps by their rows: the line through recent steps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepCost {
    n: f64,
    rows: f64,
    seconds: f64,
    rows_rows: f64,
    rows_seconds: f64,
}

impl StepCost {
    /// Adds a step without prompts.
    pub(crate) fn record(&mut self, rows: usize, seconds: f64) {
        let rows = rows as f64;
        let values = [1.0, rows, seconds, rows * rows, rows * seconds];
        let sums = [
            &mut self.n,
            &mut self.rows,
            &mut self.seconds,
            &mut self.rows_rows,
            &mut self.rows_seconds,
        ];
        for (sum, value) in sums.into_iter().zip(values) {
            *sum = DECAY * *sum + value;
        }
    }

    /// Factor by which `more` rows lengthen a step of `rows`; 1 as long as nothing is known.
    fn factor(&self, rows: usize, more: usize) -> f64 {
        let spread = self.n * self.rows_rows - self.rows * self.rows;
        if self.n < MIN_STEPS || spread < 1e-9 {
            return 1.0;
        }
        let slope = (self.n * self.rows_seconds - self.rows * self.seconds) / spread;
        let base = (self.seconds - slope * self.rows) / self.n + slope * rows as f64;
        if slope <= 0.0 || base <= 0.0 { 1.0 } else { 1.0 + slope * more as f64 / base }
    }
}

/// Drafts of one text.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DraftGate {
    n_drafts: usize,
    /// Mean of the accepted tokens of a draft.
    accepted: f64,
    /// Tokens without a draft that are left.
    pause: usize,
    next_pause: usize,
    /// Tokens of the context that the drafter knows.
    pub(crate) known: usize,
}

impl DraftGate {
    /// Longest draft for the next step: none during a pause, about twice what was accepted lately.
    pub(crate) fn limit(&mut self, max: usize) -> usize {
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        if self.n_drafts < MIN_DRAFTS { max } else { max.min(2 * self.accepted as usize + 4) }
    }

    /// Records a draft of a step with `n_texts` texts.
    pub(crate) fn record(
        &mut self,
        (proposed, accepted): (usize, usize),
        n_texts: usize,
        cost: &StepCost,
    ) {
        if proposed == 0 {
            return;
        }
        let weight = if self.n_drafts == 0 { 1.0 } else { 0.3 };
        self.accepted += weight * (accepted as f64 - self.accepted);
        self.n_drafts += 1;
        let n_texts = n_texts.max(1);
        let gain = 1.0 + self.accepted / n_texts as f64;
        if gain > cost.factor(n_texts, proposed) {
            self.next_pause = PAUSE;
        } else if self.n_drafts >= MIN_DRAFTS {
            self.pause = self.next_pause.max(PAUSE);
            self.next_pause = (2 * self.pause).min(MAX_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DraftGate, PAUSE, StepCost};

    /// Steps of `base + each * rows` seconds.
    fn cost(base: f64, each: f64) -> StepCost {
        let mut cost = StepCost::default();
        for rows in [1, 9, 1, 5, 1, 9] {
            cost.record(rows, base + each * rows as f64);
        }
        cost
    }

    #[test]
    fn durations_follow_a_line() {
        assert!((cost(1.0, 0.1).factor(1, 10) - 2.1 / 1.1).abs() < 1e-9);
        assert_eq!(StepCost::default().factor(1, 10), 1.0);
        // Steps of one size tell nothing.
        let mut same = StepCost::default();
        (0..9).for_each(|_| same.record(1, 1.0));
        assert_eq!(same.factor(1, 10), 1.0);
    }

    #[test]
    fn drafts_that_do_not_pay_pause_longer_and_longer() {
        let cost = cost(1.0, 0.5);
        let mut gate = DraftGate::default();
        let mut pauses = Vec::new();
        while pauses.len() < 3 {
            let mut tokens = 0;
            while gate.limit(8) == 0 {
                tokens += 1;
            }
            pauses.push(tokens);
            gate.record((8, 0), 1, &cost);
            gate.record((8, 0), 1, &cost);
        }
        assert_eq!(pauses, [0, PAUSE, 4 * PAUSE]);
        assert_eq!(gate.limit(8), 0);
    }

    #[test]
    fn drafts_that_pay_go_on_at_the_length_that_is_accepted() {
        let cost = cost(1.0, 0.01);
        let mut gate = DraftGate::default();
        assert_eq!(gate.limit(48), 48);
        for _ in 0..20 {
            gate.record((48, 10), 1, &cost);
            assert_eq!(gate.limit(48), if gate.n_drafts < 2 { 48 } else { 24 });
        }
        // The gain of one text is spread over all texts of the step.
        gate.record((24, 10), 16, &self::cost(1.0, 0.1));
        assert_eq!(gate.limit(48), 0);
    }
}
