//! `stonechat embed`: embeddings of texts.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use stonechat::llm::{Norm, Pooling, StateOptions, normalize};

use super::super::print;
use super::{RunArgs, read_text};
use crate::completions::language_names;
use crate::find_model;
use crate::headings::{INPUT, OUTPUT};

const EXAMPLES: &str = "\
Examples:
  stonechat embed model.gguf \"A dog barks.\" \"A cat sleeps.\"
  stonechat embed model.gguf -f sentences.txt --pooling last --json";

/// Arguments of `stonechat embed`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: GGUF file, Hugging Face folder, name or user/repo[:TYPE]
    #[arg(value_name = "MODEL", add = language_names())]
    model: String,
    /// Texts to embed
    ///
    /// Without texts and a file, the lines of standard input are the texts.
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    texts: Vec<String>,
    /// File with one text per line; - is standard input
    #[arg(short, long, value_name = "FILE", help_heading = INPUT)]
    file: Option<PathBuf>,
    /// Pooling of the tokens: none, mean, cls or last [default: the model's]
    ///
    /// A model without a pooling in its file takes mean. none prints a vector for each token.
    #[arg(long, value_name = "TYPE", help_heading = OUTPUT)]
    pooling: Option<Pooling>,
    /// Norm: -1 none, 0 maximum at 32760, 1 or more the p-norm
    #[arg(long, value_name = "P", default_value_t = 2, allow_negative_numbers = true, help_heading = OUTPUT)]
    embd_normalize: i32,
    /// Print one JSON object, in the shape of OpenAI's embeddings
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// Prints one vector per line.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let norm = match args.embd_normalize {
        -1 => None,
        0 => Some(Norm::Max16Bit),
        p if p > 0 => Some(Norm::P(p as f32)),
        p => {
            anyhow::bail!(usage_error!("--embd-normalize: expected -1 or more, got {p}"))
        }
    };
    let texts = args.texts()?;
    ensure!(
        !texts.is_empty(),
        usage_error!("no text: expected TEXT, --file or lines on standard input")
    );
    let path = find_model::find(&args.model)?;
    let loaded = args.run.load(&path, |config| StateOptions::new(config.n_ctx_train.min(512)))?;
    let model = &loaded.model;
    let tokens: Vec<Vec<u32>> =
        texts.iter().map(|text| model.tokenizer().tokenize(text, true, true)).collect();
    if let Some(at) = tokens.iter().position(Vec::is_empty) {
        anyhow::bail!("text {}: expected at least one token", at + 1);
    }
    let pooling = args.pooling.or(model.config().pooling).unwrap_or(Pooling::Mean);
    let embedded =
        pollster::block_on(model.embed(&tokens, pooling)).context("cannot embed the texts")?;
    // Without pooling, a text has a vector for each token.
    let width = model.config().d_model;
    let mut vectors: Vec<Vec<f32>> =
        embedded.iter().flat_map(|values| values.chunks(width).map(<[f32]>::to_vec)).collect();
    if let Some(norm) = norm {
        vectors.iter_mut().for_each(|vector| normalize(vector, norm));
    }
    if args.json {
        let data: Vec<_> = vectors
            .iter()
            .enumerate()
            .map(|(index, vector)| {
                serde_json::json!({"object": "embedding", "index": index, "embedding": vector})
            })
            .collect();
        let n: usize = tokens.iter().map(Vec::len).sum();
        let report = serde_json::json!({
            "object": "list",
            "data": data,
            "model": model.summary().name,
            "usage": {"prompt_tokens": n, "total_tokens": n},
        });
        return Ok(print(&format!("{report}\n"))?);
    }
    for vector in vectors {
        let values: Vec<String> = vector.iter().map(f32::to_string).collect();
        print(&format!("{}\n", values.join(" ")))?;
    }
    Ok(())
}

impl Args {
    fn texts(&self) -> anyhow::Result<Vec<String>> {
        if !self.texts.is_empty() {
            return Ok(self.texts.clone());
        }
        let path = self.file.as_deref().unwrap_or("-".as_ref());
        Ok(read_text(path)?.lines().map(str::to_owned).collect())
    }
}
