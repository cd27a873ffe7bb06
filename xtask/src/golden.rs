//! `cargo xtask golden`: regenerates the golden references with the implementation they come from.

use std::fs;
use std::path::Path;

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

/// Numbers may differ by so much, relative to the larger of 1 and the number: the reference picks
/// other kernels on another CPU.
const TOLERANCE: f64 = 1e-3;

/// Runs the golden scripts, and with `--check` compares their files with those in the tree.
pub(crate) fn run(args: &GoldenArgs) -> Result<()> {
    setup::run()?;
    let folder = shell::workspace_root().join(FOLDER);
    let out = if args.check { shell::target_dir().join("golden") } else { folder.clone() };
    fs::create_dir_all(out.join("tokenizer"))?;
    whisper(&folder, &out)?;
    tokenizer(&folder, &out)?;
    if args.check {
        for name in ["whisper-tiny.en.json", "whisper-base.json", "tokenizer/cases.json"] {
            compare(name, &read(&folder.join(name))?, &read(&out.join(name))?)?;
            println!("{FOLDER}/{name}: up to date");
        }
    }
    Ok(())
}

/// Features, encoder output, logits and tokens, from CTranslate2.
fn whisper(folder: &Path, out: &Path) -> Result<()> {
    let requirements =
        ["ctranslate2==4.8.5", "faster-whisper==1.2.1", "numpy==2.4.6", "soundfile==0.14.0"];
    let python = venv::programs("golden-whisper", &requirements, &[])?.join("python");
    let mut script = shell::program(python);
    script.arg(folder.join("whisper.py")).arg("--models").arg(models::models_dir()?);
    script.args(["--audio", "test-data/audio", "--out"]).arg(out);
    shell::run(&mut script)
}

/// Token ids, from tiktoken and the vocabularies that come with OpenAI's package.
fn tokenizer(folder: &Path, out: &Path) -> Result<()> {
    let requirements = ["tiktoken==0.14.0", "tokenizers==0.23.3"];
    let whisper = ["openai-whisper==20250625"];
    let python = venv::programs("golden-tokenizer", &requirements, &whisper)?.join("python");
    let find = "import importlib.util as u; print(u.find_spec('whisper').origin)";
    let init = shell::output(shell::program(&python).args(["-c", find]))?;
    let assets = Path::new(init.trim()).with_file_name("assets");
    let mut script = shell::program(python);
    script.arg(folder.join("tokenizer/make.py")).arg(assets).arg(models::models_dir()?);
    println!("$ {}", shell::describe(&script));
    let cases = shell::output(&mut script)?;
    fs::write(out.join("tokenizer/cases.json"), cases).context("cannot write cases.json")
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
