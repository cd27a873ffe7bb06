//! `cargo xtask synth`: a GGUF file of random weights in the shape of a real model, so that speed
//! can be measured where no model can be downloaded.
//!
//! | file | holds |
//! |---|---|
//! | `shapes` | the sizes of the models |
//! | `language`, `whisper` | which tensors and metadata a file of each kind has |
//! | `types` | which type each tensor gets |
//! | `script` | a model that writes given answers, for tests of clients |
//! | `blocks` | random bytes that are valid blocks of every type |
//! | `vocabulary` | tokens that stand for single bytes, and fillers |
//!
//! Tensors are made one after the other, each by all threads, and written at once: memory holds no
//! more than the largest. The same seed gives the same bytes on every machine.

mod blocks;
mod language;
mod script;
mod shapes;
#[cfg(test)]
mod tests;
mod types;
mod vocabulary;
mod whisper;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use stonechat_formats::{AtomicFile, GgufWriter, Metadata, TensorInfo};

use script::Script;
use shapes::{SHAPES, Shape, Sizes};
use types::Types;

/// Options of `cargo xtask synth`.
#[derive(Debug, clap::Args)]
pub(crate) struct SynthArgs {
    /// The model whose shape the file gets
    #[arg(long, required_unless_present_any = ["list", "script"])]
    shape: Option<String>,
    /// A model that writes the answers of this file in place of random weights: JSON with `template`, the file of a chat template, and
    /// `answers`, a text for each marker that the template ends a prompt with
    #[arg(long, value_name = "FILE", conflicts_with_all = ["shape", "list", "types", "layers", "seed"])]
    script: Option<PathBuf>,
    /// The file to write
    #[arg(short, long, required_unless_present = "list", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Type of the weights: `q4_k_m`, `q5_k_m`, `mxfp4_moe` (experts in MXFP4), or one type for every matrix, as
    /// `stonechat quantize` takes them [default: that of the shape, see --list]
    #[arg(long = "type", value_name = "TYPE")]
    types: Option<Types>,
    /// Only the first N layers, for a machine that cannot hold the whole model
    #[arg(long, value_name = "N", conflicts_with = "list")]
    layers: Option<usize>,
    /// Seed of the random weights
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// List the shapes
    #[arg(long, conflicts_with_all = ["shape", "output"])]
    list: bool,
}

/// Lists the shapes or writes one file.
pub(crate) fn run(args: &SynthArgs) -> Result<()> {
    if let (Some(script), Some(path)) = (&args.script, &args.output) {
        let (Script { answers, .. }, template) = Script::read(script)?;
        let plan = script::plan(&answers, &template)?;
        write(&plan, path, args.seed).map_err(|error| anyhow!("{error}"))?;
        println!("{}: answers of {}", path.display(), script.display());
        return Ok(());
    }
    let (Some(name), Some(path)) = (&args.shape, &args.output) else {
        return list(args.types);
    };
    let shape = find(name)?;
    let types = types_of(shape, args.types)?;
    let (sizes, part) = match args.layers {
        Some(n) => (shape.sizes.with_layers(n)?, format!(", {n} layers")),
        None => (shape.sizes.clone(), String::new()),
    };
    let start = Instant::now();
    let mut plan = plan(&sizes, types)?;
    plan.metadata.set("general.name", format!("{name}{part}, random weights"));
    // The message holds its source already.
    let n_bytes = write(&plan, path, args.seed).map_err(|error| anyhow!("{error}"))?;
    let (megabytes, seconds) = (n_bytes as f64 / 1e6, start.elapsed().as_secs_f64());
    println!(
        "{}: random weights of type {types} in the shape of {name}{part}, {megabytes:.1} MB in {seconds:.1} s",
        path.display()
    );
    Ok(())
}

/// Metadata and tensors of a file.
#[derive(Debug)]
struct Plan {
    metadata: Metadata,
    tensors: Vec<Planned>,
}

/// A tensor to be made.
#[derive(Debug)]
struct Planned {
    info: TensorInfo,
    values: Values,
}

/// Values of a tensor.
#[derive(Debug, Clone, PartialEq)]
enum Values {
    /// Random, around 0.
    Random,
    /// All 1: the factors of a norm.
    Ones,
    /// All 0.
    Zeros,
    /// These, in f32.
    Given(Vec<f32>),
}

fn find(name: &str) -> Result<&'static Shape> {
    if let Some(shape) = SHAPES.iter().find(|shape| shape.name == name) {
        return Ok(shape);
    }
    let known = SHAPES.iter().map(|shape| shape.name).collect::<Vec<_>>().join(", ");
    bail!("unknown shape {name:?}: expected one of {known}")
}

/// The types that are asked for, or those of the shape.
fn types_of(shape: &Shape, types: Option<Types>) -> Result<Types> {
    types.map_or_else(|| shape.types.parse().map_err(|error| anyhow!("{error}")), Ok)
}

fn plan(sizes: &Sizes, types: Types) -> Result<Plan> {
    let mut plan = match sizes {
        Sizes::Language(sizes) => language::plan(sizes)?,
        Sizes::Whisper(sizes) => whisper::plan(sizes),
    };
    types.assign(&mut plan);
    Ok(plan)
}

/// Writes `plan` to `path` and returns the bytes of the weights.
fn write(plan: &Plan, path: &Path, seed: u64) -> Result<usize> {
    let infos = plan.tensors.iter().map(|tensor| tensor.info.clone()).collect();
    let mut writer = GgufWriter::new(AtomicFile::create(path)?, &plan.metadata, infos)?;
    let mut buffer = Vec::new();
    let mut n_bytes = 0;
    for (index, Planned { info, values }) in plan.tensors.iter().enumerate() {
        buffer.resize(info.data_bytes()?, 0);
        match values {
            Values::Random => blocks::fill(info.dtype, &mut buffer, blocks::stream(seed, index))?,
            Values::Ones => fill(&mut buffer, std::iter::repeat(1.0)),
            Values::Zeros => buffer.fill(0),
            Values::Given(values) => fill(&mut buffer, values.iter().copied()),
        }
        writer.write_tensor(&info.name, &buffer)?;
        n_bytes += buffer.len();
    }
    writer.finish()?.commit()?;
    Ok(n_bytes)
}

/// Writes values in f32.
fn fill(buffer: &mut [u8], values: impl Iterator<Item = f32>) {
    let places = buffer.chunks_exact_mut(4).zip(values);
    places.for_each(|(place, value)| place.copy_from_slice(&value.to_le_bytes()));
}

fn list(types: Option<Types>) -> Result<()> {
    for shape in &SHAPES {
        let types = types_of(shape, types)?;
        let plan = plan(&shape.sizes, types)?;
        let sizes = plan.tensors.iter().map(|tensor| tensor.info.data_bytes());
        let n_bytes = sizes.sum::<Result<usize, _>>()?;
        let n_weights: usize =
            plan.tensors.iter().map(|tensor| tensor.info.shape.iter().product::<usize>()).sum();
        let (millions, megabytes) = (n_weights as f64 / 1e6, n_bytes as f64 / 1e6);
        println!("{:16} {millions:8.1} M weights {megabytes:9.1} MB as {types}", shape.name);
    }
    Ok(())
}
