//! Rules of the next token of a text: the end of reasoning, the grammar, and end tokens.

use stonechat_sampling::{LazyGrammar, SampleScratch, Sampler};

use crate::Error;
use crate::model::info::ModelInfo;
use crate::text::options::GenerateOptions;
use crate::text::reasoning::{Outside, Reasoning};

/// State of the rules of one text. The grammar does not see reasoning.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    reasoning: Option<Reasoning>,
    grammar: Option<LazyGrammar>,
    /// Tokens that end the text.
    ends: Vec<u32>,
}

impl Rules {
    pub(crate) fn new(model: &ModelInfo, options: &GenerateOptions) -> Result<Self, Error> {
        let (tokenizer, vocab_size) = (model.tokenizer(), model.config().vocab_size);
        let reasoning = options.reasoning.as_ref();
        let reasoning = reasoning.map(|budget| Reasoning::new(budget, tokenizer, vocab_size));
        let grammar = options.grammar.as_ref();
        let grammar = grammar.map(|grammar| LazyGrammar::new(grammar, &options.grammar_start));
        let ends = tokenizer.ends_of_generation().chain(options.end_tokens.iter().copied());
        Ok(Self {
            reasoning: reasoning.transpose()?,
            grammar: grammar.transpose()?,
            ends: ends.filter(|&token| (token as usize) < vocab_size).collect(),
        })
    }

    /// Tokens that end the text.
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Token that comes next in place of a draw. It is the same until a token is accepted or the step ends.
    pub(crate) fn forced(&self) -> Option<u32> {
        self.reasoning.as_ref().and_then(Reasoning::forced)
    }

    /// Whether a draw of the next token needs all logits.
    pub(crate) fn needs_logits(&self) -> bool {
        self.forced().is_none() && (self.is_ruled() || self.forbids_end())
    }

    /// Whether the grammar is complete.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_ruled() && self.grammar.as_ref().is_some_and(LazyGrammar::is_finished)
    }

    /// Draws the next token.
    pub(crate) fn sample(
        &mut self,
        sampler: &mut Sampler,
        logits: &mut [f32],
        scratch: &mut SampleScratch,
    ) -> Result<u32, Error> {
        if self.forbids_end() {
            for &token in &self.ends {
                logits[token as usize] = f32::NEG_INFINITY;
            }
        }
        if !self.is_ruled() {
            return Ok(sampler.sample(logits, scratch));
        }
        let Self { reasoning, grammar: Some(grammar), .. } = self else {
            return Ok(sampler.sample(logits, scratch));
        };
        if let Some(reasoning) = reasoning.as_ref().filter(|reasoning| reasoning.may_open_first()) {
            let token = sampler.sample(logits, scratch);
            if reasoning.is_start(token) || grammar.allows(token)? {
                return Ok(token);
            }
        }
        Ok(grammar.sample(sampler, logits, scratch)?)
    }

    /// Appends a token with its bytes, those of a special token being its name. `is_whole`: the text so far has no incomplete
    /// code point.
    pub(crate) fn accept(&mut self, token: u32, bytes: &[u8], is_whole: bool) -> Result<(), Error> {
        let is_active = self.grammar.as_ref().is_some_and(LazyGrammar::is_active);
        let outside = match &mut self.reasoning {
            Some(reasoning) => {
                // Text of a grammar opens nothing, but reasoning may come before it.
                let is_start = reasoning.may_open_first() && reasoning.is_start(token);
                reasoning.accept(token, bytes, !is_active || is_start, is_whole)
            }
            None => Outside::Whole,
        };
        match (&mut self.grammar, outside) {
            (None, _) => {}
            (Some(grammar), Outside::Whole) => grammar.accept(token, bytes)?,
            (Some(grammar), Outside::From(at)) => grammar.accept_rest(&bytes[at..])?,
            (Some(grammar), Outside::Nothing) => grammar.interrupt(),
        }
        Ok(())
    }

    /// Ends a step: reads the control of reasoning.
    pub(crate) fn end_step(&mut self, is_whole: bool) {
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.poll(is_whole);
        }
    }

    /// Whether the grammar rules the next token.
    fn is_ruled(&self) -> bool {
        let is_reasoning = self.reasoning.as_ref().is_some_and(Reasoning::is_open);
        !is_reasoning && self.grammar.as_ref().is_some_and(LazyGrammar::is_active)
    }

    /// Whether the text may not end: it lacks a required trigger.
    fn forbids_end(&self) -> bool {
        self.grammar.as_ref().is_some_and(LazyGrammar::forbids_end)
    }
}
