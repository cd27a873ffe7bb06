//! Options of a text: length, sampling, stop strings, guidance, context shift.

use std::sync::Arc;

use stonechat_sampling::{CompiledGrammar, GrammarStart, SamplingOptions};

use crate::text::reasoning::ReasoningBudget;

/// Options of a generation.
#[derive(Debug, Clone, Default)]
pub struct GenerateOptions {
    /// Maximum tokens to generate; `None`: no limit.
    pub n_predict: Option<usize>,
    /// Sampling chain.
    pub sampling: SamplingOptions,
    /// Grammar that constrains the text; see [`ModelInfo::compile_grammar`](crate::ModelInfo::compile_grammar).
    pub grammar: Option<Arc<CompiledGrammar>>,
    /// Start of the grammar. It does not see reasoning, so it starts after it.
    pub grammar_start: GrammarStart,
    /// Limit of the tokens of reasoning.
    pub reasoning: Option<ReasoningBudget>,
    /// Stop strings; the text ends before the first of them.
    pub stop: Vec<String>,
    /// Number of most probable tokens to report for each token.
    pub n_probs: usize,
    /// Number of most probable tokens to report for each token of the prompt but the first; `None`: nothing is reported. The
    /// whole prompt runs, without the prefix cache.
    pub prompt_probs: Option<usize>,
    /// Whether these probabilities are those of the last draw, after all samplers, instead of those of the logits.
    pub post_sampling_probs: bool,
    /// Never sample end-of-generation tokens, nor `end_tokens`.
    pub ignore_eos: bool,
    /// Tokens that end the text besides those of the tokenizer.
    pub end_tokens: Vec<u32>,
    /// Emit special tokens as their text; end tokens have none.
    pub show_special: bool,
    /// Special tokens to emit as their text without `show_special`.
    pub visible_special: Vec<u32>,
    /// Token healing: the prompt's last token may be replaced by a longer one.
    pub heal: bool,
    /// Classifier-free guidance.
    pub guidance: Option<Guidance>,
    /// Action when the context is full.
    pub on_full: OnFull,
}

/// Classifier-free guidance (Sanchez et al. 2023): moves logits away from those after a negative prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Guidance {
    /// Tokens of the negative prompt.
    pub negative: Vec<u32>,
    /// Guidance scale; 1 changes nothing.
    pub scale: f32,
}

/// Action when the context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnFull {
    /// End the text.
    #[default]
    Stop,
    /// Context shift: keep the first `keep` tokens and the second half of the others. They are run
    /// again, so that their keys and values are those of the new positions.
    Shift {
        /// Number of tokens to keep at the start.
        keep: usize,
    },
}
