//! `cargo xtask gpu-test`: everything that only a GPU can tell.
//!
//! The conformance suite, the tiny models with the count of what a decode step makes, then real models, whose
//! text has to be that of the CPU. `--pack` builds what is needed into a folder and `--packed` runs it
//! from there, for a machine without cargo; the tests look for `test-data` where they were compiled, so the
//! workspace has to have the same path on both. `--sanitizer` runs the tests of the kernels under compute-sanitizer of the
//! CUDA toolkit instead, each in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{in_parallel, models, shell};

/// Packages with a test program called `wgpu` and one called `cuda`.
const TESTED: [&str; 3] = ["stonechat-testkit", "stonechat-llm", "stonechat-whisper"];
/// Models that transcribe; the others continue texts.
const SPEECH: [&str; 2] = ["tiny.en", "base"];
const PROMPTS: [&str; 2] = ["The capital of France is", "fn main() {"];
/// Tools of compute-sanitizer and their options. Memcheck reports each failed allocation, also where a test expects it.
const SANITIZERS: [(&str, &[&str]); 2] =
    [("memcheck", &["--report-api-errors", "no"]), ("racecheck", &[])];
/// Difference of two logits that the CPU's 8-bit activations may turn around.
const NEAR_TIE: f64 = 0.5;

/// Options of `cargo xtask gpu-test`.
#[derive(Debug, clap::Args)]
pub(crate) struct GpuTestArgs {
    /// Only build what the tests need into this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "packed")]
    pack: Option<PathBuf>,
    /// Run what `--pack` built into this folder
    #[arg(long, value_name = "FOLDER")]
    packed: Option<PathBuf>,
    /// Be content with a processor that plays a GPU
    #[arg(long)]
    software: bool,
    /// Run the tests of the kernels under compute-sanitizer, nothing else: memcheck, then racecheck
    #[arg(long, conflicts_with = "pack")]
    sanitizer: bool,
    /// With --sanitizer: only tests whose name contains one of these texts
    #[arg(long, value_name = "TEXT", value_delimiter = ',', requires = "sanitizer")]
    only: Vec<String>,
    /// The GPU, as `stonechat devices` calls it
    #[arg(long, value_name = "DEVICE", default_value = "wgpu")]
    device: String,
    /// Models whose text has to be that of the CPU, up to near-ties; none to skip them
    #[arg(short, long, value_delimiter = ',', default_value = "tiny.en,base,smollm2-135m")]
    model: Vec<String>,
    /// Tokens of each text
    #[arg(short, long, value_name = "N", default_value_t = 64)]
    n_predict: usize,
}

/// Builds or runs, or both.
pub(crate) fn run(args: &GpuTestArgs) -> Result<()> {
    let backend = args.backend()?;
    ensure!(
        !args.sanitizer || backend == "cuda",
        "--sanitizer: expected --device cuda, got `{backend}`"
    );
    let programs = match &args.packed {
        Some(folder) => Programs::at(folder, backend),
        None => Programs::build(backend)?,
    };
    if let Some(folder) = &args.pack {
        return programs.pack(folder, backend, &args.device);
    }
    let devices = shell::output(Command::new(&programs.stonechat).arg("devices"))?;
    print!("{devices}");
    let is_hardware = |line: &str| match backend {
        "cuda" => line.starts_with("cuda:") && !line.contains("no kernels"),
        _ => line.starts_with("wgpu:") && line.contains(", discrete, "),
    };
    ensure!(
        args.software || devices.lines().any(is_hardware),
        "no GPU here that is real hardware; --software takes a processor that plays one"
    );
    if args.sanitizer {
        return sanitize(&programs.tests[0], &args.only);
    }
    for program in &programs.tests {
        test(program)?;
    }
    for model in args.model.iter().filter(|model| *model != "none") {
        compare(args, &programs.stonechat, model)?;
    }
    println!("gpu-test: all is well");
    Ok(())
}

impl GpuTestArgs {
    /// Backend of the device, which is also the name of the test programs.
    fn backend(&self) -> Result<&'static str> {
        let name = self.device.split(':').next().unwrap_or_default();
        let known = ["cuda", "wgpu"].into_iter().find(|backend| *backend == name);
        known.with_context(|| {
            format!("--device: expected cuda, cuda:N, wgpu or wgpu:N, got `{}`", self.device)
        })
    }
}

/// Programs to run.
struct Programs {
    stonechat: PathBuf,
    tests: Vec<PathBuf>,
}

impl Programs {
    /// Programs of a folder that [`pack`](Self::pack) filled.
    fn at(folder: &Path, backend: &str) -> Self {
        let tests = TESTED.iter().map(|package| folder.join(format!("{package}-{backend}")));
        let tests = tests.collect();
        Self { stonechat: folder.join("stonechat"), tests }
    }

    fn build(backend: &str) -> Result<Self> {
        let mut tests = Vec::new();
        for package in TESTED {
            let mut cargo = shell::cargo();
            cargo.args(["test", "--no-run", "--message-format=json", "--test", backend]);
            tests.push(executable(cargo.args(["--package", package]))?);
        }
        let mut cargo = shell::cargo();
        cargo.args(["build", "--release", "--message-format=json", "--package", "stonechat-cli"]);
        Ok(Self { stonechat: executable(&mut cargo)?, tests })
    }

    /// Copies the programs without what only debuggers read.
    fn pack(&self, folder: &Path, backend: &str, device: &str) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        let this = std::env::current_exe().context("where this program is")?;
        let tests = TESTED.iter().map(|package| format!("{package}-{backend}"));
        let names = tests.chain(["stonechat", "xtask"].map(str::to_owned));
        for (from, name) in self.tests.iter().chain([&self.stonechat, &this]).zip(names) {
            let to = folder.join(name);
            std::fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
            shell::run(shell::program("strip").arg(&to))?;
        }
        let folder = folder.display();
        println!("there: {folder}/xtask gpu-test --packed {folder} --device {device}");
        Ok(())
    }
}

/// The last program that a build reports.
fn executable(cargo: &mut Command) -> Result<PathBuf> {
    println!("$ {}", shell::describe(cargo));
    let messages = shell::output(cargo)?;
    let mut programs = messages.lines().rev().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    programs.next().with_context(|| format!("`{}` built no program", shell::describe(cargo)))
}

/// Runs a test program; a skipped test is a failure here.
fn test(program: &Path) -> Result<()> {
    let start = Instant::now();
    let printed = shell::output(Command::new(program).args(["--nocapture", "--test-threads=1"]))?;
    print!("{printed}");
    ensure!(!printed.contains("SKIPPED "), "{}: a test was skipped", program.display());
    println!("{}: {:.1} s", program.display(), start.elapsed().as_secs_f64());
    Ok(())
}

/// Runs each test of a program under each tool of compute-sanitizer, one process per core, and fails if one reports an error.
fn sanitize(program: &Path, only: &[String]) -> Result<()> {
    let listed = shell::output(Command::new(program).args(["--list", "--format", "terse"]))?;
    let is_chosen = |name: &&str| only.is_empty() || only.iter().any(|text| name.contains(text));
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test")).filter(is_chosen);
    let names: Vec<&str> = names.collect();
    ensure!(!names.is_empty(), "--only: no test has {only:?} in its name");
    let jobs = SANITIZERS.iter().flat_map(|tool| names.iter().map(move |name| (tool, *name)));
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let errors = in_parallel(n_threads, jobs, |((tool, options), name)| {
        let start = Instant::now();
        let result = run_under(tool, options, program, name);
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("{tool} {name}: {verdict}, {:.0} s", start.elapsed().as_secs_f64());
        Ok(result.err().map(|error| format!("{tool} {name}: {error:#}")))
    })?;
    let n_runs = errors.len();
    let errors: Vec<String> = errors.into_iter().flatten().collect();
    ensure!(errors.is_empty(), "{} of {n_runs} failed:\n{}", errors.len(), errors.join("\n"));
    println!("gpu-test: {n_runs} runs under compute-sanitizer without an error");
    Ok(())
}

/// Fails with what compute-sanitizer reports.
fn run_under(tool: &str, options: &[&str], program: &Path, name: &str) -> Result<()> {
    let mut command = shell::program("compute-sanitizer");
    command.args(["--tool", tool, "--error-exitcode", "1", "--print-limit", "20"]).args(options);
    command.arg(program).args(["--exact", name, "--nocapture"]);
    let text = shell::describe(&command);
    let output = command.output().with_context(|| format!("cannot start `{text}`"))?;
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    ensure!(output.status.success(), "`{text}` failed: {}\n{printed}", output.status);
    ensure!(!printed.contains("SKIPPED "), "skipped");
    Ok(())
}

/// Fails unless a model says on the GPU what it says on the CPU. A text may go on differently from a token on
/// where two were nearly as probable, which is printed.
fn compare(args: &GpuTestArgs, stonechat: &Path, model: &str) -> Result<()> {
    for question in questions(args, model)? {
        let mut answers = Vec::new();
        for device in ["cpu", &args.device] {
            let start = Instant::now();
            let mut command = shell::program(stonechat);
            command.args(&question).args(["--quiet", "--model", model, "--device", device]);
            command.env("STONECHAT_MODELS", models::models_dir()?);
            let answer = shell::output(&mut command)?;
            let (seconds, text) = (start.elapsed().as_secs_f64(), shown(&answer));
            println!("{model}, {device}, {seconds:.1} s: {text}");
            answers.push(answer);
        }
        let is_same = answers[0] == answers[1];
        if !is_same && SPEECH.contains(&model) {
            bail!("{model}: {question:?} has another answer on {}", args.device);
        }
        if !is_same {
            near_tie(&answers[0], &answers[1]).with_context(|| format!("{model}: {question:?}"))?;
        }
    }
    Ok(())
}

fn questions(args: &GpuTestArgs, model: &str) -> Result<Vec<Vec<String>>> {
    let n_predict = args.n_predict.to_string();
    if !SPEECH.contains(&model) {
        let ask = |prompt: &str| {
            let flags = ["generate", "--temp", "0", "--json", "--n-probs", "4", "-n", &n_predict];
            flags.into_iter().chain(["-p", prompt]).map(str::to_owned).collect()
        };
        return Ok(PROMPTS.into_iter().map(ask).collect());
    }
    let folder = shell::workspace_root().join("test-data/audio");
    let mut files: Vec<_> = std::fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "wav"))
        .collect();
    files.sort();
    let ask = |file: PathBuf| vec!["transcribe".to_owned(), file.display().to_string()];
    Ok(files.into_iter().map(ask).collect())
}

/// The text of an answer.
fn shown(answer: &str) -> String {
    let json: Option<Value> = serde_json::from_str(answer).ok();
    let text = json.and_then(|json| Some(json["text"].as_str()?.to_owned()));
    text.unwrap_or_else(|| answer.trim().to_owned())
}

/// Fails unless the tokens of two answers are the same, or first differ where either device held both nearly
/// as probable.
fn near_tie(cpu: &str, gpu: &str) -> Result<()> {
    let (cpu, gpu): (Value, Value) = (serde_json::from_str(cpu)?, serde_json::from_str(gpu)?);
    let steps = |answer: &Value| answer["probs"].as_array().cloned().unwrap_or_default();
    let (cpu, gpu) = (steps(&cpu), steps(&gpu));
    let Some(i) = cpu.iter().zip(&gpu).position(|(a, b)| a["id"] != b["id"]) else {
        ensure!(cpu.len() == gpu.len(), "{} tokens, then {}", cpu.len(), gpu.len());
        return Ok(());
    };
    let (ours, theirs) = (&cpu[i]["id"], &gpu[i]["id"]);
    let logit = |step: &Value, id: &Value| {
        let top = step["top"].as_array()?;
        top.iter().find(|token| token["id"] == *id)?["logit"].as_f64()
    };
    let margin = |step: &Value| Some((logit(step, ours)? - logit(step, theirs)?).abs());
    let (on_cpu, on_gpu) = (margin(&cpu[i]), margin(&gpu[i]));
    println!("first difference at token {i}: margins {on_cpu:?} on the CPU, {on_gpu:?} on the GPU");
    let least = on_cpu.into_iter().chain(on_gpu).fold(f64::INFINITY, f64::min);
    ensure!(least <= NEAR_TIE, "token {i} differs by more than {NEAR_TIE}");
    Ok(())
}
