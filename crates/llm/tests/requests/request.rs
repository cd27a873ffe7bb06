//! Requests of a simulated engine, and each of them alone: one sequence, whole prompts, no draft, no prefix cache.

use std::sync::Arc;

use pollster::block_on;
use stonechat_llm::{
    Accepted, Finish, GenerateOptions, Generation, GenerationScratch, Model, OnFull, Slot, State,
    StateOptions, TokenProbs,
};

/// Request of the simulated engine.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) start: Start,
    /// Options; those of the parent for a fork.
    pub(crate) options: Arc<GenerateOptions>,
    /// Salt of the prefix cache; `None`: the request does not use it.
    pub(crate) salt: Option<u64>,
    /// Number of generated tokens from which the request is cancelled.
    pub(crate) cancel_after: Option<usize>,
    /// Maximum tokens of a draft.
    pub(crate) n_draft: usize,
}

/// First tokens of a request.
#[derive(Debug)]
pub(crate) enum Start {
    Prompt(Vec<u32>),
    /// Copy of an earlier request at `after` generated tokens, with a seed of its own.
    Fork {
        parent: usize,
        after: usize,
        seed: u64,
    },
}

impl Request {
    /// Number of tokens generated before the request starts.
    pub(crate) fn n_inherited(&self) -> usize {
        match self.start {
            Start::Prompt(_) => 0,
            Start::Fork { after, .. } => after,
        }
    }
}

/// Generated text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Text {
    pub(crate) tokens: Vec<u32>,
    /// Text of each token.
    pub(crate) pieces: Vec<String>,
    /// Probabilities of each token, if the options have any.
    pub(crate) probs: Vec<Option<TokenProbs>>,
    /// All text, with what was held back until the end.
    pub(crate) text: String,
    pub(crate) finish: Option<Finish>,
}

impl Text {
    pub(crate) fn push(&mut self, accepted: &Accepted) {
        for token in &accepted.tokens {
            self.tokens.push(token.token);
            self.pieces.push(accepted.text[token.text.clone()].to_owned());
            self.probs.push(token.probs.clone());
        }
        self.text.push_str(&accepted.text);
        self.finish = accepted.finish;
    }
}

const SLOT: Slot = Slot::new(0);

/// Runs requests alone.
pub(crate) struct Alone<'a> {
    model: &'a Model,
    state: State,
    scratch: GenerationScratch,
    out: Accepted,
}

impl<'a> Alone<'a> {
    /// Sizes of an engine, with one sequence and pages enough.
    pub(crate) fn new(model: &'a Model, options: StateOptions) -> Self {
        let options = StateOptions { n_sequences: 1, n_pages: None, n_outputs: 1, ..options };
        Self {
            model,
            state: model.state(options).unwrap(),
            scratch: GenerationScratch::new(model),
            out: Accepted::default(),
        }
    }

    /// Text of a request that is cancelled at `cancel_at` generated tokens; `None` if it is a fork whose parent ends
    /// before.
    pub(crate) fn text(
        &mut self,
        requests: &[Request],
        index: usize,
        cancel_at: Option<usize>,
    ) -> Option<Text> {
        let mut generation = self.start(requests, index)?;
        let mut text = Text::default();
        self.run(&mut generation, &requests[index].options, cancel_at, &mut text);
        if generation.finish().is_none() {
            generation.end(Finish::Cancelled, &mut self.out);
            text.push(&self.out);
        }
        Some(text)
    }

    fn start(&mut self, requests: &[Request], index: usize) -> Option<Generation> {
        let Request { start, options, .. } = &requests[index];
        match start {
            Start::Prompt(prompt) => {
                self.state.truncate(SLOT, 0);
                let options = Arc::clone(options);
                Some(Generation::new(self.model.info(), prompt.clone(), options).unwrap())
            }
            &Start::Fork { parent, after, seed } => {
                if let (0, Start::Prompt(prompt)) = (after, &requests[parent].start) {
                    // Without tokens of its parent, it is a request of its own.
                    self.state.truncate(SLOT, 0);
                    let mut options = GenerateOptions::clone(options);
                    options.sampling.seed = Some(seed);
                    let info = self.model.info();
                    return Some(Generation::new(info, prompt.clone(), options).unwrap());
                }
                let mut generation = self.start(requests, parent)?;
                self.run(&mut generation, options, Some(after), &mut Text::default());
                generation.finish().is_none().then(|| generation.fork(seed))
            }
        }
    }

    /// Runs to the end, or until the text has `until` tokens.
    fn run(
        &mut self,
        generation: &mut Generation,
        options: &GenerateOptions,
        until: Option<usize>,
        text: &mut Text,
    ) {
        let Self { state, scratch, out, .. } = self;
        let StateOptions { n_ctx, n_batch, .. } = state.options();
        while generation.finish().is_none() && until.is_none_or(|n| generation.n_generated() < n) {
            if generation.exceeds(n_ctx) {
                match options.on_full {
                    OnFull::Shift { keep } => {
                        let [len, _] = generation.shift(keep, n_ctx);
                        state.truncate(SLOT, len);
                    }
                    _ => {
                        generation.end(Finish::ContextFull, out);
                        text.push(out);
                        break;
                    }
                }
            }
            let n = generation.pending().len().min(n_batch);
            let (request, n_rows) = generation.output(n);
            let run = state.run(SLOT, &generation.pending()[..n], request, n_rows);
            let outputs = block_on(run).unwrap();
            generation.ran(n);
            if n_rows > 0 {
                generation.accept(outputs.rows(0..1), scratch, out).unwrap();
                text.push(out);
                state.truncate(SLOT, out.kv_len);
            }
        }
    }
}
