//! `cargo xtask golden`: regenerates the golden references with the implementation they come from.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{models, setup, shell, venv};

/// Options of `cargo xtask golden`.
#[derive(Debug, clap::Args)]
pub(crate) struct GoldenArgs {
    /// Write nothing: compare what would be written with the files
    #[arg(long)]
    check: bool,
}

const FOLDER: &str = "test-data/golden";
const VAD_WEIGHTS: &str = "crates/audio/src/vad/silero_vad_v6.bin";

/// Numbers may differ by so much, relative to the larger of 1 and the number: the reference picks
/// other kernels on another CPU.
const TOLERANCE: f64 = 1e-3;

/// Runs the golden scripts, and with `--check` compares their files with those in the tree.
pub(crate) fn run(args: &GoldenArgs) -> Result<()> {
    setup::run()?;
    let folder = shell::workspace_root().join(FOLDER);
    let out = if args.check { shell::target_dir().join("golden") } else { folder.clone() };
    fs::create_dir_all(out.join("tokenizer"))?;
    let weights = shell::workspace_root().join(VAD_WEIGHTS);
    let new_weights = if args.check { out.join("silero_vad_v6.bin") } else { weights.clone() };
    whisper(&folder, &out, &new_weights)?;
    let whisper_package = tokenizer(&folder, &out)?;
    let has_mel = mel(&folder, &out, &whisper_package)?;
    if args.check {
        let mut names = vec!["whisper-tiny.en.json", "whisper-base.json", "words.json", "vad.json"];
        names.push("tokenizer/cases.json");
        names.extend(has_mel.then_some("mel.json"));
        for name in names {
            compare(name, &read(&folder.join(name))?, &read(&out.join(name))?)?;
            println!("{FOLDER}/{name}: up to date");
        }
        ensure!(fs::read(&weights)? == fs::read(&new_weights)?, "{VAD_WEIGHTS}: the bytes differ");
        println!("{VAD_WEIGHTS}: up to date");
    }
    Ok(())
}

/// Features, encoder output, logits and tokens, from CTranslate2; word times from faster-whisper; speech
/// from its copy of Silero VAD, whose weights go to `weights`.
fn whisper(folder: &Path, out: &Path, weights: &Path) -> Result<()> {
    let requirements = [
        "ctranslate2==4.8.5",
        "faster-whisper==1.2.1",
        "numpy==2.4.6",
        "onnx==1.23.2",
        "onnxruntime==1.31.1",
        "soundfile==0.14.0",
    ];
    let python = venv::programs("golden-whisper", &requirements, &[])?.join("python");
    let script = |name: &str| {
        let mut script = shell::program(&python);
        script.arg(folder.join(name)).arg("--out").arg(out);
        script
    };
    let models = models::models_dir()?;
    let audio = ["--audio", "test-data/audio", "--models"];
    shell::run(script("whisper.py").args(audio).arg(&models))?;
    shell::run(script("words.py").arg("--models").arg(&models))?;
    shell::run(script("vad.py").arg("--weights").arg(weights))
}

/// Spectrograms, from the code of `package`, the folder of openai-whisper; whether that was possible.
/// PyTorch is too large to be installed for this: it runs where `python3` has it.
fn mel(folder: &Path, out: &Path, package: &Path) -> Result<bool> {
    let has_torch = shell::output(shell::program("python3").args(["-c", "import numpy, torch"]));
    if has_torch.is_err() {
        println!("{FOLDER}/mel.json: skipped, python3 has no torch (Debian: python3-torch)");
        return Ok(false);
    }
    let mut script = shell::program("python3");
    script.arg(folder.join("mel.py")).arg(package).arg("--out").arg(out);
    shell::run(&mut script)?;
    Ok(true)
}

/// Token ids, from tiktoken and the vocabularies that come with OpenAI's package; gives the folder that
/// the package is in.
fn tokenizer(folder: &Path, out: &Path) -> Result<PathBuf> {
    let requirements = ["tiktoken==0.14.0", "tokenizers==0.23.3"];
    let whisper = ["openai-whisper==20250625"];
    let python = venv::programs("golden-tokenizer", &requirements, &whisper)?.join("python");
    let find = "import importlib.util as u; print(u.find_spec('whisper').origin)";
    let init = shell::output(shell::program(&python).args(["-c", find]))?;
    let init = Path::new(init.trim());
    let assets = init.with_file_name("assets");
    let parent = init.ancestors().nth(2).context("a package is in a folder")?;
    let mut script = shell::program(python);
    script.arg(folder.join("tokenizer/make.py")).arg(assets).arg(models::models_dir()?);
    println!("$ {}", shell::describe(&script));
    let cases = shell::output(&mut script)?;
    fs::write(out.join("tokenizer/cases.json"), cases).context("cannot write cases.json")?;
    Ok(parent.to_path_buf())
}

fn read(path: &Path) -> Result<Value> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// Fails at the first value where `new` differs from `old`, naming its place `at`.
fn compare(at: &str, old: &Value, new: &Value) -> Result<()> {
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            ensure!(a.keys().eq(b.keys()), "{at}: the fields differ");
            a.iter().try_for_each(|(key, value)| compare(&format!("{at}.{key}"), value, &b[key]))
        }
        (Value::Array(a), Value::Array(b)) => {
            ensure!(a.len() == b.len(), "{at}: {} entries, now {}", a.len(), b.len());
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.try_for_each(|(i, (x, y))| compare(&format!("{at}[{i}]"), x, y))
        }
        (Value::Number(a), Value::Number(b)) => {
            let exact = a.is_i64() && b.is_i64();
            let (x, y) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            let near = (x - y).abs() <= TOLERANCE * x.abs().max(1.0);
            ensure!(if exact { a == b } else { near }, "{at}: {a}, now {b}");
            Ok(())
        }
        _ if old == new => Ok(()),
        _ => bail!("{at}: {old}, now {new}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_are_compared_with_a_tolerance_and_integers_exactly() {
        let old = json!({"tokens": [1, 2], "l2": 100.0});
        assert!(compare("x", &old, &json!({"tokens": [1, 2], "l2": 100.05})).is_ok());
        assert!(compare("x", &old, &json!({"tokens": [1, 2], "l2": 100.2})).is_err());
        let error = compare("x", &old, &json!({"tokens": [1, 3], "l2": 100.0})).unwrap_err();
        assert_eq!(error.to_string(), "x.tokens[1]: 2, now 3");
        assert!(compare("x", &old, &json!({"tokens": [1], "l2": 100.0})).is_err());
        assert!(compare("x", &old, &json!({"tokens": [1, 2]})).is_err());
    }
}
