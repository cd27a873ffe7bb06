//! `cargo xtask bench`: what this engine does on this machine, in numbers, beside other engines and other
//! revisions of itself.
//!
//! File map (`bench/`): `build` the worker; `engine` talks to one; `models` finds what they load;
//! `peers` starts other engines; `matrix` says which jobs run and runs them; `sampling` takes turns;
//! `peaks` measures the machine; `saved` keeps reports.

mod build;
mod engine;
mod matrix;
mod models;
mod peaks;
mod peers;
mod sampling;
mod saved;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail, ensure};
use stonechat_benches::report::{Build, Limits, Machine, Report, SCHEMA};
use stonechat_benches::{chart, comparison, table};

use crate::peers::{Peer, PeerPython};
use crate::{machine, shell};
use matrix::Matrix;
use saved::Baseline;

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Models by name or path; speech models also as NAME:TYPE with other weights [default: those installed]
    #[arg(long = "model", value_name = "MODEL", value_delimiter = ',')]
    models: Vec<String>,
    /// Only these works [default: all]
    #[arg(long = "work", value_name = "WORK", value_delimiter = ',')]
    works: Vec<Work>,
    /// Only kernels whose name contains this text, and no models; repeatable
    #[arg(long = "kernel", value_name = "TEXT", conflicts_with_all = ["models", "works"])]
    kernels: Vec<String>,
    /// Only what the machine can do at most
    #[arg(long, conflicts_with_all = ["models", "works", "kernels"])]
    peaks_only: bool,
    /// Device
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Threads; 0 is one for each physical core
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0")]
    threads: Vec<usize>,
    /// Prompt lengths of language models [default: 128,512]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    prefill: Vec<usize>,
    /// Tokens decoded one at a time, after the shortest prompt [default: 32]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    decode: Vec<usize>,
    /// Sequences that decode side by side, after the shortest prompt [default: 1,2,4,8]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    batch: Vec<usize>,
    /// Recording to transcribe [default: 11 s made of those in test-data]
    #[arg(long, value_name = "FILE")]
    audio: Option<PathBuf>,
    /// Run other engines in turns with this one; without a list, all that can run a model
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', num_args = 0.., require_equals = true)]
    peers: Option<Vec<Peer>>,
    /// Use an engine that is already installed for this Python instead of installing it; repeatable
    #[arg(long = "peer-python", value_name = "ENGINE=PYTHON", requires = "peers")]
    peer_pythons: Vec<PeerPython>,
    /// A minute's worth: a small model of each kind, few sizes, kernels and samples
    #[arg(long)]
    quick: bool,
    /// Least samples of each job
    #[arg(long, value_name = "N")]
    min_samples: Option<usize>,
    /// Most samples of each job
    #[arg(long, value_name = "N")]
    max_samples: Option<usize>,
    /// Seconds after which a job gets no more samples than the least
    #[arg(long, value_name = "SECONDS")]
    max_seconds: Option<f64>,
    /// Keep the report under this name, or in this file
    #[arg(long, value_name = "NAME|FILE")]
    save: Option<String>,
    /// Compare with a saved run, or with a git revision, which is built and takes turns with this tree
    #[arg(long, value_name = "NAME|FILE|REV")]
    compare: Option<String>,
    /// Write the report to this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the report as SVG
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// Cargo profile of this engine's workers [default: dist with --save or --compare, else release]
    #[arg(long)]
    profile: Option<String>,
}

/// Kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Work {
    /// Opening a model until it could run
    Load,
    /// Speech models, by stage and as a whole
    Speech,
    /// Language models: prompts, single tokens, several sequences
    Text,
    /// One op at a time
    Kernels,
}

/// Device of this engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Backend {
    Cpu,
}

/// The folder of everything that runs keep.
fn folder() -> Result<PathBuf> {
    let folder = shell::target_dir().join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

impl BenchArgs {
    fn limits(&self) -> Result<Limits> {
        let (min, max, seconds) = if self.quick { (2, 3, 1.0) } else { (5, 30, 20.0) };
        let min_samples = self.min_samples.unwrap_or(min);
        let max_samples = self.max_samples.unwrap_or(max.max(min_samples));
        let max_seconds = self.max_seconds.unwrap_or(seconds);
        ensure!(min_samples > 0, "--min-samples: expected at least 1, got 0");
        ensure!(
            max_samples >= min_samples,
            "--max-samples: expected at least --min-samples {min_samples}, got {max_samples}"
        );
        ensure!(max_seconds > 0.0, "--max-seconds: expected more than 0, got {max_seconds}");
        Ok(Limits { warm_up: 1, min_samples, max_samples, max_seconds })
    }

    fn profile(&self) -> &str {
        let is_kept = self.save.is_some() || self.compare.is_some();
        self.profile.as_deref().unwrap_or(if is_kept { "dist" } else { "release" })
    }

    fn wants(&self, work: Work) -> bool {
        !self.peaks_only
            && if self.kernels.is_empty() {
                self.works.is_empty() || self.works.contains(&work)
            } else {
                work == Work::Kernels
            }
    }
}

/// Measures, prints, and keeps what was asked for.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let limits = args.limits()?;
    for (option, sizes) in
        [("--prefill", &args.prefill), ("--decode", &args.decode), ("--batch", &args.batch)]
    {
        ensure!(!sizes.contains(&0), "{option}: expected at least 1, got 0");
    }
    ensure!(
        args.profile().chars().all(|c| c.is_alphanumeric() || c == '-'),
        "--profile: no such name"
    );
    // Wrong options are refused before anything is built or measured.
    let baseline = args.compare.as_deref().map(saved::baseline).transpose()?;
    let save = args.save.as_deref().map(saved::path_of).transpose()?;
    for path in save.iter().chain(&args.json).chain(&args.chart) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let is_there = folder.is_none_or(Path::is_dir);
        ensure!(is_there, "{}: there is no such folder to write to", path.display());
    }
    if let Some(audio) = &args.audio {
        ensure!(audio.is_file(), "--audio {}: no such file", audio.display());
    }
    let worker = build::worker(args.profile())?;
    let mut matrix = Matrix::new(args, limits, worker)?;
    let machine = machine::detect(matrix.cores());
    if let Some(Baseline::Report(saved)) = &baseline {
        saved::check_machine(saved, &machine)?;
    }
    if let Some(Baseline::Revision(hash)) = &baseline {
        matrix.add_revision(hash, build::worker_of(hash, args.profile())?);
    }
    let (revision, dirty) = shell::revision(&[]);
    println!("{}", machine::describe(&machine));
    let mut report = Report {
        schema: SCHEMA,
        created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        command: std::env::args().skip(1).collect(),
        machine,
        build: Build {
            revision,
            dirty,
            rustc: build::rustc(),
            profile: build::described_profile(args.profile(), utf8_environment()),
            device: matrix.device().to_owned(),
        },
        limits,
        peaks: Vec::new(),
        rows: Vec::new(),
        notes: Vec::new(),
    };
    let Build { revision, dirty, rustc, profile, device } = &report.build;
    let dirty = if *dirty { " with changes" } else { "" };
    println!("{device}; {rustc}, profile {profile}; revision {revision:.12}{dirty}");
    matrix.run(&mut report)?;
    report.machine.load_after = machine::load();
    for note in &report.notes {
        println!("\nnote: {note}");
    }
    if let Some(baseline) = &baseline {
        print_changes(&report, baseline)?;
    }
    save.iter().chain(&args.json).try_for_each(|path| saved::write(&report, path))?;
    if let Some(path) = &args.chart {
        let svg = chart::draw(&report).map_err(|error| anyhow!("--chart: {error}"))?;
        fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// The environment's variables that are text.
fn utf8_environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// A saved report.
pub(crate) fn read(path: &Path) -> Result<Report> {
    saved::read(path)
}

/// An error unless the file is a report that has measured each of `works`.
pub(crate) fn check(path: &Path, works: &[&str]) -> Result<()> {
    let report = saved::read(path)?;
    for work in works {
        let n = report.rows.iter().filter(|row| row.work == *work).count();
        ensure!(n > 0, "{}: expected measurements of {work}, got none", path.display());
    }
    let shown = path.display();
    println!("{shown}: {} measurements, {} peaks", report.rows.len(), report.peaks.len());
    Ok(())
}

fn print_changes(report: &Report, baseline: &Baseline) -> Result<()> {
    let (pairs, interleaved, name) = match baseline {
        Baseline::Report(saved) => {
            let pairs = comparison::pairs((report, "stonechat"), (saved, "stonechat"));
            let load = |machine: &Machine| {
                machine
                    .load_before
                    .map_or_else(|| "unknown".to_owned(), |load| format!("{load:.2}"))
            };
            let (revision, then, now) =
                (&saved.build.revision, load(&saved.machine), load(&report.machine));
            let name =
                format!("the saved run of revision {revision:.12} (load then {then}, now {now})");
            (pairs, false, name)
        }
        Baseline::Revision(hash) => {
            let pairs = comparison::pairs((report, "stonechat"), (report, &matrix::label(hash)));
            (pairs, true, format!("revision {hash:.12}, in turns"))
        }
    };
    if pairs.is_empty() {
        bail!("nothing was measured both here and in {name}");
    }
    print!("\nbeside {name}\n{}", table::changes(&pairs, interleaved));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn parse(args: &[&str]) -> Result<BenchArgs, clap::Error> {
        Cli::try_parse_from([&["bench"], args].concat()).map(|cli| cli.args)
    }

    #[test]
    fn limits_are_checked() {
        let limits = |args: &[&str]| parse(args).unwrap().limits();
        assert_eq!(limits(&[]).unwrap().max_samples, 30);
        assert_eq!(limits(&["--quick"]).unwrap().max_samples, 3);
        assert_eq!(limits(&["--min-samples", "40"]).unwrap().max_samples, 40);
        for wrong in [&["--min-samples", "0"][..], &["--max-samples", "2"], &["--max-seconds", "0"]]
        {
            assert!(limits(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn works_are_chosen() {
        let all = parse(&[]).unwrap();
        assert!(all.wants(Work::Text) && all.wants(Work::Kernels));
        let some = parse(&["--work", "load,text"]).unwrap();
        assert!(some.wants(Work::Load) && !some.wants(Work::Kernels));
        let kernels = parse(&["--kernel", "gemv"]).unwrap();
        assert!(kernels.wants(Work::Kernels) && !kernels.wants(Work::Load));
        assert!(!parse(&["--peaks-only"]).unwrap().wants(Work::Kernels));
        assert!(parse(&["--work", "nothing"]).is_err());
        assert!(parse(&["--kernel", "gemv", "--model", "base"]).is_err());
    }

    #[test]
    fn peers_are_all_or_a_list() {
        assert_eq!(parse(&["--peers"]).unwrap().peers, Some(Vec::new()));
        let some = parse(&["--peers=llama.cpp,whisper.cpp"]).unwrap().peers;
        assert_eq!(some, Some(vec![Peer::LlamaCpp, Peer::WhisperCpp]));
        assert!(parse(&["--peers=other"]).is_err());
        let python = parse(&["--peers", "--peer-python", "llama.cpp=/x/python"]).unwrap();
        assert_eq!(python.peer_pythons[0].python, PathBuf::from("/x/python"));
        assert!(parse(&["--peers", "--peer-python", "llama.cpp"]).is_err());
        assert!(parse(&["--peer-python", "llama.cpp=/x/python"]).is_err());
    }
}
