//! A grammar that starts with the text or at a trigger.
//!
//! ```text
//! text     Let me look that up. <tool_call>{"name": "weather"}</tool_call>
//!          '------ free -----' '-trigger-'
//!                              '---- under the grammar (trigger included) -'
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use crate::Error;
use crate::grammar::{CompiledGrammar, Grammar};
use crate::grammar_start::{GrammarStart, Trigger};
use crate::object_start::ObjectStart;
use crate::sampler::{SampleScratch, Sampler};
use crate::text_match::TextMatch;

/// Maximum occurrences of triggers in one token at which the grammar is tried.
const MAX_TRIALS: usize = 8;

/// State of one text under a grammar that may start later.
#[derive(Debug, Clone)]
pub struct LazyGrammar {
    phase: Phase,
}

#[derive(Debug, Clone)]
enum Phase {
    Armed(Box<Armed>),
    Active(Box<Grammar>),
}

/// State before the trigger.
#[derive(Debug, Clone)]
struct Armed {
    grammar: Arc<CompiledGrammar>,
    is_required: bool,
    triggers: Vec<Watched>,
    objects: Option<ObjectStart>,
    /// Bytes before the next token that an included trigger may start with, at least.
    reach: usize,
    recent: Recent,
}

/// A trigger with the state of its search.
#[derive(Debug, Clone)]
struct Watched {
    pattern: Pattern,
    is_included: bool,
}

#[derive(Debug, Clone)]
enum Pattern {
    Token(u32),
    Text(TextMatch),
}

/// Last tokens of the text.
#[derive(Debug, Clone, Default)]
struct Recent {
    bytes: VecDeque<u8>,
    /// Tokens, `None` for text that is not a whole token, and the number of their bytes.
    tokens: VecDeque<(Option<u32>, usize)>,
}

impl LazyGrammar {
    /// State of the empty text.
    ///
    /// # Errors
    /// As [`GrammarStart::validate`].
    pub fn new(grammar: &Arc<CompiledGrammar>, start: &GrammarStart) -> Result<Self, Error> {
        start.validate()?;
        if *start == GrammarStart::Immediately {
            return Ok(Self { phase: Phase::Active(Box::new(grammar.start())) });
        }
        let watched = |trigger: &Trigger| match trigger {
            &Trigger::Token { token, is_included } => {
                Some(Watched { pattern: Pattern::Token(token), is_included })
            }
            Trigger::Text { text, is_included } => {
                let search = TextMatch::new(text.as_bytes());
                Some(Watched { pattern: Pattern::Text(search), is_included: *is_included })
            }
            Trigger::Object { .. } => None,
        };
        let triggers: Vec<Watched> = start.triggers().iter().filter_map(watched).collect();
        let objects = start.triggers().iter().filter_map(|trigger| match trigger {
            Trigger::Object { text } => Some(text.as_str()),
            _ => None,
        });
        let mut objects = objects.peekable();
        let objects = objects.peek().is_some().then(|| ObjectStart::new(objects));
        let included = triggers.iter().filter(|trigger| trigger.is_included).map(Watched::len);
        let reach = included.chain(objects.as_ref().map(ObjectStart::reach)).max();
        Ok(Self {
            phase: Phase::Armed(Box::new(Armed {
                grammar: Arc::clone(grammar),
                is_required: matches!(start, GrammarStart::Required(_)),
                triggers,
                objects,
                reach: reach.unwrap_or(0).saturating_sub(1),
                recent: Recent::default(),
            })),
        })
    }

    /// Whether the grammar has started, and [`sample`](Self::sample) needs all logits.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self.phase, Phase::Active(_))
    }

    /// Whether the text is complete: the grammar has started and allows only an end token.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(&self.phase, Phase::Active(grammar) if grammar.is_finished())
    }

    /// Whether the text may not end, since it lacks a required trigger.
    #[must_use]
    pub fn forbids_end(&self) -> bool {
        matches!(&self.phase, Phase::Armed(armed) if armed.is_required)
    }

    /// Whether `token` may come next.
    ///
    /// # Errors
    /// As [`Grammar::allows`].
    pub fn allows(&mut self, token: u32) -> Result<bool, Error> {
        match &mut self.phase {
            Phase::Armed(_) => Ok(true),
            Phase::Active(grammar) => grammar.allows(token),
        }
    }

    /// Draws a token that the grammar allows, if it has started.
    ///
    /// # Errors
    /// As [`Grammar::sample`].
    pub fn sample(
        &mut self,
        sampler: &mut Sampler,
        logits: &mut [f32],
        scratch: &mut SampleScratch,
    ) -> Result<u32, Error> {
        match &mut self.phase {
            Phase::Armed(_) => Ok(sampler.sample(logits, scratch)),
            Phase::Active(grammar) => grammar.sample(sampler, logits, scratch),
        }
    }

    /// Appends `token` with its bytes: of a special token, those of its name. A trigger that ends in it starts the grammar,
    /// unless the grammar refuses the trigger or the bytes after it.
    ///
    /// # Errors
    /// As [`Grammar::accept`], if the grammar had started.
    pub fn accept(&mut self, token: u32, bytes: &[u8]) -> Result<(), Error> {
        match &mut self.phase {
            Phase::Active(grammar) => return grammar.accept(token),
            Phase::Armed(armed) => {
                if let Some(grammar) = armed.accept(Some(token), bytes) {
                    self.phase = Phase::Active(Box::new(grammar));
                }
            }
        }
        Ok(())
    }

    /// Appends bytes at the end of a token that is not part of the text before them. A grammar that has started ignores
    /// those that it refuses.
    ///
    /// # Errors
    /// As [`Grammar::accept_bytes`], if the grammar had started.
    pub fn accept_rest(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match &mut self.phase {
            Phase::Active(grammar) => grammar.accept_bytes(bytes).map(|_| ()),
            Phase::Armed(armed) => {
                if let Some(grammar) = armed.accept(None, bytes) {
                    self.phase = Phase::Active(Box::new(grammar));
                }
                Ok(())
            }
        }
    }

    /// Forgets the beginning of a trigger.
    pub fn interrupt(&mut self) {
        if let Phase::Armed(armed) = &mut self.phase {
            armed.recent = Recent::default();
            armed.objects.iter_mut().for_each(ObjectStart::reset);
            for trigger in &mut armed.triggers {
                if let Pattern::Text(search) = &mut trigger.pattern {
                    search.reset();
                }
            }
        }
    }
}

impl Watched {
    fn len(&self) -> usize {
        match &self.pattern {
            Pattern::Token(_) => 0,
            Pattern::Text(search) => search.len(),
        }
    }
}

impl Armed {
    /// Appends a token; returns the state of the grammar if it starts.
    fn accept(&mut self, token: Option<u32>, bytes: &[u8]) -> Option<Grammar> {
        let before = self.recent.bytes.len();
        let mut starts = [0; MAX_TRIALS];
        let mut n = 0;
        let mut found = |start: usize| {
            if n < MAX_TRIALS && !starts[..n].contains(&start) {
                starts[n] = start;
                n += 1;
            }
        };
        for Watched { pattern, is_included } in &mut self.triggers {
            match pattern {
                Pattern::Token(own) if Some(*own) == token => {
                    found(if *is_included { before } else { before + bytes.len() });
                }
                Pattern::Token(_) => {}
                Pattern::Text(search) => {
                    for (end, &byte) in (before + 1..).zip(bytes) {
                        if search.push(byte) {
                            found(if *is_included { end - search.len() } else { end });
                        }
                    }
                }
            }
        }
        for (end, &byte) in (before + 1..).zip(bytes) {
            if let Some(len) = self.objects.as_mut().and_then(|objects| objects.push(byte)) {
                found(end - len);
            }
        }
        starts[..n].sort_unstable();
        self.recent.push(token, bytes);
        let started = starts[..n].iter().find_map(|&start| self.started_at(start));
        self.recent.trim(self.reach);
        started
    }

    /// State of the grammar after the recent text from `start` on; `None` if it refuses it.
    fn started_at(&self, start: usize) -> Option<Grammar> {
        let mut grammar = self.grammar.start();
        let mut end = 0;
        for &(token, len) in &self.recent.tokens {
            let begin = end;
            end += len;
            if end <= start {
                continue;
            }
            // A special token that the grammar does not name may be spelled in its text.
            let whole = token.filter(|_| start <= begin);
            if whole.is_none_or(|token| grammar.accept(token).is_err()) {
                let bytes: Vec<u8> =
                    self.recent.bytes.range(start.max(begin)..end).copied().collect();
                grammar.accept_bytes(&bytes).ok().filter(|&is_allowed| is_allowed)?;
            }
        }
        Some(grammar)
    }
}

impl Recent {
    fn push(&mut self, token: Option<u32>, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes.extend(bytes);
            self.tokens.push_back((token, bytes.len()));
        }
    }

    /// Drops the tokens before the last `reach` bytes.
    fn trim(&mut self, reach: usize) {
        while let Some(&(_, len)) = self.tokens.front()
            && self.bytes.len() - len >= reach
        {
            self.bytes.drain(..len);
            self.tokens.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
