//! Requests that join, fork, share steps, are preempted, cancelled and end at random give what each gives alone.
//!
//! ```text
//! request.rs   a request, and its text alone
//! engine.rs    an engine with a random scheduler: few slots, few pages, a prefix cache, drafts, dropped plans
//! scheduled.rs  the same requests, and embeddings, in the library's scheduler
//! cases.rs     random requests
//! ```
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod engine;
mod request;
mod scheduled;

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use proptest::prelude::{ProptestConfig, TestCaseError, any};
use proptest::test_runner::TestRunner;
use stonechat_formats::{DType, ModelFile};
use stonechat_llm::{Devices, Finish, GenerateOptions, Model, quantize};
use stonechat_nn::Cpu;
use stonechat_sampling::{GrammarStart, SamplingOptions};
use stonechat_testkit::{Adapted, runs_all};

use cases::Case;
use engine::{Engine, Events, Outcome, Random};
use request::{Alone, Request, Start, Text};
use scheduled::Happened;

/// Most steps in flight of a device that runs ahead.
static IN_FLIGHT: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Models whose matrices have panels in q8_0, one with experts: on one device, on one that runs ahead, on two.
static PANELS: LazyLock<Vec<(Model, bool)>> = LazyLock::new(|| {
    let models = ["llama", "qwen2", "qwen3moe"].map(|name| {
        let path =
            std::env::temp_dir().join(format!("stonechat-{name}-{}.gguf", std::process::id()));
        quantize(&golden(name), &path, DType::Q8_0, |_| ()).unwrap();
        let file = ModelFile::from_reader(std::fs::read(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        [
            (load(cpu(), &file), false),
            (load(Adapted::running_ahead(cpu(), &IN_FLIGHT), &file), false),
            (load(Devices::from(cpu()).split(1, cpu()), &file), true),
        ]
    });
    models.into_iter().flatten().collect()
});

/// Models with f16 weights: sliding windows, ALiBi, experts.
static DENSE: LazyLock<Vec<(Model, bool)>> = LazyLock::new(|| {
    ["llama", "gemma3", "bloom", "qwen3moe"]
        .map(|name| (load(cpu(), &golden(name)), false))
        .into_iter()
        .collect()
});

/// Rows of a step: kernels of panels and of dense weights change above 16.
#[derive(Debug, Clone, Copy)]
enum Sizes {
    FewRows,
    ManyRows,
}

fn golden(name: &str) -> ModelFile {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm");
    ModelFile::open(format!("{folder}/{name}.gguf")).unwrap()
}

fn cpu() -> Cpu {
    Cpu::new(1).unwrap()
}

fn load(devices: impl Into<Devices>, file: &ModelFile) -> Model {
    Model::load(devices, file, |_| ()).unwrap()
}

/// Runs the requests of a case alone and in an engine.
fn run(case: Case, model: &(Model, bool)) -> Result<(Vec<Option<Text>>, Outcomes), String> {
    let Case { requests, options, random } = case;
    let mut alone = Alone::new(&model.0, options);
    let drafts: Vec<_> = (0..requests.len()).map(|i| alone.text(&requests, i, None)).collect();
    let mut engine = Engine::new((&model.0, model.1), options, (&requests, &drafts), random);
    let (outcomes, events) = (engine.run()?, engine.events);
    // A cancelled request gives what it gives alone if it is cancelled there.
    let expected = (0..requests.len()).map(|i| match &outcomes[i] {
        Some((Text { finish: Some(Finish::Cancelled), .. }, n)) => {
            alone.text(&requests, i, Some(*n))
        }
        _ => drafts[i].clone(),
    });
    let expected = expected.collect();
    Ok((expected, Outcomes { requests, outcomes, events }))
}

/// Results of an engine.
struct Outcomes {
    requests: Vec<Request>,
    outcomes: Vec<Outcome>,
    events: Events,
}

impl Outcomes {
    /// Checks that a request that never started is a fork whose parent ended before it.
    fn check_never_started(&self, index: usize) -> Result<(), String> {
        let Start::Fork { parent, after, .. } = self.requests[index].start else {
            return Err(format!("request {index} never started"));
        };
        match &self.outcomes[parent] {
            Some((_, n)) if *n > after => Err(format!("fork {index} of {parent} never started")),
            _ => Ok(()),
        }
    }
}

/// Compares every text, piece, probability and reason of the end to the bit.
fn check_equal(seed: u64, n: usize) -> Result<Events, String> {
    let mut random = Random::new(seed);
    let model = random.pick(&PANELS);
    let (expected, got) = run(Case::new(random, n, Sizes::FewRows), &model)?;
    for (index, (expected, outcome)) in expected.iter().zip(&got.outcomes).enumerate() {
        match (expected, outcome) {
            (Some(expected), Some((text, _))) if text == expected => {}
            (_, None) => got.check_never_started(index)?,
            (expected, Some((text, _))) => {
                let request = &got.requests[index];
                return Err(format!(
                    "request {index} {request:?}\ngives {text:?}\nalone {expected:?}"
                ));
            }
        }
    }
    Ok(got.events)
}

/// Limit of a difference of logits, relative to the largest: that of the golden models on the CPU.
const LIMIT: f32 = 1e-4;

/// Compares greedy texts of dense models, whose kernels depend on the number of rows, until the first near-tie. Returns a
/// description of each near-tie.
fn check_near(seed: u64, n: usize) -> Result<(Events, Vec<String>), String> {
    let mut random = Random::new(seed);
    let model = random.pick(&DENSE);
    let (expected, got) = run(Case::new(random, n, Sizes::ManyRows), &model)?;
    let (mut ties, mut diverged) = (Vec::new(), vec![false; n]);
    for index in 0..n {
        if let Start::Fork { parent, .. } = got.requests[index].start
            && diverged[parent]
        {
            diverged[index] = true;
            continue;
        }
        let (Some(expected), Some((text, _))) = (&expected[index], &got.outcomes[index]) else {
            got.check_never_started(index)?;
            continue;
        };
        for (at, (a, b)) in expected.probs.iter().zip(&text.probs).enumerate() {
            let (Some(a), Some(b)) = (a, b) else { return Err("no probabilities".to_owned()) };
            let scale = a.top.iter().fold(0.0f32, |max, entry| max.max(entry.logit.abs()));
            let logit = |token| a.top.iter().find(|entry| entry.token == token).unwrap().logit;
            for entry in &b.top {
                let difference = (entry.logit - logit(entry.token)).abs() / scale;
                if difference.is_nan() || difference > LIMIT {
                    let message = format!("request {index}, token {at}: logits differ");
                    return Err(format!("{message} by {difference:.1e} of {scale}"));
                }
            }
            if a.token != b.token {
                let gap = (logit(a.token) - logit(b.token)) / scale;
                if gap > 2.0 * LIMIT {
                    return Err(format!("request {index}, token {at}: gap of {gap:.1e}"));
                }
                diverged[index] = true;
                ties.push(format!("request {index}, token {at}: near-tie of {gap:.1e}"));
                break;
            }
        }
        if !diverged[index] && (text.tokens != expected.tokens || text.finish != expected.finish) {
            return Err(format!("request {index} gives {text:?}\nalone {expected:?}"));
        }
    }
    Ok((got.events, ties))
}

/// Runs `check` on random numbers of requests, `cases` times and until each event has happened: some are rare.
fn run_cases(cases: u32, check: impl Fn(u64, usize) -> Result<Events, String>) {
    let cases = if runs_all() { 40 * cases } else { cases };
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let total = RefCell::new(Events::default());
    for _ in 0..MAX_ROUNDS {
        let result =
            TestRunner::new(config.clone()).run(&(any::<u64>(), 1..=32usize), |(seed, n)| {
                let events = check(seed, n).map_err(TestCaseError::fail)?;
                total.borrow_mut().add(&events);
                Ok(())
            });
        if let Err(error) = result {
            panic!("seed, number of requests: {error}");
        }
        if total.borrow().are_all() {
            return;
        }
    }
    panic!("{:?}", total.into_inner());
}

/// Most times that [`run_cases`] runs its cases.
const MAX_ROUNDS: usize = 10;

#[test]
fn requests_that_share_steps_equal_each_alone() {
    run_cases(48, check_equal);
}

#[test]
fn greedy_requests_of_dense_models_differ_by_near_ties_only() {
    run_cases(32, |seed, n| {
        let (events, ties) = check_near(seed, n)?;
        for tie in ties {
            println!("seed {seed}: {tie}");
        }
        Ok(events)
    });
}

/// Runs the requests of a case in a scheduler, and compares every text and embedding with that of the request alone.
fn check_scheduled(seed: u64, n: usize, happened: &Mutex<Happened>) -> Result<(), String> {
    let mut random = Random::new(seed);
    let (model, _) = random.pick(&PANELS);
    let Case { mut requests, options, mut random } = Case::new(random, n, Sizes::FewRows);
    // Few greedy texts without drafts, for which steps run ahead.
    let async_scheduling = n < 4;
    for request in requests.iter_mut().filter(|_| async_scheduling) {
        let sampling = SamplingOptions { seed: Some(1), ..SamplingOptions::greedy() };
        let own = GenerateOptions::clone(&request.options);
        // A grammar may start with a token that ran ahead.
        let starts_later = matches!(own.grammar_start, GrammarStart::After(_));
        let grammar = own.grammar.clone().filter(|_| starts_later);
        let own = GenerateOptions { sampling, grammar, heal: false, ignore_eos: false, ..own };
        request.options = Arc::new(own);
    }
    let source = (&mut random, !async_scheduling);
    let results = scheduled::run(&model, options, &requests, source, happened)?;
    let mut alone = Alone::new(&model, options);
    for (index, (request, results)) in requests.iter().zip(results).enumerate() {
        let n_choices = scheduled::n_choices(request, index, options.n_sequences);
        for choice in 0..n_choices {
            let text = results.texts.get(&choice).ok_or(format!("no text {choice} of {index}"))?;
            let mut own = GenerateOptions::clone(&request.options);
            own.sampling.seed = own.sampling.seed.map(|seed| seed.wrapping_add(choice as u64));
            let start = match &request.start {
                Start::Prompt(prompt) => Start::Prompt(prompt.clone()),
                Start::Fork { .. } => continue,
            };
            let own = [Request { start, options: Arc::new(own), ..*request }];
            let is_cancelled = text.finish == Some(Finish::Cancelled);
            let cancel_at = is_cancelled.then_some(text.tokens.len());
            let expected = alone.text(&own, 0, cancel_at);
            if expected.as_ref() != Some(text) {
                return Err(format!(
                    "text {choice} of request {index} {request:?}\nis {text:?}\nalone {expected:?}"
                ));
            }
        }
        if let Some(tokens) = scheduled::embedded(request, index)
            && results.embedding != scheduled::embed(&model, options, tokens)
        {
            return Err(format!("the embedding of request {index} differs"));
        }
    }
    Ok(())
}

#[test]
fn scheduled_requests_equal_each_alone() {
    let cases = if runs_all() { 2000 } else { 48 };
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let happened = Mutex::new(Happened::default());
    let counts = || {
        let happened = happened.lock().unwrap();
        [
            happened.preempted,
            happened.cached_tokens,
            happened.drafts_accepted,
            happened.model_drafts_accepted,
            happened.shared_steps,
            happened.cancelled,
            // Steps that were enqueued before the outputs of another one were read.
            IN_FLIGHT.load(Ordering::Relaxed).saturating_sub(1),
        ]
    };
    for _ in 0..MAX_ROUNDS {
        let result = TestRunner::new(config.clone())
            .run(&(any::<u64>(), 1..=32usize), |(seed, n)| {
                check_scheduled(seed, n, &happened).map_err(TestCaseError::fail)
            });
        if let Err(error) = result {
            panic!("seed, number of requests: {error}");
        }
        if counts().iter().all(|&n| n > 0) {
            return;
        }
    }
    panic!("{:?}", counts());
}
