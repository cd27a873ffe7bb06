use proptest::prelude::*;
use stonechat_compute::op::{Count, Op, Port, Rows, Tensor, TensorInfo, TensorType};

use super::{SlotInfo, SlotPlan, plan_slots};
use crate::fuse::fuse;
use crate::program::Counts;
use crate::program::{Node, Program, Segment, SegmentName};
use crate::testing::{D, F, N_ROWS, Ops, all_rules, devices, programs, variants};

fn counts() -> Counts {
    let mut max = Counts::default();
    for (count, n) in [
        (Count::Tokens, 7),
        (Count::Hidden, 5),
        (Count::Logits, 4),
        (Count::TopK, 3),
        (Count::Windows, 2),
    ] {
        max[count] = n;
    }
    max
}

/// Slots whose memory holds values by name: what a device does to it, without numbers.
struct Memory<'a> {
    program: &'a Program,
    plan: &'a SlotPlan,
    /// Value in each slot.
    holds: Vec<Option<usize>>,
    /// Values of segments that have run.
    is_produced: Vec<bool>,
}

impl<'a> Memory<'a> {
    /// The memory after the host has written its values.
    fn new(program: &'a Program, plan: &'a SlotPlan) -> Self {
        let is_produced = vec![false; program.tensors.len()];
        let holds = vec![None; plan.slots.len()];
        let mut memory = Self { program, plan, holds, is_produced };
        for node in program.nodes() {
            if let Op::Import(_) = node.op {
                let slot = memory.slot(node.outputs[0]);
                memory.holds[slot] = Some(node.outputs[0]);
            }
        }
        memory
    }

    fn slot(&self, id: usize) -> usize {
        self.plan.slot_of[id].unwrap_or_else(|| panic!("no slot of {id}\n{}", self.program))
    }

    #[track_caller]
    fn read(&self, id: usize) {
        let (slot, program) = (self.slot(id), self.program);
        assert_eq!(self.holds[slot], Some(id), "slot {slot} of {:?}\n{program}", self.plan.slot_of);
    }

    /// Whether all that the segment reads of others has been produced.
    fn can_run(&self, segment: &Segment) -> bool {
        let is_own = |id| segment.nodes.iter().any(|node| node.outputs.contains(&id));
        let mut reads = segment.nodes.iter().flat_map(Node::reads);
        reads.all(|x| is_own(x.id) || self.is_produced[x.id])
    }

    fn run(&mut self, segment: &Segment) {
        for node in &segment.nodes {
            if !matches!(node.op, Op::Import(_)) {
                self.run_node(node);
            }
            node.outputs.iter().for_each(|&id| self.is_produced[id] = true);
        }
        // The host may read its values at any time after.
        let outputs = self.program.outputs.iter().filter(|(_, x)| self.is_produced[x.id]);
        outputs.for_each(|(_, x)| self.read(x.id));
    }

    fn run_node(&mut self, node: &Node) {
        node.reads().for_each(|x| self.read(x.id));
        // The memory that each result may start from: of a residual, of an operand of an op in place.
        let bases: &[Tensor] = match (&node.op, &node.residual) {
            (_, Some(residual)) => std::slice::from_ref(residual),
            (Op::Add | Op::Rope(_) | Op::LogitFilter, None) => &node.inputs[..1],
            (Op::RopeKv(_), None) => &node.inputs[..2],
            _ => &[],
        };
        let mut written = Vec::new();
        for (i, &out) in node.outputs.iter().enumerate() {
            let slot = self.slot(out);
            assert!(!written.contains(&slot), "two results in a slot\n{}", self.program);
            written.push(slot);
            let shared: Vec<Tensor> = node.reads().filter(|x| self.slot(x.id) == slot).collect();
            let is_free =
                shared.is_empty() || (shared.len() == 1 && bases.get(i) == Some(&shared[0]));
            assert!(is_free, "{node:?} writes an operand\n{}", self.program);
            for x in shared {
                assert_eq!(self.program.tensors[x.id], self.program.tensors[out], "shapes");
                assert!(self.program.is_whole(x), "memory of a view");
            }
        }
        for &out in &node.outputs {
            let slot = self.slot(out);
            self.holds[slot] = Some(out);
        }
    }
}

/// Checks the lengths of the slots of a plan.
#[track_caller]
fn assert_lens(program: &Program, plan: &SlotPlan) {
    let mut slots: Vec<Option<SlotInfo>> = vec![None; plan.slots.len()];
    for node in program.nodes() {
        for &id in &node.outputs {
            let TensorInfo { rows, cols, dtype } = program.tensors[id];
            let rows = counts().rows(rows);
            let slot = &mut slots[plan.slot_of[id].unwrap()];
            let old = slot.unwrap_or(SlotInfo { dtype, rows, cols, len: 0 });
            assert_eq!(old.dtype, dtype, "a slot has one type\n{program}");
            let (len, rows, cols) =
                (old.len.max(rows * cols), old.rows.max(rows), old.cols.max(cols));
            *slot = Some(SlotInfo { dtype, rows, cols, len });
        }
    }
    let slots: Vec<SlotInfo> = slots.into_iter().flatten().collect();
    assert_eq!(plan.slots, slots, "each slot is as long as its longest value\n{program}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    /// No op reads a slot that was overwritten since its operand was produced, in whatever order segments run and with
    /// whatever numbers of rows.
    #[test]
    fn no_value_is_overwritten_before_its_last_read(
        program in programs(),
        order in prop::collection::vec(0..12usize, 0..20),
    ) {
        let fused = devices().map(|capabilities| fuse(&program, &capabilities));
        for program in std::iter::once(program).chain(fused) {
            let plan = plan_slots(&program, &counts());
            assert_lens(&program, &plan);
            let mut memory = Memory::new(&program, &plan);
            // Segments in any order, as far as their operands are there, then whole steps.
            let any = order.iter().filter_map(|&index| program.segments.get(index));
            let steps = [N_ROWS, N_ROWS].into_iter().flatten();
            for segment in any.chain(steps.flat_map(|n_rows| variants(&program, n_rows))) {
                if memory.can_run(segment) {
                    memory.run(segment);
                }
            }
            let mut outputs = program.outputs.iter();
            prop_assert!(outputs.all(|(_, x)| memory.is_produced[x.id]), "whole steps run all");
        }
    }
}

#[track_caller]
fn plan(ops: Ops) -> SlotPlan {
    let program = ops.r.finish();
    let plan = plan_slots(&program, &counts());
    assert_lens(&program, &plan);
    let mut memory = Memory::new(&program, &plan);
    program.segments.iter().for_each(|segment| memory.run(segment));
    plan
}

/// Lengths of the slots.
fn lens(plan: &SlotPlan) -> Vec<usize> {
    plan.slots.iter().map(|slot| slot.len).collect()
}

#[test]
fn a_chain_takes_turns_in_two_slots() {
    let mut ops = Ops::new();
    let mut x = ops.embed();
    for _ in 0..10 {
        x = ops.layer_norm(x);
    }
    ops.kv_write((0, 0), x, x);
    assert_eq!(lens(&plan(ops)), [7 * D, 7 * D]);
}

#[test]
fn the_smallest_slot_that_fits_is_taken() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let wide = ops.matmul(x, F);
    let narrow = ops.matmul(wide, D);
    ops.kv_write((0, 0), narrow, narrow);
    let plan = plan(ops);
    assert_eq!(lens(&plan), [7 * D, 7 * F]);
    assert_eq!(plan.slot_of[narrow.id], plan.slot_of[x.id]);
}

#[test]
fn a_free_slot_grows() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let a = ops.layer_norm(x);
    let wide = ops.matmul(a, F);
    ops.export(wide);
    let plan = plan(ops);
    assert_eq!(lens(&plan), [7 * F, 7 * D]);
}

#[test]
fn ops_in_place_take_the_slot_of_an_operand_that_dies() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let rotated = ops.rope(x);
    let h = ops.layer_norm(rotated);
    let sum = ops.r.add(rotated, h);
    ops.export(sum);
    let plan = plan(ops);
    assert_eq!(plan.slot_of[rotated.id], plan.slot_of[x.id]);
    assert_eq!(plan.slot_of[sum.id], plan.slot_of[x.id]);
    assert_eq!(plan.slots.len(), 2);
}

#[test]
fn ops_in_place_leave_an_operand_that_is_read_later() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let rotated = ops.rope(x);
    ops.kv_write((0, 0), x, rotated);
    let plan = plan(ops);
    assert_ne!(plan.slot_of[rotated.id], plan.slot_of[x.id]);
}

#[test]
fn a_value_added_to_itself_is_not_overwritten() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let twice = ops.r.add(x, x);
    ops.export(twice);
    let plan = plan(ops);
    assert_ne!(plan.slot_of[twice.id], plan.slot_of[x.id]);
}

/// Slot of `x` and of `x + matmul(h)` in a fused program.
fn residual_slots(record: impl FnOnce(&mut Ops) -> [Tensor; 2]) -> [usize; 2] {
    let mut ops = Ops::new();
    let [x, sum] = record(&mut ops);
    let fused = fuse(&ops.r.finish(), &all_rules());
    let plan = plan_slots(&fused, &counts());
    [x, sum].map(|x| plan.slot_of[x.id].unwrap())
}

#[test]
fn a_sum_takes_the_slot_of_a_residual_that_dies() {
    /// `x + matmul(norm(x))`, exported.
    fn x_and_sum(ops: &mut Ops) -> [Tensor; 2] {
        let x = ops.embed();
        let h = ops.layer_norm(x);
        let term = ops.matmul(h, D);
        let sum = ops.r.add(x, term);
        ops.export(sum);
        [x, sum]
    }
    let [x, sum] = residual_slots(x_and_sum);
    assert_eq!(x, sum);
    // The op reads the residual as operand, too.
    let [x, sum] = residual_slots(|ops| {
        let x = ops.embed();
        let term = ops.matmul(x, D);
        let sum = ops.r.add(x, term);
        ops.export(sum);
        [x, sum]
    });
    assert_ne!(x, sum);
    // The host reads the residual.
    let [x, sum] = residual_slots(|ops| {
        let [x, sum] = x_and_sum(ops);
        ops.output(x);
        [x, sum]
    });
    assert_ne!(x, sum);
    // Another segment reads it.
    let [x, sum] = residual_slots(|ops| {
        let [x, sum] = x_and_sum(ops);
        ops.next_segment(SegmentName::Logits);
        ops.export(x);
        [x, sum]
    });
    assert_ne!(x, sum);
}

#[test]
fn values_of_the_host_have_slots_of_their_own() {
    let mut ops = Ops::new();
    let imported = ops.r.import(Port::STREAM, Rows::of(Count::Tokens), D);
    let rotated = ops.rope(imported);
    ops.r.output(Port::HIDDEN, rotated);
    let x = ops.rope(rotated);
    let y = ops.layer_norm(x);
    ops.export(y);
    let plan = plan(ops);
    let slots = [imported, rotated, x, y].map(|x| plan.slot_of[x.id]);
    assert_eq!(slots, [0, 1, 2, 3].map(Some));
}

#[test]
fn variants_of_a_segment_share_slots() {
    let mut ops = Ops::new();
    let mut x = ops.embed();
    for _ in 0..4 {
        let h = ops.layer_norm(x);
        let term = ops.mlp(h);
        x = ops.r.add(x, term);
    }
    ops.export(x);
    let program = ops.r.finish();
    let [.., gpu, _] = devices();
    let fused = fuse(&program, &gpu);
    assert_eq!(fused.segments.len(), 2);
    // Operands of the variants have different types.
    let n_slots = |program: &Program| {
        let slots = plan_slots(program, &counts()).slots;
        slots.iter().filter(|slot| slot.dtype == TensorType::F32).count()
    };
    let alone = fused
        .segments
        .iter()
        .map(|segment| n_slots(&Program { segments: vec![segment.clone()], ..fused.clone() }));
    assert_eq!(n_slots(&fused), alone.max().unwrap());
}
