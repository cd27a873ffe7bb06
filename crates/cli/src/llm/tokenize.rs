//! `stonechat tokenize`: prints tokens; weights are not loaded.

use std::path::PathBuf;

use anyhow::Context;
use stonechat::formats::ModelFile;
use stonechat::text::Tokenizer;

use super::super::print;
use super::read_text;
use crate::completions::language_names;
use crate::find_model;

const EXAMPLES: &str = "\
Examples:
  stonechat tokenize -m model.gguf \"Hello world\"
  stonechat tokenize -m model.gguf --json - < prompt.txt";

/// Arguments of `stonechat tokenize`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: GGUF file, Hugging Face folder or name of an installed model
    #[arg(short, long, add = language_names())]
    model: String,
    /// Text to tokenize; - or none is standard input
    text: Option<String>,
    /// Do not add BOS and EOS tokens
    #[arg(long, visible_alias = "no-bos")]
    no_special: bool,
    /// Do not parse special tokens: treat their text as plain text
    #[arg(long)]
    no_parse_special: bool,
    /// Print a JSON array of token ids
    #[arg(long)]
    json: bool,
    /// JSON file with an array of texts: print an array of token ids per line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "json"])]
    texts: Option<PathBuf>,
}

/// Prints the tokens.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let file = ModelFile::open(find_model::find(&args.model)?)?;
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
