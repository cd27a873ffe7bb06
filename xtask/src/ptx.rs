//! `cargo xtask ptx`: CUDA kernels, compiled for each architecture into archives that the crates embed.
//!
//! ```text
//! crates/X/src/cuda/kernels/*.cu, *.cuh -> NVRTC -> crates/X/src/cuda/cubins/ARCHITECTURE.bin, manifest.json
//! ```
//!
//! A source is a module of its name, or the modules that its first line lists with their defines. Compiled code is kept in the
//! target folder by the hash of everything that it is made from.

mod archive;
pub(crate) mod manifest;
mod nvrtc;
mod report;
pub(crate) mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use self::archive::Modules;
use self::manifest::{Code, Manifest, Target, sha256};
use self::nvrtc::{Compiled, Nvrtc};
use self::report::KernelReport;
use self::sources::{CRATES, Module, OPTIONS, Sources, TARGETS, cubins_folder};
use crate::{in_parallel, shell, venv};

/// The compiler, as pip takes it.
const PACKAGE: &str = "nvidia-cuda-nvrtc-cu12";
const VERSION: &str = "12.9.86";

/// Options of `cargo xtask ptx`.
#[derive(Debug, clap::Args)]
pub(crate) struct PtxArgs {
    /// Compile only modules whose name contains this text; the others stay as they are
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Compile only for this architecture
    #[arg(long, value_name = "NAME", value_parser = TARGETS)]
    target: Option<String>,
    /// Write the code of each module into this folder, too
    #[arg(long, value_name = "FOLDER")]
    cubins: Option<PathBuf>,
    /// Write nothing: compile everything again and compare with the archives
    #[arg(long, conflicts_with = "only")]
    check: bool,
    /// Print registers, spills and shared memory of every kernel
    #[arg(short, long)]
    verbose: bool,
}

/// Compilation of a module for an architecture.
struct Job<'a> {
    sources: &'a Sources,
    module: &'a Module,
    target: &'static str,
}

/// Compiles the kernels of all crates.
pub(crate) fn run(args: &PtxArgs) -> Result<()> {
    let cubins = args.cubins.as_ref().map(std::path::absolute).transpose()?;
    let root = shell::workspace_root();
    // Paths in messages and in the code are relative to the root.
    std::env::set_current_dir(&root).context("cannot enter the workspace")?;
    let mut all = Vec::new();
    for (name, others) in CRATES {
        all.push(Sources::read(&root, name, others)?);
    }
    all.retain(|sources| !sources.modules.is_empty());
    ensure!(!all.is_empty(), "no CUDA sources in crates/*/src/cuda/kernels");
    let targets =
        TARGETS.into_iter().filter(|&name| args.target.as_ref().is_none_or(|only| only == name));
    let targets: Vec<&'static str> = targets.collect();
    let is_chosen =
        |module: &&Module| args.only.as_ref().is_none_or(|text| module.name.contains(text));
    let mut jobs = Vec::new();
    for sources in &all {
        for module in sources.modules.iter().filter(is_chosen) {
            jobs.extend(targets.iter().map(|&target| Job { sources, module, target }));
        }
    }
    ensure!(
        !jobs.is_empty(),
        "no module has `{}` in its name",
        args.only.as_deref().unwrap_or_default()
    );
    let nvrtc = Nvrtc::open(&library()?)?;
    let version = nvrtc.version()?;
    ensure!(version == (12, 9), "NVRTC {}.{}, expected {VERSION}", version.0, version.1);
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let results = in_parallel(n_threads, &jobs, |job| job.compile(&nvrtc, args))?;
    print(&jobs, &results, args.verbose);
    if let Some(folder) = &cubins {
        for (job, compiled) in jobs.iter().zip(&results) {
            let folder = folder.join(job.target);
            fs::create_dir_all(&folder)?;
            let extension = if job.target.starts_with("compute_") { "ptx" } else { "cubin" };
            let path = folder.join(format!("{}.{extension}", job.module.name));
            let code = compiled.code.as_deref().unwrap_or_default();
            fs::write(&path, code).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    let mut differences = Vec::new();
    for sources in &all {
        let ours = jobs.iter().zip(&results).filter(|(job, _)| job.sources.name == sources.name);
        let ours: Vec<_> = ours.collect();
        for (path, bytes) in outputs(args, &root, sources, &targets, &ours)? {
            let is_same = fs::read(&path).is_ok_and(|old| old == bytes);
            if args.check && !is_same {
                differences.push(path);
            } else if !is_same {
                fs::create_dir_all(cubins_folder(sources.name))?;
                fs::write(&path, &bytes).with_context(|| format!("cannot write {path}"))?;
                println!("{path}: {} bytes", bytes.len());
            }
        }
    }
    ensure!(differences.is_empty(), "not what the sources compile to: {}", differences.join(", "));
    println!("ptx: {} modules for {} architectures", jobs.len() / targets.len(), targets.len());
    Ok(())
}

/// Prints spills, and each warning once for all modules and architectures.
fn print(jobs: &[Job<'_>], results: &[Compiled], verbose: bool) {
    let mut printed = BTreeSet::new();
    for (job, compiled) in jobs.iter().zip(results) {
        let messages = report::messages(&compiled.log).join("\n");
        if !messages.is_empty() && printed.insert(messages.clone()) {
            println!("{} for {}:\n{messages}", job.module.name, job.target);
        }
        for line in job.figures(compiled, verbose) {
            println!("{line}");
        }
    }
}

/// Path of libnvrtc in its Python environment.
fn library() -> Result<PathBuf> {
    ensure!(cfg!(target_os = "linux"), "kernels are compiled on Linux");
    let package = format!("{PACKAGE}=={VERSION}");
    let python = venv::programs("nvrtc", &[&package], &[])?.join("python");
    let find = "import nvidia.cuda_nvrtc as m; print(list(m.__path__)[0])";
    let folder = shell::output(shell::program(python).args(["-c", find]))?;
    Ok(Path::new(folder.trim()).join("lib/libnvrtc.so.12"))
}

impl Job<'_> {
    /// Compiles, or reads an earlier result for the same input.
    fn compile(&self, nvrtc: &Nvrtc, args: &PtxArgs) -> Result<Compiled> {
        let Self { sources, module, target } = self;
        let options = sources.options(module, target);
        let mut input = format!("{VERSION}\n{}\n{}\n", options.join("\n"), module.path);
        for path in sources.closure(&module.path) {
            input.push_str(&format!("{path} {}\n", sha256(sources.files[path].as_bytes())));
        }
        let folder = shell::target_dir().join("ptx");
        let saved = folder.join(sha256(input.as_bytes()));
        let saved_log = saved.with_extension("log");
        if !args.check
            && let (Ok(code), Ok(log)) = (fs::read(&saved), fs::read_to_string(&saved_log))
        {
            return Ok(Compiled { code: Some(code), log });
        }
        let start = Instant::now();
        let compiled = nvrtc.compile(&module.path, &sources.files[&module.path], &options)?;
        let Some(code) = &compiled.code else {
            bail!("{} for {target} ({}):\n{}", module.name, module.path, compiled.log.trim_end());
        };
        fs::create_dir_all(&folder)?;
        fs::write(&saved_log, &compiled.log)?;
        // Under its name only when it is whole.
        let partial = saved.with_extension("partial");
        fs::write(&partial, code)?;
        fs::rename(&partial, &saved)?;
        if args.verbose {
            let seconds = start.elapsed().as_secs_f64();
            println!("{} for {target}: {seconds:.1} s, {} bytes", module.name, code.len());
        }
        Ok(compiled)
    }

    /// Figures of the kernels with spills; with `verbose` of every kernel.
    fn figures(&self, compiled: &Compiled, verbose: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for kernel in report::kernels(&compiled.log) {
            let KernelReport { name, registers, spill_bytes, shared_bytes } = kernel;
            if verbose || spill_bytes > 0 {
                lines.push(format!(
                    "{} for {}: {name}: {registers} registers, {spill_bytes} bytes spill stores, {shared_bytes} bytes shared",
                    self.module.name, self.target
                ));
            }
        }
        lines
    }

    /// Line of the manifest.
    fn code(&self, compiled: &Compiled) -> Code {
        let kernels = report::kernels(&compiled.log);
        let code = compiled.code.as_deref().unwrap_or_default();
        Code {
            sha256: sha256(code),
            bytes: code.len(),
            registers: kernels.iter().map(|kernel| kernel.registers).max().unwrap_or(0),
            spill_bytes: kernels.iter().map(|kernel| kernel.spill_bytes).max().unwrap_or(0),
        }
    }
}

/// Archives and manifest of a crate, with their paths. Modules that were not compiled stay as they are in the files; so do the
/// hashes of sources unless everything was compiled, so that `tidy` reports a partial result.
fn outputs(
    args: &PtxArgs,
    root: &Path,
    sources: &Sources,
    targets: &[&'static str],
    compiled: &[(&Job<'_>, &Compiled)],
) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    let old = Manifest::read(root, sources.name)?.unwrap_or_default();
    let mut manifest = Manifest {
        nvrtc: VERSION.to_owned(),
        options: OPTIONS.map(str::to_owned).to_vec(),
        sources: old.sources,
        targets: BTreeMap::new(),
    };
    let is_whole = args.only.is_none() && args.target.is_none();
    if is_whole {
        let hashes =
            sources.files.iter().map(|(path, text)| (path.clone(), sha256(text.as_bytes())));
        manifest.sources = hashes.collect();
    }
    let names = || sources.modules.iter().map(|module| module.name.as_str());
    for target in TARGETS {
        let path = format!("{}/{target}.bin", cubins_folder(sources.name));
        let mut modules = Modules::new();
        let mut codes = BTreeMap::new();
        if !is_whole && let Ok(bytes) = fs::read(&path) {
            modules = archive::unpack(&bytes).with_context(|| format!("cannot read {path}"))?;
            modules.retain(|name, _| names().any(|other| other == name));
            if let Some(old) = old.targets.get(target) {
                codes.clone_from(&old.modules);
                codes.retain(|name, _| modules.contains_key(name));
            }
        }
        for (job, compiled) in compiled.iter().filter(|(job, _)| job.target == target) {
            let name = &job.module.name;
            modules.insert(name.clone(), compiled.code.clone().unwrap_or_default());
            codes.insert(name.clone(), job.code(compiled));
        }
        // The crate embeds all archives, so that a missing one is written without modules.
        let bytes = archive::pack(&modules)?;
        manifest
            .targets
            .insert(target.to_owned(), Target { archive: sha256(&bytes), modules: codes });
        if targets.contains(&target) || !Path::new(&path).exists() {
            files.push((path, bytes));
        }
    }
    files.push((manifest::path(sources.name), manifest.text()?.into_bytes()));
    Ok(files)
}
