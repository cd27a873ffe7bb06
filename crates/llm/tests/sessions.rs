//! Sessions over a tiny model: cached prefix, ends of texts, prompt cache, beams, guidance, grammar, perplexity.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pollster::block_on;
use stonechat_formats::ModelFile;
use stonechat_llm::{
    BeamOptions, Completion, Devices, Error, Event, Finish, GenerateOptions, Guidance, Model,
    OnFull, PerplexityOptions, Session, SessionOptions, perplexity,
};
use stonechat_nn::{Cpu, KvDType};
use stonechat_sampling::{GrammarSource, SamplingOptions};
use stonechat_testkit::Adapted;

const PROMPT: [u32; 12] = [0, 43, 51, 3, 52, 31, 33, 41, 19, 62, 5, 19];

fn model() -> Model {
    load(Cpu::new(1).unwrap())
}

/// The same model as a pipeline of two stages.
fn split_model() -> Model {
    load(Devices::from(Cpu::new(1).unwrap()).split(1, Cpu::new(1).unwrap()))
}

fn load(devices: impl Into<Devices>) -> Model {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
    let file = ModelFile::open(path).unwrap();
    Model::load(devices, &file, |_| ()).unwrap()
}

fn options(n_ctx: usize, n_sequences: usize) -> SessionOptions {
    let kv_dtype = KvDType::F32;
    SessionOptions { n_ctx: Some(n_ctx), n_batch: 5, kv_dtype, n_sequences, n_draft: 0 }
}

fn greedy(n_predict: usize) -> GenerateOptions {
    GenerateOptions {
        n_predict: Some(n_predict),
        sampling: SamplingOptions::greedy(),
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

fn generate(session: &mut Session, prompt: &[u32], o: &GenerateOptions) -> Completion {
    block_on(session.generate(prompt, o, &mut |_| ControlFlow::Continue(()))).unwrap()
}

#[test]
fn the_cached_prefix_is_not_run_again_and_changes_nothing() {
    let model = model();
    let mut session = Session::new(&model, options(128, 1)).unwrap();
    let first = generate(&mut session, &PROMPT, &greedy(8));
    assert_eq!((first.cached_tokens, first.tokens.len()), (0, 8));
    assert_eq!(first.finish, Finish::Length);

    let longer = [&PROMPT[..], &first.tokens[..4]].concat();
    let second = generate(&mut session, &longer, &greedy(4));
    assert_eq!(second.cached_tokens, longer.len() - 1);
    assert_eq!(second.tokens, first.tokens[4..]);

    let other = [&PROMPT[..6], &[7, 8, 9]].concat();
    let third = generate(&mut session, &other, &greedy(4));
    assert_eq!(third.cached_tokens, 6);
    let mut fresh = Session::new(&model, options(128, 1)).unwrap();
    assert_eq!(generate(&mut fresh, &other, &greedy(4)).tokens, third.tokens);
}

#[test]
fn draws_repeat_with_their_seed() {
    let model = model();
    let mut session = Session::new(&model, options(128, 1)).unwrap();
    let mut drawn = GenerateOptions { n_predict: Some(20), ..GenerateOptions::default() };
    drawn.sampling.temperature = 2.0;
    let first = generate(&mut session, &PROMPT, &drawn);
    drawn.sampling.seed = Some(first.seed);
    assert_eq!(generate(&mut session, &PROMPT, &drawn).tokens, first.tokens);
}

#[test]
fn the_top_k_logits_give_the_tokens_that_all_logits_give() {
    let model = model();
    let mut session = Session::new(&model, options(128, 1)).unwrap();
    for temperature in [0.0, 0.8, 3.0] {
        for ignore_eos in [false, true] {
            let mut few = GenerateOptions { ignore_eos, ..greedy(20) };
            (few.sampling.temperature, few.sampling.seed) = (temperature, Some(3));
            // Probabilities are those of all logits.
            let all = GenerateOptions { n_probs: 1, ..few.clone() };
            let all = generate(&mut session, &PROMPT, &all);
            assert_eq!(generate(&mut session, &PROMPT, &few).tokens, all.tokens);
        }
    }
}

#[test]
fn a_break_ends_the_text_and_leaves_the_session_usable() {
    let model = model();
    let mut session = Session::new(&model, options(128, 1)).unwrap();
    let whole = generate(&mut session, &PROMPT, &greedy(10));
    session.clear();
    let mut pieces = 0;
    let cut = block_on(session.generate(&PROMPT, &greedy(10), &mut |event| {
        pieces += usize::from(matches!(event, Event::Text(_)));
        if pieces == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }))
    .unwrap();
    assert_eq!(cut.finish, Finish::Cancelled);
    assert!(cut.tokens.len() < 10 && whole.tokens.starts_with(&cut.tokens), "{cut:?}");
    assert_eq!(generate(&mut session, &PROMPT, &greedy(10)).tokens, whole.tokens);

    // A request that is cancelled before it begins leaves the cached tokens of the one before.
    let cached = session.tokens().to_vec();
    let other: Vec<u32> = PROMPT.iter().rev().copied().collect();
    let before =
        block_on(session.generate(&other, &greedy(10), &mut |_| ControlFlow::Break(()))).unwrap();
    assert_eq!((before.finish, session.tokens()), (Finish::Cancelled, &cached[..]));

    session.clear();
    let during_prompt =
        block_on(session.generate(&PROMPT, &greedy(10), &mut |_| ControlFlow::Break(()))).unwrap();
    assert_eq!((during_prompt.finish, during_prompt.tokens.len()), (Finish::Cancelled, 0));
}

#[test]
fn steps_in_flight_change_no_text() {
    let max_in_flight = Arc::default();
    let ahead = load(Adapted::running_ahead(Cpu::new(1).unwrap(), &max_in_flight));
    let mut session = Session::new(&ahead, options(60, 1)).unwrap();
    let tiny = model();
    let reversed: Vec<u32> = PROMPT.iter().rev().copied().collect();
    let text =
        generate(&mut Session::new(&tiny, options(60, 1)).unwrap(), &PROMPT, &whole(40)).text;
    let stop = vec![text[text.len() / 2..].chars().take(3).collect()];
    let stopped = GenerateOptions { stop, ..whole(40) };
    let probable = GenerateOptions { n_probs: 3, ..whole(9) };
    let drawn = GenerateOptions {
        sampling: SamplingOptions { temperature: 2.0, seed: Some(3), ..SamplingOptions::greedy() },
        ..whole(9)
    };
    // Limits of the text and of the context, a stop string, log-probabilities, draws; each after the cache of the one before.
    for options in [whole(1), whole(2), whole(40), whole(100), stopped, probable, drawn, whole(7)] {
        for prompt in [&PROMPT[..], &reversed, &PROMPT] {
            let mut plain = Session::new(&tiny, self::options(60, 1)).unwrap();
            let expected = generate(&mut plain, prompt, &options);
            let got = generate(&mut session, prompt, &options);
            assert_eq!((got.tokens, got.text), (expected.tokens, expected.text), "{options:?}");
            assert_eq!((got.probs, got.finish), (expected.probs, expected.finish), "{options:?}");
            assert_eq!(session.tokens(), plain.tokens(), "{options:?}");
        }
    }
    // The current one and the next one.
    assert_eq!(max_in_flight.load(Ordering::Relaxed), 2);
    // A caller that cancels leaves a step in flight.
    let mut n_events = 0;
    let cancelled = block_on(session.generate(&PROMPT, &whole(40), &mut |_| {
        n_events += 1;
        if n_events == 9 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }));
    assert_eq!(cancelled.unwrap().finish, Finish::Cancelled);
    let mut plain = Session::new(&tiny, options(60, 1)).unwrap();
    let expected = generate(&mut plain, &PROMPT, &whole(40));
    assert_eq!(generate(&mut session, &PROMPT, &whole(40)).tokens, expected.tokens);
}

/// Greedy options whose text may end with an end token.
fn whole(n_predict: usize) -> GenerateOptions {
    GenerateOptions { ignore_eos: false, ..greedy(n_predict) }
}

#[test]
fn stop_strings_are_cut_out() {
    let model = model();
    let mut session = Session::new(&model, options(128, 1)).unwrap();
    let whole = generate(&mut session, &PROMPT, &greedy(16));
    let middle = whole.text.char_indices().nth(whole.text.chars().count() / 2).unwrap().0;
    let stop: String = whole.text[middle..].chars().take(2).collect();
    let with_stop = GenerateOptions { stop: vec![stop.clone()], ..greedy(16) };
    let mut shown = String::new();
    let cut = block_on(session.generate(&PROMPT, &with_stop, &mut |event| {
        if let Event::Text(text) = event {
            shown += text;
        }
        ControlFlow::Continue(())
    }))
    .unwrap();
    assert_eq!(cut.finish, Finish::StopString);
    assert_eq!(cut.text, whole.text[..whole.text.find(&stop).unwrap()]);
    assert_eq!(shown, cut.text);
}

#[test]
fn a_full_context_ends_the_text_or_shifts() {
    let model = model();
    let mut session = Session::new(&model, options(20, 1)).unwrap();
    let stopped = generate(&mut session, &PROMPT, &greedy(64));
    assert_eq!(stopped.finish, Finish::ContextFull);
    assert_eq!(stopped.tokens.len(), 20 - PROMPT.len() + 1);

    session.clear();
    let shifting = GenerateOptions { on_full: OnFull::Shift { keep: 2 }, ..greedy(64) };
    let shifted = generate(&mut session, &PROMPT, &shifting);
    assert_eq!((shifted.finish, shifted.tokens.len()), (Finish::Length, 64));
    assert_eq!(shifted.tokens[..stopped.tokens.len()], stopped.tokens);
    assert_eq!(session.tokens()[..2], PROMPT[..2]);
    // The cache after a shift equals that of a fresh session with the same tokens.
    let held = session.tokens().to_vec();
    let next = generate(&mut session, &held, &greedy(1)).tokens;
    let mut fresh = Session::new(&model, options(20, 1)).unwrap();
    assert_eq!(generate(&mut fresh, &held, &greedy(1)).tokens, next);

    let error =
        block_on(session.generate(&[1; 21], &greedy(1), &mut |_| ControlFlow::Continue(())));
    assert!(matches!(error, Err(Error::ContextFull { tokens: 21, n_ctx: 20 })), "{error:?}");
}

#[test]
fn a_saved_text_goes_on_as_if_never_left() {
    let model = model();
    let path = std::env::temp_dir().join(format!("stonechat-prompt-{}", std::process::id()));
    for kv_dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
        let sizes = SessionOptions { kv_dtype, ..options(200, 1) };
        let mut session = Session::new(&model, sizes).unwrap();
        let prompt: Vec<u32> = (0..90).map(|i| i * 7 % 64).collect();
        let expected = generate(&mut session, &prompt, &greedy(12)).tokens;
        block_on(session.save(&path)).unwrap();
        let held = session.tokens().to_vec();

        let mut other = Session::new(&model, sizes).unwrap();
        assert_eq!(block_on(other.restore(&path)).unwrap(), held.len());
        assert_eq!(other.tokens(), held);
        let again = generate(&mut other, &prompt, &greedy(12));
        assert_eq!((again.cached_tokens, again.tokens), (prompt.len() - 1, expected));
    }
    let bytes = std::fs::read(&path).unwrap();
    let sizes = SessionOptions { kv_dtype: KvDType::Q8_0, ..options(200, 1) };
    check_refused(&mut Session::new(&model, sizes).unwrap(), &path, &bytes);
    check_refused(&mut Session::new(&split_model(), sizes).unwrap(), &path, &bytes);
}

fn check_refused(session: &mut Session, path: &Path, bytes: &[u8]) {
    for len in [0, 7, 8, 31, 32, 40, bytes.len() / 2, bytes.len() - 1] {
        assert_refused(session, path, &bytes[..len]);
    }
    for at in [0, 8, 16, 24, 31] {
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 0x80;
        assert_refused(session, path, &flipped);
    }
    std::fs::remove_file(path).unwrap();
    assert!(block_on(session.restore(path)).is_err());
}

fn assert_refused(session: &mut Session, path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    assert!(block_on(session.restore(path)).is_err(), "{} bytes", bytes.len());
    session.clear();
    assert_eq!(generate(session, &PROMPT, &greedy(2)).tokens.len(), 2);
}

#[test]
fn a_split_session_is_the_same_session() {
    let (whole, split) = (model(), split_model());
    let path = std::env::temp_dir().join(format!("stonechat-split-{}", std::process::id()));
    for kv_dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
        let sizes = SessionOptions { kv_dtype, ..options(100, 10) };
        let mut a = Session::new(&whole, sizes).unwrap();
        let mut b = Session::new(&split, sizes).unwrap();
        let shifting = GenerateOptions { on_full: OnFull::Shift { keep: 2 }, ..greedy(150) };
        let expected = generate(&mut a, &PROMPT, &shifting);
        assert_eq!(generate(&mut b, &PROMPT, &shifting).tokens, expected.tokens);
        assert_eq!(a.tokens(), b.tokens());

        let prefix = [&PROMPT[..6], &[7, 8, 9]].concat();
        let guidance = Some(Guidance { negative: vec![0, 9, 8], scale: 2.0 });
        let guided = GenerateOptions { guidance, ..greedy(30) };
        let expected = generate(&mut a, &prefix, &guided);
        let got = generate(&mut b, &prefix, &guided);
        assert_eq!((got.tokens, got.cached_tokens), (expected.tokens, expected.cached_tokens));

        // Each restores the file of the other.
        block_on(a.save(&path)).unwrap();
        let saved = std::fs::read(&path).unwrap();
        b.clear();
        assert_eq!(block_on(b.restore(&path)).unwrap(), a.tokens().len());
        block_on(b.save(&path)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), saved);
        a.clear();
        assert_eq!(block_on(a.restore(&path)).unwrap(), b.tokens().len());
        let longer = [a.tokens(), &[3, 4]].concat();
        let expected = generate(&mut a, &longer, &greedy(10));
        let got = generate(&mut b, &longer, &greedy(10));
        assert_eq!((got.tokens, got.cached_tokens), (expected.tokens, longer.len() - 2));

        let search = BeamOptions { width: 3, n_predict: 10, length_penalty: 1.0 };
        let expected = block_on(a.beam_search(&PROMPT, &search)).unwrap();
        assert_eq!(block_on(b.beam_search(&PROMPT, &search)).unwrap(), expected);
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn one_beam_is_greedy_and_more_find_no_worse_texts() {
    let model = model();
    let mut session = Session::new(&model, options(128, 10)).unwrap();
    let greedy = GenerateOptions { n_probs: 1, ignore_eos: false, ..greedy(10) };
    let alone = generate(&mut session, &PROMPT, &greedy);
    let mut last = f32::NEG_INFINITY;
    for width in [1, 2, 5] {
        let search = BeamOptions { width, n_predict: 10, length_penalty: 0.0 };
        let beams = block_on(session.beam_search(&PROMPT, &search)).unwrap();
        assert_eq!(beams.len(), width);
        if width == 1 {
            assert_eq!(beams[0].tokens, alone.tokens);
            let sum: f32 = alone.probs.iter().map(|p| p.logprob).sum();
            assert!((beams[0].score - sum).abs() < 1e-3, "{} {sum}", beams[0].score);
        }
        assert!(beams.is_sorted_by(|a, b| a.score >= b.score));
        assert!(beams[0].score >= last - 1e-4, "width {width}: {} {last}", beams[0].score);
        last = beams[0].score;
        // A beam's score equals that of its text alone.
        for beam in &beams {
            let end = model.tokenizer().ends_of_generation().next().filter(|_| beam.ended);
            let tokens: Vec<u32> = beam.tokens.iter().copied().chain(end).collect();
            let score = logprob(&model, &tokens);
            assert!((beam.score - score).abs() < 1e-3, "{} {score}", beam.score);
        }
    }
    for (width, n_predict, expected) in [
        (6, 1, "beams"),
        (0, 1, "beams"),
        (usize::MAX, 1, "beams"),
        // Twice this width is 0 in the arithmetic of a release build.
        (usize::MAX / 2 + 1, 1, "beams"),
        (2, 0, "n-predict"),
    ] {
        let search = BeamOptions { width, n_predict, length_penalty: 0.0 };
        let result = block_on(session.beam_search(&PROMPT, &search));
        let Err(Error::Option { option, .. }) = result else { panic!("{search:?}: {result:?}") };
        assert_eq!(option, expected);
    }
}

/// Log-probability of `tokens` after the prompt, token by token in a session of its own.
fn logprob(model: &Model, tokens: &[u32]) -> f32 {
    let mut session = Session::new(model, options(128, 1)).unwrap();
    let mut text = PROMPT.to_vec();
    let all = GenerateOptions { n_probs: 64, ..greedy(1) };
    let mut sum = 0.0;
    for &token in tokens {
        let step = generate(&mut session, &text, &all);
        sum += step.probs[0].top.iter().find(|p| p.token == token).unwrap().logprob;
        text.push(token);
    }
    sum
}

#[test]
fn guidance_of_scale_one_changes_nothing_and_more_does() {
    let model = model();
    let mut session = Session::new(&model, options(128, 2)).unwrap();
    let plain = generate(&mut session, &PROMPT, &greedy(12));
    let guided = |scale| {
        let guidance = Some(Guidance { negative: vec![0, 9, 8, 7], scale });
        GenerateOptions { guidance, ..greedy(12) }
    };
    assert_eq!(generate(&mut session, &PROMPT, &guided(1.0)).tokens, plain.tokens);
    let strong = generate(&mut session, &PROMPT, &guided(4.0));
    assert_ne!(strong.tokens, plain.tokens);
    let mut single = Session::new(&model, options(128, 1)).unwrap();
    let error =
        block_on(single.generate(&PROMPT, &guided(2.0), &mut |_| ControlFlow::Continue(())));
    assert!(matches!(error, Err(Error::Option { option: "guidance", .. })), "{error:?}");
}

#[cfg(feature = "grammar")]
#[test]
fn a_grammar_rules_the_text() {
    let model = model();
    let mut session = Session::new(&model, options(128, 1)).unwrap();
    let all = model.tokenizer().decode(&(0..64).collect::<Vec<_>>());
    let letter = all.chars().find(char::is_ascii_alphanumeric).unwrap();
    let source = GrammarSource::Gbnf(format!("root ::= \"{letter}\" \"{letter}\" \"{letter}\""));
    let grammar = model.compile_grammar(&source).unwrap();
    let mut ruled = GenerateOptions { grammar: Some(grammar.into()), ..greedy(20) };
    ruled.ignore_eos = false;
    let text = generate(&mut session, &PROMPT, &ruled);
    assert_eq!(text.text, letter.to_string().repeat(3));
    assert!(matches!(text.finish, Finish::GrammarEnd | Finish::EndOfText), "{:?}", text.finish);
    // The compiled grammar starts anew with each text.
    assert_eq!(generate(&mut session, &PROMPT, &ruled).text, text.text);
    assert!(model.compile_grammar(&GrammarSource::Gbnf("root ::= (".to_owned())).is_err());
}

#[test]
fn perplexity_is_that_of_the_tokens_one_by_one() {
    let model = model();
    let tokens: Vec<u32> = (0..64).map(|i| (i * 29 + i / 7) % 60).collect();
    let text = model.tokenizer().decode(&tokens);
    let tokens = model.tokenizer().tokenize(&text, true, false);
    let measure = PerplexityOptions { n_ctx: 16, n_batch: 5, kv_dtype: KvDType::F32 };
    let mut reports = 0;
    let got = block_on(perplexity(&model, &text, &measure, &mut |_| reports += 1)).unwrap();
    let (mut sum, mut n) = (0.0, 0);
    let mut session = Session::new(&model, options(64, 1)).unwrap();
    let all = GenerateOptions { n_probs: 64, ..greedy(1) };
    for window in tokens.chunks_exact(16) {
        let mut input = window.to_vec();
        if model.tokenizer().adds_bos() {
            input[0] = model.tokenizer().bos().unwrap();
        }
        for pos in 8..15 {
            let step = generate(&mut session, &input[..=pos], &all);
            sum -= step.probs[0].top.iter().find(|p| p.token == window[pos + 1]).unwrap().logprob;
            n += 1;
        }
    }
    assert_eq!((got.n_tokens, got.n_windows, reports), (n, tokens.len() / 16, tokens.len() / 16));
    let expected = f64::from(sum / n as f32).exp();
    assert!((got.value / expected - 1.0).abs() < 1e-4, "{} {expected}", got.value);
    assert!(block_on(perplexity(&model, "", &measure, &mut |_| ())).is_err());
}

#[test]
fn empty_prompts_and_unknown_tokens_have_errors_of_their_own() {
    let model = model();
    let mut session = Session::new(&model, options(128, 1)).unwrap();
    let mut error_of = |prompt: &[u32]| {
        let go = &mut |_: Event<'_>| ControlFlow::Continue(());
        block_on(session.generate(prompt, &greedy(1), go)).unwrap_err()
    };
    assert!(matches!(error_of(&[]), Error::EmptyPrompt));
    let n = model.config().vocab_size;
    let error = error_of(&[n as u32]);
    assert!(
        matches!(error, Error::UnknownToken { vocab_size, .. } if vocab_size == n),
        "{error:?}"
    );
}
