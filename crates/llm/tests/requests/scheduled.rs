//! The requests of a case in a [`Scheduler`], beside embeddings.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use pollster::block_on;
use stonechat_llm::{
    Accepted, Completion, DraftLength, Drafter, Embedding, Finish, MemoryStore, Model,
    ModelDrafter, NGramSimple, PageStore, Pooling, Request as Scheduled, RequestEvent, RequestId,
    Scheduler, SchedulerOptions, StateOptions, Task,
};

use crate::PANELS;
use crate::engine::Random;
use crate::request::{Request, Start, Text};

/// Result of a request: its texts by choice, or the embedding, with the numbers of tokens at the end.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) texts: HashMap<usize, Text>,
    pub(crate) embedding: Option<Vec<f32>>,
}

/// Counts of events over all runs of a property test.
#[derive(Debug, Default)]
pub(crate) struct Happened {
    pub(crate) preempted: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) drafts_accepted: usize,
    /// Tokens of a draft model.
    pub(crate) model_drafts_accepted: usize,
    pub(crate) shared_steps: usize,
    pub(crate) cancelled: usize,
}

/// Tokens of the embedding beside request `index`, if there is one.
pub(crate) fn embedded(request: &Request, index: usize) -> Option<Vec<u32>> {
    match &request.start {
        Start::Prompt(prompt) if index.is_multiple_of(3) => Some(prompt.clone()),
        _ => None,
    }
}

/// Number of texts of a request. Forks have none: they start in the middle of another text.
pub(crate) fn n_choices(request: &Request, index: usize, n_sequences: usize) -> usize {
    match request.start {
        Start::Fork { .. } => 0,
        Start::Prompt(_) if request.options.sampling.seed.is_none() => 1,
        Start::Prompt(_) => (1 + index % 3).min(n_sequences),
    }
}

/// Runs the requests, which join at random steps. Returns the results of each, and of its embedding.
pub(crate) fn run(
    model: &Model,
    options: StateOptions,
    requests: &[Request],
    (random, has_drafts): (&mut Random, bool),
    happened: &Mutex<Happened>,
) -> Result<Vec<Results>, String> {
    let options = StateOptions { n_hidden: options.n_batch, ..options };
    let drafter = (has_drafts && random.once_in(2)).then(|| drafter(model, options, random));
    let has_draft_model = matches!(drafter, Some(Drafter::Model(_)));
    let max_gap = Duration::from_millis(random.pick(&[0, 100]));
    let store: Box<dyn PageStore> = Box::new(MemoryStore::new(random.pick(&[100_000, 1 << 24])));
    let stores = if random.once_in(2) { vec![store] } else { Vec::new() };
    let options = SchedulerOptions { state: options, max_gap, drafter, stores };
    let mut scheduler = Scheduler::new(model, options).unwrap();
    let mut results: Vec<Results> = requests.iter().map(|_| Results::default()).collect();
    let mut owners: HashMap<RequestId, usize> = HashMap::new();
    let mut waiting: Vec<usize> = (0..requests.len()).rev().collect();
    let mut cancelled = Vec::new();
    while !waiting.is_empty() || !scheduler.is_idle() {
        while !waiting.is_empty() && (scheduler.is_idle() || random.once_in(2)) {
            let index = waiting.pop().unwrap();
            for task in scheduled(model, &requests[index], index, &scheduler, random) {
                owners.insert(scheduler.add_task(task).unwrap(), index);
            }
        }
        let mut over_limit = Vec::new();
        let mut on_event = |id: RequestId, event: RequestEvent| {
            let (index, mut happened) = (owners[&id], happened.lock().unwrap());
            let result = &mut results[index];
            match event {
                RequestEvent::Started { cached_tokens } => happened.cached_tokens += cached_tokens,
                RequestEvent::Text { choice, tokens, text: piece } => {
                    let text = result.texts.entry(choice).or_default();
                    text.push(&Accepted { tokens, text: piece, ..Accepted::default() });
                    let limit = requests[index].cancel_after;
                    if limit.is_some_and(|limit| text.tokens.len() >= limit) {
                        over_limit.push(id);
                    }
                }
                RequestEvent::Ended { choice, completion } => {
                    if has_draft_model {
                        happened.model_drafts_accepted += completion.drafts.accepted;
                    } else {
                        happened.drafts_accepted += completion.drafts.accepted;
                    }
                    check(result.texts.entry(choice).or_default(), &completion);
                }
                RequestEvent::Embedded(values) => result.embedding = Some(values),
                RequestEvent::Prompt { .. } => {}
                event => panic!("{event:?}"),
            }
        };
        let report = block_on(scheduler.step(&mut on_event)).map_err(|error| error.to_string())?;
        for id in over_limit.drain(..) {
            if !cancelled.contains(&id) {
                cancelled.push(id);
            }
        }
        let mut on_event = |id: RequestId, event: RequestEvent| match event {
            RequestEvent::Text { choice, tokens, text } => {
                let accepted = Accepted { tokens, text, ..Accepted::default() };
                results[owners[&id]].texts.entry(choice).or_default().push(&accepted);
            }
            RequestEvent::Ended { choice, completion } => {
                check(results[owners[&id]].texts.entry(choice).or_default(), &completion);
            }
            event => panic!("{event:?}"),
        };
        cancelled.drain(..).for_each(|id| scheduler.cancel(id, &mut on_event));
        let mut happened = happened.lock().unwrap();
        happened.preempted += report.n_preempted;
        happened.shared_steps += usize::from(report.prompt_tokens > 0 && report.n_decoding > 1);
    }
    let n_pages = scheduler.n_pages();
    if scheduler.clear_cache() != n_pages {
        return Err("pages are lost".to_owned());
    }
    for result in &results {
        let ended = result.texts.values().filter(|text| text.finish == Some(Finish::Cancelled));
        happened.lock().unwrap().cancelled += ended.count();
    }
    Ok(results)
}

/// A drafter of n-grams, or of a model whose pool is too small for all texts.
fn drafter(model: &Model, options: StateOptions, random: &mut Random) -> Drafter {
    let length = DraftLength { max: random.pick(&[1, 3, 8]), min: 0 };
    if random.once_in(2) {
        return Drafter::NGramSimple(NGramSimple { n: random.pick(&[1, 2]), length });
    }
    // Drafts of the model itself are mostly right, drafts of another one mostly wrong.
    let draft =
        if random.once_in(2) { model.clone() } else { random.pick::<(Model, bool)>(&PANELS).0 };
    let state = ModelDrafter::state_options(options, draft.config());
    let n_pages = Some(1 + random.below(options.n_pages.unwrap_or(8)));
    let state = StateOptions { n_pages, ..state };
    Drafter::Model(Box::new(ModelDrafter::new(draft, model, length, state).unwrap()))
}

/// The embedding of a text that runs alone.
pub(crate) fn embed(model: &Model, options: StateOptions, tokens: Vec<u32>) -> Option<Vec<f32>> {
    let state = StateOptions { n_hidden: options.n_batch, n_pages: None, ..options };
    let options =
        SchedulerOptions { state, max_gap: Duration::ZERO, drafter: None, stores: Vec::new() };
    let mut scheduler = Scheduler::new(model, options).unwrap();
    scheduler.add_task(Embedding::new(tokens, Pooling::Mean).unwrap().into()).unwrap();
    let mut embedding = None;
    while !scheduler.is_idle() {
        let mut on_event = |_: RequestId, event: RequestEvent| {
            if let RequestEvent::Embedded(values) = event {
                embedding = Some(values);
            }
        };
        block_on(scheduler.step(&mut on_event)).unwrap();
    }
    embedding
}

/// Tasks for a scheduler: the texts, and an embedding.
fn scheduled(
    model: &Model,
    request: &Request,
    index: usize,
    scheduler: &Scheduler,
    random: &mut Random,
) -> Vec<Task> {
    let Start::Prompt(prompt) = &request.start else { return Vec::new() };
    let text = Scheduled {
        n_choices: n_choices(request, index, scheduler.options().n_sequences),
        priority: random.pick(&[0, 0, 1]),
        cache_salt: request.salt.unwrap_or_default(),
        reads_cache: request.salt.is_some(),
        ..Scheduled::new(prompt.clone(), (*request.options).clone())
    };
    let text = text.prepare(model.info()).unwrap();
    let embedding = embedded(request, index)
        .map(|tokens| Embedding::new(tokens, Pooling::Mean).unwrap().into());
    [Some(text), embedding].into_iter().flatten().collect()
}

/// Checks that the events of a text add up to its completion.
fn check(text: &mut Text, completion: &Completion) {
    text.finish = Some(completion.finish);
    assert_eq!((&text.text, &text.tokens), (&completion.text, &completion.tokens));
    let probs: Vec<_> = text.probs.iter().flatten().cloned().collect();
    assert_eq!(probs, completion.probs);
}
