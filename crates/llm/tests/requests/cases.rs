//! Random requests.

use std::sync::{Arc, LazyLock};

use stonechat_llm::{GenerateOptions, ModelInfo, OnFull, ReasoningBudget, StateOptions};
use stonechat_nn::{KvDType, PAGE_LEN};
use stonechat_sampling::{
    CompiledGrammar, GrammarSource, GrammarStart, SamplerKind, SamplingOptions, Trigger,
};

use crate::engine::Random;
use crate::request::{Request, Start};
use crate::{PANELS, Sizes};

/// Requests, sizes of the engine, and the random numbers of its scheduler.
pub(crate) struct Case {
    pub(crate) requests: Vec<Request>,
    pub(crate) options: StateOptions,
    pub(crate) random: Random,
}

/// Grammars for the vocabulary that all golden models share.
static GRAMMARS: LazyLock<Vec<Arc<CompiledGrammar>>> = LazyLock::new(|| {
    if !cfg!(feature = "grammar") {
        return Vec::new();
    }
    let sources = [
        "root ::= [a-z ]+ \".\"",
        "root ::= (\"the\" | \"and\" | [0-9]) (\" \" root)?",
        "root ::= ([a-z]+ [ ,.!?])+ [0-9] [0-9] [0-9]",
    ];
    let model: &ModelInfo = &PANELS[0].0;
    let compile =
        |source: &str| model.compile_grammar(&GrammarSource::Gbnf(source.to_owned())).unwrap();
    sources.iter().map(|source| Arc::new(compile(source))).collect()
});

const VOCAB_SIZE: usize = 64;

impl Case {
    /// `n` requests.
    pub(crate) fn new(mut random: Random, n: usize, sizes: Sizes) -> Self {
        let n_ctx = random.pick(&[100, 130, 192, 250]);
        // Prompts with common beginnings.
        let openings: Vec<Vec<u32>> = (0..3).map(|_| tokens(&mut random, 0..n_ctx - 30)).collect();
        let mut requests: Vec<Request> = Vec::with_capacity(n);
        for index in 0..n {
            let is_fork = index > 0 && random.once_in(3);
            let (start, options) = if is_fork {
                let parent = random.below(index);
                let after = requests[parent].n_inherited() + random.pick(&[0, 0, 1, 2, 5, 9]);
                let seed = u64::from(random.next());
                let options = Arc::clone(&requests[parent].options);
                (Start::Fork { parent, after, seed }, options)
            } else {
                let mut prompt = random.pick(&openings);
                prompt.truncate(random.below(2 * prompt.len() + 1));
                prompt.extend(tokens(&mut random, 1..20));
                let options = match sizes {
                    Sizes::FewRows => options(&mut random),
                    Sizes::ManyRows => greedy(&mut random),
                };
                (Start::Prompt(prompt), Arc::new(options))
            };
            requests.push(Request {
                start,
                options,
                salt: (!random.once_in(4)).then(|| random.below(2) as u64),
                cancel_after: random.once_in(5).then(|| random.below(24)),
                n_draft: random.pick(&[0, 1, 6]),
            });
        }
        let n_sequences = 1 + random.below(6);
        let n_outputs = 1 + random.below(8);
        let pages = n_ctx.div_ceil(PAGE_LEN);
        let options = StateOptions {
            n_ctx,
            n_sequences,
            n_pages: Some(pages + random.below(pages * n_sequences)),
            n_batch: match sizes {
                Sizes::FewRows => random.within(n_outputs..17),
                Sizes::ManyRows => random.within(20..80),
            },
            n_outputs,
            n_hidden: 0,
            kv_dtype: match sizes {
                Sizes::FewRows => random.pick(&[KvDType::F16, KvDType::F32]),
                Sizes::ManyRows => KvDType::F32,
            },
        };
        Self { requests, options, random }
    }
}

fn tokens(random: &mut Random, len: std::ops::Range<usize>) -> Vec<u32> {
    // Without the end token.
    (0..random.within(len)).map(|_| random.within(2..VOCAB_SIZE) as u32).collect()
}

/// Greedy decoding with all log-probabilities.
fn greedy(random: &mut Random) -> GenerateOptions {
    GenerateOptions {
        n_predict: Some(random.within(1..50)),
        sampling: SamplingOptions::greedy(),
        n_probs: VOCAB_SIZE,
        ignore_eos: random.once_in(2),
        on_full: OnFull::Shift { keep: random.below(8) },
        ..GenerateOptions::default()
    }
}

fn options(random: &mut Random) -> GenerateOptions {
    let mut sampling = SamplingOptions {
        seed: Some(u64::from(random.next())),
        temperature: random.pick(&[0.0, 0.7, 1.5, 3.0]),
        top_k: random.pick(&[0, 5, 40]),
        top_p: random.pick(&[1.0, 0.9]),
        min_p: random.pick(&[0.0, 0.02]),
        ..SamplingOptions::default()
    };
    match random.below(10) {
        0 => {
            sampling.repeat_penalty = 1.3;
            (sampling.frequency_penalty, sampling.presence_penalty) = (0.4, 0.2);
            sampling.repeat_last_n = random.pick(&[5, 64]);
        }
        1 => (sampling.dry_multiplier, sampling.dry_allowed_length) = (0.8, 1),
        2 => sampling.mirostat = 1,
        3 => sampling.mirostat = 2,
        4 => (sampling.xtc_probability, sampling.xtc_threshold) = (0.5, 0.05),
        5 => (sampling.typical_p, sampling.tail_free_z) = (0.8, 0.95),
        6 => {
            sampling.order.push(SamplerKind::AdaptiveP);
            sampling.adaptive_target = 0.3;
        }
        7 => (sampling.dynatemp_range, sampling.top_n_sigma) = (0.5, 2.0),
        8 => {
            let mut bias = |token| (token, random.pick(&[f32::NEG_INFINITY, 2.0, -3.0]));
            sampling.logit_bias = vec![bias(5), bias(40)];
        }
        _ => {}
    }
    let stops = ["e", "th", "an", " a", "12"].map(str::to_owned);
    let grammar = (!GRAMMARS.is_empty() && random.once_in(3)).then(|| random.pick(&GRAMMARS));
    GenerateOptions {
        n_predict: Some(random.below(40)),
        sampling,
        // No token may satisfy both: a grammar does not know the token that is to be healed.
        heal: grammar.is_none() && random.once_in(4),
        grammar,
        grammar_start: grammar_start(random),
        reasoning: random.once_in(4).then(|| reasoning(random)),
        end_tokens: if random.once_in(4) { vec![33] } else { Vec::new() },
        visible_special: vec![0],
        stop: if random.once_in(4) {
            vec![random.pick(&stops), "xq".to_owned()]
        } else {
            Vec::new()
        },
        n_probs: random.pick(&[0, 0, 3]),
        post_sampling_probs: random.once_in(3),
        ignore_eos: random.once_in(2),
        show_special: random.once_in(2),
        on_full: random.pick(&[OnFull::Stop, OnFull::Shift { keep: 3 }]),
        ..GenerateOptions::default()
    }
}

fn grammar_start(random: &mut Random) -> GrammarStart {
    let triggers = vec![
        Trigger::text(random.pick(&["a", "t", "the", "er", "is"])),
        Trigger::text(random.pick(&["n", "o", " "])).excluded(),
        Trigger::token(random.pick(&[8, 12, 51])),
    ];
    match random.below(3) {
        0 => GrammarStart::Immediately,
        1 => GrammarStart::After(triggers),
        _ => GrammarStart::Required(triggers),
    }
}

fn reasoning(random: &mut Random) -> ReasoningBudget {
    let text = |texts: &[&str], random: &mut Random| vec![random.pick(texts).to_owned()];
    ReasoningBudget {
        start: text(&["a", "in", "t", "<s>"], random),
        end: text(&["e", "on", "s", "r"], random),
        closing: vec![random.within(2..VOCAB_SIZE) as u32, 8],
        budget: random.pick(&[None, Some(0), Some(1), Some(7)]),
        starts_open: random.once_in(2),
        ..ReasoningBudget::default()
    }
}
