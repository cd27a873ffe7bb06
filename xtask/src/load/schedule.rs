//! Requests of a point: prompt, arrival, abort; all of it follows the seed.

use std::time::Duration;

use super::prompts::{Prompts, mix};

/// A request to send.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Planned {
    pub(super) prompt: String,
    /// Time of arrival after the start of an open loop; zero in a closed one.
    pub(super) arrival: Duration,
    /// Events after which the client closes the connection.
    pub(super) abort_after: Option<usize>,
}

/// Requests in the order in which they are sent.
#[derive(Debug, Clone)]
pub(super) struct Plan<'a> {
    pub(super) prompts: &'a Prompts,
    pub(super) seed: u64,
    /// Words of a prompt: one of these for each request.
    pub(super) prompt_words: &'a [usize],
    /// Words that all prompts begin with.
    pub(super) shared_prefix: usize,
    /// Requests per second of an open loop.
    pub(super) rate: Option<f64>,
    pub(super) abort_share: f64,
    pub(super) max_tokens: usize,
    prefix: String,
    clock_s: f64,
    index: u64,
}

impl<'a> Plan<'a> {
    /// A plan without shared prefix, rate and aborts.
    pub(super) fn new(
        prompts: &'a Prompts,
        seed: u64,
        prompt_words: &'a [usize],
        max_tokens: usize,
    ) -> Self {
        Self {
            prompts,
            seed,
            prompt_words,
            shared_prefix: 0,
            rate: None,
            abort_share: 0.0,
            max_tokens,
            prefix: String::new(),
            clock_s: 0.0,
            index: 0,
        }
    }
}

impl Iterator for Plan<'_> {
    type Item = Planned;

    /// The next request; a plan has no end.
    fn next(&mut self) -> Option<Planned> {
        if self.shared_prefix > 0 && self.prefix.is_empty() {
            let seed = mix(&[self.seed, u64::MAX]);
            self.prefix = self.prompts.prompt(self.shared_prefix, seed) + " ";
        }
        let seed = mix(&[self.seed, self.index]);
        let mut random = fastrand::Rng::with_seed(mix(&[seed, 1]));
        let words = random.choice(self.prompt_words).copied().unwrap_or(1);
        let prompt = format!("{}{}", self.prefix, self.prompts.prompt(words, seed));
        if let Some(rate) = self.rate {
            // Gaps of a Poisson process are exponential; 1 - u is above 0.
            self.clock_s += -(1.0 - random.f64()).ln() / rate;
        }
        let aborts = random.f64() < self.abort_share;
        let after = random.usize(1..=self.max_tokens.max(1));
        self.index += 1;
        Some(Planned {
            prompt,
            arrival: Duration::from_secs_f64(self.clock_s),
            abort_after: aborts.then_some(after),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(prompts: &Prompts, seed: u64) -> Plan<'_> {
        Plan::new(prompts, seed, &[5, 9], 64)
    }

    #[test]
    fn a_seed_gives_one_schedule() {
        let prompts = Prompts::read().unwrap();
        let of = |seed, rate| -> Vec<Planned> {
            let plan = Plan { rate: Some(rate), abort_share: 0.5, ..example(&prompts, seed) };
            plan.take(50).collect()
        };
        assert_eq!(of(1, 2.0), of(1, 2.0));
        assert_ne!(of(1, 2.0), of(2, 2.0));
        // Twice the rate is half of every time.
        let (slow, fast) = (of(1, 2.0), of(1, 4.0));
        for (slow, fast) in slow.iter().zip(&fast) {
            let difference = slow.arrival.as_secs_f64() - 2.0 * fast.arrival.as_secs_f64();
            assert!(difference.abs() < 1e-6, "{slow:?} {fast:?}");
        }
    }

    #[test]
    fn arrivals_are_a_poisson_process() {
        let prompts = Prompts::read().unwrap();
        let plan = Plan { rate: Some(10.0), ..example(&prompts, 3) };
        let times: Vec<f64> = plan.take(4000).map(|p| p.arrival.as_secs_f64()).collect();
        assert!(times.is_sorted());
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // An exponential distribution's mean and deviation are equal; 4000 samples vary by 1.6 %.
        assert!((mean - 0.1).abs() < 0.01, "{mean}");
        assert!((variance.sqrt() - 0.1).abs() < 0.01, "{variance}");
    }

    #[test]
    fn aborts_have_their_share_and_come_within_the_stream() {
        let prompts = Prompts::read().unwrap();
        let plan = Plan { abort_share: 0.2, ..example(&prompts, 4) };
        let aborts: Vec<usize> = plan.take(2000).filter_map(|p| p.abort_after).collect();
        assert!((300..500).contains(&aborts.len()), "{}", aborts.len());
        assert!(aborts.iter().all(|n| (1..=64).contains(n)));
        assert!(example(&prompts, 4).take(100).all(|p| p.abort_after.is_none()));
    }

    #[test]
    fn a_shared_prefix_is_followed_by_different_words() {
        let prompts = Prompts::read().unwrap();
        let plan = Plan { shared_prefix: 30, ..example(&prompts, 5) };
        let texts: Vec<String> = plan.take(3).map(|p| p.prompt).collect();
        let words = |i: usize| -> Vec<&str> { texts[i].split(' ').collect() };
        assert_eq!(words(0)[..30], words(1)[..30]);
        assert_ne!(words(0)[30], words(1)[30]);
        assert!([35, 39].contains(&words(2).len()));
        let other = Plan { shared_prefix: 30, ..example(&prompts, 6) };
        assert_ne!(other.take(1).next().unwrap().prompt.split(' ').next(), Some(words(0)[0]));
    }
}
