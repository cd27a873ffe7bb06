//! A language model beside llama.cpp: perplexity and greedy tokens.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pollster::block_on;
use serde::Deserialize;
use serde_json::Value;
use stonechat::nn::Cpu;
use stonechat::{Device, GpuLayers};
use stonechat_formats::ModelFile;
use stonechat_llm::{Config, Model, PerplexityOptions, perplexity};
use xtask::exactness::{LanguageRow, Perplexity, Subject};

use super::agreement::{self, Case};
use super::{ExactnessArgs, Key, describe, open, peer_results};
use crate::shell;

const SCRIPT: &str = "test-data/text/reference.py";
const PROMPTS: &str = "test-data/text/prompts.txt";
const TEXT: &str = "test-data/text/evaluation.txt";
/// Longest continuation of a prompt.
const N_TOKENS: usize = 64;
/// Tokens of a window of the perplexity.
const N_CTX: usize = 512;

/// llama.cpp's continuations and perplexity of a model.
pub(super) struct Reference {
    cases: Vec<Case>,
    perplexity: f64,
    n_windows: usize,
}

/// Output of the script's task `greedy`.
#[derive(Deserialize)]
struct GreedyOutput {
    prompts: Vec<Case>,
}

/// Output of the script's task `perplexity`.
#[derive(Deserialize)]
struct PerplexityOutput {
    perplexity: f64,
    n_windows: usize,
}

impl Reference {
    /// Runs llama.cpp in `python` on the GGUF file `model`.
    pub(super) fn run(
        (python, version): (&Path, &str),
        model: &Path,
        args: &ExactnessArgs,
    ) -> Result<Self> {
        let limit = |n: Option<usize>| n.unwrap_or(0);
        let (greedy, perplexity) = (
            format!("greedy --n-predict {N_TOKENS} --prompts {}", limit(args.prompts)),
            format!("perplexity --n-ctx {N_CTX} --windows {}", limit(args.windows)),
        );
        let output = |options: String, input: &str| {
            let mut command = shell::program(python);
            command.arg(SCRIPT).args(options.split(' ')).args(["--input", input, "--model"]);
            command.arg(model).args(["--threads", &args.threads.to_string()]);
            let files = [SCRIPT.as_ref(), model, input.as_ref()];
            peer_results(&Key { version, files: &files, options }, || {
                println!("$ {}", shell::describe(&command));
                Ok(serde_json::from_str::<Value>(&shell::output(&mut command)?)?)
            })
        };
        let GreedyOutput { prompts: cases } = serde_json::from_value(output(greedy, PROMPTS)?)?;
        let PerplexityOutput { perplexity, n_windows } =
            serde_json::from_value(output(perplexity, TEXT)?)?;
        Ok(Self { cases, perplexity, n_windows })
    }
}

/// Measures the model on `device`.
pub(super) fn measure(
    device: Device,
    path: &Path,
    subject: Subject,
    reference: &Reference,
    args: &ExactnessArgs,
) -> Result<LanguageRow> {
    let file = ModelFile::open(path)?;
    let mut devices = open(device, &file, args.threads)?;
    let subject = Subject { device: describe(&devices), ..subject };
    println!("{} {} on {}", subject.model, subject.weights, subject.device);
    let n_gpu = GpuLayers::total(&Config::from_file(&file)?);
    let model = devices.load_language_model(&file, n_gpu, || Cpu::new(args.threads), |_| ())?;
    let (greedy, forced) = agreement::compare(&model, &reference.cases, N_TOKENS)?;
    let own = own_perplexity(&model, reference.n_windows)?;
    let perplexity = Perplexity {
        n_ctx: N_CTX,
        n_windows: reference.n_windows,
        own,
        peer: reference.perplexity,
    };
    devices.save_kernels();
    Ok(LanguageRow { subject, greedy, forced, perplexity })
}

/// Perplexity of the first `n_windows` windows of the text.
fn own_perplexity(model: &Model, n_windows: usize) -> Result<f64> {
    let path = shell::workspace_root().join(TEXT);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    // As llama-perplexity does: the line feed at the end of a file is no part of the text.
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = beginning(text, n_windows * N_CTX, |text| {
        model.tokenizer().tokenize(text, true, false).len()
    });
    let options = PerplexityOptions { n_ctx: N_CTX, ..PerplexityOptions::default() };
    let measured = block_on(perplexity(model, text, &options, &mut |_| ()))?;
    let got = measured.n_windows;
    ensure!(got == n_windows, "expected {n_windows} windows as of llama.cpp, got {got}");
    Ok(measured.value)
}

/// The first lines of `text` with at least `n_tokens` tokens and 16 more, whose division the end of the text could
/// change; the whole text if it is shorter.
fn beginning(text: &str, n_tokens: usize, count: impl Fn(&str) -> usize) -> &str {
    let wanted = n_tokens + 16;
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
    let first = ends.partition_point(|&end| count(&text[..end]) < wanted);
    ends.get(first).map_or(text, |&end| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::beginning;

    #[test]
    fn the_beginning_has_whole_lines_and_tokens_to_spare() {
        let text = "a b c d\n".repeat(20);
        let words = |text: &str| text.split_whitespace().count();
        assert_eq!(words(beginning(&text, 10, words)), 28);
        assert_eq!(beginning(&text, 64, words), text);
        assert_eq!(beginning("one line", 4, words), "one line");
    }
}
