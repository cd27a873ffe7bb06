//! One op at a time, at shapes that models have, in compiled programs, so that the kernels are those that models get.
//!
//! `matmul` has products and loading of weights, `attention` the KV ops, `rows` ops on activations,
//! `host` what runs beside the device: spectrograms, resampling, parallel loops.

mod attention;
mod host;
mod matmul;
mod rows;

use anyhow::{Context, Result};
use stonechat_benches::protocol::{PeakKind, PeakWork, Stage, Unit};
use stonechat_nn::op::{Count, Port, Rows, Tensor};
use stonechat_nn::{Counts, Cpu, Device, Executable, Recorder, SegmentName, Step};

use super::{Work, timed};

/// Minimum duration of one sample of a kernel, so that the clock and a region's start do not count.
const SAMPLE_SECONDS: f64 = 0.01;
/// Memory that a kernel that streams weights goes through before it meets the same ones again: more than
/// caches hold.
const STREAM_BYTES: usize = 256 << 20;

/// Gets a kernel ready.
type Open = dyn Fn(&Cpu) -> Result<Repeated>;

/// A kernel at a shape.
pub(super) struct Case {
    pub(super) name: String,
    /// Whether it is among the few of a quick run.
    quick: bool,
    open: Box<Open>,
}

/// Every case, or one of each kind.
pub(super) fn list(quick: bool) -> Vec<Case> {
    let mut cases = matmul::cases();
    cases.extend(attention::cases());
    cases.extend(rows::cases());
    cases.extend(host::cases());
    cases.retain(|case| case.quick || !quick);
    cases
}

/// Gets the case `name` ready.
pub(super) fn open(cpu: &Cpu, name: &str) -> Result<Box<dyn Work>> {
    let case = list(false).into_iter().find(|case| case.name == name);
    let case = case.with_context(|| format!("unknown kernel `{name}`"))?;
    let mut repeated = (case.open)(cpu)?;
    repeated.stage.name = case.name;
    repeated.calibrate();
    Ok(Box::new(repeated))
}

/// An op that is called so often that the clock sees it.
struct Repeated {
    /// For one call; the name is the case's.
    stage: Stage,
    /// Calls of the op in a run.
    calls: usize,
    /// Runs in a sample.
    runs: usize,
    run: Box<dyn FnMut() + Send>,
}

impl Repeated {
    fn new((amount, unit): (f64, Unit), run: impl FnMut() + Send + 'static) -> Self {
        let stage = Stage { name: String::new(), amount, unit, peak: Vec::new(), kernel: None };
        Self { stage, calls: 1, runs: 1, run: Box::new(run) }
    }

    /// A run calls the op `calls` times.
    fn of_calls(self, calls: usize) -> Self {
        Self { calls, ..self }
    }

    /// Bounded by `kind`, of which a call needs as much as its rate counts.
    fn bounded(mut self, kind: PeakKind) -> Self {
        self.stage.peak = vec![PeakWork { kind, amount: self.stage.amount }];
        self
    }

    fn kernel(mut self, name: impl Into<String>) -> Self {
        self.stage.kernel = Some(name.into());
        self
    }

    fn time(&mut self) -> f64 {
        let (runs, run) = (self.runs, &mut self.run);
        timed(|| (0..runs).for_each(|_| run())).0 / (runs * self.calls) as f64
    }

    /// Finds how many runs a sample needs; the first runs are not measured.
    fn calibrate(&mut self) {
        self.time();
        let mut seconds = self.time() * self.calls as f64;
        while seconds * (self.runs as f64) < SAMPLE_SECONDS && self.runs < 1 << 24 {
            let wanted = (SAMPLE_SECONDS / seconds.max(1e-9)).ceil() as usize;
            self.runs = wanted.clamp(2 * self.runs, 1 << 24);
            seconds = self.time() * self.calls as f64;
        }
    }
}

impl Work for Repeated {
    fn stages(&self) -> Vec<Stage> {
        vec![self.stage.clone()]
    }

    fn sample(&mut self) -> Result<Vec<f64>> {
        Ok(vec![self.time()])
    }
}

/// Values in -1..1 without a pattern that a kernel could profit from.
fn made_up(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1999) as f32 / 1000.0 - 1.0).collect()
}

/// Program of one segment.
#[derive(Default)]
struct Ops {
    recorder: Recorder,
    counts: Counts,
    /// Ports and their numbers of values.
    imports: Vec<(Port, usize)>,
    n_outputs: usize,
}

/// Port of the first result; imports have those before it.
const FIRST_OUTPUT: usize = 1 << 16;

impl Ops {
    /// Ops of `t` tokens and of one window of audio.
    fn new(t: usize) -> Self {
        let mut ops = Self::default();
        ops.counts[Count::Tokens] = t;
        ops.counts[Count::Windows] = 1;
        ops.recorder.segment(SegmentName::Body, Rows::of(Count::Tokens));
        ops
    }

    /// Made-up values, `[t, cols]`.
    fn tokens(&mut self, cols: usize) -> Tensor {
        self.import(Rows::of(Count::Tokens), cols)
    }

    /// Made-up values.
    fn import(&mut self, rows: Rows, cols: usize) -> Tensor {
        let port = Port::value(self.imports.len());
        self.imports.push((port, self.counts.rows(rows) * cols));
        self.recorder.import(port, rows, cols)
    }

    /// Keeps a result.
    fn output(&mut self, x: Tensor) {
        self.recorder.output(Port::value(FIRST_OUTPUT + self.n_outputs), x);
        self.n_outputs += 1;
    }

    /// The compiled program with its inputs, and the counts of a step.
    fn compile(self, device: &Device) -> Result<(Box<dyn Executable>, Counts)> {
        let Self { recorder, counts, imports, .. } = self;
        let mut executable = device.compile(&recorder.finish(), &counts)?;
        for (port, len) in imports {
            executable.import(port, &made_up(len));
        }
        Ok((executable, counts))
    }

    /// As [`compile`](Self::compile), as a function that runs a step without tables.
    fn runner(self, device: &Device) -> Result<impl FnMut() + Send + use<>> {
        let (mut executable, counts) = self.compile(device)?;
        Ok(move || executable.run(&step(counts)))
    }
}

/// A step without tables.
fn step(counts: Counts) -> Step<'static> {
    Step { segments: &[SegmentName::Body], counts, ..Step::default() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let cases = list(false);
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        assert!(list(true).len() < cases.len() / 2);
    }

    #[test]
    fn quick_kernels_can_be_timed() {
        let cpu = Cpu::new(2).unwrap();
        for case in list(true) {
            let mut work = open(&cpu, &case.name).unwrap();
            let stage = work.stages().remove(0);
            assert_eq!(stage.name, case.name);
            let seconds = work.sample().unwrap();
            assert!(seconds.len() == 1 && seconds[0] > 0.0, "{}: {seconds:?}", case.name);
        }
        assert!(open(&cpu, "gemv of nothing").is_err());
    }
}
