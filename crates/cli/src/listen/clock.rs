//! Latency of words.

use std::fmt;
use std::time::Duration;

use stonechat::whisper::LiveWord;

/// Simulated clock of a live listener: audio arrives in real time, compute time is added, also for audio from a
/// file.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// Seconds since the start of the stream.
    now: f64,
    compute: Duration,
    latencies: Vec<f64>,
}

/// Statistics of a stream.
#[derive(Debug, serde::Serialize)]
pub(super) struct Summary {
    /// Seconds of audio.
    audio_s: f64,
    /// Seconds of compute.
    compute_s: f64,
    real_time_factor: f64,
    n_words: usize,
    /// Time from the end of a word to its commit, in seconds.
    median_latency_s: Option<f64>,
    p95_latency_s: Option<f64>,
}

impl Clock {
    /// Advances by `compute` spent on audio up to second `received_s`: `now = max(now, received_s) + compute`.
    pub(super) fn advance(&mut self, received_s: f64, compute: Duration) {
        self.now = self.now.max(received_s) + compute.as_secs_f64();
        self.compute += compute;
    }

    /// Sets the latency of committed words.
    pub(super) fn time_words(&mut self, words: &mut [LiveWord]) {
        for live in words {
            live.latency = self.now - live.word.end;
            self.latencies.push(live.latency);
        }
    }

    /// Statistics over `audio_s` seconds of audio.
    pub(super) fn summary(mut self, audio_s: f64) -> Summary {
        self.latencies.sort_by(f64::total_cmp);
        let n = self.latencies.len();
        let quantile = |q: f64| self.latencies.get((q * n as f64) as usize).copied();
        let compute_s = self.compute.as_secs_f64();
        Summary {
            audio_s,
            compute_s,
            real_time_factor: if audio_s > 0.0 { compute_s / audio_s } else { 0.0 },
            n_words: n,
            median_latency_s: quantile(0.5),
            p95_latency_s: quantile(0.95),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(median), Some(p95)) = (self.median_latency_s, self.p95_latency_s) {
            let n_words = self.n_words;
            write!(f, "{n_words} words, latency {median:.2} s (median), {p95:.2} s (95 %); ")?;
        }
        let Self { audio_s, real_time_factor, .. } = self;
        write!(f, "{audio_s:.2} s of audio, real-time factor {real_time_factor:.3}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stonechat::whisper::{LiveWord, Word};

    use super::Clock;

    fn word(end: f64) -> LiveWord {
        let word = Word { word: " a".to_owned(), start: 0.0, end, probability: 1.0 };
        LiveWord { word, latency: 0.0 }
    }

    #[test]
    fn late_compute_delays_what_follows() {
        let mut clock = Clock::default();
        clock.advance(1.0, Duration::from_millis(1500));
        let mut words = [word(0.5)];
        clock.time_words(&mut words);
        assert!((words[0].latency - 2.0).abs() < 1e-9);
        // The second chunk arrives at 2 s, while the first one computes until 2.5 s.
        clock.advance(2.0, Duration::from_millis(250));
        let mut words = [word(1.75), word(2.0)];
        clock.time_words(&mut words);
        assert!((words[0].latency - 1.0).abs() < 1e-9);
        assert!((words[1].latency - 0.75).abs() < 1e-9);
        let summary = clock.summary(2.0);
        let text = "3 words, latency 1.00 s (median), 2.00 s (95 %); 2.00 s of audio, real-time factor 0.875";
        assert_eq!(summary.to_string(), text);
        let nothing = Clock::default().summary(0.0).to_string();
        assert_eq!(nothing, "0.00 s of audio, real-time factor 0.000");
    }
}
