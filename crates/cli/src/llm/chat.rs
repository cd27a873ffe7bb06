//! `stonechat chat`: conversation with a model, on a terminal or over a pipe.

use std::io::{self, BufRead, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde_json::{Value, json};
use stonechat::llm::{
    Completion, Config, Devices, Event, Finish, GenerateOptions, Model, OnFull, PLAIN_STOP,
    Session, StateOptions,
};
use stonechat::text::{ChatTemplate, Conversation};

use super::super::console::Console;
use super::super::print;
use super::generate::times;
use super::gpu_layers::ModelWork;
use super::sampling::SamplingArgs;
use super::{ContextArgs, ModelName, RunArgs, read_text};
use crate::headings::{INPUT, OUTPUT};
use crate::interrupt::interrupt_flag;

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

/// Flags of a conversation.
#[derive(Debug, clap::Args)]
pub(super) struct ChatArgs {
    /// System prompt
    #[arg(long, visible_alias = "sys", value_name = "TEXT", help_heading = INPUT)]
    system_prompt: Option<String>,
    /// Custom chat template: file, Jinja source or built-in name
    #[arg(long, value_name = "TEMPLATE", help_heading = INPUT)]
    chat_template: Option<String>,
    /// Disable thinking of a reasoning model
    #[arg(long, help_heading = INPUT)]
    no_think: bool,
    /// Number of tokens to predict per answer; -1 is no limit
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = -1,
        allow_negative_numbers = true,
        help_heading = OUTPUT
    )]
    n_predict: i64,
    /// Stop string that ends an answer; repeatable
    #[arg(short, long, visible_alias = "stop", value_name = "TEXT", help_heading = OUTPUT)]
    reverse_prompt: Vec<String>,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// A conversation to hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChatWork<'a> {
    pub(super) args: &'a ChatArgs,
    pub(super) path: &'a Path,
    /// First message.
    pub(super) prompt: Option<&'a str>,
    /// Whether the conversation ends after the answer to `prompt`.
    pub(super) single_turn: bool,
}

const HELP: &str = "\
/help          this list
/exit          exit (also at the end of input)
/clear         clear the conversation
/regen         regenerate the last answer
/system TEXT   set the system prompt and clear the conversation
/tokens        number of tokens in the context
/save FILE     write the conversation as JSON
/load FILE     read a conversation written by /save
Ctrl-C stops an answer.";

/// Chats until the input ends.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let path = args.model.find()?;
    let Args { prompt, single_turn, chat, .. } = args;
    let prompt = prompt.as_deref();
    hold(ChatWork { args: chat, path: &path, prompt, single_turn: *single_turn })
}

/// Holds the conversation on the devices of its flags.
pub(super) fn hold(work: ChatWork<'_>) -> anyhow::Result<ExitCode> {
    work.args.run.on_devices(work.path, work)
}

impl ModelWork for ChatWork<'_> {
    type Output = ExitCode;

    fn state(&self, config: &Config) -> StateOptions {
        self.args.context.session(config, 1).state(config)
    }

    fn run<D: Devices>(self, devices: D) -> anyhow::Result<ExitCode> {
        let model = self.args.run.load(self.path, devices, self)?;
        chat(self, &model)
    }
}

fn chat<D: Devices>(work: ChatWork<'_>, model: &Model<D>) -> anyhow::Result<ExitCode> {
    let args = work.args;
    let template = template(args, model)?;
    let session = args.run.session(model, args.context.session(model.config(), 1))?;
    let mut options = GenerateOptions {
        n_predict: usize::try_from(args.n_predict).ok(),
        sampling: args.sampling.options(model.tokenizer())?,
        grammar: args.sampling.grammar()?,
        stop: args.reverse_prompt.clone(),
        ignore_eos: args.sampling.ignore_eos,
        on_full: OnFull::Stop,
        ..GenerateOptions::default()
    };
    let interrupted = interrupt_flag()?;
    let console = Console::new(args.run.quiet);
    let has_none = args.chat_template.is_none() && !model.has_chat_template();
    if has_none {
        console.note("the model has no chat template: messages are joined as plain text");
    }
    if has_none || args.chat_template.as_deref() == Some("plain") {
        options.stop.push(PLAIN_STOP.to_owned());
    }
    let mut chat = Chat {
        args,
        template,
        session,
        options,
        console,
        messages: Vec::new(),
        is_output_closed: false,
    };
    chat.system(args.system_prompt.as_deref());
    if let Some(prompt) = work.prompt {
        chat.say(prompt, &interrupted)?;
        if work.single_turn {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let is_terminal = io::stdin().is_terminal();
    if is_terminal {
        chat.console.note("/help lists the commands");
    }
    let mut failed = false;
    loop {
        if is_terminal {
            // Standard error may be closed.
            let _ = write!(io::stderr(), "> ");
        }
        let mut line = String::new();
        let n = io::stdin().lock().read_line(&mut line).context("cannot read standard input")?;
        interrupted.store(false, Ordering::Relaxed);
        if n == 0 {
            break;
        }
        let line = line.trim();
        if line == "/exit" || line == "/quit" {
            break;
        }
        // A message that fails does not end the conversation.
        if let Err(error) = chat.handle(line, &interrupted) {
            if chat.is_output_closed {
                return Err(error);
            }
            failed = true;
            chat.console.error(&error);
        }
    }
    // On a terminal the user has seen the error.
    Ok(if failed && !is_terminal { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn template<D: Devices>(args: &ChatArgs, model: &Model<D>) -> anyhow::Result<ChatTemplate> {
    let replacement = match &args.chat_template {
        Some(name) if Path::new(name).is_file() => Some(read_text(Path::new(name))?),
        other => other.clone(),
    };
    model
        .chat_template(replacement.as_deref())
        .context("cannot use the chat template: --chat-template takes a file or a name like chatml")
}

struct Chat<'a, D: Devices> {
    args: &'a ChatArgs,
    template: ChatTemplate,
    session: Session<'a, D>,
    options: GenerateOptions,
    console: Console,
    messages: Vec<Value>,
    is_output_closed: bool,
}

impl<D: Devices> Chat<'_, D> {
    /// Handles one line: a command or a message.
    fn handle(&mut self, line: &str, interrupted: &AtomicBool) -> anyhow::Result<()> {
        if line.is_empty() {
            return Ok(());
        }
        if !line.starts_with('/') {
            return self.say(line, interrupted);
        }
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        match command {
            "/help" => self.console.note(HELP),
            "/clear" => {
                let system = self.system_message().map(str::to_owned);
                self.system(system.as_deref());
            }
            "/system" => self.system(Some(rest).filter(|text| !text.is_empty())),
            "/regen" => {
                while self.messages.last().is_some_and(|m| m["role"] == "assistant") {
                    self.messages.pop();
                }
                anyhow::ensure!(
                    self.messages.last().is_some_and(|m| m["role"] == "user"),
                    "/regen: there is no message to answer"
                );
                self.answer(interrupted)?;
            }
            "/tokens" => {
                let (held, n_ctx) = (self.session.tokens().len(), self.session.n_ctx());
                self.console.note(&format!("{held} of {n_ctx} tokens"));
            }
            "/save" => {
                anyhow::ensure!(!rest.is_empty(), "/save: expected a file name");
                let text = serde_json::to_string_pretty(&self.messages)?;
                std::fs::write(rest, text)
                    .map_err(|e| anyhow::anyhow!("cannot write `{rest}`: {e}"))?;
            }
            "/load" => {
                anyhow::ensure!(!rest.is_empty(), "/load: expected a file name");
                let messages: Vec<Value> = serde_json::from_str(&read_text(Path::new(rest))?)
                    .with_context(|| format!("`{rest}`: expected a JSON array of messages"))?;
                anyhow::ensure!(
                    messages.iter().all(|m| m["role"].is_string()),
                    "`{rest}`: expected messages with a role"
                );
                self.messages = messages;
            }
            _ => anyhow::bail!("no command `{command}`: /help lists them"),
        }
        Ok(())
    }

    fn system_message(&self) -> Option<&str> {
        self.messages.first().filter(|m| m["role"] == "system")?["content"].as_str()
    }

    /// Clears the conversation and sets the system message.
    fn system(&mut self, text: Option<&str>) {
        self.messages.clear();
        self.messages.extend(text.map(|text| json!({"role": "system", "content": text})));
    }

    /// Adds a user message and answers it.
    fn say(&mut self, text: &str, interrupted: &AtomicBool) -> anyhow::Result<()> {
        self.messages.push(json!({"role": "user", "content": text}));
        let answered = self.answer(interrupted);
        if answered.is_err() {
            // The conversation continues without the failed message.
            self.messages.pop();
        }
        answered
    }

    /// Generates the next message of the assistant.
    fn answer(&mut self, interrupted: &AtomicBool) -> anyhow::Result<()> {
        let mut conversation = Conversation {
            messages: self.messages.clone(),
            add_generation_prompt: true,
            now: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .ok()
                .and_then(|now| i64::try_from(now.as_secs()).ok()),
            ..Conversation::default()
        };
        if self.args.no_think {
            conversation.variables.insert("enable_thinking".to_owned(), Value::Bool(false));
        }
        let prompt = self.session.model().tokenize_chat(&self.template.render(&conversation)?);
        interrupted.store(false, Ordering::Relaxed);
        let mut printed = Ok(());
        let mut has_begun = false;
        let mut on_event = |event: Event<'_>| {
            if let Event::Text(text) = event {
                let text = if has_begun { text } else { text.trim_start() };
                has_begun |= !text.is_empty();
                printed = print(text);
            }
            let stop = printed.is_err() || interrupted.load(Ordering::Relaxed);
            if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let completion: Completion =
            pollster::block_on(self.session.generate(&prompt, &self.options, &mut on_event))?;
        interrupted.store(false, Ordering::Relaxed);
        printed.and_then(|()| print("\n")).inspect_err(|_| self.is_output_closed = true)?;
        self.messages.push(json!({"role": "assistant", "content": completion.text.trim_start()}));
        if completion.finish == Finish::ContextFull {
            let n_ctx = self.session.n_ctx();
            self.console.note(&format!(
                "the context of {n_ctx} tokens is full: /clear starts over, --ctx-size raises it"
            ));
        }
        if self.args.run.verbose {
            self.console.note(&times(self.session.model(), &completion));
        }
        Ok(())
    }
}
