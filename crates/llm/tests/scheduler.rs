//! Order, limits, slots and faults of the scheduler; `requests` compares its texts with those alone.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use pollster::block_on;
use stonechat_formats::ModelFile;
use stonechat_llm::{
    Completion, DraftLength, Drafter, Embedding, Error, Finish, GenerateOptions, Guidance,
    MemoryStore, Model, ModelDrafter, PageName, PageStore, Pooling, Request, RequestEvent,
    RequestId, Scheduler, SchedulerOptions, StateOptions, StepReport,
};
use stonechat_nn::{Cpu, KvDType, PAGE_LEN};
use stonechat_sampling::SamplingOptions;

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
    let file = ModelFile::open(path).unwrap();
    Model::load(Cpu::new(1).unwrap(), &file, |_| ()).unwrap()
});

const SIZES: StateOptions = StateOptions {
    n_ctx: 250,
    n_sequences: 3,
    n_pages: Some(8),
    n_batch: 160,
    n_outputs: 3,
    n_hidden: 160,
    kv_dtype: KvDType::F32,
};

fn scheduler(state: StateOptions) -> Scheduler {
    let options =
        SchedulerOptions { state, max_gap: Duration::ZERO, drafter: None, stores: Vec::new() };
    Scheduler::new(&MODEL, options).unwrap()
}

/// A scheduler whose model drafts for itself, in a state that `change` changes.
fn drafting(state: StateOptions, change: impl Fn(StateOptions) -> StateOptions) -> Scheduler {
    let sizes = change(ModelDrafter::state_options(state, MODEL.config()));
    let length = DraftLength { max: 3, min: 0 };
    let drafter = ModelDrafter::new(MODEL.clone(), &MODEL, length, sizes).unwrap();
    let drafter = Some(Drafter::Model(Box::new(drafter)));
    let options = SchedulerOptions { state, max_gap: Duration::ZERO, drafter, stores: Vec::new() };
    Scheduler::new(&MODEL, options).unwrap()
}

/// Rows of drafts of three texts.
const DRAFTED: StateOptions = StateOptions { n_outputs: 12, n_pages: Some(20), ..SIZES };

/// A greedy text of `n` tokens after a prompt of `len` tokens, different for each `family`.
fn text(family: u32, len: usize, n: usize) -> Request {
    let prompt = (0..len as u32).map(|i| (i * (2 * family + 3) + i / 5) % 60 + 2).collect();
    let options = GenerateOptions {
        n_predict: Some(n),
        sampling: SamplingOptions::greedy(),
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    Request::new(prompt, options)
}

/// A text with guidance.
fn guided(len: usize, n: usize) -> Request {
    let mut request = text(1, len, n);
    let negative = text(2, 100, n).prompt;
    request.options.guidance = Some(Guidance { negative, scale: 2.0 });
    request
}

/// Events of a scheduler by name, and the completions.
#[derive(Default)]
struct Log {
    started: Vec<RequestId>,
    completions: Vec<(RequestId, Completion)>,
    failed: Vec<(RequestId, String)>,
}

impl Log {
    fn take(&mut self, id: RequestId, event: RequestEvent) {
        match event {
            RequestEvent::Started { .. } => self.started.push(id),
            RequestEvent::Ended { completion, .. } => self.completions.push((id, completion)),
            RequestEvent::Failed(error) => self.failed.push((id, error.to_string())),
            _ => {}
        }
    }

    fn step(&mut self, scheduler: &mut Scheduler) -> StepReport {
        block_on(scheduler.step(&mut |id, event| self.take(id, event))).unwrap()
    }

    /// Runs all requests to their ends; returns the reports of the steps.
    fn run(&mut self, scheduler: &mut Scheduler) -> Vec<StepReport> {
        let mut reports = Vec::new();
        while !scheduler.is_idle() {
            reports.push(self.step(scheduler));
        }
        reports
    }

    fn completion(&self, id: RequestId) -> &Completion {
        &self.completions.iter().find(|(other, _)| *other == id).unwrap().1
    }
}

#[test]
fn texts_go_before_prompts_and_prompts_in_chunks() {
    let (mut scheduler, mut log) = (scheduler(SIZES), Log::default());
    scheduler.add(text(0, 5, 20)).unwrap();
    // Alone, a prompt runs whole.
    assert_eq!(log.step(&mut scheduler).prompt_tokens, 5);
    scheduler.add(text(1, 200, 1)).unwrap();
    // With a text in the step it runs in the shortest chunks, since no gap is allowed.
    let report = log.step(&mut scheduler);
    assert_eq!((report.n_decoding, report.text_tokens, report.prompt_tokens), (1, 1, 2 * PAGE_LEN));
    let report = log.step(&mut scheduler);
    assert_eq!((report.n_decoding, report.prompt_tokens), (1, 200 - 2 * PAGE_LEN));
    log.run(&mut scheduler);
    assert_eq!(log.completions.len(), 2);
}

#[test]
fn chunks_of_a_long_prompt_become_shorter() {
    let sizes = StateOptions { n_ctx: 2400, n_pages: Some(40), ..SIZES };
    let (mut scheduler, mut log) = (scheduler(sizes), Log::default());
    scheduler.add(text(0, 5, 30)).unwrap();
    log.step(&mut scheduler);
    scheduler.add(text(1, 2300, 1)).unwrap();
    let mut chunks = Vec::new();
    while chunks.iter().sum::<usize>() < 2300 {
        chunks.push(log.step(&mut scheduler).prompt_tokens);
    }
    let late = [PAGE_LEN, PAGE_LEN, PAGE_LEN, 2300 - 2048 - 3 * PAGE_LEN];
    assert_eq!(chunks, [&[2 * PAGE_LEN; 16][..], &late].concat());
}

#[test]
fn the_texts_of_a_prompt_begin_in_its_last_step() {
    let (mut scheduler, mut log) = (scheduler(SIZES), Log::default());
    scheduler.add(Request { n_choices: 3, ..text(0, 100, 5) }).unwrap();
    assert_eq!(log.step(&mut scheduler).prompt_tokens, 100);
    let report = log.step(&mut scheduler);
    assert_eq!((report.prompt_tokens, report.n_decoding, report.text_tokens), (0, 3, 3));
    log.run(&mut scheduler);
    assert!(log.completions.iter().all(|(_, text)| text.tokens.len() == 5));
}

#[test]
fn requests_start_by_priority_and_arrival_and_none_overtakes() {
    let (mut scheduler, mut log) = (scheduler(SIZES), Log::default());
    let add = |scheduler: &mut Scheduler, priority, len| {
        scheduler.add(Request { priority, ..text(len as u32, len, 4) }).unwrap()
    };
    // The first two take the pool's 8 pages; the third waits for pages, and the short fourth behind it.
    let first = add(&mut scheduler, 0, 240);
    let second = add(&mut scheduler, 0, 220);
    let third = add(&mut scheduler, 0, 200);
    let fourth = add(&mut scheduler, 0, 3);
    let urgent = add(&mut scheduler, -1, 4);
    let report = log.step(&mut scheduler);
    assert_eq!((report.n_running + report.n_waiting, report.n_waiting >= 2), (5, true));
    log.run(&mut scheduler);
    assert_eq!(log.started, [urgent, first, second, third, fourth]);
    assert!(log.completions.iter().all(|(_, text)| text.finish == Finish::Length));
    assert!(log.completion(third).timings.queue_ms > 0.0);
}

#[test]
fn a_text_that_needs_pages_takes_those_of_the_newest() {
    // Pages for one text of the whole context, and one more.
    let state = StateOptions { n_pages: Some(5), ..SIZES };
    let (mut scheduler, mut log) = (scheduler(state), Log::default());
    let ids = [0, 1].map(|family| scheduler.add(text(family, 100, 120)).unwrap());
    let reports = log.run(&mut scheduler);
    assert!(reports.iter().any(|report| report.n_preempted > 0));
    let [old, new] = ids.map(|id| log.completion(id));
    assert_eq!((old.preemptions, old.tokens.len()), (0, 120));
    assert!(new.preemptions > 0 && new.tokens.len() == 120);
    assert!(reports.iter().all(|report| report.used_pages <= report.n_pages));
    assert_eq!(scheduler.clear_cache(), 5);
}

#[test]
fn a_model_drafts_for_all_texts_of_a_step() {
    let (mut scheduler, mut log) = (drafting(DRAFTED, |sizes| sizes), Log::default());
    let ids = [0, 1, 2].map(|family| scheduler.add(text(family, 30, 40)).unwrap());
    assert_eq!(log.step(&mut scheduler).prompt_tokens, 90);
    let report = log.step(&mut scheduler);
    // Drafts of two texts at least: one that begins with an end token is empty.
    assert!(report.n_decoding == 3 && (3 + 4..=3 + 9).contains(&report.text_tokens), "{report:?}");
    log.run(&mut scheduler);
    let (mut plain, mut plain_log) = (self::scheduler(SIZES), Log::default());
    for (family, id) in [0, 1, 2].into_iter().zip(ids) {
        let drafted = log.completion(id);
        assert!(drafted.drafts.proposed > 0);
        assert_eq!(drafted.drafts.accepted, drafted.drafts.proposed);
        let id = plain.add(text(family, 30, 40)).unwrap();
        plain_log.run(&mut plain);
        assert_eq!(drafted.tokens, plain_log.completion(id).tokens);
    }
}

#[test]
fn a_draft_model_catches_up_with_a_long_prompt_in_chunks() {
    let (mut second, mut forked) = (Vec::new(), Vec::new());
    for family in 0..6 {
        let (mut scheduler, mut log) = (drafting(DRAFTED, |sizes| sizes), Log::default());
        let mut first_of_text = |scheduler: &mut Scheduler| loop {
            let report = log.step(scheduler);
            if report.n_decoding > 0 {
                break report.text_tokens;
            }
        };
        scheduler.add(text(family, 200, 20)).unwrap();
        // A chunk of 128 tokens is not enough for the first step.
        assert_eq!(first_of_text(&mut scheduler), 1);
        second.push(first_of_text(&mut scheduler));
        Log::default().run(&mut scheduler);
        // Both texts of the prompt share the pages that the draft model has.
        scheduler.add(Request { n_choices: 2, ..text(family, 200, 20) }).unwrap();
        forked.push(first_of_text(&mut scheduler));
    }
    // A draft that begins with an end token is empty.
    assert!(second.contains(&(1 + 3)), "{second:?}");
    assert!(forked.contains(&(2 + 6)), "{forked:?}");
}

#[test]
fn texts_that_do_not_fit_the_draft_model_have_no_draft() {
    let one = |sizes| StateOptions { n_pages: Some(2), ..sizes };
    let (mut scheduler, mut log) = (drafting(DRAFTED, one), Log::default());
    for family in [0, 1] {
        scheduler.add(text(family, 70, 20)).unwrap();
    }
    let reports = log.run(&mut scheduler);
    // Two pages hold one of the texts.
    let both = || reports.iter().filter(|report| report.n_decoding == 2);
    assert!(both().all(|report| report.text_tokens <= 2 + 3));
    assert!(both().any(|report| report.text_tokens == 2 + 3));

    let short = |sizes| StateOptions { n_ctx: 40, n_batch: 40, ..sizes };
    let (mut scheduler, mut log) = (drafting(DRAFTED, short), Log::default());
    let [short, long] = [30, 70].map(|len| scheduler.add(text(0, len, 9)).unwrap());
    log.run(&mut scheduler);
    assert!(log.completion(short).drafts.proposed > 0);
    assert_eq!(log.completion(long).drafts.proposed, 0);
}

#[test]
fn inputs_that_never_fit_are_refused() {
    let mut scheduler = scheduler(SIZES);
    let error = scheduler.add(text(0, 251, 1)).unwrap_err();
    assert!(matches!(error, Error::ContextFull { tokens: 251, n_ctx: 250 }), "{error}");
    let error = scheduler.add(Request { n_choices: 4, ..text(0, 3, 1) }).unwrap_err();
    assert_eq!(error.to_string(), "choices: expected 1 to 3, got 4");
    let error = scheduler.add(Request { n_choices: 2, ..guided(3, 1) }).unwrap_err();
    assert_eq!(error.to_string(), "choices: expected 1 to 1, got 2");
    let mut without = self::scheduler(StateOptions { n_hidden: 0, ..SIZES });
    let embedding = Embedding::new(vec![3], Pooling::Mean).unwrap();
    assert!(without.add_task(embedding.into()).is_err());
    // A small pool limits the input, too.
    let mut small = self::scheduler(StateOptions { n_pages: Some(2), ..SIZES });
    assert!(small.add(text(0, 2 * PAGE_LEN + 1, 1)).is_err());
    let error = small.add(guided(3, 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "guidance: expected 2 sequences or more, with 8 KV pages, got 3, 2"
    );
    assert!(scheduler.is_idle() && small.is_idle());
}

#[test]
fn guidance_runs_two_sequences_beside_other_texts() {
    let (mut alone, mut expected) = (scheduler(SIZES), Log::default());
    let id = alone.add(guided(120, 20)).unwrap();
    expected.run(&mut alone);
    let (mut shared, mut log) = (scheduler(SIZES), Log::default());
    let older = shared.add(text(0, 180, 40)).unwrap();
    let younger = shared.add(guided(120, 20)).unwrap();
    log.run(&mut shared);
    assert_eq!(log.completion(younger).tokens, expected.completion(id).tokens);
    assert_eq!(log.completion(older).tokens.len(), 40);
    // Both do not fit the pool to their ends.
    assert!(log.completion(younger).preemptions > 0);
    let slots = shared.slots();
    assert!(slots.iter().all(|slot| slot.request.is_none()), "{slots:?}");
}

#[test]
fn a_full_context_ends_a_text() {
    let state = StateOptions { n_ctx: 20, n_batch: 20, n_hidden: 0, ..SIZES };
    let (mut scheduler, mut log) = (scheduler(state), Log::default());
    let id = scheduler.add(text(0, 10, 100)).unwrap();
    log.run(&mut scheduler);
    let text = log.completion(id);
    assert_eq!((text.finish, text.tokens.len()), (Finish::ContextFull, 11));
}

#[test]
fn a_cancelled_prompt_stays_in_the_cache() {
    let (mut scheduler, mut log) = (scheduler(SIZES), Log::default());
    scheduler.add(text(9, 3, 9)).unwrap();
    log.step(&mut scheduler);
    let id = scheduler.add(text(0, 200, 3)).unwrap();
    log.step(&mut scheduler);
    scheduler.cancel(id, &mut |id, event| log.take(id, event));
    let cancelled = log.completion(id);
    assert_eq!((cancelled.finish, cancelled.tokens.len()), (Finish::Cancelled, 0));
    let again = scheduler.add(text(0, 200, 3)).unwrap();
    log.run(&mut scheduler);
    assert_eq!(log.completion(again).cached_tokens, 2 * PAGE_LEN);
}

#[test]
fn slots_are_shown_saved_restored_and_erased() {
    let path: PathBuf = std::env::temp_dir().join(format!("stonechat-slot-{}", std::process::id()));
    let (mut scheduler, mut log) = (scheduler(SIZES), Log::default());
    let id = scheduler.add(text(0, 100, 5)).unwrap();
    log.step(&mut scheduler);
    let slot = scheduler.slots()[0].clone();
    assert!(slot.request.is_some());
    let counts = (slot.prompt_tokens, slot.cached_tokens, slot.generated_tokens, slot.tokens_left);
    assert_eq!(counts, (100, 100, 1, Some(4)));
    assert!(block_on(scheduler.save_slot(0, &path)).is_err(), "a slot in use");
    log.run(&mut scheduler);
    let tokens = log.completion(id).tokens.clone();
    assert_eq!((scheduler.slots()[0].request, scheduler.slots()[0].last_tokens), (None, 104));
    let saved = block_on(scheduler.save_slot(0, &path)).unwrap();
    assert_eq!(saved.n_tokens, 104);
    assert!(block_on(scheduler.save_slot(3, &path)).is_err(), "no such slot");

    // Another scheduler finds the whole prompt.
    let mut other = self::scheduler(SIZES);
    assert_eq!(block_on(other.restore_slot(1, &path)).unwrap(), saved);
    let id = other.add(text(0, 100, 5)).unwrap();
    log.run(&mut other);
    // The identifiers of both begin at 0.
    let (_, again) = log.completions.iter().rfind(|(other, _)| *other == id).unwrap();
    assert_eq!((again.cached_tokens, &again.tokens), (99, &tokens));
    assert_eq!(scheduler.erase_slot(0).unwrap(), 104);
    let id = scheduler.add(text(0, 100, 5)).unwrap();
    log.run(&mut scheduler);
    let (_, fresh) = log.completions.iter().rfind(|(other, _)| *other == id).unwrap();
    assert_eq!(fresh.cached_tokens, 0);
    std::fs::write(&path, b"nothing").unwrap();
    assert!(block_on(other.restore_slot(1, &path)).is_err());
    std::fs::remove_file(&path).unwrap();
    assert_eq!([scheduler.clear_cache(), other.clear_cache()], [8, 8]);
}

#[test]
fn a_restored_slot_keeps_its_salt() {
    let name = format!("stonechat-salted-slot-{}", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(name);
    let run = |scheduler: &mut Scheduler, cache_salt| {
        let mut log = Log::default();
        let id = scheduler.add(Request { cache_salt, ..text(0, 100, 5) }).unwrap();
        log.run(scheduler);
        log.completion(id).cached_tokens
    };
    let mut first = scheduler(SIZES);
    assert_eq!(run(&mut first, 7), 0);
    block_on(first.save_slot(0, &path)).unwrap();
    // The owner finds the text, another tenant does not.
    for (salt, expected) in [(0, 0), (8, 0), (7, 99)] {
        let mut other = scheduler(SIZES);
        block_on(other.restore_slot(1, &path)).unwrap();
        assert_eq!(run(&mut other, salt), expected, "salt {salt}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn dropped_pages_come_back_from_a_store() {
    let options = || {
        let stores: Vec<Box<dyn PageStore>> = vec![Box::new(MemoryStore::new(1 << 24))];
        SchedulerOptions { state: SIZES, max_gap: Duration::ZERO, drafter: None, stores }
    };
    let mut scheduler = Scheduler::new(&MODEL, options()).unwrap();
    let run = |scheduler: &mut Scheduler, family, cache_salt| {
        let mut log = Log::default();
        let id = scheduler.add(Request { cache_salt, ..text(family, 200, 8) }).unwrap();
        log.run(scheduler);
        let completion = log.completion(id);
        (completion.cached_tokens, completion.tokens.clone())
    };
    let (cached, tokens) = run(&mut scheduler, 0, 0);
    assert_eq!(cached, 0);
    // The pool has 8 pages: each of these drops what was before.
    for family in 1..4 {
        run(&mut scheduler, family, 0);
    }
    assert_eq!(run(&mut scheduler, 0, 0), (3 * PAGE_LEN, tokens.clone()));
    assert_eq!(run(&mut scheduler, 0, 1), (0, tokens));
    assert_eq!(scheduler.clear_cache(), 8);
}

/// A store that takes pages at once, as one on a disk does.
#[derive(Debug, Clone, Default)]
struct NewPages(Arc<Mutex<HashMap<PageName, Arc<Vec<u8>>>>>);

impl PageStore for NewPages {
    fn read(&mut self, name: PageName, read: &mut dyn FnMut(&[u8])) -> bool {
        self.0.lock().unwrap().get(&name).is_some_and(|bytes| {
            read(bytes);
            true
        })
    }

    fn contains(&mut self, name: PageName) -> bool {
        self.0.lock().unwrap().contains_key(&name)
    }

    fn put(&mut self, name: PageName, bytes: &Arc<Vec<u8>>) {
        assert!(self.0.lock().unwrap().insert(name, Arc::clone(bytes)).is_none());
    }

    fn takes_new(&self) -> bool {
        true
    }
}

#[test]
fn a_store_gets_the_pages_of_a_text_of_one_token_and_of_an_answer() {
    for (len, n_predict, n_pages) in [(200, 1, 3), (60, 2 * PAGE_LEN, 2)] {
        let pages = NewPages::default();
        let new = || {
            let stores: Vec<Box<dyn PageStore>> = vec![Box::new(pages.clone())];
            let (max_gap, drafter) = (Duration::ZERO, None);
            Scheduler::new(&MODEL, SchedulerOptions { state: SIZES, max_gap, drafter, stores })
        };
        let mut tokens = Vec::new();
        for cached in [0, len / PAGE_LEN * PAGE_LEN] {
            let (mut scheduler, mut log) = (new().unwrap(), Log::default());
            let id = scheduler.add(text(0, len, n_predict)).unwrap();
            log.run(&mut scheduler);
            assert_eq!(pages.0.lock().unwrap().len(), n_pages);
            let completion = log.completion(id);
            assert_eq!(completion.cached_tokens, cached);
            tokens.push(completion.tokens.clone());
        }
        assert_eq!(tokens[0], tokens[1]);
    }
}

#[test]
fn after_a_fault_all_requests_have_failed_and_all_pages_are_free() {
    let (mut scheduler, mut log) = (scheduler(SIZES), Log::default());
    for family in 0..4 {
        scheduler.add(text(family, 80, 9)).unwrap();
    }
    log.step(&mut scheduler);
    let error = || Error::Step { message: "lost".to_owned() };
    scheduler.fail_all(error, &mut |id, event| log.take(id, event));
    assert_eq!(log.failed.len(), 4);
    assert_eq!(log.failed[0].1, "a step of the batch has failed: lost");
    assert!(scheduler.is_idle());
    assert_eq!(scheduler.clear_cache(), 8);
    let id = scheduler.add(text(0, 80, 2)).unwrap();
    log.run(&mut scheduler);
    assert_eq!(log.completion(id).tokens.len(), 2);
}
