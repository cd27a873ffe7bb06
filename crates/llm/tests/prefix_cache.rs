//! The prefix cache against lists of tokens that know no pages, and pages in use by random operations, on the f64 oracle
//! whose unwritten pages are NaN.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::LazyLock;

use pollster::block_on;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, TestCaseError, prop, prop_assert, prop_assert_eq, prop_oneof,
    proptest,
};
use stonechat_formats::{DType, ModelFile};
use stonechat_llm::{
    Error, Model, OutputRequest, OutputRow, Prefix, PrefixCache, Slot, State, StateOptions,
    quantize,
};
use stonechat_nn::{Cpu, KvDType, PAGE_LEN};
use stonechat_testkit::{Reference, runs_all};

const N_SLOTS: usize = 3;
const OPTIONS: StateOptions = StateOptions {
    n_ctx: 4 * PAGE_LEN,
    n_sequences: N_SLOTS,
    n_pages: Some(9),
    n_batch: 16,
    n_outputs: N_SLOTS,
    n_hidden: 0,
    kv_dtype: KvDType::F32,
};

fn golden() -> ModelFile {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
    ModelFile::open(path).unwrap()
}

/// The CPU with panels of q8_0: steps of at most 16 rows give equal bits.
static PANELS: LazyLock<Model> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("stonechat-prefix-{}.gguf", std::process::id()));
    quantize(&golden(), &path, DType::Q8_0, |_| ()).unwrap();
    let file = ModelFile::from_reader(std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    Model::load(Cpu::new(1).unwrap(), &file, |_| ()).unwrap()
});

static ORACLE: LazyLock<Model> =
    LazyLock::new(|| Model::load(Reference, &golden(), |_| ()).unwrap());

/// Tokens of a text with a given beginning. Few different tokens make common runs inside a page.
fn text(family: usize, len: usize, rest: &[usize]) -> Vec<u32> {
    let opening = (0..len).map(|i| (i * (2 * family + 3) + i / 7) % 60 + 2);
    opening.chain(rest.iter().map(|&token| token + 2)).map(|token| token as u32).collect()
}

fn any_text(max_len: usize) -> impl Strategy<Value = Vec<u32>> {
    (0..2usize, 0..max_len, prop::collection::vec(0..2usize, 1..8))
        .prop_map(|(family, len, rest)| text(family, len, &rest))
}

/// Runs `tokens` at the end of a sequence, in batches; returns the logits after the last.
fn run(state: &mut State, slot: Slot, tokens: &[u32]) -> Result<Vec<f32>, Error> {
    let (mut logits, n_chunks) = (Vec::new(), tokens.len().div_ceil(OPTIONS.n_batch));
    for (index, chunk) in tokens.chunks(OPTIONS.n_batch).enumerate() {
        let n_outputs = usize::from(index + 1 == n_chunks);
        let run = state.run(slot, chunk, OutputRequest::Logits, n_outputs);
        let outputs = block_on(run)?;
        if n_outputs > 0 {
            let OutputRow::Logits(row) = outputs.row(0) else { panic!("logits") };
            logits = row.to_vec();
        }
    }
    Ok(logits)
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Operation on a prefix cache.
#[derive(Debug, Clone)]
enum CacheOp {
    /// Looks a text up or not, as if it had started before it was cached, runs the rest in a slot, and inserts it or not.
    Request {
        slot: usize,
        text: Vec<u32>,
        salt: u64,
        attaches: bool,
        inserts: Option<Insert>,
    },
    Truncate {
        slot: usize,
        len: usize,
    },
    Evict(usize),
    Clear,
}

/// Pages that an insertion adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Insert {
    Full,
    All,
}

fn cache_op() -> impl Strategy<Value = CacheOp> {
    let slot = 0..N_SLOTS;
    let inserts =
        prop_oneof![2 => Just(None), 3 => Just(Some(Insert::Full)), 5 => Just(Some(Insert::All))];
    let flags = (prop::bool::weighted(0.7), inserts);
    let request = (slot.clone(), any_text(3 * PAGE_LEN + 40), 0..2u64, flags).prop_map(
        |(slot, text, salt, (attaches, inserts))| CacheOp::Request {
            slot,
            text,
            salt,
            attaches,
            inserts,
        },
    );
    prop_oneof![
        8 => request,
        2 => (slot, prop_oneof![Just(0), 0..3 * PAGE_LEN])
            .prop_map(|(slot, len)| CacheOp::Truncate { slot, len }),
        2 => (3..10usize).prop_map(CacheOp::Evict),
        1 => Just(CacheOp::Clear),
    ]
}

/// Tokens with a counted reference to a page for each [`PAGE_LEN`] of them, the naive model of a sequence or prefix.
#[derive(Debug, Clone, Default)]
struct Held {
    tokens: Vec<u32>,
    pages: Vec<Rc<()>>,
}

impl Held {
    /// Appends tokens. A page that others hold, too, is copied first.
    fn append(&mut self, tokens: &[u32]) {
        let is_partial = !self.tokens.len().is_multiple_of(PAGE_LEN);
        if let Some(last) = self.pages.last_mut()
            && is_partial
            && !tokens.is_empty()
            && Rc::strong_count(last) > 1
        {
            *last = Rc::new(());
        }
        self.tokens.extend_from_slice(tokens);
        self.pages.resize_with(self.tokens.len().div_ceil(PAGE_LEN), || Rc::new(()));
    }

    fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.pages.truncate(self.tokens.len().div_ceil(PAGE_LEN));
    }

    fn prefix(&self, len: usize) -> Self {
        let mut prefix = self.clone();
        prefix.truncate(len);
        prefix
    }
}

/// Number of pages that nobody holds.
fn n_free<'a>(pages: impl Iterator<Item = &'a Rc<()>>) -> usize {
    let used: HashSet<_> = pages.map(Rc::as_ptr).collect();
    OPTIONS.n_pages.unwrap() - used.len()
}

/// A cached page: all tokens up to its end.
#[derive(Debug)]
struct Node {
    tokens: Vec<u32>,
    salt: u64,
    page: Rc<()>,
    last_used: usize,
}

impl Node {
    /// Position of the first token of the page.
    fn first(&self) -> usize {
        (self.tokens.len() - 1) / PAGE_LEN * PAGE_LEN
    }

    fn is_full(&self) -> bool {
        self.tokens.len().is_multiple_of(PAGE_LEN)
    }

    /// Whether this page is on the path to `other`.
    fn leads_to(&self, other: &Self) -> bool {
        self.salt == other.salt && other.tokens.starts_with(&self.tokens)
    }
}

/// Naive model of a cache and the slots of its state.
#[derive(Debug, Default)]
struct CacheModel {
    /// In the order of their insertion.
    nodes: Vec<Node>,
    slots: [Held; N_SLOTS],
    clock: usize,
}

impl CacheModel {
    fn n_free(&self) -> usize {
        let of_slots = self.slots.iter().flat_map(|slot| &slot.pages);
        n_free(of_slots.chain(self.nodes.iter().map(|node| &node.page)))
    }

    /// Makes the longest cached prefix of `tokens`, without the last one, the content of a slot.
    fn attach(&mut self, slot: usize, tokens: &[u32], salt: u64) -> usize {
        let tokens = &tokens[..tokens.len() - 1];
        let of_salt = self.nodes.iter_mut().filter(|node| node.salt == salt);
        let (mut path, mut others): (Vec<_>, Vec<_>) =
            of_salt.partition(|node| node.is_full() && tokens.starts_with(&node.tokens));
        path.sort_by_key(|node| node.tokens.len());
        let mut best = path.len() * PAGE_LEN;
        others.retain(|node| node.first() == best);
        // Among equal runs inside a page, the one inserted last wins.
        let common = |node: &&mut Node| common_prefix(&node.tokens, tokens);
        if let Some(node) = others.into_iter().filter(|node| common(node) > best).max_by_key(common)
        {
            best = common(&node);
            path.push(node);
        }
        self.clock += 1;
        let mut held = Held { tokens: tokens[..best].to_vec(), pages: Vec::new() };
        for node in path {
            node.last_used = self.clock;
            held.pages.push(Rc::clone(&node.page));
        }
        self.slots[slot] = held;
        best
    }

    fn insert(&mut self, slot: usize, salt: u64, inserts: Insert) {
        self.clock += 1;
        let Held { tokens, pages } = &self.slots[slot];
        for (index, page) in pages.iter().enumerate() {
            let first = index * PAGE_LEN;
            let tokens = &tokens[..tokens.len().min(first + PAGE_LEN)];
            if inserts == Insert::Full && tokens.len() < first + PAGE_LEN {
                return;
            }
            let is_sibling = |node: &Node| node.salt == salt && node.first() == first;
            let mut siblings = self.nodes.iter_mut().filter(|node| is_sibling(node));
            if let Some(node) = siblings.find(|node| node.tokens.starts_with(tokens)) {
                node.last_used = self.clock;
                continue;
            }
            self.nodes.retain(|node| !is_sibling(node) || !tokens.starts_with(&node.tokens));
            let page = Rc::clone(page);
            self.nodes.push(Node { tokens: tokens.to_vec(), salt, page, last_used: self.clock });
        }
    }

    /// Removes least recently used leaves until `n` pages are free, if a page on the path to them is held by nobody else.
    fn evict(&mut self, n: usize) -> bool {
        while self.n_free() < n {
            let is_leaf = |node: &Node| self.nodes.iter().filter(|n| node.leads_to(n)).count() == 1;
            let frees = |node: &Node| {
                let mut path = self.nodes.iter().filter(|other| other.leads_to(node));
                path.any(|node| Rc::strong_count(&node.page) == 1)
            };
            let leaves = (0..self.nodes.len())
                .filter(|&index| is_leaf(&self.nodes[index]) && frees(&self.nodes[index]));
            let Some(oldest) = leaves.min_by_key(|&index| self.nodes[index].last_used) else {
                return false;
            };
            self.nodes.remove(oldest);
        }
        true
    }
}

fn check_cache(ops: Vec<CacheOp>) -> Result<(), TestCaseError> {
    let mut state = PANELS.state(OPTIONS).unwrap();
    let mut fresh = PANELS.state(StateOptions { n_sequences: 1, ..OPTIONS }).unwrap();
    let (mut cache, mut model) = (PrefixCache::new(), CacheModel::default());
    for op in ops {
        match op {
            CacheOp::Request { slot: index, text, salt, attaches, inserts } => {
                let slot = Slot::new(index);
                let mut expected = 0;
                if attaches {
                    expected = model.attach(index, &text, salt);
                    prop_assert_eq!(cache.cached_len(&text, salt), expected);
                    prop_assert_eq!(cache.attach(&mut state, slot, &text, salt), expected);
                    prop_assert!(expected < text.len());
                } else {
                    state.truncate(slot, 0);
                    model.slots[index].truncate(0);
                }
                let mut logits = Vec::new();
                for chunk in text[expected..].chunks(OPTIONS.n_batch) {
                    match run(&mut state, slot, chunk) {
                        Ok(row) => {
                            model.slots[index].append(chunk);
                            logits = row;
                        }
                        Err(Error::KvFull(full)) => {
                            prop_assert_eq!(full.free, model.n_free());
                            break;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                if model.slots[index].tokens == text {
                    fresh.truncate(Slot::new(0), 0);
                    prop_assert_eq!(logits, run(&mut fresh, Slot::new(0), &text).unwrap());
                }
                if let Some(inserts) = inserts {
                    let tokens = model.slots[index].tokens.clone();
                    match inserts {
                        Insert::Full => cache.insert(&mut state, slot, &tokens, salt),
                        Insert::All => cache.insert_ended(&mut state, slot, &tokens, salt),
                    }
                    model.insert(index, salt, inserts);
                }
            }
            CacheOp::Truncate { slot, len } => {
                state.truncate(Slot::new(slot), len);
                model.slots[slot].truncate(len);
            }
            CacheOp::Evict(n) => {
                let mut plan = state.plan();
                prop_assert_eq!(cache.evict_for(&mut plan, n), model.evict(n));
            }
            CacheOp::Clear => {
                cache.clear(&mut state);
                model.nodes.clear();
            }
        }
        prop_assert_eq!(cache.n_pages(), model.nodes.len());
        for node in &model.nodes {
            let longer = [&node.tokens[..], &[0]].concat();
            prop_assert_eq!(cache.cached_len(&longer, node.salt), node.tokens.len());
        }
        prop_assert_eq!(state.free_pages(), model.n_free());
        for (index, held) in model.slots.iter().enumerate() {
            prop_assert_eq!(state.len(Slot::new(index)), held.tokens.len());
        }
    }
    // Pages left after an eviction of all are shared with slots.
    let n_pages = OPTIONS.n_pages.unwrap();
    block_on(cache.evict(&mut state, n_pages)).unwrap();
    let n_free = state.free_pages();
    cache.clear(&mut state);
    prop_assert_eq!(state.free_pages(), n_free);
    for slot in 0..N_SLOTS {
        state.truncate(Slot::new(slot), 0);
    }
    prop_assert_eq!(state.free_pages(), n_pages);
    Ok(())
}

/// Operation on a state.
#[derive(Debug, Clone)]
enum Op {
    /// Slots with their numbers of tokens; whether the plan is run.
    Step {
        runs: Vec<(usize, usize)>,
        is_run: bool,
    },
    Truncate(usize, usize),
    Fork(usize, usize),
    Detach(usize, usize),
    Attach(usize, usize),
    Release(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let slot = 0..N_SLOTS;
    let runs = prop::collection::vec((slot.clone(), 0..PAGE_LEN + 9), 1..4);
    let len = 0..3 * PAGE_LEN;
    prop_oneof![
        6 => (runs, prop::bool::weighted(0.8)).prop_map(|(runs, is_run)| Op::Step { runs, is_run }),
        2 => (slot.clone(), len.clone()).prop_map(|(slot, len)| Op::Truncate(slot, len)),
        2 => (slot.clone(), slot.clone()).prop_map(|(from, to)| Op::Fork(from, to)),
        2 => (slot.clone(), len).prop_map(|(slot, len)| Op::Detach(slot, len)),
        2 => (0..4usize, slot).prop_map(|(prefix, slot)| Op::Attach(prefix, slot)),
        1 => (0..4usize).prop_map(Op::Release),
    ]
}

/// A state with the naive model of its slots and prefixes.
struct Pair {
    state: State,
    fresh: State,
    slots: [Held; N_SLOTS],
    prefixes: Vec<(Prefix, Held)>,
}

impl Pair {
    /// Plans a step; prefixes and slots outside the plan make room for it.
    fn step(&mut self, runs: &[(usize, usize)], is_run: bool) -> Result<(), TestCaseError> {
        let Self { state, fresh, slots, prefixes } = self;
        let mut plan = state.plan();
        let mut added: Vec<(usize, Vec<u32>)> = Vec::new();
        for &(index, n) in runs {
            let held = &slots[index];
            if added.iter().any(|run| run.0 == index) || held.tokens.len() + n > OPTIONS.n_ctx {
                continue;
            }
            // Slots with equal beginnings go on differently.
            let position = |i: usize| ((held.tokens.len() + i) * 7 + index * 5) % 62 + 2;
            let tokens: Vec<u32> = (0..n).map(|i| position(i) as u32).collect();
            let n_outputs = usize::from(n > 0);
            loop {
                let slot = Slot::new(index);
                match plan.add(slot, &tokens, OutputRequest::Logits, n_outputs) {
                    Ok(()) => {
                        added.push((index, tokens));
                        break;
                    }
                    Err(Error::KvFull(full)) => {
                        prop_assert_eq!(full.free, plan.free_pages());
                        prop_assert!(full.needed > full.free);
                        if let Some((prefix, _)) = prefixes.pop() {
                            plan.release(prefix);
                            continue;
                        }
                        let is_other = |&other: &usize| {
                            other != index && !added.iter().any(|run| run.0 == other)
                        };
                        let mut others = (0..N_SLOTS).filter(is_other);
                        match others.find(|&other| !slots[other].tokens.is_empty()) {
                            Some(other) => {
                                plan.clear(Slot::new(other));
                                slots[other].truncate(0);
                            }
                            None => break,
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        if !is_run {
            return Ok(());
        }
        let ticket = plan.run().unwrap();
        let outputs = block_on(state.outputs(ticket)).unwrap();
        let mut row = 0;
        for (index, tokens) in added {
            slots[index].append(&tokens);
            if tokens.is_empty() {
                continue;
            }
            let OutputRow::Logits(got) = outputs.row(row) else { panic!("logits") };
            row += 1;
            fresh.truncate(Slot::new(0), 0);
            let run = fresh.run(Slot::new(0), &slots[index].tokens, OutputRequest::Logits, 1);
            let outputs = block_on(run).unwrap();
            // The oracle computes each row alone: the bits are equal.
            prop_assert_eq!(outputs.row(0), OutputRow::Logits(got));
        }
        Ok(())
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        let Self { state, slots, prefixes, .. } = self;
        match op {
            Op::Step { runs, is_run } => self.step(&runs, is_run)?,
            Op::Truncate(index, len) => {
                slots[index].truncate(len);
                let left = state.truncate(Slot::new(index), len);
                prop_assert_eq!(left, slots[index].tokens.len());
            }
            Op::Fork(from, to) if from != to => {
                state.fork(Slot::new(from), Slot::new(to));
                slots[to] = slots[from].clone();
            }
            Op::Fork(..) => {}
            Op::Detach(index, len) => {
                let len = len.min(slots[index].tokens.len());
                prefixes.push((state.detach(Slot::new(index), len), slots[index].prefix(len)));
            }
            Op::Attach(prefix, index) => {
                if let Some((prefix, held)) = prefixes.get(prefix) {
                    state.attach(prefix, Slot::new(index));
                    slots[index] = held.clone();
                }
            }
            Op::Release(prefix) => {
                if prefix < prefixes.len() {
                    state.release(prefixes.swap_remove(prefix).0);
                }
            }
        }
        let of_slots = self.slots.iter().flat_map(|slot| &slot.pages);
        let of_prefixes = self.prefixes.iter().flat_map(|(_, held)| &held.pages);
        prop_assert_eq!(self.state.free_pages(), n_free(of_slots.chain(of_prefixes)));
        for (index, held) in self.slots.iter().enumerate() {
            prop_assert_eq!(self.state.len(Slot::new(index)), held.tokens.len());
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if runs_all() { 1500 } else { 64 }, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Length of each lookup, logits after it, evicted pages and free pages.
    #[test]
    fn a_prefix_cache_finds_what_was_inserted(ops in prop::collection::vec(cache_op(), 1..40)) {
        check_cache(ops)?;
    }

    /// Every output equals that of a fresh sequence, and every page without a holder is free: on the oracle, a page that
    /// was given back too early or never written shows as NaN or other logits.
    #[test]
    fn pages_in_use_keep_their_content(ops in prop::collection::vec(op(), 1..30)) {
        let n_batch = N_SLOTS * (PAGE_LEN + 9);
        let state = ORACLE.state(StateOptions { n_batch, ..OPTIONS }).unwrap();
        let sizes = StateOptions { n_sequences: 1, n_batch: OPTIONS.n_ctx, n_outputs: 1, ..OPTIONS };
        let fresh = ORACLE.state(sizes).unwrap();
        let mut pair = Pair { state, fresh, slots: Default::default(), prefixes: Vec::new() };
        for op in ops {
            pair.apply(op)?;
        }
    }
}
