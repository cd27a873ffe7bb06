//! Peak bandwidth and arithmetic rates of the machine; detection of a busy machine.

use anyhow::{Result, bail};
use stonechat_benches::protocol::{Job, PeakKind, Reply, Request};
use stonechat_benches::report::Peak;

use super::engine::Engine;
use crate::machine;

/// Samples of each peak; the best counts, since nothing makes a machine faster than it is.
const SAMPLES: usize = 20;
/// Maximum measurements of peaks while something disturbs the machine.
pub(super) const ATTEMPTS: usize = 5;
/// The least part of their number by which threads must speed arithmetic up that shares nothing.
const SCALING: f64 = 0.85;

/// The peaks of as many threads as the worker has.
pub(super) fn measure(worker: &mut Engine) -> Result<Vec<Peak>> {
    let job = Job::Peaks { bytes: machine::peak_bytes() };
    let Reply::Opened { stages, .. } = worker.ask(&Request::Open { job })? else {
        bail!("peaks: expected an open job")
    };
    let mut best = vec![f64::INFINITY; stages.len()];
    for _ in 0..SAMPLES {
        let Reply::Sample { seconds, .. } = worker.ask(&Request::Sample)? else {
            bail!("peaks: expected a sample")
        };
        best.iter_mut().zip(seconds).for_each(|(best, s)| *best = best.min(s));
    }
    let peaks = stages.into_iter().zip(best).map(|(stage, seconds)| {
        let kind = match stage.name.as_str() {
            "read" => PeakKind::Read,
            "f32" => PeakKind::F32,
            "int8" => PeakKind::Int8,
            other => bail!("peaks: unknown peak {other:?}"),
        };
        let per_second = stage.amount / seconds;
        let kernel = stage.kernel.unwrap_or_default();
        Ok(Peak { threads: worker.threads, kind, per_second, kernel })
    });
    peaks.collect()
}

/// Adds peaks to those that are known; the better of two counts.
pub(super) fn keep_best(known: &mut Vec<Peak>, new: Vec<Peak>) {
    for peak in new {
        let same = |old: &&mut Peak| old.threads == peak.threads && old.kind == peak.kind;
        match known.iter_mut().find(same) {
            Some(old) => old.per_second = old.per_second.max(peak.per_second),
            None => known.push(peak),
        }
    }
}

/// Warning if peaks do not scale with threads, as on a busy machine.
pub(super) fn disturbance(peaks: &[Peak], cores: usize) -> Option<String> {
    let f32 = |peak: &&Peak| peak.kind == PeakKind::F32 && peak.threads <= cores;
    let one = peaks.iter().filter(f32).find(|peak| peak.threads == 1)?;
    let most = peaks.iter().filter(f32).max_by_key(|peak| peak.threads)?;
    let times = most.per_second / one.per_second;
    let n = most.threads;
    (times < SCALING * n as f64).then(|| {
        format!(
            "{n} threads multiplied only {times:.1} times as fast as one: other work disturbs this \
             machine, so that peaks are too low and parts of them too high"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peak(threads: usize, per_second: f64) -> Peak {
        Peak { threads, kind: PeakKind::F32, per_second, kernel: String::new() }
    }

    #[test]
    fn the_better_of_two_peaks_counts() {
        let mut known = vec![peak(1, 100.0), peak(2, 110.0)];
        keep_best(&mut known, vec![peak(1, 90.0), peak(2, 195.0), peak(4, 380.0)]);
        assert_eq!(known, [peak(1, 100.0), peak(2, 195.0), peak(4, 380.0)]);
    }

    #[test]
    fn peaks_of_a_busy_machine_are_noted() {
        assert_eq!(disturbance(&[peak(1, 100.0), peak(2, 190.0)], 2), None);
        assert_eq!(disturbance(&[peak(1, 100.0)], 2), None);
        // More threads than cores share them.
        assert_eq!(disturbance(&[peak(1, 100.0), peak(2, 190.0), peak(4, 190.0)], 2), None);
        let note = disturbance(&[peak(1, 100.0), peak(2, 110.0)], 2).unwrap();
        assert!(note.contains("only 1.1 times"), "{note}");
    }
}
