//! `cargo xtask exactness`: language models beside llama.cpp and speech models beside faster-whisper, by device and
//! weight type.
//!
//! File map (`exactness/`): `language` measures a language model, `agreement` compares its tokens; `speech` measures a
//! speech model, `words` compares word times. `xtask::exactness` has the rows, the saved runs and the tables.

mod agreement;
mod language;
mod speech;
mod words;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use stonechat::Device;
use stonechat::device::{DeviceNeeds, OpenDevice};
use stonechat::nn::{Cpu, DeviceApi};
use stonechat_formats::{DType, ModelFile};
use xtask::exactness::{Run, Subject, path_of, write_page};
use xtask::machine;

use crate::peers::{Peer, PeerPython};
use crate::wer::{engine, manifest};
use crate::{models, shell};

/// Models of a run that names none.
const DEFAULT_MODELS: [&str; 6] =
    ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "tiny.en", "base"];

/// Options of `cargo xtask exactness`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExactnessArgs {
    /// Models by name or path; absent ones are skipped [default: the language models that `cargo xtask models` knows,
    /// tiny.en and base]
    #[arg(long = "model", value_name = "NAME_OR_PATH", value_delimiter = ',')]
    models: Vec<String>,
    /// Weight types, made by `stonechat quantize` unless the model has them [default: as installed]
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Devices as `stonechat --device` takes them; absent ones are skipped
    #[arg(long = "device", value_name = "DEVICE", value_delimiter = ',', default_value = "cpu")]
    devices: Vec<Device>,
    /// Clips for speech models, as `cargo xtask wer` takes them; without them speech models are skipped
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Number of clips, evenly spaced over those of the manifest that a model can transcribe
    #[arg(long, value_name = "N")]
    clips: Option<usize>,
    /// Beams of both speech engines; 1 is greedy
    #[arg(long, value_name = "N", default_value_t = 1)]
    beam_size: usize,
    /// Only the first N prompts
    #[arg(long, value_name = "N")]
    prompts: Option<usize>,
    /// Only the first N windows of the text whose perplexity is measured
    #[arg(long, value_name = "N")]
    windows: Option<usize>,
    /// Use an engine that is already installed for this Python instead of installing it; repeatable
    #[arg(long = "peer-python", value_name = "ENGINE=PYTHON")]
    peer_pythons: Vec<PeerPython>,
    /// Threads of every engine
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// The stonechat binary, for speech and for weight types; without it, the release build is made first
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Keep the rows in the run of this name under benches/accuracy, and write docs/accuracy.md from the runs there
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
}

/// A model with the weights to measure.
struct Variant {
    /// Name in the table.
    name: String,
    /// The file or folder that has these weights.
    path: PathBuf,
    weights: String,
}

/// State of a call.
struct Exactness<'a> {
    args: &'a ExactnessArgs,
    run: Run,
    path: Option<PathBuf>,
    /// Git revision, with `+` if tracked files differ from it.
    revision: String,
    n_rows: usize,
    skipped: Vec<String>,
}

/// Measures every model, weight type and device.
pub(crate) fn run(args: &ExactnessArgs) -> Result<()> {
    ensure!(args.threads > 0, "--threads: expected at least 1, got 0");
    for (option, n) in
        [("--clips", args.clips), ("--prompts", args.prompts), ("--windows", args.windows)]
    {
        ensure!(n != Some(0), "{option}: expected at least 1, got 0");
    }
    ensure!(args.windows != Some(1), "--windows: expected at least 2, got 1");
    let cores = available_parallelism().map_or(1, usize::from);
    let machine = format!("{}, {cores} cores", machine::detect(cores).cpu);
    let path = args.save.as_deref().map(path_of);
    let run = match &path {
        Some(path) => Run::open(path, &machine)?,
        None => Run::new(&machine),
    };
    // Files of this verb do not make the tree dirty.
    let (hash, dirty) = shell::revision(&["docs", "benches/accuracy"]);
    let revision = if dirty { hash + "+" } else { hash };
    let mut exactness = Exactness { args, run, path, revision, n_rows: 0, skipped: Vec::new() };
    let default = DEFAULT_MODELS.map(str::to_owned);
    let names = if args.models.is_empty() { &default[..] } else { &args.models };
    for name in names {
        if let Err(error) = exactness.model(name) {
            exactness.skip(name, &error);
        }
    }
    print!("\n{}", exactness.run.tables());
    if args.save.is_some() {
        write_page()?;
    }
    let Exactness { n_rows, skipped, .. } = exactness;
    println!("\nrows measured: {n_rows}, skipped: {}", skipped.len());
    skipped.iter().for_each(|line| println!("skipped: {line}"));
    ensure!(n_rows > 0, "nothing was measured");
    Ok(())
}

impl Exactness<'_> {
    fn skip(&mut self, what: &str, reason: &anyhow::Error) {
        let line = format!("{what}: {reason:#}");
        println!("skipped: {line}");
        self.skipped.push(line);
    }

    /// Measures the model `name` in every type on every device.
    fn model(&mut self, name: &str) -> Result<()> {
        let path = models::locate(name)?;
        let file = ModelFile::open(&path)?;
        // Parts of a Whisper model in every format.
        let is_speech = file.tensors().any(|tensor| tensor.name.contains("encoder"));
        let installed = weights_of(&file);
        drop(file);
        let short = short_name(name);
        let types = if self.args.types.is_empty() {
            vec![installed.clone()]
        } else {
            self.args.types.iter().map(|name| dtype(name)).collect::<Result<_>>()?
        };
        if is_speech {
            return self.speech_model(&short, &path, &types, &installed);
        }
        let peer = Peer::LlamaCpp;
        let python = peer.python(&self.args.peer_pythons)?;
        let version = peer.version(&python)?;
        for weights in &types {
            let variant = self.variant(&short, (&path, &installed), weights)?;
            let reference =
                language::Reference::run((&python, &version), &variant.path, self.args)?;
            for &device in &self.args.devices {
                let subject = self.subject(&variant, &version);
                match language::measure(device, &variant.path, subject, &reference, self.args) {
                    Ok(row) => self.keep(|run| run.add_language(row))?,
                    Err(error) => self.skip(&format!("{short} {weights} on {device}"), &error),
                }
            }
        }
        Ok(())
    }

    fn speech_model(
        &mut self,
        name: &str,
        path: &Path,
        types: &[String],
        installed: &str,
    ) -> Result<()> {
        let manifest = self.args.manifest.as_deref().context("a speech model needs --manifest")?;
        let peer = Peer::FasterWhisper;
        let python = peer.python(&self.args.peer_pythons)?;
        let version = peer.version(&python)?;
        let binary = engine::binary(self.args.binary.as_deref())?;
        let clips = speech::clips(manifest::read(manifest)?, name, self.args.clips);
        let reference = speech::Reference::run((&python, &version), path, clips, self.args)?;
        for weights in types {
            let variant = self.variant(name, (path, installed), weights)?;
            for &device in &self.args.devices {
                let subject = self.subject(&variant, &version);
                let engine = (&*binary, &*variant.path);
                match speech::measure(device, engine, subject, &reference, self.args) {
                    Ok(row) => self.keep(|run| run.add_speech(row))?,
                    Err(error) => self.skip(&format!("{name} {weights} on {device}"), &error),
                }
            }
        }
        Ok(())
    }

    /// The model of `source` (path and weight type) with weights of another type, which is made anew: a file of another
    /// revision of the quantizer would give its numbers.
    fn variant(&self, name: &str, source: (&Path, &str), weights: &str) -> Result<Variant> {
        let (path, installed) = source;
        let named = |path| Variant { name: name.to_owned(), path, weights: weights.to_owned() };
        if weights == installed {
            return Ok(named(path.to_owned()));
        }
        let to = folder()?.join(format!("{name}-{weights}.gguf"));
        let mut quantize = Command::new(engine::binary(self.args.binary.as_deref())?);
        quantize.arg("quantize").arg(path).arg(&to).args([weights, "--quiet"]);
        shell::run(&mut quantize)?;
        Ok(named(to))
    }

    /// The subject of a row, but for its device.
    fn subject(&self, variant: &Variant, peer: &str) -> Subject {
        Subject {
            model: variant.name.clone(),
            weights: variant.weights.clone(),
            device: String::new(),
            revision: self.revision.clone(),
            peer: peer.to_owned(),
        }
    }

    /// Adds a row and saves the run: what was measured stays if a later row fails.
    fn keep(&mut self, add: impl FnOnce(&mut Run)) -> Result<()> {
        add(&mut self.run);
        self.n_rows += 1;
        match &self.path {
            Some(path) => self.run.write(path),
            None => Ok(()),
        }
    }
}

/// All that results of another engine depend on.
struct Key<'a> {
    /// Engine and version.
    version: &'a str,
    /// Script, weights and inputs.
    files: &'a [&'a Path],
    options: String,
}

/// Results of another engine, kept under the target folder: a call that measures another device or type, or this engine
/// after a change, does not run the other engine again.
fn peer_results<T: Serialize + DeserializeOwned>(
    key: &Key<'_>,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let Key { version, files, options } = key;
    let root = shell::workspace_root();
    let hash = |file: &&Path| models::sha256(&root.join(file));
    let hashes = files.iter().map(hash).collect::<Result<Vec<_>>>()?;
    let digest = Sha256::digest(format!("{version}\n{}\n{options}", hashes.join("\n")));
    let name = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
    let path = folder()?.join(format!("peer-{name}.json"));
    if let Ok(text) = fs::read(&path) {
        println!("{version}: results of an earlier call, {}", path.display());
        return Ok(serde_json::from_slice(&text)?);
    }
    let results = run()?;
    fs::write(&path, serde_json::to_vec(&results)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(results)
}

/// Folder of peers' results and of models with other weight types.
fn folder() -> Result<PathBuf> {
    let folder = shell::target_dir().join("exactness");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Opens `device`.
fn open(device: Device, file: &ModelFile, threads: usize) -> Result<OpenDevice> {
    let chosen = device.choose(DeviceNeeds::whole(file.file_bytes()))?;
    Ok(chosen.open(|| Cpu::new(threads), |note| println!("{note}"))?)
}

/// Kernels and name of an open device.
fn describe(device: &OpenDevice) -> String {
    let gpu = device.gpu.as_ref().map(|gpu| gpu.describe());
    gpu.or_else(|| device.cpu.as_ref().map(DeviceApi::describe)).unwrap_or_default()
}

/// The weight type with the most bytes.
fn weights_of(file: &ModelFile) -> String {
    file.dtypes().first().map_or_else(String::new, ToString::to_string)
}

/// The name of a type, as files have it.
fn dtype(name: &str) -> Result<String> {
    let Some(dtype) = DType::from_name(name) else { bail!("--types {name}: no such type") };
    Ok(dtype.name().to_owned())
}

/// The name in tables of a model that is named by its path or as it is installed.
fn short_name(name: &str) -> String {
    let path = Path::new(name);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if path.is_file() {
        stem
    } else {
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}
