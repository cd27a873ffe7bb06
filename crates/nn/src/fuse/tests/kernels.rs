//! Ops that a device may have kernels for: gated products, rotations, norms, operands of another type.

use stonechat_compute::op::{MatmulArgs, Op, Tensor, TensorType};

use super::{assert_same_meaning, check, check_for, names};
use crate::fuse::{
    Capabilities, Capability, CapabilityKind, Conv1dKernels, MoeKernels, OpKind, fuse,
};
use crate::program::{Node, RowClass, SegmentName};
use crate::testing::{
    D, F, MANY_ROWS, Ops, all_rules, assert_well_formed, cpu_rules, gpu_rules, plain_rules,
    variants,
};

#[test]
fn gate_and_up_are_one_op() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let y = ops.mlp(x);
    ops.output(y);
    let fused = check(ops, &["embed", "gated_product", "matmul"]);
    assert_eq!(fused.segments[0].nodes[1].inputs, [x]);
}

#[test]
fn a_gated_product_has_the_type_of_its_reader() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let y = ops.mlp(x);
    ops.output(y);
    let expected =
        ["embed", "matmul_group", "gated", "matmul", "embed", "convert", "gated_product", "matmul"];
    let fused = check_for(&cpu_rules(), ops, &expected);
    let outputs = &fused.segments[1].nodes[2].outputs;
    assert_eq!(outputs.len(), 1, "a result without scratch");
    assert_eq!(fused.tensors[outputs[0]].dtype, TensorType::Operand);
    // A second reader in f32.
    let mut ops = Ops::new();
    let x = ops.embed();
    let (gate, up) = (ops.matmul(x, F), ops.matmul(x, F));
    let hidden = ops.gated(gate, up);
    let y = ops.matmul(hidden, D);
    ops.output(y);
    ops.output(hidden);
    let expected = [
        "embed",
        "matmul_group",
        "gated",
        "matmul",
        "embed",
        "convert",
        "matmul_group",
        "gated",
        "convert",
        "matmul",
    ];
    check_for(&cpu_rules(), ops, &expected);
}

#[test]
fn equal_operands_are_converted_once() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let wide = ops.layer_norm(x);
    let [a, b] = [(); 2].map(|()| ops.activated(wide, F));
    let [c, d] = [(); 2].map(|()| ops.activated(a.columns(0, D), D));
    let e = ops.activated(a.columns(D, D), D);
    [b, c, d, e].into_iter().for_each(|x| ops.output(x));
    let mut capabilities = plain_rules();
    let read = CapabilityKind::Read(TensorType::Operand);
    capabilities.table.push(Capability::new(&[OpKind::Matmul], read, RowClass::ALL, []));
    let expected = [
        "embed",
        "layer_norm",
        "convert",
        "matmul",
        "matmul",
        "convert",
        "matmul",
        "matmul",
        "convert",
        "matmul",
    ];
    check_for(&capabilities, ops, &expected);
}

#[test]
fn biases_do_not_prevent_a_gated_product() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let [gate, up] = [(); 2].map(|()| {
        let (args, bias) = (ops.matmul_args(D, F), Some(ops.weight(1, F)));
        ops.r.op(Op::Matmul(MatmulArgs { bias, ..args }), &[x])
    });
    let y = ops.gated(gate, up);
    ops.output(y);
    check(ops, &["embed", "gated_product"]);
}

#[test]
fn a_gated_product_needs_the_kernel() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let y = ops.mlp(x);
    ops.output(y);
    check_for(&plain_rules(), ops, &["embed", "matmul_group", "gated", "matmul"]);
}

#[test]
fn a_gated_product_hides_no_value_that_is_read() {
    for is_host in [true, false] {
        for reads_gate in [true, false] {
            let mut ops = Ops::new();
            let x = ops.embed();
            let (gate, up) = (ops.matmul(x, F), ops.matmul(x, F));
            let hidden = ops.gated(gate, up);
            ops.output(hidden);
            let read = if reads_gate { gate } else { up };
            if is_host {
                ops.output(read);
                check(ops, &["embed", "matmul_group", "gated"]);
            } else {
                ops.export(read);
                check(ops, &["embed", "matmul_group", "gated", "export"]);
            }
        }
    }
}

#[test]
fn a_gated_product_has_one_operand() {
    let mut ops = Ops::new();
    let (x, y) = (ops.embed(), ops.embed());
    let (gate, up) = (ops.matmul(x, F), ops.matmul(y, F));
    let hidden = ops.gated(gate, up);
    ops.output(hidden);
    check(ops, &["embed", "embed", "matmul", "matmul", "gated"]);
}

#[test]
fn a_gated_product_has_no_activation_on_its_matmuls() {
    for activated in 0..2 {
        let mut ops = Ops::new();
        let x = ops.embed();
        let mut matmul = |index| match index == activated {
            true => ops.activated(x, F),
            false => ops.matmul(x, F),
        };
        let (gate, up) = (matmul(0), matmul(1));
        let hidden = ops.gated(gate, up);
        ops.output(hidden);
        check(ops, &["embed", "matmul", "matmul", "gated"]);
    }
}

#[test]
fn a_gated_product_reads_whole_values() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let both = ops.matmul(x, 2 * F);
    let hidden = ops.gated(both.columns(0, F), both.columns(F, F));
    ops.output(hidden);
    check(ops, &["embed", "matmul", "gated"]);
}

#[test]
fn a_gated_product_stays_in_its_segment() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let (gate, up) = (ops.matmul(x, F), ops.matmul(x, F));
    ops.next_segment(SegmentName::Logits);
    let hidden = ops.gated(gate, up);
    ops.output(hidden);
    check(ops, &["embed", "matmul_group", "gated"]);
}

/// Self-attention of a layer of rotated heads.
fn rotated_attention(ops: &mut Ops, x: Tensor) -> [Tensor; 3] {
    let [q, k, v] = [(); 3].map(|()| ops.matmul(x, D));
    let (q, k) = (ops.rope(q), ops.rope(k));
    ops.kv_write((0, 0), k, v);
    let attn = ops.attention((0, 0), q);
    ops.output(attn);
    [q, k, v]
}

#[test]
fn rotations_write_keys_and_values() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let [q, k, v] = rotated_attention(&mut ops, x);
    let fused = check(ops, &["embed", "matmul_group", "rope_kv", "attention"]);
    let node = &fused.segments[0].nodes[2];
    assert_eq!((&node.outputs[..], node.inputs[2]), (&[q.id, k.id][..], v));
    let mut ops = Ops::new();
    let x = ops.embed();
    rotated_attention(&mut ops, x);
    let expected = ["embed", "matmul_group", "rope", "rope", "kv_write", "attention"];
    check_for(&plain_rules(), ops, &expected);
}

#[test]
fn rotations_hide_no_value_that_is_read() {
    for reads_q in [true, false] {
        let mut ops = Ops::new();
        let x = ops.embed();
        let [q, k, _] = rotated_attention(&mut ops, x);
        ops.output(if reads_q { q } else { k });
        check(ops, &["embed", "matmul_group", "rope", "rope", "kv_write", "attention"]);
    }
}

#[test]
fn rotations_of_one_of_two_attentions_stay() {
    let mut ops = Ops::new();
    let x = ops.embed();
    rotated_attention(&mut ops, x);
    let q = ops.activated(x, D);
    let second = ops.attention((0, 0), q);
    ops.output(second);
    let names = names(&fuse(&ops.r.finish(), &all_rules()));
    assert!(names.contains(&"kv_write".to_owned()), "{names:?}");
    // Attention before the write reads other keys.
    let mut ops = Ops::new();
    let x = ops.embed();
    let (q, k) = (ops.rope(x), ops.rope(x));
    let attn = ops.attention((0, 0), q);
    ops.kv_write((0, 0), k, x);
    ops.output(attn);
    check(ops, &["embed", "rope", "rope", "attention", "kv_write"]);
}

#[test]
fn rotations_that_overwrite_the_values_stay() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let (q, k) = (ops.rope(x), ops.rope(x));
    ops.kv_write((0, 0), k, x);
    let attn = ops.attention((0, 0), q);
    ops.output(attn);
    check(ops, &["embed", "rope", "rope", "kv_write", "attention"]);
}

#[test]
fn a_product_applies_the_norm_of_its_operand() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let h = ops.rms_norm(x);
    let (a, b) = (ops.matmul(h, D), ops.matmul(h, F));
    let c = ops.activated(h, F);
    [a, b, c].into_iter().for_each(|x| ops.output(x));
    let fused = check(ops, &["embed", "normed matmul_group", "matmul"]);
    let node = &fused.segments[0].nodes[1];
    assert_eq!((&node.inputs[..], &node.outputs[..]), (&[x][..], &[a.id, b.id, h.id][..]));
}

#[test]
fn a_norm_without_a_product_that_can_come_first_stays() {
    // The product follows another reader of the norm.
    let mut ops = Ops::new();
    let x = ops.embed();
    let h = ops.rms_norm(x);
    let rotated = ops.rope(h);
    let term = ops.matmul(h, D);
    let sum = ops.r.add(rotated, term);
    ops.output(sum);
    check(ops, &["embed", "rms_norm", "rope", "matmul onto"]);
    // The matmul can come first, wherever it is recorded.
    let mut ops = Ops::new();
    let x = ops.embed();
    let h = ops.rms_norm(x);
    let rotated = ops.rope(h);
    let y = ops.matmul(h, D);
    ops.output(rotated);
    ops.output(y);
    check(ops, &["embed", "normed matmul", "rope"]);
    // No kernel.
    let mut ops = Ops::new();
    let x = ops.embed();
    let h = ops.rms_norm(x);
    let y = ops.matmul(h, D);
    ops.output(y);
    check_for(&plain_rules(), ops, &["embed", "rms_norm", "matmul"]);
}

#[test]
fn a_product_of_some_columns_of_a_norm_does_not_apply_it() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let wide = ops.activated(x, F);
    let h = ops.rms_norm(wide);
    let y = ops.matmul(h.columns(D, D), D);
    ops.output(y);
    check(ops, &["embed", "matmul", "rms_norm", "matmul"]);
}

#[test]
fn a_product_does_not_apply_a_norm_on_its_residual() {
    // The residual is the norm, or its operand.
    for is_norm in [true, false] {
        let mut ops = Ops::new();
        let x = ops.embed();
        let h = ops.rms_norm(x);
        let term = ops.matmul(h, D);
        let y = ops.r.add(if is_norm { h } else { x }, term);
        ops.output(y);
        check(ops, &["embed", "rms_norm", "matmul onto"]);
    }
}

#[test]
fn a_sum_over_ranks_applies_the_norm_if_nothing_else_reads_other_rows() {
    let mut rules = gpu_rules();
    rules.table.retain(|row| row.kind != CapabilityKind::Run);
    let kind = CapabilityKind::Run;
    rules.table.push(Capability::new(&[OpKind::AllReduceNorm], kind, MANY_ROWS, []));
    for is_read in [false, true] {
        let mut ops = Ops::new();
        let x = ops.embed();
        let term = ops.r.op(Op::AllReduce, &[x]);
        let y = ops.r.add(x, term);
        let norm = ops.rms_norm(y);
        let product = ops.matmul(norm, D);
        let term = ops.r.op(Op::AllReduce, &[product]);
        let z = ops.r.add(y, term);
        ops.output(z);
        if is_read {
            ops.output(y);
        }
        let few = ["embed", "all_reduce onto", "normed matmul", "all_reduce onto"];
        let many: &[&str] = if is_read {
            &["embed", "all_reduce onto", "rms_norm", "matmul", "all_reduce onto"]
        } else {
            &["embed", "all_reduce_norm onto", "matmul", "all_reduce onto"]
        };
        check_for(&rules, ops, &[&few, many].concat());
    }
}

#[test]
fn experts_are_lowered_to_the_kernels_of_the_device() {
    for (moe, expected) in [
        (MoeKernels::Whole, &["moe onto"][..]),
        (MoeKernels::Mlp, &["moe_route", "moe_sort", "expert_mlp onto"]),
        (
            MoeKernels::Products { sorted: true },
            &[
                "moe_route",
                "moe_sort",
                "expert_matmul",
                "expert_matmul",
                "gated",
                "expert_matmul",
                "moe_combine onto",
            ],
        ),
        (
            MoeKernels::Products { sorted: false },
            &[
                "moe_route",
                "expert_matmul",
                "expert_matmul",
                "gated",
                "expert_matmul",
                "moe_combine onto",
            ],
        ),
    ] {
        let mut ops = Ops::new();
        let x = ops.embed();
        let logits = ops.matmul(x, 3);
        let term = ops.moe(x, logits);
        let y = ops.r.add(x, term);
        ops.output(y);
        let expected = [&["embed", "matmul"], expected].concat();
        check_for(&Capabilities { moe, ..plain_rules() }, ops, &expected);
    }
}

#[test]
fn operands_of_experts_are_written_by_the_ops_before() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let h = ops.layer_norm(x);
    let logits = ops.matmul(h, 3);
    let y = ops.moe(h, logits);
    ops.output(y);
    let program = ops.r.finish();
    let fused = fuse(&program, &gpu_rules());
    assert_well_formed(&fused);
    assert_same_meaning(&fused, &program);
    // With few rows, norms and gated activations write the type that all products read.
    let few: Vec<&Node> = variants(&fused, 1).flat_map(|segment| &segment.nodes).collect();
    let kernel = |node: &&Node| (node.op.name(), fused.tensors[node.outputs[0]].dtype.name());
    let expected = [
        ("embed", "f32"),
        ("layer_norm", "q8"),
        ("matmul", "f32"),
        ("moe_route", "u32"),
        ("moe_sort", "u32"),
        ("expert_matmul", "f32"),
        ("expert_matmul", "f32"),
        ("gated", "q8"),
        ("expert_matmul", "f32"),
        ("moe_combine", "f32"),
    ];
    assert_eq!(few.iter().map(kernel).collect::<Vec<_>>(), expected, "{fused}");
}

#[test]
fn a_convolution_is_lowered_to_im2col_and_a_matmul() {
    let record = || {
        let mut ops = Ops::new();
        let x = ops.embed();
        let y = ops.conv1d(x);
        let sum = ops.r.add(x, y);
        ops.output(sum);
        ops
    };
    check_for(&plain_rules(), record(), &["embed", "conv1d onto"]);
    let conv1d = Conv1dKernels::Im2col { col_multiple: 16 };
    let rules = Capabilities { conv1d, ..plain_rules() };
    let fused = check_for(&rules, record(), &["embed", "im2col", "matmul onto"]);
    // Three taps of `D` columns, padded.
    assert_eq!(fused.nodes().nth(2).map(|node| node.inputs[0].cols), Some(16));
}

#[test]
fn an_attention_rotates_its_queries_itself_if_nothing_else_reads_them() {
    // Another reader of the queries, of the keys; an op between the KV write and the attention.
    for [q_is_read, k_is_read, is_between] in
        [[false; 3], [false, false, true], [true, false, false], [false, true, false]]
    {
        let mut ops = Ops::new();
        let x = ops.embed();
        let [q, k, v] = [(); 3].map(|()| ops.activated(x, D));
        let (q, k) = (ops.rope(q), ops.rope(k));
        ops.kv_write((0, 0), k, v);
        if is_between {
            let other = ops.gated(x, x);
            ops.output(other);
        }
        let attn = ops.attention((0, 0), q);
        ops.output(attn);
        [(q, q_is_read), (k, k_is_read)].into_iter().filter(|x| x.1).for_each(|x| ops.export(x.0));
        let program = ops.r.finish();
        let fused = fuse(&program, &gpu_rules());
        assert_well_formed(&fused);
        assert_same_meaning(&fused, &program);
        let is_fused = names(&fused).iter().any(|name| name == "rope_attention");
        assert_eq!(is_fused, !q_is_read && !k_is_read, "{fused}");
    }
}
