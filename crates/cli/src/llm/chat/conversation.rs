//! A conversation with one model: its commands and answers.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use serde_json::{Map, Value, json};
use stonechat::llm::chat::{AnswerOptions, AnswerParser, ChatMessage, ToolChoice};
use stonechat::llm::{ChatFormat, Completion, Event, Finish, GenerateOptions, Session};
use stonechat::text::Conversation;

use super::args::ChatArgs;
use super::screen::Screen;
use super::talk::Talk;
use super::thinking::Thinking;
use super::{commands, parameters};
use crate::console::Console;
use crate::find_model;
use crate::llm::generate::times;
use crate::llm::{read_text, with_context_advice};
use crate::terminal::NoEcho;

/// Action after a line.
pub(super) enum Next {
    Line,
    Exit,
    Model(PathBuf),
}

/// Conversation with a model.
pub(super) struct Chat<'a> {
    pub(super) args: &'a ChatArgs,
    pub(super) format: ChatFormat,
    pub(super) session: Session,
    pub(super) options: GenerateOptions,
    pub(super) console: Console,
    pub(super) talk: &'a mut Talk,
    pub(super) is_output_closed: bool,
}

impl Chat<'_> {
    /// Handles one line: a command or a message.
    pub(super) fn handle(&mut self, line: &str, interrupted: &AtomicBool) -> anyhow::Result<Next> {
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
            "/help" | "/?" => self.console.note(&commands::help()),
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
            "/show" => self.console.note(commands::SHOW),
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
    pub(super) fn say(&mut self, text: &str, interrupted: &AtomicBool) -> anyhow::Result<()> {
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
