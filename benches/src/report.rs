//! Saved report of a benchmark run. `benches/report.schema.json` is its JSON schema.

use serde::{Deserialize, Serialize};

use crate::protocol::{PeakKind, PeakWork, Stage, Unit};
use crate::statistics::{Summary, summarize};

/// Version of the format.
pub const SCHEMA: u32 = 2;
/// The coefficient of variation from which on a row is called unstable.
pub const STABLE_COV: f64 = 0.05;

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Seconds since 1970 at the start.
    pub created_unix_s: u64,
    /// The command line.
    pub command: Vec<String>,
    /// Machine.
    pub machine: Machine,
    /// Build of this engine.
    pub build: Build,
    /// When sampling stopped.
    pub limits: Limits,
    /// Peak rates of the machine, by number of threads.
    pub peaks: Vec<Peak>,
    /// The measurements.
    pub rows: Vec<Row>,
    /// Jobs left out, with the reason.
    pub notes: Vec<String>,
}

/// A machine and its state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name of the processor.
    pub cpu: String,
    /// Cores, hyperthreads not counted, that this process may use.
    pub cores: usize,
    /// Memory in bytes, 0 if unknown.
    pub memory_bytes: u64,
    /// Caches of the first core, such as `L2 1024K`.
    pub caches: Vec<String>,
    /// Bytes of a page, 0 if unknown.
    pub page_bytes: u64,
    /// The system's choice of transparent huge pages, empty if unknown.
    pub huge_pages: String,
    /// Frequency governor of the first core, empty if unknown.
    pub governor: String,
    /// Whether it is a guest of a hypervisor, where the processor tells.
    pub virtual_machine: Option<bool>,
    /// Operating system and architecture.
    pub system: String,
    /// Processes that were ready to run, averaged over a minute, before the run; absent if unknown.
    pub load_before: Option<f64>,
    /// The same after it.
    pub load_after: Option<f64>,
}

impl Machine {
    /// Differences between two machines; `None` if their figures are comparable.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let gib = |bytes: u64| (bytes as f64 / f64::from(1 << 30)).round();
        let differences = [
            (self.cpu != other.cpu).then(|| format!("{} and {}", self.cpu, other.cpu)),
            (self.cores != other.cores)
                .then(|| format!("{} and {} cores", self.cores, other.cores)),
            (gib(self.memory_bytes) != gib(other.memory_bytes))
                .then(|| format!("{} and {} GiB", gib(self.memory_bytes), gib(other.memory_bytes))),
        ];
        let found: Vec<String> = differences.into_iter().flatten().collect();
        (!found.is_empty()).then(|| found.join(", "))
    }
}

/// A build of this workspace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// Git revision, empty outside a repository.
    pub revision: String,
    /// Whether tracked files differed from it.
    pub dirty: bool,
    /// The compiler.
    pub rustc: String,
    /// The cargo profile, and what the environment changed about it.
    pub profile: String,
    /// Instruction set picked at run time, and threads.
    pub device: String,
}

/// When sampling stops: when every stage varies little, but not before `min_samples` and not after
/// `max_samples` or `max_seconds`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Samples that do not count.
    pub warm_up: usize,
    /// Minimum number of samples.
    pub min_samples: usize,
    /// Maximum number of samples.
    pub max_samples: usize,
    /// Time for all engines of a job together.
    pub max_seconds: f64,
}

/// Peak rate of the machine for a number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Peak {
    /// Threads.
    pub threads: usize,
    /// Limited resource.
    pub kind: PeakKind,
    /// Bytes or operations a second: the best sample.
    pub per_second: f64,
    /// Method of the measurement.
    pub kernel: String,
}

/// One stage of one job of one engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// `stonechat`, or another engine.
    pub engine: String,
    /// Version or revision of the engine, empty if unknown.
    pub version: String,
    /// Model, empty for kernels.
    pub model: String,
    /// The type that most weights of its file have, empty for kernels.
    pub weights: String,
    /// The job: `load`, `speech`, `text` or `kernel`.
    pub work: String,
    /// Part of the job.
    pub stage: String,
    /// Device.
    pub backend: String,
    /// Threads.
    pub threads: usize,
    /// The kernel that ran, where the stage is one.
    pub kernel: Option<String>,
    /// Method of the job where engines could do it differently.
    pub settings: String,
    /// Work of one sample.
    pub amount: f64,
    /// Unit of `amount`.
    pub unit: Unit,
    /// `amount` in a second, at the median.
    pub per_second: f64,
    /// Part of what the machine can do at most, 0 to 1, at the median; absent without a peak.
    pub of_peak: Option<f64>,
    /// Seconds of each sample, in order. Sample `i` of engines that were interleaved belong together.
    pub samples_s: Vec<f64>,
    /// Indices of samples far from the median. They count in what follows.
    pub outliers: Vec<usize>,
    /// Mean.
    pub mean_s: f64,
    /// Median.
    pub p50_s: f64,
    /// 95th percentile.
    pub p95_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
    /// Standard deviation over mean.
    pub cov: f64,
    /// Peak memory of the process in bytes.
    pub peak_bytes: Option<u64>,
    /// The text that came out.
    pub text: Option<String>,
}

/// Fields that the rows of one job share.
#[derive(Debug, Clone)]
pub struct RowHead {
    /// See [`Row`].
    pub engine: String,
    /// See [`Row`].
    pub version: String,
    /// See [`Row`].
    pub model: String,
    /// See [`Row`].
    pub weights: String,
    /// See [`Row`].
    pub work: String,
    /// See [`Row`].
    pub backend: String,
    /// See [`Row`].
    pub threads: usize,
    /// See [`Row`].
    pub settings: String,
}

impl Row {
    /// The row of a stage; `None` without samples.
    #[must_use]
    pub fn new(head: &RowHead, stage: &Stage, samples_s: Vec<f64>, peaks: &[Peak]) -> Option<Self> {
        let Summary { mean, p50, p95, p99, cov, outliers, .. } = summarize(&samples_s)?;
        let head = head.clone();
        Some(Self {
            of_peak: peak_seconds(&stage.peak, peaks, head.threads).map(|least| least / p50),
            engine: head.engine,
            version: head.version,
            model: head.model,
            weights: head.weights,
            work: head.work,
            stage: stage.name.clone(),
            backend: head.backend,
            threads: head.threads,
            kernel: stage.kernel.clone(),
            settings: head.settings,
            amount: stage.amount,
            unit: stage.unit,
            per_second: stage.amount / p50,
            samples_s,
            outliers,
            mean_s: mean,
            p50_s: p50,
            p95_s: p95,
            p99_s: p99,
            cov,
            peak_bytes: None,
            text: None,
        })
    }

    /// Whether the samples agree well enough.
    #[must_use]
    pub fn is_stable(&self) -> bool {
        self.samples_s.len() > 1 && self.cov <= STABLE_COV
    }

    /// Whether both are the same measurement, of whatever engine or build.
    #[must_use]
    pub fn is_same_measurement(&self, other: &Self) -> bool {
        let key = |row: &Self| {
            let Self { model, work, stage, backend, .. } = row.clone();
            (model, work, stage, backend, row.threads)
        };
        key(self) == key(other)
    }
}

/// The time that `work` takes at the machine's limits; `None` without work or if a limit is not known.
fn peak_seconds(work: &[PeakWork], peaks: &[Peak], threads: usize) -> Option<f64> {
    if work.is_empty() {
        return None;
    }
    work.iter()
        .map(|part| {
            let peak = peaks.iter().find(|f| f.threads == threads && f.kind == part.kind)?;
            Some(part.amount / peak.per_second)
        })
        .sum()
}

#[cfg(test)]
pub(crate) mod tests;
