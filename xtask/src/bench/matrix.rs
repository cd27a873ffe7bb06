//! Jobs, their engines and their order.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use stonechat_benches::protocol::{Job, ModelKind, Reply, Request};
use stonechat_benches::report::{Limits, Report};
use stonechat_benches::table;

use super::engine::Engine;
use super::models::{self, Model};
use super::sampling::{Contender, sample};
use super::{BenchArgs, Work, folder, peaks, peers};
use crate::peers::Peer;
use crate::shell;

/// The recordings that make 11 s together.
const CLIP: [&str; 5] =
    ["quick_brown_fox", "counting", "hello_world", "quick_brown_fox", "hello_world"];
/// Prompt lengths, tokens decoded one at a time, sequences side by side, where nothing else is asked for; a
/// quick run has the first of each.
const PREFILL: [usize; 2] = [128, 512];
const DECODE: [usize; 1] = [32];
const BATCH: [usize; 4] = [1, 2, 4, 8];

/// Everything that does not change during a run.
pub(super) struct Matrix<'a> {
    args: &'a BenchArgs,
    limits: Limits,
    worker: PathBuf,
    /// Label and worker of another revision.
    revision: Option<(String, PathBuf)>,
    models: Vec<Model>,
    /// Each with a Python that has it.
    peers: Vec<(Peer, PathBuf)>,
    /// Names.
    kernels: Vec<String>,
    threads: Vec<usize>,
    cores: usize,
    device: String,
    audio: PathBuf,
}

/// Label of rows of another revision of this engine.
pub(super) fn label(hash: &str) -> String {
    format!("stonechat@{hash:.12}")
}

impl<'a> Matrix<'a> {
    /// Finds models and engines; nothing is measured.
    pub(super) fn new(args: &'a BenchArgs, limits: Limits, worker: PathBuf) -> Result<Self> {
        let mut matrix = Self {
            args,
            limits,
            worker,
            revision: None,
            models: Vec::new(),
            peers: Vec::new(),
            kernels: Vec::new(),
            threads: Vec::new(),
            cores: 0,
            device: String::new(),
            audio: PathBuf::new(),
        };
        let mut worker = matrix.own(0)?;
        (matrix.cores, matrix.device) = (worker.threads, worker.device.clone());
        for &n in &args.threads {
            let n = if n == 0 { matrix.cores } else { n };
            if !matrix.threads.contains(&n) {
                matrix.threads.push(n);
            }
        }
        if [Work::Load, Work::Speech, Work::Text].iter().any(|&work| args.wants(work)) {
            matrix.find_models(&mut worker)?;
            matrix.find_peers()?;
        }
        if args.wants(Work::Speech) {
            matrix.make_clip(&mut worker)?;
        }
        if args.wants(Work::Kernels) {
            matrix.find_kernels(&mut worker)?;
        }
        Ok(matrix)
    }

    /// One WAV file that every engine reads.
    fn make_clip(&mut self, worker: &mut Engine) -> Result<()> {
        let root = shell::workspace_root();
        let file = |name: &&str| root.join(format!("test-data/audio/{name}.wav"));
        let audio = match &self.args.audio {
            Some(audio) => vec![std::path::absolute(audio)?],
            None => CLIP.iter().map(file).collect(),
        };
        self.audio = folder()?.join("clip.wav");
        worker.ask(&Request::Join { audio, to: self.audio.clone() })?;
        Ok(())
    }

    fn find_kernels(&mut self, worker: &mut Engine) -> Result<()> {
        let texts = &self.args.kernels;
        let quick = self.args.quick && texts.is_empty();
        let Reply::Kernels { names } = worker.ask(&Request::Kernels { quick })? else {
            bail!("expected names of kernels")
        };
        let wanted = |name: &&String| {
            texts.is_empty() || texts.iter().any(|text| name.contains(text.as_str()))
        };
        self.kernels = names.iter().filter(wanted).cloned().collect();
        if self.kernels.is_empty() {
            let mut kinds: Vec<&str> = names.iter().filter_map(|n| n.split(' ').next()).collect();
            kinds.dedup();
            bail!(
                "--kernel {}: no kernel's name contains that; names begin with {}",
                texts.join(", "),
                kinds.join(", ")
            );
        }
        Ok(())
    }

    fn find_models(&mut self, worker: &mut Engine) -> Result<()> {
        let mut names = self.args.models.clone();
        if names.is_empty() {
            names = models::default_names(self.args.quick)?;
        }
        let peers = self.args.peers.as_deref();
        let with_whisper_cpp = peers.is_some_and(|p| p.is_empty() || p.contains(&Peer::WhisperCpp));
        for name in &names {
            let mut model = models::find(worker, name)?;
            if with_whisper_cpp && model.kind == ModelKind::Speech && model.path == model.source {
                // The same file for both.
                model = models::converted(worker, &model, None)?;
            }
            self.models.push(model);
        }
        Ok(())
    }

    fn find_peers(&mut self) -> Result<()> {
        let Some(wanted) = &self.args.peers else { return Ok(()) };
        let all = [Peer::LlamaCpp, Peer::WhisperCpp, Peer::FasterWhisper];
        let wanted = if wanted.is_empty() { &all[..] } else { wanted };
        for &peer in wanted {
            if self.models.iter().any(|model| peers::refusal(peer, model).is_none()) {
                self.peers.push((peer, peer.python(&self.args.peer_pythons)?));
            }
        }
        Ok(())
    }

    /// Has the worker of another revision take part.
    pub(super) fn add_revision(&mut self, hash: &str, worker: PathBuf) {
        self.revision = Some((label(hash), worker));
    }

    pub(super) fn cores(&self) -> usize {
        self.cores
    }

    /// Instruction set and threads, in the worker's words.
    pub(super) fn device(&self) -> &str {
        &self.device
    }

    /// Measures everything and prints each table when it is known.
    pub(super) fn run(&self, report: &mut Report) -> Result<()> {
        let mut threads = self.threads.clone();
        if !threads.contains(&1) {
            threads.insert(0, 1);
        }
        for _ in 0..peaks::ATTEMPTS {
            for &threads in &threads {
                peaks::keep_best(&mut report.peaks, peaks::measure(&mut self.own(threads)?)?);
            }
            if peaks::disturbance(&report.peaks, self.cores).is_none() {
                break;
            }
        }
        report.notes.extend(peaks::disturbance(&report.peaks, self.cores));
        print!("\n{}", table::peaks(&report.peaks));
        for model in &self.models {
            for &threads in &self.threads {
                self.model(model, threads, report)?;
            }
        }
        if self.args.wants(Work::Kernels) {
            for &threads in &self.threads {
                self.kernels(threads, report)?;
            }
        }
        Ok(())
    }

    /// The jobs of a model.
    fn jobs(&self, model: &Model) -> Vec<Job> {
        let args = self.args;
        let path = model.path.clone();
        let sizes = |asked: &[usize], usual: &[usize]| match asked {
            [] => usual[..if args.quick { 1 } else { usual.len() }].to_vec(),
            asked => asked.to_vec(),
        };
        let mut jobs = Vec::new();
        if args.wants(Work::Load) {
            jobs.push(Job::Load { model: path.clone() });
        }
        match model.kind {
            ModelKind::Speech if args.wants(Work::Speech) => {
                jobs.push(Job::Speech { model: path, audio: self.audio.clone() });
            }
            ModelKind::Text if args.wants(Work::Text) => jobs.push(Job::Text {
                model: path,
                prefill: sizes(&args.prefill, &PREFILL),
                decode: sizes(&args.decode, &DECODE),
                batch: sizes(&args.batch, &BATCH),
            }),
            _ => {}
        }
        jobs
    }

    /// Runs the jobs of a model, each with all engines that can.
    fn model(&self, model: &Model, threads: usize, report: &mut Report) -> Result<()> {
        let mut peers = Vec::new();
        for (peer, python) in &self.peers {
            match peers::refusal(*peer, model) {
                None => peers.push((*peer, python)),
                Some(reason) if reason.is_empty() || report.notes.contains(&reason) => {}
                Some(reason) => report.notes.push(reason),
            }
        }
        for job in self.jobs(model) {
            let own = self.own_engines(threads)?;
            let mut engines: Vec<_> = own.into_iter().map(|engine| (engine, None)).collect();
            for &(peer, python) in &peers {
                let mut command = peers::command(peer, python, model, threads);
                match self.start(&mut command, Some(peer.name())) {
                    Ok(engine) => engines.push((engine, Some(peer))),
                    // Another engine's trouble must not end the run.
                    Err(error) => report.notes.push(format!("{}: {error:#}", peer.name())),
                }
            }
            let mut contenders = Vec::new();
            for (engine, peer) in &mut engines {
                let job = match peer {
                    Some(peer) => with_path(&job, peers::model_path(*peer, model).to_owned()),
                    None => job.clone(),
                };
                match Contender::open(engine, job, (&model.name, &model.dtype), threads) {
                    Ok(contender) => contenders.push(contender),
                    Err(error) if peer.is_some() => report.notes.push(format!("{error:#}")),
                    Err(error) => return Err(error),
                }
            }
            self.finish(contenders, report)?;
        }
        Ok(())
    }

    fn kernels(&self, threads: usize, report: &mut Report) -> Result<()> {
        let mut engines = self.own_engines(threads)?;
        let limits = Limits { max_seconds: self.limits.max_seconds / 10.0, ..self.limits };
        let from = report.rows.len();
        for (i, name) in self.kernels.iter().enumerate() {
            eprintln!("kernel {}/{}: {name}", i + 1, self.kernels.len());
            let mut contenders = Vec::new();
            for (i, engine) in engines.iter_mut().enumerate() {
                let job = Job::Kernel { name: name.clone() };
                match Contender::open(engine, job, ("", ""), threads) {
                    Ok(contender) => contenders.push(contender),
                    // Another revision may not have it.
                    Err(error) if i > 0 => report.notes.push(format!("{error:#}")),
                    Err(error) => return Err(error),
                }
            }
            report.notes.extend(sample(&mut contenders, &limits)?);
            for contender in contenders {
                report.rows.extend(contender.into_rows(&report.peaks)?);
            }
        }
        print!("\nkernels, {threads} threads\n{}", table::job(&report.rows[from..]));
        Ok(())
    }

    /// Samples, prints and files one job.
    fn finish(&self, mut contenders: Vec<Contender<'_>>, report: &mut Report) -> Result<()> {
        let order: Vec<String> = contenders.iter().map(|c| c.name().to_owned()).collect();
        report.notes.extend(sample(&mut contenders, &self.limits)?);
        // Taking turns has rotated them.
        contenders.sort_by_key(|contender| order.iter().position(|name| name == contender.name()));
        let mut rows = Vec::new();
        for contender in contenders {
            rows.extend(contender.into_rows(&report.peaks)?);
        }
        let first = rows.first().context("a job without rows")?;
        let (model, weights) = (&first.model, &first.weights);
        println!("\n{model} ({weights}), {}, {} threads", first.work, first.threads);
        print!("{}{}", table::job(&rows), table::remarks(&rows));
        report.rows.extend(rows);
        Ok(())
    }

    /// This engine's workers: of this tree and of the revision that it is compared with.
    fn own_engines(&self, threads: usize) -> Result<Vec<Engine>> {
        let mut engines = vec![self.own(threads)?];
        if let Some((label, worker)) = &self.revision {
            let mut command = Command::new(worker);
            command.args(["--threads", &threads.to_string()]);
            engines.push(self.start(&mut command, Some(label))?);
        }
        Ok(engines)
    }

    fn own(&self, threads: usize) -> Result<Engine> {
        let mut command = Command::new(&self.worker);
        command.args(["--threads", &threads.to_string()]);
        self.start(&mut command, None)
    }

    fn start(&self, command: &mut Command, name: Option<&str>) -> Result<Engine> {
        let log = folder()?.join(format!("{}.log", name.unwrap_or("stonechat")));
        Engine::start(command.current_dir(shell::workspace_root()), name, &log)
    }
}

/// The job with another engine's file of the model.
fn with_path(job: &Job, path: PathBuf) -> Job {
    let mut job = job.clone();
    if let Job::Load { model } | Job::Speech { model, .. } | Job::Text { model, .. } = &mut job {
        *model = path;
    }
    job
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_engines_get_their_own_file() {
        let job = Job::Speech { model: "a".into(), audio: "clip.wav".into() };
        let Job::Speech { model, audio } = with_path(&job, "b".into()) else { panic!() };
        assert_eq!((model, audio), (PathBuf::from("b"), PathBuf::from("clip.wav")));
        assert_eq!(label("0123456789abcdef"), "stonechat@0123456789ab");
    }
}
