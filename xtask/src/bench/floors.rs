//! What the machine can do at most, and whether something else kept it from that.

use anyhow::{Result, bail};
use stonechat_benches::protocol::{FloorKind, Job, Reply, Request};
use stonechat_benches::report::Floor;

use super::engine::Engine;
use super::machine;

/// Samples of each floor; the best counts, since nothing makes a machine faster than it is.
const SAMPLES: usize = 20;
/// How often floors are measured while something disturbs the machine.
pub(super) const ATTEMPTS: usize = 5;
/// The least part of their number by which threads must speed arithmetic up that shares nothing.
const SCALING: f64 = 0.85;

/// The floors of as many threads as the worker has.
pub(super) fn measure(worker: &mut Engine) -> Result<Vec<Floor>> {
    let job = Job::Floors { bytes: machine::floor_bytes() };
    let Reply::Opened { stages, .. } = worker.ask(&Request::Open { job })? else {
        bail!("floors: expected an open job")
    };
    let mut best = vec![f64::INFINITY; stages.len()];
    for _ in 0..SAMPLES {
        let Reply::Sample { seconds, .. } = worker.ask(&Request::Sample)? else {
            bail!("floors: expected a sample")
        };
        best.iter_mut().zip(seconds).for_each(|(best, s)| *best = best.min(s));
    }
    let floors = stages.into_iter().zip(best).map(|(stage, seconds)| {
        let kind = match stage.name.as_str() {
            "read" => FloorKind::Read,
            "f32" => FloorKind::F32,
            "int8" => FloorKind::Int8,
            other => bail!("floors: unknown floor {other:?}"),
        };
        let per_second = stage.amount / seconds;
        let kernel = stage.kernel.unwrap_or_default();
        Ok(Floor { threads: worker.threads, kind, per_second, kernel })
    });
    floors.collect()
}

/// Adds floors to those that are known; the better of two counts.
pub(super) fn keep_best(known: &mut Vec<Floor>, new: Vec<Floor>) {
    for floor in new {
        let same = |old: &&mut Floor| old.threads == floor.threads && old.kind == floor.kind;
        match known.iter_mut().find(same) {
            Some(old) => old.per_second = old.per_second.max(floor.per_second),
            None => known.push(floor),
        }
    }
}

/// What is wrong with floors of which several threads' are not several times one thread's.
pub(super) fn disturbance(floors: &[Floor], cores: usize) -> Option<String> {
    let f32 = |floor: &&Floor| floor.kind == FloorKind::F32 && floor.threads <= cores;
    let one = floors.iter().filter(f32).find(|floor| floor.threads == 1)?;
    let most = floors.iter().filter(f32).max_by_key(|floor| floor.threads)?;
    let times = most.per_second / one.per_second;
    let n = most.threads;
    (times < SCALING * n as f64).then(|| {
        format!(
            "{n} threads multiplied only {times:.1} times as fast as one: other work disturbs this \
             machine, so that floors are too low and parts of them too high"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor(threads: usize, per_second: f64) -> Floor {
        Floor { threads, kind: FloorKind::F32, per_second, kernel: String::new() }
    }

    #[test]
    fn the_better_of_two_floors_counts() {
        let mut known = vec![floor(1, 100.0), floor(2, 110.0)];
        keep_best(&mut known, vec![floor(1, 90.0), floor(2, 195.0), floor(4, 380.0)]);
        assert_eq!(known, [floor(1, 100.0), floor(2, 195.0), floor(4, 380.0)]);
    }

    #[test]
    fn floors_of_a_busy_machine_are_noted() {
        assert_eq!(disturbance(&[floor(1, 100.0), floor(2, 190.0)], 2), None);
        assert_eq!(disturbance(&[floor(1, 100.0)], 2), None);
        // More threads than cores share them.
        assert_eq!(disturbance(&[floor(1, 100.0), floor(2, 190.0), floor(4, 190.0)], 2), None);
        let note = disturbance(&[floor(1, 100.0), floor(2, 110.0)], 2).unwrap();
        assert!(note.contains("only 1.1 times"), "{note}");
    }
}
