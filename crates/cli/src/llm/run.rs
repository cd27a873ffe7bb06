//! `stonechat run`: a model by name, downloaded if need be, and an answer or a conversation.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use super::chat::{ChatArgs, ChatWork, hold};
use super::read_text;
use crate::completions::language_names;
use crate::find_model::find_or_pull;

const EXAMPLES: &str = "\
Examples:
  stonechat run qwen3:0.6b \"Why is the sky blue?\"
  stonechat run qwen3:0.6b -sys \"Answer in one sentence.\" \"What is granite?\"
  stonechat run user/repo:Q8_0 \"Summarize this:\" < notes.txt";

/// Arguments of `stonechat run`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: name, user/repo[:TYPE], GGUF file or Hugging Face folder
    #[arg(value_name = "MODEL", add = language_names())]
    model: String,
    /// Message to answer; without it and without piped text, a conversation begins
    ///
    /// Text on standard input follows the message.
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,
    #[command(flatten)]
    chat: ChatArgs,
}

/// Answers the prompt, or chats.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut prompt = args.prompt.join(" ");
    if !io::stdin().is_terminal() {
        let piped = read_text("-".as_ref())?;
        let separator = if prompt.is_empty() || piped.trim().is_empty() { "" } else { "\n\n" };
        prompt = format!("{prompt}{separator}{}", piped.trim());
        anyhow::ensure!(
            !prompt.is_empty(),
            usage_error!("no prompt: expected it after the model's name or on standard input")
        );
    }
    let path = find_or_pull(&args.model)?;
    let prompt = Some(prompt.as_str()).filter(|prompt| !prompt.is_empty());
    hold(ChatWork { args: &args.chat, path: &path, prompt, single_turn: prompt.is_some() })
}
