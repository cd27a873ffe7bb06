//! Taking turns between engines until their figures settle.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use stonechat_benches::protocol::{Job, Reply, Request, Stage};
use stonechat_benches::report::{Limits, Peak, Row, RowHead, STABLE_COV};
use stonechat_benches::statistics::summarize;

use super::engine::Engine;

/// Other engines' threads spin for a while after their work (Intel's OpenMP for 200 ms); what comes next
/// must not share the cores with them.
const PAUSE: Duration = Duration::from_millis(250);
/// This tree's engine, whose failure ends the run; names of other revisions begin so.
const OWN: &str = "stonechat";
/// Stages shorter than this vary with the clock and the caches; they do not prolong the sampling.
const SHORT_SECONDS: f64 = 1e-3;

/// An engine with an open job.
pub(super) struct Contender<'a> {
    engine: &'a mut Engine,
    head: RowHead,
    stages: Vec<Stage>,
    /// By stage.
    seconds: Vec<Vec<f64>>,
    peak_bytes: Option<u64>,
    text: Option<String>,
}

impl<'a> Contender<'a> {
    /// Has `engine` open `job`, which runs a model of that name with weights of that type.
    pub(super) fn open(
        engine: &'a mut Engine,
        job: Job,
        (model, weights): (&str, &str),
        threads: usize,
    ) -> Result<Self> {
        let work = job.work().to_owned();
        let reply = engine.ask(&Request::Open { job })?;
        let Reply::Opened { stages, settings } = reply else {
            bail!("{}: expected an open job, got {reply:?}", engine.name)
        };
        let head = RowHead {
            engine: engine.name.clone(),
            version: engine.version.clone(),
            model: model.to_owned(),
            weights: weights.to_owned(),
            work,
            backend: "cpu".to_owned(),
            threads,
            settings,
        };
        let seconds = vec![Vec::new(); stages.len()];
        Ok(Self { engine, head, stages, seconds, peak_bytes: None, text: None })
    }

    /// The engine's name.
    pub(super) fn name(&self) -> &str {
        &self.head.engine
    }

    fn sample(&mut self, counts: bool) -> Result<()> {
        let name = &self.head.engine;
        let reply = self.engine.ask(&Request::Sample)?;
        let Reply::Sample { seconds, peak_bytes, text } = reply else {
            bail!("{name}: expected a sample, got {reply:?}")
        };
        let (expected, got) = (self.stages.len(), seconds.len());
        ensure!(got == expected, "{name}: expected seconds of {expected} stages, got {got}");
        let wrong = seconds.iter().find(|s| !(s.is_finite() && **s > 0.0));
        ensure!(wrong.is_none(), "{name}: expected seconds above 0, got {wrong:?}");
        if counts {
            self.seconds.iter_mut().zip(seconds).for_each(|(all, one)| all.push(one));
            (self.peak_bytes, self.text) = (peak_bytes, text);
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        self.seconds
            .iter()
            .filter_map(|all| summarize(all))
            .all(|summary| summary.p50 < SHORT_SECONDS || summary.cov <= STABLE_COV)
    }

    /// The rows of all stages.
    pub(super) fn into_rows(self, peaks: &[Peak]) -> Result<Vec<Row>> {
        let Self { head, stages, seconds, peak_bytes, text, .. } = self;
        let mut rows = Vec::new();
        for (stage, samples) in stages.iter().zip(seconds) {
            let mut row =
                Row::new(&head, stage, samples, peaks).context("a stage without samples")?;
            row.peak_bytes = peak_bytes;
            if stage.name == "transcribe" {
                row.text.clone_from(&text);
            }
            rows.push(row);
        }
        Ok(rows)
    }
}

/// Samples all contenders in turn. The order changes every round, so that nobody always comes after the
/// same neighbour. Another engine that fails is skipped from then on; the result says why.
pub(super) fn sample(contenders: &mut Vec<Contender<'_>>, limits: &Limits) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for _ in 0..limits.warm_up {
        round(contenders, false, &mut notes)?;
    }
    let start = Instant::now();
    for n in 1..=limits.max_samples {
        contenders.rotate_left(1);
        round(contenders, true, &mut notes)?;
        let in_time = start.elapsed().as_secs_f64() < limits.max_seconds;
        let is_stable = contenders.iter().all(Contender::is_settled);
        if n >= limits.min_samples && (is_stable || !in_time) {
            break;
        }
    }
    Ok(notes)
}

/// One sample of each.
fn round(contenders: &mut Vec<Contender<'_>>, counts: bool, notes: &mut Vec<String>) -> Result<()> {
    let is_foreign = |contender: &Contender<'_>| !contender.head.engine.starts_with(OWN);
    let pause = if contenders.iter().any(is_foreign) { PAUSE } else { Duration::ZERO };
    let mut failed = None;
    for contender in &mut *contenders {
        match contender.sample(counts) {
            Err(error) if contender.head.engine != OWN => {
                notes.push(format!("{error:#}"));
                failed = Some(contender.head.engine.clone());
            }
            other => other?,
        }
        sleep(pause);
    }
    contenders.retain(|contender| Some(&contender.head.engine) != failed.as_ref());
    Ok(())
}
