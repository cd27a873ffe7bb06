//! Speculative decoding changes no text: n-grams and draft models, greedy and with draws.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;
use std::sync::Arc;

use pollster::block_on;
use stonechat_formats::ModelFile;
use stonechat_llm::{
    Completion, DraftLength, Drafter, Error, GenerateOptions, Model, ModelDrafter, NGramMod,
    NGramSimple, ReasoningBudget, Session, SessionOptions, StateOptions,
};
use stonechat_nn::{Cpu, Device, KvDType};
use stonechat_sampling::{GrammarSource, GrammarStart, SamplingOptions, Trigger};
use stonechat_testkit::{Adapted, exchanged_tokens};

/// Dense, MoE, sliding windows, soft cap (no top-k on the device), ALiBi.
const TARGETS: [&str; 6] = ["llama", "qwen2", "qwen3moe", "gemma3", "gemma2", "bloom"];

const PROMPT: [u32; 12] = [0, 43, 51, 3, 52, 31, 33, 41, 19, 62, 5, 19];

const N_DRAFT: usize = 5;

fn load(name: &str) -> Model {
    load_on(Cpu::new(1).unwrap().into(), name)
}

fn load_on(device: Device, name: &str) -> Model {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm");
    let file = ModelFile::open(format!("{folder}/{name}.gguf")).unwrap();
    Model::load(device, &file, |_| ()).unwrap()
}

fn session(model: &Model, drafter: Option<Drafter>) -> Session {
    let n_draft = if drafter.is_some() { N_DRAFT } else { 0 };
    let kv_dtype = KvDType::F32;
    let options =
        SessionOptions { n_ctx: Some(100), n_batch: 16, kv_dtype, n_sequences: 1, n_draft };
    let mut session = Session::new(model, options).unwrap();
    session.set_drafter(drafter);
    session
}

/// Sizes of the state of a draft model.
fn sizes() -> StateOptions {
    StateOptions { n_batch: 16, kv_dtype: KvDType::F32, ..StateOptions::new(100) }
}

fn plain(model: &Model) -> Session {
    session(model, None)
}

/// Greedy, seeded draws, and draws with penalties, each until the context is full; greedy with a budget of reasoning, and
/// with a grammar that starts after it.
fn options(target: &Model) -> Vec<GenerateOptions> {
    let greedy = GenerateOptions {
        n_predict: Some(100),
        sampling: SamplingOptions::greedy(),
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    let mut drawn = GenerateOptions { ignore_eos: false, n_probs: 2, ..greedy.clone() };
    (drawn.sampling.temperature, drawn.sampling.seed) = (0.7, Some(5));
    let mut penalized = drawn.clone();
    penalized.sampling.repeat_penalty = 1.2;
    (penalized.sampling.dry_multiplier, penalized.ignore_eos) = (0.5, true);
    let reasoning = Some(ReasoningBudget {
        start: vec!["a".to_owned()],
        end: vec!["er".to_owned()],
        closing: vec![42, 53],
        budget: Some(17),
        starts_open: true,
        ..ReasoningBudget::default()
    });
    let limited = GenerateOptions { reasoning, ..greedy.clone() };
    let mut all = vec![greedy, drawn, penalized, limited.clone()];
    if cfg!(feature = "grammar") {
        let source = GrammarSource::Gbnf("root ::= ([a-z0-9]{2,4} [ ,.!?])+".to_owned());
        let grammar = Some(Arc::new(target.compile_grammar(&source).unwrap()));
        let triggers = ["t", "i", "o", "s", " "].map(|text| Trigger::text(text).excluded());
        let grammar_start = GrammarStart::After(triggers.to_vec());
        all.push(GenerateOptions { grammar, grammar_start, ..limited });
    }
    all
}

fn generate(session: &mut Session, prompt: &[u32], options: &GenerateOptions) -> Completion {
    block_on(session.generate(prompt, options, &mut |_| ControlFlow::Continue(()))).unwrap()
}

/// Checks that texts with drafts equal those without; returns proposed and accepted tokens of the greedy ones.
fn check(target: &Model, drafter: impl Fn() -> Drafter) -> (usize, usize) {
    let name = target.config().architecture.name;
    let mut counts = (0, 0);
    let reversed: Vec<u32> = PROMPT.iter().rev().copied().collect();
    for options in options(target) {
        let mut session = session(target, Some(drafter()));
        // Each text starts with the cache, and n-grams, of those before it.
        for prompt in [&PROMPT[..], &reversed, &PROMPT] {
            let expected = generate(&mut plain(target), prompt, &options);
            let got = generate(&mut session, prompt, &options);
            assert_eq!((&got.tokens, &got.text), (&expected.tokens, &expected.text), "{name}");
            assert_eq!((&got.probs, got.finish), (&expected.probs, expected.finish), "{name}");
            assert!(got.drafts.accepted <= got.drafts.proposed);
            // A drafter does not know of a budget or a grammar.
            if options.sampling.temperature == 0.0 && options.reasoning.is_none() {
                counts.0 += got.drafts.proposed;
                counts.1 += got.drafts.accepted;
            }
            // Cached tokens: a prefix of the text, without rejected drafts.
            let text = [prompt, &expected.tokens].concat();
            assert_eq!(session.tokens(), &text[..session.tokens().len()], "{name}");
            assert_eq!(expected.drafts.proposed, 0);
        }
    }
    counts
}

#[test]
fn n_gram_drafts_change_no_text() {
    let length = DraftLength { max: N_DRAFT, min: 0 };
    let (mut proposed, mut accepted) = (0, 0);
    for name in TARGETS {
        let target = load(name);
        let simple = || Drafter::NGramSimple(NGramSimple { n: 2, length });
        let hashed = || Drafter::NGramMod(NGramMod::new(2, length));
        for counts in [check(&target, simple), check(&target, hashed)] {
            proposed += counts.0;
            accepted += counts.1;
        }
    }
    // Greedy texts of tiny models repeat themselves.
    assert!(0 < accepted && accepted < proposed, "{accepted} of {proposed}");
}

#[test]
fn drafts_of_a_model_change_no_text() {
    let length = DraftLength { max: 3, min: 0 };
    let drafter = |model: Model, target: &Model| {
        let drafter = ModelDrafter::new(model, target, length, sizes());
        Drafter::Model(Box::new(drafter.unwrap()))
    };
    for name in TARGETS {
        let target = load(name);
        // The target's own greedy continuation is always right; a model of random weights hardly ever is.
        // So on a device that runs ahead, which keeps the tokens of a draft.
        let ahead = Adapted::running_ahead(Cpu::new(1).unwrap(), &Arc::default());
        for device in [Cpu::new(1).unwrap().into(), ahead] {
            let own = || drafter(load_on(device.clone(), name), &target);
            let (proposed, accepted) = check(&target, own);
            assert!(proposed > 20 && accepted == proposed, "{name}: {accepted} of {proposed}");
        }
        let other = if name == "llama" { "qwen2" } else { "llama" };
        let (proposed, accepted) = check(&target, || drafter(load(other), &target));
        assert!(proposed > 20 && accepted < proposed, "{name}: {accepted} of {proposed}");
    }
}

#[test]
fn a_draft_model_of_another_vocabulary_is_refused() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
    let file = ModelFile::from_reader(exchanged_tokens(path.as_ref())).unwrap();
    let other = Model::load(Cpu::new(1).unwrap(), &file, |_| ()).unwrap();
    let length = DraftLength { max: 3, min: 0 };
    let error = ModelDrafter::new(other, &load("llama"), length, sizes()).unwrap_err();
    assert!(matches!(error, Error::Option { option: "draft model", .. }), "{error:?}");
}
