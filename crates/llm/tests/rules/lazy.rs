//! Grammars that start later.

use stonechat_sampling::{GrammarSource, GrammarStart, Trigger};

use crate::*;

/// A grammar that starts as given.
fn ruled(source: &str, start: GrammarStart) -> GenerateOptions {
    let grammar = MODEL.compile_grammar(&GrammarSource::Gbnf(source.to_owned())).unwrap();
    GenerateOptions { grammar: Some(Arc::new(grammar)), grammar_start: start, ..greedy() }
}

fn after(text: &str) -> GrammarStart {
    GrammarStart::After(vec![Trigger::text(text)])
}

#[test]
fn the_text_is_free_and_needs_no_logits_before_the_trigger() {
    let mut run = Run::new(ruled("root ::= \"call\" [0-9] \"!\"", after("call")));
    for text in ["b", "c", "a", "l"] {
        assert_eq!(run.request(), OutputRequest::TopK(1));
        run.steps(&[text]);
    }
    run.steps(&["l"]);
    assert_eq!(run.request(), OutputRequest::Logits);
    assert!(!run.text.can_run_ahead(100));
    run.steps(&["7", "!"]);
    assert_eq!((&*run.shown, run.text.finish()), ("bcall7!", Some(Finish::GrammarEnd)));
    let mut free = Run::new(ruled("root ::= \"call\" [0-9]", after("call")));
    free.steps(&["b"]).step(&[EOS]);
    assert_eq!(free.text.finish(), Some(Finish::EndOfText));
}

#[test]
fn a_row_without_logits_is_not_used_after_the_trigger() {
    // As in a step that ran ahead with the most probable token.
    let mut run = Run::new(ruled("root ::= \"g\" [0-9] \"!\"", after("g")));
    run.steps(&["b"]);
    assert!(run.text.can_run_ahead(100));
    run.steps(&["g"]);
    run.step_with(OutputRequest::TopK(1), &[id("x")]);
    assert!(run.out.tokens.is_empty() && run.text.finish().is_none());
    assert_eq!((run.text.pending(), run.out.kv_len), (&*ids(&["g"]), 2));
    assert_eq!(run.request(), OutputRequest::Logits);
    run.steps(&["7", "!"]);
    assert_eq!(run.shown, "bg7!");
}

#[test]
fn a_draft_across_the_trigger_is_cut_where_logits_lack() {
    let mut run = Run::new(ruled("root ::= \"g\" [0-9] \"!\"", after("g")));
    run.steps(&["b"]);
    run.text.propose(&ids(&["c", "g", "7", "!"]));
    run.step(&ids(&["c", "g", "7", "!", "x"]));
    assert_eq!(run.shown, "bcg");
    assert_eq!((run.text.pending(), run.out.kv_len), (&*ids(&["g"]), 3));
    run.text.propose(&ids(&["7", "x"]));
    run.step(&ids(&["7", "!", "x"]));
    assert_eq!((&*run.shown, run.text.finish()), ("bcg7!", Some(Finish::GrammarEnd)));
}

#[test]
fn a_required_trigger_forbids_end_tokens() {
    let start = GrammarStart::Required(vec![Trigger::text("g").excluded()]);
    let options = GenerateOptions { end_tokens: vec![BOS], ..ruled("root ::= [0-9]", start) };
    let mut run = Run::new(options);
    assert_eq!(run.request(), OutputRequest::Logits);
    run.step(&[EOS]).step(&[BOS]);
    assert!(run.text.finish().is_none());
    assert!(!run.tokens.contains(&EOS) && !run.tokens.contains(&BOS));
    run.steps(&["g", "7"]);
    assert!(run.shown.ends_with("g7") && run.text.finish() == Some(Finish::GrammarEnd));
}

#[test]
fn a_trigger_in_reasoning_starts_nothing() {
    let options = GenerateOptions {
        reasoning: Some(ReasoningBudget { starts_open: true, ..reasoning(100) }),
        ..ruled("root ::= \"go\" [0-9]", after("go"))
    };
    let mut run = Run::new(options.clone());
    // The text before reasoning and that after it do not make a trigger together.
    run.steps(&["g", "o", "x", "g", "er", "o", "z", "er", "x", "g"]);
    assert_eq!(run.request(), OutputRequest::TopK(1));
    run.steps(&["o"]);
    assert_eq!(run.request(), OutputRequest::Logits);
    run.steps(&["7"]);
    assert_eq!(run.shown, "goxgerozerxgo7");
    // The end of reasoning starts it when it is the trigger.
    let trigger = GrammarStart::After(vec![Trigger::text("er").excluded()]);
    let mut run = Run::new(ruled("root ::= [0-9]", trigger));
    run.steps(&["b", "e", "r", "7"]);
    assert_eq!((&*run.shown, run.text.finish()), ("ber7", Some(Finish::GrammarEnd)));
}

#[test]
fn a_grammar_from_the_start_does_not_see_reasoning() {
    let digits = || ruled("root ::= [0-9] [0-9] \"z\"", GrammarStart::Immediately);
    for (starts_open, first) in [(true, None), (false, Some("z"))] {
        let budget = ReasoningBudget { starts_open, ..reasoning(2) };
        let mut run = Run::new(GenerateOptions { reasoning: Some(budget), ..digits() });
        if let Some(first) = first {
            run.steps(&[first]);
        }
        // Two tokens of reasoning, its forced end, and the text.
        run.steps(&["b", "b", "b", "b", "7", "7", "z"]);
        let expected = format!("{}bb!er77z", first.unwrap_or_default());
        assert_eq!((&*run.shown, run.text.finish()), (&*expected, Some(Finish::GrammarEnd)));
    }
    // Without reasoning, the grammar rules the first token.
    let budget = reasoning(2);
    let mut run = Run::new(GenerateOptions { reasoning: Some(budget), ..digits() });
    run.steps(&["b", "7", "z"]);
    assert!(run.shown.ends_with("7z") && run.shown.len() == 3, "{}", run.shown);
}

#[test]
fn wrong_triggers_are_refused() {
    let options = ruled("root ::= [0-9]", GrammarStart::After(Vec::new()));
    let error = Generation::new(&MODEL, vec![3], options).unwrap_err().to_string();
    assert_eq!(error, "triggers: expected 1 to 128, got 0");
}
