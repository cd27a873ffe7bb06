//! Flags of a conversation.

use anyhow::Context;
use stonechat::llm::{ChatFormat, Config, Model, SessionOptions};

use super::thinking::ThinkingArgs;
use crate::headings::INPUT;
use crate::llm::sampling::SamplingArgs;
use crate::llm::speculation::SpeculationArgs;
use crate::llm::{ContextArgs, RunArgs, StopArgs, read_template};

/// Flags of a conversation.
#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// System prompt
    #[arg(long, visible_alias = "sys", value_name = "TEXT", help_heading = INPUT)]
    pub(super) system_prompt: Option<String>,
    /// Custom chat template: file, Jinja source or built-in name
    #[arg(long, value_name = "TEMPLATE", help_heading = INPUT)]
    pub(super) chat_template: Option<String>,
    #[command(flatten)]
    pub(super) thinking: ThinkingArgs,
    #[command(flatten)]
    pub(super) stop: StopArgs,
    #[command(flatten)]
    pub(super) context: ContextArgs,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
    #[command(flatten)]
    pub(super) speculation: SpeculationArgs,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

impl ChatArgs {
    /// Sizes of the session.
    pub(super) fn session(&self, config: &Config) -> SessionOptions {
        self.speculation.session(self.context.session(config))
    }

    /// Chat template of the flags, else of the model.
    pub(super) fn format(&self, model: &Model) -> anyhow::Result<ChatFormat> {
        let replacement = self.chat_template.as_deref().map(read_template).transpose()?;
        ChatFormat::new(model, replacement.as_deref()).context(
            "cannot use the chat template: --chat-template takes a file or a name like chatml",
        )
    }
}
