//! `stonechat tokenize`: text in, tokens out; the weights are not read.

use std::path::PathBuf;

use anyhow::Context;
use stonechat::text::Tokenizer;

use super::super::print;
use super::{open, read_text};

/// Arguments of `stonechat tokenize`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a GGUF file, a Hugging Face folder or the name of an installed model
    #[arg(short, long)]
    model: String,
    /// The text; `-` or none reads standard input
    text: Option<String>,
    /// Do not add the tokens that start or end a text
    #[arg(long, visible_alias = "no-bos")]
    no_special: bool,
    /// Take the text of special tokens as ordinary text
    #[arg(long)]
    no_parse_special: bool,
    /// Print an array of ids
    #[arg(long)]
    json: bool,
    /// File of a JSON array of texts: print an array of ids a line for each
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "json"])]
    texts: Option<PathBuf>,
}

/// Prints the tokens.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (_, file) = open(&args.model)?;
    let tokenizer = stonechat::llm::tokenizer(&file)?;
    let ids = |text: &str| tokenizer.tokenize(text, !args.no_special, !args.no_parse_special);
    if let Some(path) = &args.texts {
        let texts: Vec<String> = serde_json::from_str(&read_text(path)?)
            .with_context(|| format!("`{}`: expected a JSON array of strings", path.display()))?;
        for text in texts {
            print(&format!("{}\n", serde_json::to_string(&ids(&text))?))?;
        }
        return Ok(());
    }
    let text = match &args.text {
        Some(text) if text != "-" => text.clone(),
        _ => read_text("-".as_ref())?,
    };
    let ids = ids(&text);
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&ids)?))?;
    } else {
        print(&lines(&tokenizer, &ids))?;
    }
    Ok(())
}

fn lines(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let line = |&id: &u32| {
        let piece = String::from_utf8_lossy(tokenizer.token_piece(id, true));
        format!("{id:6} -> '{}'\n", piece.escape_debug())
    };
    ids.iter().map(line).collect()
}
