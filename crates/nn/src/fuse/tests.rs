mod kernels;
mod properties;

use stonechat_compute::op::Count;

use super::{Capabilities, fuse};
use crate::program::{Node, Program, RowClass, SegmentName};
use crate::testing::{D, F, Meaning, N_ROWS, Ops, all_rules, assert_well_formed, groups};

/// Names of the ops in their order, with `onto` where they have a residual, `normed` where they have a norm.
fn names(program: &Program) -> Vec<String> {
    let nodes = program.nodes();
    let name = |node: &Node| {
        let norm = if node.norm.is_some() { "normed " } else { "" };
        let onto = if node.residual.is_some() { " onto" } else { "" };
        format!("{norm}{}{onto}", node.op.name())
    };
    nodes.map(name).collect()
}

/// Fuses for a device; compares the names of the ops.
#[track_caller]
fn check_for(capabilities: &Capabilities, ops: Ops, expected: &[&str]) -> Program {
    let program = ops.r.finish();
    let fused = fuse(&program, capabilities);
    assert_well_formed(&fused);
    assert_eq!(names(&fused), expected, "\n{fused}");
    assert_same_meaning(&fused, &program);
    fused
}

#[track_caller]
fn check(ops: Ops, expected: &[&str]) -> Program {
    check_for(&all_rules(), ops, expected)
}

#[track_caller]
fn assert_same_meaning(fused: &Program, program: &Program) {
    for n_rows in N_ROWS {
        let (got, expected) = (Meaning::new(fused, n_rows), Meaning::new(program, n_rows));
        assert_eq!(got.contents, expected.contents, "{n_rows} rows\n{program}\n{fused}");
    }
}

#[test]
fn a_sum_is_a_residual_in_either_order() {
    for swap in [false, true] {
        let mut ops = Ops::new();
        let x = ops.embed();
        let h = ops.layer_norm(x);
        let term = ops.matmul(h, D);
        let y = if swap { ops.r.add(term, x) } else { ops.r.add(x, term) };
        ops.output(y);
        let fused = check(ops, &["embed", "layer_norm", "matmul onto"]);
        assert_eq!(fused.segments[0].nodes[2].residual, Some(x));
        assert_eq!(fused.segments[0].nodes[2].outputs, [y.id]);
    }
}

#[test]
fn every_op_that_takes_a_residual_gets_one() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let mlp = ops.mlp(x);
    let x = ops.r.add(x, mlp);
    let other = ops.embed();
    let norm = ops.rms_norm(other);
    let x = ops.r.add(x, norm);
    let logits = ops.matmul(x, 3);
    let moe = ops.moe(x, logits);
    let x = ops.r.add(x, moe);
    let y = ops.activated(x, D);
    let x = ops.r.add(x, y);
    ops.output(x);
    let expected = [
        "embed",
        "gated_product",
        "matmul onto",
        "embed",
        "rms_norm onto",
        "matmul",
        "moe onto",
        "matmul onto",
    ];
    check(ops, &expected);
}

#[test]
fn a_residual_needs_the_kernel() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let term = ops.matmul(x, D);
    let y = ops.r.add(x, term);
    ops.output(y);
    let capabilities = Capabilities { residuals: false, ..all_rules() };
    check_for(&capabilities, ops, &["embed", "matmul", "add"]);
}

#[test]
fn a_sum_of_ops_that_take_no_residual_stays() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let (a, b) = (ops.layer_norm(x), ops.rope(x));
    let y = ops.r.add(a, b);
    ops.output(y);
    check(ops, &["embed", "layer_norm", "rope", "add"]);
}

#[test]
fn a_term_that_is_read_elsewhere_is_no_residual_sum() {
    for is_host in [true, false] {
        let mut ops = Ops::new();
        let x = ops.embed();
        let term = ops.matmul(x, D);
        let y = ops.r.add(x, term);
        ops.output(y);
        if is_host {
            ops.output(term);
            check(ops, &["embed", "matmul", "add"]);
        } else {
            ops.export(term);
            check(ops, &["embed", "matmul", "add", "export"]);
        }
    }
}

#[test]
fn a_term_added_to_itself_stays() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let term = ops.matmul(x, D);
    let y = ops.r.add(term, term);
    ops.output(y);
    check(ops, &["embed", "matmul", "add"]);
}

#[test]
fn a_view_is_neither_term_nor_residual() {
    // As term.
    let mut ops = Ops::new();
    let x = ops.embed();
    let wide = ops.matmul(x, F);
    let y = ops.r.add(x, wide.columns(0, D));
    ops.output(y);
    check(ops, &["embed", "matmul", "add"]);
    // As residual.
    let mut ops = Ops::new();
    let x = ops.embed();
    let wide = ops.activated(x, F);
    let term = ops.matmul(x, D);
    let y = ops.r.add(wide.columns(D, D), term);
    ops.output(y);
    check(ops, &["embed", "matmul", "matmul", "add"]);
    // The first rows.
    let mut ops = Ops::new();
    let x = ops.embed();
    let rows = ops.r.gather(x, Count::Logits);
    let h = ops.r.gather(x, Count::Logits).first(Count::TopK);
    let term = ops.matmul(h, D);
    let y = ops.r.add(rows.first(Count::TopK), term);
    ops.output(y);
    check(ops, &["embed", "gather", "gather", "matmul", "add"]);
}

#[test]
fn a_term_of_another_segment_is_no_residual_sum() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let term = ops.matmul(x, D);
    ops.next_segment(SegmentName::Logits);
    let y = ops.r.add(x, term);
    ops.output(y);
    check(ops, &["embed", "matmul", "add"]);
}

#[test]
fn a_parallel_block_is_a_chain_of_residuals() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let h = ops.layer_norm(x);
    let (attn, ffn) = (ops.matmul(h, D), ops.mlp(h));
    let stream = ops.r.add(x, attn);
    let y = ops.r.add(stream, ffn);
    ops.output(y);
    let fused = check(ops, &["embed", "layer_norm", "gated_product", "matmul onto", "matmul onto"]);
    assert_eq!(fused.segments[0].nodes[3].residual, Some(x));
    assert_eq!(fused.segments[0].nodes[4].residual, Some(stream));
}

#[test]
fn a_sum_of_two_terms_takes_one_as_residual() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let (a, b) = (ops.activated(x, D), ops.activated(x, D));
    let y = ops.r.add(a, b);
    ops.output(y);
    let fused = check(ops, &["embed", "matmul", "matmul onto"]);
    assert_eq!(fused.segments[0].nodes[2].residual, Some(a));
}

#[test]
fn an_op_may_read_its_residual() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let term = ops.matmul(x, D);
    let y = ops.r.add(x, term);
    ops.output(y);
    let fused = check(ops, &["embed", "matmul onto"]);
    let node = &fused.segments[0].nodes[1];
    assert_eq!((&node.inputs[..], node.residual), (&[x][..], Some(x)));
}

#[test]
fn matmuls_of_one_operand_are_a_group() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let (q, k, v) = (ops.matmul(x, F), ops.matmul(x, D), ops.matmul(x, D));
    ops.kv_write((0, 0), k, v);
    ops.output(q);
    let fused = check(ops, &["embed", "matmul_group", "kv_write"]);
    assert_eq!(fused.segments[0].nodes[1].outputs, [q.id, k.id, v.id]);
}

#[test]
fn a_group_is_as_long_as_the_kernel_allows() {
    for (max_group, expected) in [
        (1, &["matmul"; 5][..]),
        (2, &["matmul_group", "matmul_group", "matmul"]),
        (3, &["matmul_group", "matmul_group"]),
        (8, &["matmul_group"]),
    ] {
        let mut ops = Ops::new();
        let x = ops.embed();
        for _ in 0..5 {
            let y = ops.matmul(x, D);
            ops.output(y);
        }
        let expected = [&["embed"], expected].concat();
        let table = vec![groups(max_group, RowClass::ALL)];
        check_for(&Capabilities { table, ..all_rules() }, ops, &expected);
    }
}

#[test]
fn a_group_has_no_activation_no_residual_and_no_other_operand() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let h = ops.layer_norm(x);
    let wide = ops.activated(h, F);
    let of_view = ops.matmul(wide.columns(0, D), D);
    let of_other_view = ops.matmul(wide.columns(D, D), D);
    let term = ops.matmul(h, D);
    let sum = ops.r.add(x, term);
    let plain = ops.matmul(h, D);
    [of_view, of_other_view, sum, plain].into_iter().for_each(|x| ops.output(x));
    check(ops, &["embed", "layer_norm", "matmul", "matmul", "matmul", "matmul onto", "matmul"]);
}

#[test]
fn dead_values_are_removed() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let term = ops.matmul(x, D);
    let y = ops.r.add(x, term);
    // A chain without a reader, whose first op reads what could be fused.
    let h = ops.rms_norm(term);
    let (a, _) = (ops.matmul(h, D), ops.matmul(h, F));
    ops.rope(a);
    // Ops with effects stay.
    ops.kv_write((0, 0), y, y);
    ops.export(y);
    check(ops, &["embed", "matmul onto", "kv_write", "export"]);
}

#[test]
fn readers_come_before_the_op_that_overwrites() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let h = ops.layer_norm(x);
    let term = ops.matmul(h, D);
    let sum = ops.r.add(x, term);
    let late = ops.rms_norm(x);
    ops.output(sum);
    ops.output(late);
    check(ops, &["embed", "layer_norm", "rms_norm", "matmul onto"]);
    // A reader that follows the overwriting op cannot.
    let mut ops = Ops::new();
    let x = ops.embed();
    let h = ops.layer_norm(x);
    let term = ops.matmul(h, D);
    let sum = ops.r.add(x, term);
    let late = ops.gated(sum, x);
    ops.output(late);
    check(ops, &["embed", "layer_norm", "matmul onto", "gated"]);
}

#[test]
fn two_ops_in_place_on_one_value_keep_their_order() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let h = ops.layer_norm(x);
    let sum = ops.r.add(x, h);
    let rotated = ops.rope(x);
    ops.output(sum);
    ops.output(rotated);
    let fused = check(ops, &["embed", "layer_norm", "add", "rope"]);
    assert_eq!(fuse(&fused, &all_rules()).to_string(), fused.to_string());
}
