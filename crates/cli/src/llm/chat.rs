//! `stonechat chat`: conversation with a model, on a terminal or over a pipe.

mod parameters;
mod prompt;
mod thinking;
mod word_wrap;

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use console::Term;
use serde_json::{Map, Value, json};
use stonechat::llm::chat::{AnswerOptions, AnswerParser, ChatEvent, ChatMessage, ToolChoice};
use stonechat::llm::{
    ChatFormat, Completion, Config, Event, Finish, GenerateOptions, Model, OnFull, Session,
    SessionOptions,
};

use stonechat::text::Conversation;

use super::super::console::Console;
use super::super::print;
use super::generate::times;
use super::sampling::SamplingArgs;
use super::speculation::SpeculationArgs;
use super::{
    ContextArgs, ModelName, RunArgs, StopArgs, read_template, read_text, with_context_advice,
};
use crate::find_model;
use crate::headings::INPUT;
use crate::interrupt::interrupt_flag;
use crate::terminal::NoEcho;
use prompt::{Line, Prompt};
use thinking::{Thinking, ThinkingArgs, View};
use word_wrap::WordWrap;

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
    #[command(flatten)]
    thinking: ThinkingArgs,
    #[command(flatten)]
    stop: StopArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    run: RunArgs,
}

impl ChatArgs {
    /// Sizes of the session.
    fn session(&self, config: &Config) -> SessionOptions {
        self.speculation.session(self.context.session(config))
    }
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

/// Commands, their arguments and help.
const COMMANDS: [(&str, &str, &str); 12] = [
    ("/help", "", "list the commands"),
    ("/exit", "", "end (also Ctrl-D)"),
    ("/clear", "", "clear the conversation"),
    ("/regen", "", "regenerate the last answer"),
    ("/system", "[TEXT]", "show the system prompt, or set it and clear the conversation"),
    ("/think", "[HOW]", "reasoning: on, off, an effort such as low, show or hide"),
    ("/model", "NAME", "continue with another model"),
    ("/set", "NAME VALUE", "set temp, top_k, top_p, min_p, repeat_penalty, seed or n_predict"),
    ("/tokens", "", "number of tokens in the context"),
    ("/save", "FILE", "write the conversation as JSON"),
    ("/load", "FILE", "read a conversation written by /save"),
    ("/quit", "", "the same as /exit"),
];

/// Keys of the editor.
const KEYS: &str = "Ctrl-C stops an answer. Alt-Enter, \\ at the end of a line or \"\"\" around a text \
                    make a message of several lines.";

/// Answer to Ollama's `/show`.
const SHOW: &str = "`stonechat show MODEL` prints the properties of a model; here /set lists the parameters, and /system \
                    shows the system prompt";

fn help() -> String {
    let line = |(name, argument, help): &(&str, &str, &str)| {
        let command = format!("{name} {argument}");
        format!("{command:18}{help}\n")
    };
    COMMANDS.iter().map(line).collect::<String>() + KEYS
}

/// Messages and parameters of a conversation, carried over to another model.
#[derive(Debug, Default)]
struct Talk {
    messages: Vec<Value>,
    /// Arguments of `/set`.
    parameters: Vec<String>,
    /// Files of `/save`.
    saved: Vec<String>,
    /// Whether the first message was answered.
    has_begun: bool,
    /// Reasoning, once a command has changed it.
    thinking: Option<Thinking>,
}

impl Talk {
    /// Reasoning of the conversation, as the flags or the last `/think` have set it.
    fn thinking_mut(&mut self, args: &ChatArgs) -> &mut Thinking {
        self.thinking.get_or_insert_with(|| Thinking::new(&args.thinking))
    }
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
    let format = format(args, model)?;
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

fn format(args: &ChatArgs, model: &Model) -> anyhow::Result<ChatFormat> {
    let replacement = args.chat_template.as_deref().map(read_template).transpose()?;
    ChatFormat::new(model, replacement.as_deref())
        .context("cannot use the chat template: --chat-template takes a file or a name like chatml")
}

/// Action after a line.
enum Next {
    Line,
    Exit,
    Model(PathBuf),
}

struct Chat<'a> {
    args: &'a ChatArgs,
    format: ChatFormat,
    session: Session,
    options: GenerateOptions,
    console: Console,
    talk: &'a mut Talk,
    is_output_closed: bool,
}

impl Chat<'_> {
    /// Handles one line: a command or a message.
    fn handle(&mut self, line: &str, interrupted: &AtomicBool) -> anyhow::Result<Next> {
        if line.is_empty() {
            return Ok(Next::Line);
        }
        if !line.starts_with('/') {
            self.say(line, interrupted)?;
            return Ok(Next::Line);
        }
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match command {
            "/help" | "/?" => self.console.note(&help()),
            "/exit" | "/quit" | "/bye" => return Ok(Next::Exit),
            "/clear" => {
                let system = self.system_message().map(str::to_owned);
                self.system(system.as_deref());
            }
            "/system" if rest.is_empty() => {
                let none = "no system prompt: /system TEXT sets one";
                self.console.note(self.system_message().unwrap_or(none));
            }
            "/system" => self.system(Some(rest)),
            "/model" => {
                anyhow::ensure!(!rest.is_empty(), "/model: expected a name or a path");
                return Ok(Next::Model(find_model::find(rest)?));
            }
            "/think" => {
                if !rest.is_empty() {
                    self.talk.thinking_mut(self.args).set(rest);
                }
                self.console.note(&self.talk.thinking_mut(self.args).describe());
            }
            "/set" if rest == "think" => self.talk.thinking_mut(self.args).set("on"),
            "/set" if rest == "nothink" => self.talk.thinking_mut(self.args).set("off"),
            "/show" => self.console.note(SHOW),
            "/set" if rest.starts_with("system ") => {
                let text = rest.trim_start_matches("system").trim();
                self.system(Some(text.trim_matches('"')));
            }
            "/set" if rest.is_empty() => self.console.note(&parameters::list(&self.options)),
            "/set" => {
                parameters::apply(&mut self.options, rest)?;
                self.talk.parameters.push(rest.to_owned());
            }
            "/regen" => {
                let messages = &mut self.talk.messages;
                while messages.last().is_some_and(|m| m["role"] == "assistant") {
                    messages.pop();
                }
                anyhow::ensure!(
                    messages.last().is_some_and(|m| m["role"] == "user"),
                    "/regen: there is no message to answer"
                );
                self.answer(interrupted)?;
            }
            "/tokens" => {
                let (held, n_ctx) = (self.session.tokens().len(), self.session.n_ctx());
                self.console.note(&format!("{held} of {n_ctx} tokens"));
            }
            "/save" | "/load" if rest.is_empty() => {
                anyhow::bail!("{command}: expected a file name");
            }
            "/save" => self.save(rest)?,
            "/load" => self.load(rest)?,
            _ => anyhow::bail!("no command `{command}`: /help lists them"),
        }
        Ok(Next::Line)
    }

    /// Writes the conversation to a file, which may be one that this conversation was written to, but no other.
    fn save(&mut self, file: &str) -> anyhow::Result<()> {
        let is_own = self.talk.saved.iter().any(|saved| saved == file);
        anyhow::ensure!(
            is_own || !Path::new(file).exists(),
            "/save: `{file}` exists: expected another name"
        );
        let text = serde_json::to_string_pretty(&self.talk.messages)?;
        std::fs::write(file, text).map_err(|e| anyhow::anyhow!("cannot write `{file}`: {e}"))?;
        self.console.note(&format!("wrote {} messages to `{file}`", self.talk.messages.len()));
        if !is_own {
            self.talk.saved.push(file.to_owned());
        }
        Ok(())
    }

    /// Continues the conversation in a file.
    fn load(&mut self, file: &str) -> anyhow::Result<()> {
        let messages: Vec<Value> = serde_json::from_str(&read_text(Path::new(file))?)
            .with_context(|| format!("`{file}`: expected a JSON array of messages"))?;
        anyhow::ensure!(
            messages.iter().all(|m| m["role"].is_string()),
            "`{file}`: expected messages with a role"
        );
        self.console.note(&format!("read {} messages from `{file}`", messages.len()));
        self.talk.messages = messages;
        Ok(())
    }

    fn system_message(&self) -> Option<&str> {
        self.talk.messages.first().filter(|m| m["role"] == "system")?["content"].as_str()
    }

    /// Clears the conversation and sets the system message.
    fn system(&mut self, text: Option<&str>) {
        self.talk.messages.clear();
        self.talk.messages.extend(text.map(|text| json!({"role": "system", "content": text})));
    }

    /// Adds a user message and answers it.
    fn say(&mut self, text: &str, interrupted: &AtomicBool) -> anyhow::Result<()> {
        self.talk.messages.push(json!({"role": "user", "content": text}));
        let answered = self.answer(interrupted);
        if answered.is_err() {
            // The conversation continues without the failed message.
            self.talk.messages.pop();
        }
        answered
    }

    /// Generates the next message of the assistant.
    fn answer(&mut self, interrupted: &AtomicBool) -> anyhow::Result<()> {
        let thinking = self.talk.thinking_mut(self.args).clone();
        let (prompt, options, mut parser) = self.prepare(&thinking)?;
        interrupted.store(false, Ordering::Relaxed);
        let mut printed = Ok(());
        let _no_echo = NoEcho::begin();
        let mut screen = Screen::new(thinking.view());
        let mut message = ChatMessage::default();
        let mut on_event = |event: Event<'_>| {
            if let Event::Text(text) = event {
                printed = screen.show(parser.push(text), &mut message);
            }
            let stop = printed.is_err() || interrupted.load(Ordering::Relaxed);
            if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let completion: Completion =
            pollster::block_on(self.session.generate(&prompt, &options, &mut on_event))
                .map_err(|error| with_context_advice(error, self.session.model().config()))?;
        interrupted.store(false, Ordering::Relaxed);
        printed
            .and_then(|()| {
                screen.show(parser.finish(completion.finish.is_complete()), &mut message)
            })
            .and_then(|()| screen.end())
            .inspect_err(|_| self.is_output_closed = true)?;
        let mut said = json!({"role": "assistant", "content": message.content});
        if !message.reasoning.is_empty() {
            said["reasoning_content"] = message.reasoning.into();
        }
        self.talk.messages.push(said);
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

    /// Prompt and options of the next answer, and its parser.
    fn prepare(
        &self,
        thinking: &Thinking,
    ) -> anyhow::Result<(Vec<u32>, GenerateOptions, AnswerParser)> {
        let mut variables = Map::new();
        if let Some(enabled) = thinking.enabled {
            variables.insert("enable_thinking".to_owned(), Value::Bool(enabled));
        }
        if let Some(effort) = &thinking.effort {
            variables.insert("reasoning_effort".to_owned(), effort.as_str().into());
        }
        let conversation = Conversation {
            messages: self.talk.messages.clone(),
            add_generation_prompt: true,
            variables,
            ..Conversation::default()
        };
        let model = self.session.model();
        let prompt = self.format.prompt(conversation)?;
        let format = self.format.answer_format(
            model,
            &prompt,
            &AnswerOptions {
                tools: &[],
                choice: &ToolChoice::None,
                parallel: true,
                splits_reasoning: true,
                content: None,
            },
        )?;
        let mut options = self.options.clone();
        let parser = format.apply(model, &mut options, thinking.budget)?;
        Ok((model.tokenize_marked_chat(&prompt), options, parser))
    }
}

/// Answer on standard output.
struct Screen {
    view: View,
    wrap: WordWrap,
}

impl Screen {
    fn new(view: View) -> Self {
        let terminal = Term::stdout();
        let width = terminal.is_term().then(|| usize::from(terminal.size().1));
        Self { view, wrap: WordWrap::new(width) }
    }

    /// Prints parts, and collects them.
    fn show(&mut self, events: Vec<ChatEvent>, message: &mut ChatMessage) -> io::Result<()> {
        for event in events {
            message.push(&event);
            match &event {
                ChatEvent::Reasoning(text) => print(&self.view.push(text))?,
                other => print(&(self.view.end() + &self.wrap.push(other.text())))?,
            }
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        print(&(self.view.end() + &self.wrap.flush() + "\n"))
    }
}
