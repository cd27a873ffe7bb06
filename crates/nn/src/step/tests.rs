use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const LIMITS: StepLimits = StepLimits {
    n_sequences: 4,
    n_ctx: 5 * PAGE_LEN,
    n_pages: 9,
    n_batch: 400,
    n_outputs: 8,
    n_checkpoints: None,
};

const N_CHECKPOINTS: usize = 3;

fn slot(index: usize) -> Slot {
    Slot::new(index)
}

fn run(sequences: &mut Sequences, index: usize, n: usize) {
    let mut plan = sequences.plan();
    plan.add(slot(index), &vec![7; n], []).unwrap();
    plan.commit();
}

#[test]
fn a_plan_lists_what_kernels_read() {
    let mut sequences = Sequences::new(LIMITS);
    run(&mut sequences, 0, PAGE_LEN - 2);
    run(&mut sequences, 1, 7);
    let mut plan = sequences.plan();
    plan.add(slot(0), &[1, 2, 3], [0, 2]).unwrap();
    plan.add(slot(2), &[4], []).unwrap();
    plan.add(slot(1), &[5, 6], [1]).unwrap();
    assert_eq!((plan.n_tokens(), plan.n_outputs()), (6, 3));
    plan.commit();
    let StepInputs { tokens, runs, outputs, pos, kv_rows, query_rows, page_table, copies, states } =
        sequences.inputs();
    assert_eq!(*tokens, [1, 2, 3, 4, 5, 6]);
    let rows: Vec<_> = runs.iter().map(|run| (run.slot.index(), run.rows.clone())).collect();
    assert_eq!(rows, [(0, 0..3), (2, 3..4), (1, 4..6)]);
    assert_eq!(*outputs, [0, 2, 5]);
    assert_eq!(*pos, [62, 63, 64, 0, 7, 8]);
    let places: Vec<_> = kv_rows.iter().map(|row| (row.page, row.slot)).collect();
    assert_eq!(places, [(0, 62), (0, 63), (2, 0), (3, 0), (1, 7), (1, 8)]);
    assert_eq!(*page_table, [0, 2, 3, 1]);
    let visible: Vec<_> =
        query_rows.iter().map(|row| (row.first_page, row.n_pages, row.kv_len)).collect();
    assert_eq!(visible, [(0, 2, 63), (0, 2, 64), (0, 2, 65), (2, 1, 1), (3, 1, 8), (3, 1, 9)]);
    assert_eq!((copies.len(), states.len()), (0, 0));
}

#[test]
fn a_run_that_does_not_fit_leaves_the_plan_as_it_was() {
    let mut sequences = Sequences::new(StepLimits { n_pages: 3, ..LIMITS });
    let mut plan = sequences.plan();
    plan.add(slot(0), &[1; PAGE_LEN + 1], [PAGE_LEN]).unwrap();
    let before = format!("{plan:?}");
    let full = plan.add(slot(1), &[1; PAGE_LEN + 1], []);
    assert_eq!(full, Err(PlanError::KvFull(KvFull { needed: 2, free: 1 })));
    let long = plan.add(slot(1), &[1; 5 * PAGE_LEN + 1], []);
    assert_eq!(long, Err(PlanError::ContextFull { tokens: 321, n_ctx: 320 }));
    assert_eq!(format!("{plan:?}"), before);
    // A shorter one still fits.
    plan.add(slot(1), &[1; PAGE_LEN], []).unwrap();
}

#[test]
fn a_dropped_plan_changes_nothing() {
    let mut sequences = Sequences::new(LIMITS);
    run(&mut sequences, 0, PAGE_LEN + 5);
    sequences.fork(slot(0), slot(1));
    let state = |sequences: &Sequences| format!("{:?} {:?}", sequences.pages, sequences.sequences);
    let before = state(&sequences);
    let mut plan = sequences.plan();
    for index in [0, 1, 2] {
        plan.add(slot(index), &[1; 2 * PAGE_LEN], []).unwrap();
    }
    // The first writer to the shared page copies it, the second has it alone.
    assert_eq!(plan.inputs().copies.len(), 1);
    drop(plan);
    assert_eq!(state(&sequences), before);
    // The same for a plan that was kept, as for a step whose second device fails.
    let mut plan = sequences.plan();
    plan.add(slot(1), &[1], []).unwrap();
    plan.keep();
    assert_eq!(sequences.get(slot(1)).len(), PAGE_LEN + 6);
    sequences.roll_back();
    assert_eq!(state(&sequences), before);
}

#[test]
fn pages_can_be_freed_for_a_plan() {
    let mut sequences = Sequences::new(StepLimits { n_pages: 2, ..LIMITS });
    run(&mut sequences, 0, PAGE_LEN + 1);
    let prefix = sequences.detach(slot(0), PAGE_LEN);
    sequences.truncate(slot(0), 0);
    let mut plan = sequences.plan();
    assert!(plan.add(slot(1), &[1; 2 * PAGE_LEN], []).is_err());
    plan.sequences().release(prefix);
    plan.add(slot(1), &[1; 2 * PAGE_LEN], []).unwrap();
}

#[test]
fn a_step_does_not_allocate() {
    let n_checkpoints = Some(N_CHECKPOINTS);
    let mut sequences = Sequences::new(StepLimits { n_checkpoints, ..LIMITS });
    let capacities = |inputs: &StepInputs| {
        let StepInputs {
            tokens,
            runs,
            outputs,
            pos,
            kv_rows,
            query_rows,
            page_table,
            copies,
            states,
        } = inputs;
        let by_token = [tokens.capacity(), pos.capacity(), kv_rows.capacity()];
        let by_run = [runs.capacity(), page_table.capacity(), copies.capacity(), states.capacity()];
        (by_token, by_run, query_rows.capacity(), outputs.capacity())
    };
    let before = capacities(sequences.inputs());
    let mut plan = sequences.plan();
    for index in 0..4 {
        plan.add(slot(index), &[1; 2 * PAGE_LEN - 28], [0, 1]).unwrap();
    }
    assert_eq!((plan.n_tokens(), plan.n_outputs()), (LIMITS.n_batch, LIMITS.n_outputs));
    plan.commit();
    assert_eq!(capacities(sequences.inputs()), before);
}

#[test]
fn an_empty_sequence_is_filled_up_to_the_context() {
    let mut sequences = Sequences::new(LIMITS);
    let n_ctx = LIMITS.n_ctx;
    let full = sequences.fill(slot(0), n_ctx + 1);
    assert_eq!(full, Err(PlanError::ContextFull { tokens: n_ctx + 1, n_ctx }));
    assert!(sequences.get(slot(0)).is_empty());
    sequences.fill(slot(0), n_ctx).unwrap();
    assert_eq!((sequences.get(slot(0)).len(), sequences.pages().n_free()), (n_ctx, 4));
    sequences.fill(slot(1), 3).unwrap();
    assert_eq!((sequences.get(slot(1)).len(), sequences.pages().n_free()), (3, 3));
    let full = sequences.fill(slot(2), n_ctx);
    assert_eq!(full, Err(PlanError::KvFull(KvFull { needed: 5, free: 3 })));
}

#[test]
fn single_pages_are_detached_attached_and_released() {
    let mut sequences = Sequences::new(LIMITS);
    run(&mut sequences, 0, 2 * PAGE_LEN);
    let pages = [0, 1].map(|index| sequences.detach_page(slot(0), index));
    sequences.truncate(slot(0), 0);
    assert_eq!(sequences.pages().n_free(), 7);
    sequences.attach_pages(&pages, PAGE_LEN + 1, slot(1));
    assert_eq!(sequences.get(slot(1)).len(), PAGE_LEN + 1);
    sequences.truncate(slot(1), 0);
    for (page, n_free) in pages.into_iter().zip([8, 9]) {
        sequences.release_page(page);
        assert_eq!(sequences.pages().n_free(), n_free);
    }
    let [empty, full] = [0, 5].map(|n| {
        run(&mut sequences, 2, n);
        sequences.detach(slot(2), n)
    });
    assert!(empty.is_empty() && !full.is_empty());
    sequences.release(empty);
    sequences.release(full);
}

#[test]
fn states_are_cut_at_checkpoints() {
    let n_checkpoints = Some(2);
    let mut sequences = Sequences::new(StepLimits { n_checkpoints, ..LIMITS });
    let update = |sequences: &Sequences| sequences.inputs().states[0];
    run(&mut sequences, 0, 10);
    assert_eq!(update(&sequences), StateRun { n_rows: 10, from: None, to: 0 });
    assert!(sequences.checkpoint(slot(0)));
    run(&mut sequences, 0, PAGE_LEN);
    assert_eq!(update(&sequences), StateRun { n_rows: PAGE_LEN as u32, from: Some(0), to: 1 });
    assert!(sequences.checkpoint(slot(0)));
    run(&mut sequences, 0, 1);
    assert!(!sequences.checkpoint(slot(0)), "both checkpoints are in use");
    assert_eq!(sequences.truncate(slot(0), 200), PAGE_LEN + 11);
    // Truncated without a checkpoint between, the last one remains.
    for len in [PAGE_LEN + 10, PAGE_LEN + 9] {
        sequences.fork(slot(0), slot(1));
        let reached = sequences.truncate(slot(1), len);
        assert_eq!(reached, if len == PAGE_LEN + 10 { len } else { 10 });
        assert_eq!(sequences.get(slot(1)).len(), reached);
        run(&mut sequences, 1, 1);
        assert_eq!(update(&sequences).from, Some(if reached == 10 { 0 } else { 1 }));
    }
    let prefix = sequences.detach(slot(0), PAGE_LEN);
    assert_eq!(prefix.len(), 10);
    (0..2).for_each(|index| _ = sequences.truncate(slot(index), 0));
    run(&mut sequences, 0, 0);
    assert_eq!(sequences.inputs().states, []);
    sequences.attach(&prefix, slot(2));
    sequences.release(prefix);
    run(&mut sequences, 2, 3);
    assert_eq!((update(&sequences).from, sequences.truncate(slot(2), 12)), (Some(0), 10));
}

/// Operation on the sequences of a state.
#[derive(Debug, Clone)]
enum Op {
    Step { runs: Vec<(usize, usize)>, end: End },
    Truncate(usize, usize),
    Fork(usize, usize),
    Detach(usize, usize),
    Attach(usize, usize),
    Release(usize),
    Checkpoint(usize),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Commit,
    Drop,
    KeepAndRollBack,
}

fn op() -> impl Strategy<Value = Op> {
    let n = 0..2 * PAGE_LEN + 3;
    let end =
        prop_oneof![3 => Just(End::Commit), 1 => Just(End::Drop), 1 => Just(End::KeepAndRollBack)];
    let runs = prop::collection::vec((0..4usize, n), 1..4);
    prop_oneof![
        4 => (runs, end).prop_map(|(runs, end)| Op::Step { runs, end }),
        2 => (0..4usize, 0..4 * PAGE_LEN).prop_map(|(slot, len)| Op::Truncate(slot, len)),
        2 => (0..4usize, 0..4usize).prop_map(|(from, to)| Op::Fork(from, to)),
        1 => (0..4usize, 0..4 * PAGE_LEN).prop_map(|(slot, len)| Op::Detach(slot, len)),
        1 => (0..8usize, 0..4usize).prop_map(|(prefix, slot)| Op::Attach(prefix, slot)),
        1 => (0..8usize).prop_map(Op::Release),
        2 => (0..4usize).prop_map(Op::Checkpoint),
    ]
}

/// Serial numbers of tokens.
struct Device {
    /// By page and slot: the token last written there.
    pages: Vec<[u64; PAGE_LEN]>,
    /// By slot of a state: the tokens that it has seen.
    states: BTreeMap<u32, Vec<u64>>,
}

impl Device {
    /// Runs a step of sequences that hold `model` before it.
    fn run(&mut self, inputs: &StepInputs, model: &[Vec<u64>], serial: &mut u64) {
        for &PageCopy { from, to } in &inputs.copies {
            self.pages[to as usize] = self.pages[from as usize];
        }
        let runs = inputs.runs.iter().filter(|run| !run.rows.is_empty());
        for (run, update) in runs.zip(&inputs.states) {
            let before = update.from.map(|slot| self.states[&slot].clone()).unwrap_or_default();
            assert_eq!(before, model[run.slot.index()]);
            assert_eq!(update.n_rows as usize, run.rows.len());
            let new = run.rows.clone().map(|row| *serial + 1 + row as u64);
            self.states.insert(update.to, before.into_iter().chain(new).collect());
        }
        for row in &inputs.kv_rows {
            *serial += 1;
            self.pages[row.page as usize][row.slot as usize] = *serial;
        }
    }

    fn read(&self, pages: impl Iterator<Item = u32>, len: usize) -> Vec<u64> {
        let mut all: Vec<u64> = pages.flat_map(|page| self.pages[page as usize]).collect();
        all.truncate(len);
        all
    }
}

proptest! {
    /// Random steps and operations, against lists of tokens that know no pages.
    #[test]
    fn sequences_hold_what_was_written_and_references_equal_holders(
        ops in prop::collection::vec(op(), 1..60),
        n_checkpoints in prop_oneof![Just(None), Just(Some(N_CHECKPOINTS))],
    ) {
        let mut sequences = Sequences::new(StepLimits { n_checkpoints, ..LIMITS });
        let mut device =
            Device { pages: vec![[0; PAGE_LEN]; LIMITS.n_pages], states: BTreeMap::new() };
        let mut serial = 0;
        let mut model: Vec<Vec<u64>> = vec![Vec::new(); 4];
        // Lengths at checkpoints of each sequence.
        let mut checkpoints: Vec<Vec<usize>> = vec![Vec::new(); 4];
        let reached = |checkpoints: &[usize], len: usize| match n_checkpoints {
            Some(_) => checkpoints.iter().rfind(|&&other| other <= len).copied().unwrap_or(0),
            None => len,
        };
        let mut prefixes: Vec<(Prefix, Vec<u64>)> = Vec::new();
        for op in ops {
            match op {
                Op::Step { runs, end } => {
                    let mut plan = sequences.plan();
                    let mut added: Vec<(usize, usize)> = Vec::new();
                    for (index, n) in runs {
                        if added.iter().any(|run| run.0 == index) {
                            continue;
                        }
                        let needed = plan.sequences().pages_needed(slot(index), n);
                        let free = plan.sequences().pages().n_free();
                        match plan.add(slot(index), &vec![0; n], []) {
                            Ok(()) => added.push((index, n)),
                            Err(PlanError::KvFull(full)) => {
                                prop_assert_eq!(full, KvFull { needed, free });
                                prop_assert!(needed > free);
                            }
                            Err(PlanError::ContextFull { tokens, n_ctx }) => {
                                prop_assert_eq!(tokens, model[index].len() + n);
                                prop_assert!(tokens > n_ctx);
                            }
                        }
                    }
                    match end {
                        End::Drop => drop(plan),
                        End::KeepAndRollBack => {
                            plan.keep();
                            // The first device of two has run the step.
                            device.run(sequences.inputs(), &model, &mut serial);
                            sequences.roll_back();
                        }
                        End::Commit => {
                            plan.commit();
                            let mut written = serial;
                            device.run(sequences.inputs(), &model, &mut serial);
                            for (index, n) in added {
                                model[index].extend(written + 1..=written + n as u64);
                                written += n as u64;
                            }
                        }
                    }
                }
                Op::Truncate(index, len) => {
                    if len < model[index].len() {
                        let len = reached(&checkpoints[index], len);
                        model[index].truncate(len);
                        checkpoints[index].retain(|&other| other <= len);
                    }
                    prop_assert_eq!(sequences.truncate(slot(index), len), model[index].len());
                }
                Op::Fork(from, to) if from != to => {
                    sequences.fork(slot(from), slot(to));
                    model[to] = model[from].clone();
                    checkpoints[to] = checkpoints[from].clone();
                }
                Op::Fork(..) => {}
                Op::Detach(index, len) => {
                    let prefix = sequences.detach(slot(index), len.min(model[index].len()));
                    let len = reached(&checkpoints[index], len.min(model[index].len()));
                    prop_assert_eq!(prefix.len(), len);
                    prefixes.push((prefix, model[index][..len].to_vec()));
                }
                Op::Attach(prefix, index) => {
                    if let Some((prefix, content)) = prefixes.get(prefix) {
                        sequences.attach(prefix, slot(index));
                        model[index].clone_from(content);
                        checkpoints[index] = vec![content.len()];
                    }
                }
                Op::Checkpoint(index) => {
                    let lens = checkpoints.iter().zip(&model);
                    let of_sequences =
                        lens.flat_map(|(lens, all)| lens.iter().map(|&len| &all[..len]));
                    let of_prefixes = prefixes.iter().map(|(_, content)| &content[..]);
                    let kept: BTreeSet<&[u64]> =
                        of_sequences.chain(of_prefixes).filter(|kept| !kept.is_empty()).collect();
                    let content = &model[index][..];
                    let has_slot = content.is_empty() || kept.contains(content);
                    let fits = has_slot || kept.len() < N_CHECKPOINTS || n_checkpoints.is_none();
                    prop_assert_eq!(sequences.checkpoint(slot(index)), fits);
                    if fits && n_checkpoints.is_some() {
                        checkpoints[index].push(content.len());
                    }
                }
                Op::Release(prefix) => {
                    if prefix < prefixes.len() {
                        sequences.release(prefixes.swap_remove(prefix).0);
                    }
                }
            }
            // Every holder sees what was written for it.
            for (sequence, content) in sequences.all().iter().zip(&model) {
                prop_assert_eq!(sequence.pages().len(), sequence.len().div_ceil(PAGE_LEN));
                prop_assert_eq!(&device.read(sequence.pages().iter().copied(), sequence.len()), content);
            }
            for (prefix, content) in &prefixes {
                let pages = prefix.pages.iter().map(PageRef::id);
                prop_assert_eq!(&device.read(pages, prefix.len()), content);
            }
            // References equal holders, and the pages without any are free.
            let mut holders = [0; LIMITS.n_pages];
            let of_sequences = sequences.all().iter().flat_map(Sequence::pages).copied();
            let of_prefixes = prefixes.iter().flat_map(|(prefix, _)| prefix.pages.iter().map(PageRef::id));
            of_sequences.chain(of_prefixes).for_each(|page| holders[page as usize] += 1);
            for (page, &count) in holders.iter().enumerate() {
                prop_assert_eq!(sequences.pages().ref_count(page as u32), count);
            }
            let n_free = holders.iter().filter(|&&count| count == 0).count();
            prop_assert_eq!(sequences.pages().n_free(), n_free);
        }
        // Slots of states without a holder are free.
        prefixes.into_iter().for_each(|(prefix, _)| sequences.release(prefix));
        for index in 0..4 {
            prop_assert_eq!(sequences.truncate(slot(index), 0), 0);
        }
        for index in 0..if n_checkpoints.is_some() { 4 } else { 0 } {
            run(&mut sequences, index, 1);
            prop_assert_eq!(sequences.checkpoint(slot(index)), index < N_CHECKPOINTS);
            (0..4).for_each(|index| run(&mut sequences, index, 1));
        }
    }
}
