//! Protocol of driver and worker: one JSON object a line on the worker's standard
//! input and output. Other engines' workers (`xtask/assets/bench_peer.py`) speak it too.
//!
//! A worker opens one [`Job`] at a time and then times it once for each [`Request::Sample`], so that
//! a driver can take turns between engines that all have their model loaded.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Changes when a worker of another revision would be misunderstood.
pub const PROTOCOL: u32 = 1;

/// Request of the driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Who are you: answered by [`Reply::Hello`].
    Hello,
    /// List of kernels: answered by [`Reply::Kernels`].
    Kernels {
        /// Only one of each kind.
        quick: bool,
    },
    /// Kind of a model: answered by [`Reply::Model`].
    Inspect {
        /// The model.
        model: PathBuf,
    },
    /// Write a speech model as a whisper.cpp file: answered by [`Reply::Done`].
    Convert {
        /// A speech model of any format.
        model: PathBuf,
        /// Output file; ends in `.bin`.
        to: PathBuf,
        /// Weight type; none keeps that of the file.
        dtype: Option<String>,
    },
    /// Write recordings one after the other as one WAV file: answered by [`Reply::Done`].
    Join {
        /// Audio files.
        audio: Vec<PathBuf>,
        /// Output file.
        to: PathBuf,
    },
    /// Get ready for a job, forgetting the last: answered by [`Reply::Opened`].
    Open {
        /// Job to time.
        job: Job,
    },
    /// Do the job once: answered by [`Reply::Sample`].
    Sample,
}

/// Job to time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "snake_case")]
pub enum Job {
    /// Peak rates of memory and arithmetic units.
    Peaks {
        /// Memory to read, far more than the caches hold.
        bytes: usize,
    },
    /// One kernel, named by [`Reply::Kernels`].
    Kernel {
        /// Name of the kernel.
        name: String,
    },
    /// Opening a model until it could run.
    Load {
        /// The model.
        model: PathBuf,
    },
    /// Speech to text, stage by stage and as a whole; greedy, with timestamps.
    Speech {
        /// The model.
        model: PathBuf,
        /// A WAV file.
        audio: PathBuf,
    },
    /// A language model's phases.
    Text {
        /// The model.
        model: PathBuf,
        /// Prompt lengths.
        prefill: Vec<usize>,
        /// Numbers of tokens that are decoded after the first prompt, one at a time.
        decode: Vec<usize>,
        /// Numbers of sequences that decode side by side.
        batch: Vec<usize>,
    },
}

impl Job {
    /// The name of the work, as in tables.
    #[must_use]
    pub fn work(&self) -> &'static str {
        match self {
            Self::Peaks { .. } => "peaks",
            Self::Kernel { .. } => "kernel",
            Self::Load { .. } => "load",
            Self::Speech { .. } => "speech",
            Self::Text { .. } => "text",
        }
    }
}

/// Kind of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// Speech to text.
    Speech,
    /// Text to text.
    Text,
}

/// Reply of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Who it is.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Name of the engine.
        engine: String,
        /// Version of the engine, or empty.
        version: String,
        /// Instruction set or kernels in use, in the engine's own words.
        device: String,
        /// Threads.
        threads: usize,
    },
    /// Names of kernels.
    Kernels {
        /// In the order in which they are to be run.
        names: Vec<String>,
    },
    /// Kind of a model.
    Model {
        /// Whisper or language model.
        kind: ModelKind,
        /// The type that most of its weights have.
        dtype: String,
        /// Whether weights come in blocks that share a scale.
        is_quantized: bool,
    },
    /// Success without a value.
    Done,
    /// The job is ready; the stages that each sample will time.
    Opened {
        /// In the order of their seconds.
        stages: Vec<Stage>,
        /// Method of the job, where engines could do it differently.
        settings: String,
    },
    /// One more measurement.
    Sample {
        /// Duration of each stage.
        seconds: Vec<f64>,
        /// Peak memory of the process in bytes, if the system reports it.
        peak_bytes: Option<u64>,
        /// The text that came out, if the job ends in one.
        text: Option<String>,
    },
    /// The request failed; the worker waits for the next.
    Failed {
        /// One line.
        error: String,
    },
}

/// A timed part of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Name, the same in every engine that has this stage.
    pub name: String,
    /// Work of one sample, in `unit`.
    pub amount: f64,
    /// Unit of `amount`.
    pub unit: Unit,
    /// The least that the machine must do for one sample.
    #[serde(default)]
    pub peak: Vec<PeakWork>,
    /// The kernel that does it, where it is one.
    #[serde(default)]
    pub kernel: Option<String>,
}

/// Unit of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Tokens.
    Tokens,
    /// Bytes.
    Bytes,
    /// Floating-point operations, a multiplication and an addition being two.
    Flops,
    /// Operations on 8-bit integers, a multiplication and an addition being two.
    IntOps,
    /// Seconds of audio.
    AudioSeconds,
    /// Calls.
    Calls,
}

/// A limit of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PeakKind {
    /// Reading memory.
    Read,
    /// f32 multiply-adds.
    F32,
    /// 8-bit multiply-adds.
    Int8,
}

/// A part of what a stage must do at least. A stage's peak is the time that all its parts take, each
/// at the machine's limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PeakWork {
    /// Limiting resource.
    pub kind: PeakKind,
    /// Bytes or operations of one sample.
    pub amount: f64,
}

#[cfg(test)]
mod tests {
    use super::{Job, Reply, Request};

    #[test]
    fn messages_are_what_other_workers_expect() {
        let open = Request::Open { job: Job::Load { model: "a.gguf".into() } };
        let line = r#"{"request":"open","job":{"work":"load","model":"a.gguf"}}"#;
        assert_eq!(serde_json::to_string(&open).unwrap(), line);
        assert_eq!(serde_json::from_str::<Request>(line).unwrap(), open);
        let line = r#"{"reply":"opened","settings":"","stages":[{"name":"load","amount":3.0,"unit":"bytes"}]}"#;
        let Reply::Opened { stages, .. } = serde_json::from_str(line).unwrap() else { panic!() };
        assert!(stages[0].peak.is_empty() && stages[0].kernel.is_none());
    }
}
