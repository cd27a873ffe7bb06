//! `stonechat chat`: conversation with a model, on a terminal or over a pipe.

mod args;
mod commands;
mod conversation;
mod parameters;
mod prompt;
mod screen;
mod talk;
mod thinking;
mod word_wrap;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use stonechat::llm::{GenerateOptions, Model, OnFull};

use super::ModelName;
use crate::console::Console;
use crate::headings::INPUT;
use crate::interrupt::interrupt_flag;
use conversation::{Chat, Next};
use prompt::{Line, Prompt};
use talk::Talk;

pub(super) use args::ChatArgs;

const EXAMPLES: &str = "\
Examples:
  stonechat chat qwen2.5-coder-0.5b
  stonechat chat model.gguf -sys \"Answer in one sentence.\" --temp 0.2
  echo \"Write a haiku about stones.\" | stonechat chat model.gguf -n 64";

/// Arguments of `stonechat chat`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelName,
    /// First message; the conversation continues after the answer
    #[arg(short, long, value_name = "TEXT", help_heading = INPUT)]
    prompt: Option<String>,
    /// Single turn: end after the answer to --prompt
    #[arg(long, visible_alias = "st", requires = "prompt", help_heading = INPUT)]
    single_turn: bool,
    #[command(flatten)]
    chat: ChatArgs,
}

/// Model and options of a conversation.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChatWork<'a> {
    pub(super) args: &'a ChatArgs,
    pub(super) path: &'a Path,
    /// First message.
    pub(super) prompt: Option<&'a str>,
    /// Whether the conversation ends after the answer to `prompt`.
    pub(super) single_turn: bool,
}

/// End of a conversation with a model.
enum Outcome {
    Exit(ExitCode),
    /// Path of another model, with which the conversation continues.
    Model(PathBuf),
}

/// Chats until the input ends.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let path = args.model.find()?;
    let Args { prompt, single_turn, chat, .. } = args;
    let prompt = prompt.as_deref();
    hold(ChatWork { args: chat, path: &path, prompt, single_turn: *single_turn })
}

/// Holds the conversation on the devices of its flags, with one model after the other.
pub(super) fn hold(work: ChatWork<'_>) -> anyhow::Result<ExitCode> {
    work.args.context.kv_type.check()?;
    work.args.speculation.check()?;
    let interrupted = interrupt_flag()?;
    let mut prompt = if work.single_turn { Prompt::Pipe } else { Prompt::open()? };
    let system = work.args.system_prompt.as_ref();
    let messages = system.map(|text| json!({"role": "system", "content": text}));
    let mut talk = Talk { messages: messages.into_iter().collect(), ..Talk::default() };
    let mut path = work.path.to_owned();
    let mut last: Option<PathBuf> = None;
    loop {
        let args = work.args;
        let loaded = args.run.load(&path, |config| args.session(config).state(config));
        let outcome = loaded
            .and_then(|loaded| chat(work, &loaded.model, &interrupted, (&mut prompt, &mut talk)));
        match (outcome, last.take()) {
            (Ok(Outcome::Exit(code)), _) => return Ok(code),
            (Ok(Outcome::Model(next)), _) => last = Some(std::mem::replace(&mut path, next)),
            // The other model cannot be loaded.
            (Err(error), Some(before)) => {
                Console::new(false).error(&error);
                path = before;
            }
            (Err(error), None) => return Err(error),
        }
    }
}

fn chat(
    work: ChatWork<'_>,
    model: &Model,
    interrupted: &AtomicBool,
    (prompt, talk): (&mut Prompt, &mut Talk),
) -> anyhow::Result<Outcome> {
    let args = work.args;
    let format = args.format(model)?;
    let mut session = args.run.session(model, args.session(model.config()))?;
    let _draft_model = args.speculation.set_drafter(&args.run, &mut session)?;
    let mut options = GenerateOptions {
        n_predict: args.stop.n_predict(),
        sampling: args.sampling.options(model.tokenizer())?,
        grammar: args.sampling.grammar(model)?,
        stop: args.stop.reverse_prompt.clone(),
        ignore_eos: args.sampling.ignore_eos,
        on_full: OnFull::Stop,
        ..GenerateOptions::default()
    };
    let console = Console::new(args.run.quiet);
    if format.is_fallback() {
        console.note("the model has no chat template: messages are joined as plain text");
    }
    options.stop.extend(format.stop().map(str::to_owned));
    for assignment in &talk.parameters {
        parameters::apply(&mut options, assignment)?;
    }
    let mut chat = Chat { args, format, session, options, console, talk, is_output_closed: false };
    let is_terminal = prompt.is_terminal();
    if !std::mem::replace(&mut chat.talk.has_begun, true) {
        if let Some(first) = work.prompt {
            chat.say(first, interrupted)?;
            if work.single_turn {
                return Ok(Outcome::Exit(ExitCode::SUCCESS));
            }
        }
        if is_terminal {
            chat.console.note("/help lists the commands");
        }
    }
    let mut failed = false;
    loop {
        let line = match prompt.read()? {
            Line::Text(line) => line,
            Line::Interrupted => {
                chat.console.note("Ctrl-D or /exit ends the conversation");
                continue;
            }
            Line::End => break,
        };
        interrupted.store(false, Ordering::Relaxed);
        // A message that fails does not end the conversation.
        match chat.handle(&line, interrupted) {
            Ok(Next::Line) => {}
            Ok(Next::Exit) => break,
            Ok(Next::Model(path)) => return Ok(Outcome::Model(path)),
            Err(error) if chat.is_output_closed => return Err(error),
            Err(error) => {
                failed = true;
                chat.console.error(&error);
            }
        }
    }
    // On a terminal the user has seen the error.
    let code = if failed && !is_terminal { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    Ok(Outcome::Exit(code))
}
