//! Gate of speculative decoding: turns drafts on or off by measured acceptance and cost.
//!
//! Measured: the duration of steps by their rows, the duration of drafting by tokens, and the accepted tokens of each text.
//!
//! ```text
//! a step of N texts takes t(N), with a draft of k tokens t(N + k) + k d, and gives A tokens more, the mean of recent drafts
//! drafts are on if (N + A) / N > (t(N + k) + k d) / t(N)
//! ```
//!
//! Backoff: a text whose drafts cost more than they gain gets none for a number of tokens, which doubles each time, then tries
//! one again. While all steps have drafts, a step without drafts is run now and then, to measure t(N).

/// Part of the sums that each new step replaces.
const DECAY: f64 = 0.95;
/// Minimum number of measured steps to use the fitted line.
const MIN_STEPS: f64 = 4.0;
/// Minimum weight of steps without drafts, that of one step 62 steps ago. Below it, the next step has no drafts.
const MIN_PLAIN: f64 = 0.04;
/// Drafts of a text before it may pause.
const MIN_DRAFTS: usize = 2;
/// Tokens of the first pause, and of the longest.
const PAUSE: usize = 16;
const MAX_PAUSE: usize = 512;

/// Duration of steps by their rows: the line through recent steps. Duration of drafts by their tokens: the mean.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepCost {
    n: f64,
    rows: f64,
    seconds: f64,
    rows_rows: f64,
    rows_seconds: f64,
    /// Steps without drafts.
    plain: f64,
    drafted: f64,
    draft_seconds: f64,
}

impl StepCost {
    /// Adds a step without prompts: its rows, those of drafts among them, and its duration.
    pub(crate) fn record(&mut self, rows: usize, drafted: usize, seconds: f64) {
        let rows = rows as f64;
        let is_plain = if drafted == 0 { 1.0 } else { 0.0 };
        let values = [1.0, rows, seconds, rows * rows, rows * seconds, is_plain];
        let sums = [
            &mut self.n,
            &mut self.rows,
            &mut self.seconds,
            &mut self.rows_rows,
            &mut self.rows_seconds,
            &mut self.plain,
        ];
        for (sum, value) in sums.into_iter().zip(values) {
            *sum = DECAY * *sum + value;
        }
    }

    /// Adds the drafts for a step: their tokens, and the duration of drafting.
    pub(crate) fn record_drafts(&mut self, tokens: usize, seconds: f64) {
        self.drafted = DECAY * self.drafted + tokens as f64;
        self.draft_seconds = DECAY * self.draft_seconds + seconds;
    }

    /// Whether the next step must have no drafts, to be measured.
    pub(crate) fn needs_plain_step(&self) -> bool {
        self.n >= MIN_STEPS && self.plain < MIN_PLAIN
    }

    /// Factor by which a draft of `more` tokens lengthens a step of `rows`; 1 before there are measurements.
    fn factor(&self, rows: usize, more: usize) -> f64 {
        let spread = self.n * self.rows_rows - self.rows * self.rows;
        if self.n < MIN_STEPS || spread < 1e-9 {
            return 1.0;
        }
        let slope = (self.n * self.rows_seconds - self.rows * self.seconds) / spread;
        let base = (self.seconds - slope * self.rows) / self.n + slope * rows as f64;
        let drafting = if self.drafted > 0.0 { self.draft_seconds / self.drafted } else { 0.0 };
        // A slope below 0 is noise.
        let each = slope.max(0.0) + drafting;
        if base <= 0.0 { 1.0 } else { 1.0 + each * more as f64 / base }
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
    /// Tokens of the context that the drafter has seen.
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
            cost.record(rows, rows - 1, base + each * rows as f64);
        }
        cost
    }

    #[test]
    fn durations_follow_a_line() {
        assert!((cost(1.0, 0.1).factor(1, 10) - 2.1 / 1.1).abs() < 1e-9);
        assert_eq!(StepCost::default().factor(1, 10), 1.0);
        // Steps of one size tell nothing.
        let mut same = StepCost::default();
        (0..9).for_each(|_| same.record(1, 0, 1.0));
        assert_eq!(same.factor(1, 10), 1.0);
    }

    #[test]
    fn the_duration_of_drafting_counts() {
        let mut cost = cost(1.0, 0.0);
        assert!((cost.factor(1, 3) - 1.0).abs() < 1e-9);
        (0..4).for_each(|_| cost.record_drafts(3, 0.6));
        assert!((cost.factor(1, 3) - 1.6).abs() < 1e-9);
        // Two of three tokens gain more than a draft of 0.6 steps costs, none does not.
        for (accepted, pays) in [(2, true), (0, false)] {
            let mut gate = DraftGate::default();
            (0..2).for_each(|_| gate.record((3, accepted), 1, &cost));
            assert_eq!(gate.limit(3) > 0, pays);
        }
    }

    #[test]
    fn a_step_without_drafts_is_run_now_and_then() {
        let (mut cost, mut plain) = (StepCost::default(), Vec::new());
        for step in 0..200 {
            let drafted = if cost.needs_plain_step() { 0 } else { 3 };
            cost.record(1 + drafted, drafted, 1.0);
            if drafted == 0 {
                plain.push(step);
            }
        }
        assert_eq!((plain[0], plain.len()), (5, 4));
        assert!(plain.windows(2).all(|pair| (60..70).contains(&(pair[1] - pair[0]))), "{plain:?}");
        let mut cost = StepCost::default();
        (0..99).for_each(|_| cost.record(1, 0, 1.0));
        assert!(!cost.needs_plain_step());
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
