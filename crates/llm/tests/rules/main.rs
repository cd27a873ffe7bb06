//! Texts whose most probable tokens are given: budgets of reasoning, grammars that start later, end tokens.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock};

use pollster::block_on;
use stonechat_formats::ModelFile;
use stonechat_llm::{
    Accepted, Event, Finish, GenerateOptions, Generation, GenerationScratch, Model, ModelInfo,
    OutputRequest, OutputRow, ReasoningBudget, ReasoningControl, Session, SessionOptions,
};
use stonechat_nn::{Cpu, TopKEntry};
use stonechat_sampling::SamplingOptions;

static MODEL: LazyLock<Arc<ModelInfo>> = LazyLock::new(|| Arc::clone(load().info()));

fn load() -> Model {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
    Model::load(Cpu::new(1).unwrap(), &ModelFile::open(path).unwrap(), |_| ()).unwrap()
}

const BOS: u32 = 0;
const EOS: u32 = 1;

fn id(text: &str) -> u32 {
    MODEL.tokenizer().token_id(text).unwrap()
}

fn ids(texts: &[&str]) -> Vec<u32> {
    texts.iter().map(|text| id(text)).collect()
}

fn greedy() -> GenerateOptions {
    GenerateOptions { sampling: SamplingOptions::greedy(), ..GenerateOptions::default() }
}

/// Reasoning from "the" or "z" to "er", closed by "!er".
fn reasoning(budget: usize) -> ReasoningBudget {
    ReasoningBudget {
        start: vec!["the".to_owned(), "z".to_owned()],
        end: vec!["er".to_owned()],
        closing: ids(&["!", "er"]),
        budget: Some(budget),
        ..ReasoningBudget::default()
    }
}

/// A text with the output of its steps.
struct Run {
    text: Generation,
    scratch: GenerationScratch,
    out: Accepted,
    shown: String,
    tokens: Vec<u32>,
}

impl Run {
    fn new(options: GenerateOptions) -> Self {
        let text = Generation::new(&MODEL, vec![id("a")], options).unwrap();
        let (scratch, out) = (GenerationScratch::new(&MODEL), Accepted::default());
        Self { text, scratch, out, shown: String::new(), tokens: Vec::new() }
    }

    fn request(&self) -> OutputRequest {
        self.text.output(self.text.pending().len()).0
    }

    /// Runs the pending tokens; the most probable ones at their rows are `best`.
    fn step(&mut self, best: &[u32]) -> &mut Self {
        let request = self.request();
        self.step_with(request, best)
    }

    fn step_with(&mut self, request: OutputRequest, best: &[u32]) -> &mut Self {
        let is_full = request == OutputRequest::Logits;
        let logits: Vec<Vec<f32>> = best
            .iter()
            .map(|&best| (0..64).map(|token| if token == best { 1.0 } else { 0.0 }).collect())
            .collect();
        let top_k: Vec<[TopKEntry; 1]> =
            best.iter().map(|&index| [TopKEntry { index, value: 1.0 }]).collect();
        let rows = logits.iter().zip(&top_k).map(|(logits, top_k)| match is_full {
            true => OutputRow::Logits(logits),
            false => OutputRow::TopK(top_k),
        });
        self.text.ran(self.text.pending().len());
        self.text.accept(rows, &mut self.scratch, &mut self.out).unwrap();
        self.shown += &self.out.text;
        self.tokens.extend(self.out.tokens.iter().map(|token| token.token));
        self
    }

    /// Steps with one row each.
    fn steps(&mut self, texts: &[&str]) -> &mut Self {
        for text in texts {
            self.step(&[id(text)]);
        }
        self
    }
}

#[test]
fn a_spent_budget_forces_the_end_of_reasoning() {
    let mut run = Run::new(GenerateOptions { reasoning: Some(reasoning(3)), ..greedy() });
    run.steps(&["b", "t", "he", "c", "d", "e", "f", "f", "g"]);
    assert_eq!(run.shown, "bthecde!erg");
    // The budget is that of the whole text: reasoning that opens again ends at once.
    run.steps(&["z", "c", "c", "g"]);
    assert_eq!(run.shown, "bthecde!ergz!erg");
}

#[test]
fn reasoning_that_ends_itself_is_left_alone() {
    let mut run = Run::new(GenerateOptions { reasoning: Some(reasoning(4)), ..greedy() });
    run.steps(&["z", "c", "e", "r", "d", "d", "d", "d", "d"]);
    assert_eq!(run.shown, "zcerddddd");
    // One token of the budget is left.
    run.steps(&["z", "c", "d", "d", "g"]);
    assert_eq!(run.shown, "zcerdddddzc!erg");
}

#[test]
fn a_budget_of_nothing_ends_open_reasoning_before_the_first_token() {
    let budget = ReasoningBudget { starts_open: true, ..reasoning(0) };
    let options = GenerateOptions { reasoning: Some(budget), n_probs: 2, ..greedy() };
    let mut run = Run::new(GenerateOptions { n_probs: 0, ..options.clone() });
    assert!(!run.text.can_run_ahead(100));
    run.steps(&["b"]);
    run.text.propose(&ids(&["b", "c"]));
    assert!(run.text.draft().is_empty());
    run.steps(&["b", "b"]);
    assert_eq!(run.shown, "!erb");
    assert!(run.text.can_run_ahead(100));
    // A forced token is certain.
    let mut run = Run::new(options);
    run.step_with(OutputRequest::Logits, &[id("b")]);
    let probs = run.out.tokens[0].probs.as_ref().unwrap();
    assert_eq!((probs.token, probs.logprob, probs.top.len()), (id("!"), 0.0, 1));
}

#[test]
fn a_control_ends_the_reasoning_of_all_choices() {
    let control = ReasoningControl::default();
    let budget = ReasoningBudget {
        starts_open: true,
        budget: None,
        control: control.clone(),
        ..reasoning(0)
    };
    let mut run = Run::new(GenerateOptions { reasoning: Some(budget), ..greedy() });
    run.steps(&["b", "b"]);
    let mut other = Run { text: run.text.fork(3), ..Run::new(greedy()) };
    control.end();
    // The step in flight has planned its token.
    run.steps(&["c", "c", "c", "d"]);
    other.steps(&["e", "e", "e", "d"]);
    assert_eq!((&*run.shown, &*other.shown), ("bbc!erd", "e!erd"));
}

#[test]
fn a_draft_across_the_end_of_the_budget_is_cut() {
    let budget = ReasoningBudget { starts_open: true, ..reasoning(2) };
    let mut run = Run::new(GenerateOptions { reasoning: Some(budget), ..greedy() });
    run.steps(&["b"]);
    run.text.propose(&ids(&["c", "c", "c"]));
    run.step(&ids(&["c", "c", "c", "c"]));
    assert_eq!(run.shown, "bc!");
    assert_eq!(run.text.pending(), ids(&["!"]));
    run.steps(&["c", "c"]);
    assert_eq!(run.shown, "bc!erc");
}

#[test]
fn wrong_closing_tokens_are_refused() {
    for (closing, got) in [(Vec::new(), "none"), (vec![3, 64], "64")] {
        let budget = ReasoningBudget { closing, ..reasoning(1) };
        let options = GenerateOptions { reasoning: Some(budget), ..greedy() };
        let error = Generation::new(&MODEL, vec![3], options).unwrap_err().to_string();
        let expected = "end of reasoning: expected at least one token, each below 64, got ";
        assert_eq!(error, format!("{expected}{got}"));
    }
}

#[test]
fn own_end_tokens_end_the_text_and_are_reported() {
    let options = GenerateOptions { end_tokens: vec![BOS, 9000], ..greedy() };
    for (token, expected) in [(BOS, BOS), (EOS, EOS)] {
        let mut run = Run::new(options.clone());
        run.steps(&["b"]).step(&[token]);
        assert_eq!(run.text.finish(), Some(Finish::EndOfText));
        assert_eq!((run.text.end_token(), &*run.shown), (Some(expected), "b"));
    }
    let mut run = Run::new(GenerateOptions { ignore_eos: true, ..options });
    run.step_with(OutputRequest::Logits, &[BOS]);
    assert!(run.text.finish().is_none() && run.tokens != [BOS]);
}

#[test]
fn only_listed_special_tokens_are_in_the_text() {
    for (visible_special, expected) in [(vec![BOS], "b<s>c"), (vec![EOS], "bc")] {
        let options = GenerateOptions { visible_special, ..greedy() };
        let mut run = Run::new(options.clone());
        run.step(&[id("b")]).step(&[BOS]);
        let text = run.out.tokens[0].text.clone();
        assert_eq!(&run.out.text[text], expected.trim_matches(['b', 'c']));
        run.step(&[id("c")]).step(&[EOS]);
        assert_eq!(run.shown, expected);
        let mut stopped = Run::new(GenerateOptions { stop: vec!["<s>".to_owned()], ..options });
        stopped.step(&[id("b")]).step(&[BOS]);
        let stops = expected.contains("<s>");
        assert_eq!(stopped.text.finish(), stops.then_some(Finish::StopString));
    }
}

#[test]
fn the_end_token_is_that_of_the_completion() {
    let mut session = Session::new(&load(), SessionOptions::default()).unwrap();
    let options = GenerateOptions { end_tokens: (0..64).collect(), ..greedy() };
    let on_event = &mut |_: Event<'_>| ControlFlow::Continue(());
    let done = block_on(session.generate(&[3, 4, 5], &options, on_event)).unwrap();
    assert!(done.tokens.is_empty() && done.finish == Finish::EndOfText);
    assert!(done.end_token.is_some());
}

#[cfg(feature = "grammar")]
mod lazy;
