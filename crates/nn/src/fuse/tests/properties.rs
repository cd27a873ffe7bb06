//! Order of lines, variants of segments, random programs.

use proptest::prelude::*;
use stonechat_compute::op::{Count, KvShape, Op, Port, RopeKvArgs, Rows};

use super::{assert_same_meaning, names};
use crate::fuse::fuse;
use crate::program::{Node, Program, RowClass, SegmentName};
use crate::testing::{
    D, F, Meaning, N_ROWS, Ops, all_rules, assert_well_formed, devices, gpu_rules, hash, product,
    programs, shuffled, variants,
};

/// Order of the KV accesses of a program: layer of the pool, whether it writes, first operand.
fn kv_order(program: &Program) -> Vec<((usize, usize), bool, usize)> {
    let nodes = program.nodes();
    let access = |node: &Node| {
        let (pool, layer, writes) = node.op.kv_access()?;
        Some(((pool.0, layer), writes, node.inputs[0].id))
    };
    nodes.filter_map(access).collect()
}

#[test]
fn layers_that_share_pages_keep_the_order_of_writes_and_reads() {
    // All operands are there from the start, so that only the pool orders the accesses.
    let mut ops = Ops::new();
    let x = ops.embed();
    let values = [(); 6].map(|()| ops.activated(x, D));
    for i in 0..3 {
        ops.kv_write((0, 0), values[2 * i], values[2 * i]);
        let attn = ops.attention((0, 0), values[2 * i + 1]);
        ops.output(attn);
    }
    let program = ops.r.finish();
    let expected = [0, 1, 2, 3, 4, 5].map(|i| ((0, 0), i % 2 == 0, values[i].id));
    assert_eq!(kv_order(&fuse(&program, &all_rules())), expected);
    for seed in 0..20 {
        let shuffled = shuffled(&program, seed);
        assert_eq!(kv_order(&fuse(&shuffled, &all_rules())), expected);
    }
}

#[test]
fn attention_of_a_pool_waits_for_its_writes_alone() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let values = [(); 4].map(|()| ops.activated(x, D));
    let out = ops.attention((0, 1), values[0]);
    ops.kv_write((0, 0), values[1], out);
    let other = ops.attention((1, 0), values[2]);
    ops.kv_write((0, 1), values[3], other);
    let fused = fuse(&ops.r.finish(), &all_rules());
    let order = kv_order(&fused);
    let at = |id: usize| order.iter().position(|access| access.2 == id).unwrap();
    assert!(at(values[0].id) < at(values[3].id), "the read of layer 1 before its write\n{fused}");
}

#[test]
fn lines_in_another_order_are_fused_alike() {
    // One layer with its independent lines recorded in two orders.
    let layer = |swap: bool| {
        let mut ops = Ops::new();
        let x = ops.embed();
        let h = ops.rms_norm(x);
        let (q, k, v, gate, up);
        if swap {
            (up, v, k) = (ops.matmul(h, F), ops.matmul(h, D), ops.matmul(h, D));
            (gate, q) = (ops.matmul(h, F), ops.matmul(h, F));
        } else {
            (q, k, v) = (ops.matmul(h, F), ops.matmul(h, D), ops.matmul(h, D));
            (gate, up) = (ops.matmul(h, F), ops.matmul(h, F));
        }
        let (q, k) = match swap {
            true => {
                let k = ops.rope(k);
                (ops.rope(q), k)
            }
            false => (ops.rope(q), ops.rope(k)),
        };
        let hidden = ops.gated(gate, up);
        let ffn = ops.matmul(hidden, D);
        ops.kv_write((0, 0), k, v);
        let attn = ops.attention((0, 0), q);
        let attn = ops.matmul(attn, D);
        let stream = ops.r.add(x, attn);
        let y = ops.r.add(stream, ffn);
        ops.output(y);
        let fused = fuse(&ops.r.finish(), &all_rules());
        assert_well_formed(&fused);
        let mut names = names(&fused);
        names.sort_unstable();
        names
    };
    assert_eq!(layer(false), layer(true));
    let expected = [
        "attention",
        "embed",
        "gated_product",
        "matmul onto",
        "matmul onto",
        "normed matmul_group",
        "rope_kv",
    ];
    assert_eq!(layer(false), expected);
}

/// Fused ops without an order, one line each, values by their formulas. Some choices are left to the order: which of
/// several matmuls are in a full group, which of several products applies a norm.
fn multiset(program: &Program, n_rows: usize) -> Vec<String> {
    let meaning = Meaning::new(program, n_rows);
    let mut lines = Vec::new();
    for segment in variants(program, n_rows) {
        for node in &segment.nodes {
            let mut x: Vec<u64> = node.inputs.iter().map(|&x| meaning.read(program, x)).collect();
            let residual = node.residual.map(|x| meaning.read(program, x));
            if node.norm.is_some() {
                x[0] = meaning.values[node.outputs.last().unwrap()];
                lines.push(format!("norm {x:?}"));
            }
            let line = format!("{:?} {} {x:?} {residual:?}", segment.name, node.op.name());
            match &node.op {
                Op::Matmul(args) => {
                    lines.push(format!("matmul {residual:?} {}", product(args, x[0])))
                }
                Op::MatmulGroup(all) => {
                    lines.push(format!("{line} {}", all.len()));
                    lines.extend(
                        all.iter().map(|args| format!("matmul None {}", product(args, x[0]))),
                    );
                }
                // Their operands and results tell them apart.
                Op::ExpertMatmul(_) | Op::MoeSort(_) => lines.push(line),
                Op::RopeKv(RopeKvArgs { write, .. }) => lines.push(format!("{line} {write:?}")),
                op => {
                    // A norm has a line of its own.
                    let n = node.outputs.len() - usize::from(node.norm.is_some());
                    let results: Vec<u64> =
                        node.outputs[..n].iter().map(|id| meaning.values[id]).collect();
                    lines.push(format!("{line} {results:?} {}", hash(format!("{op:?}"))));
                }
            }
        }
    }
    lines.sort_unstable();
    lines
}

#[test]
fn every_class_of_rows_has_a_variant() {
    let mut ops = Ops::new();
    let x = ops.embed();
    let h = ops.rms_norm(x);
    let term = ops.matmul(h, D);
    let y = ops.r.add(x, term);
    ops.next_segment(SegmentName::Logits);
    let rows = ops.r.gather(y, Count::Logits);
    ops.output(rows);
    let fused = fuse(&ops.r.finish(), &gpu_rules());
    let classes: Vec<_> =
        fused.segments.iter().map(|segment| (segment.name, segment.class)).collect();
    let (few, many) = (RowClass { min: 1, max: 4 }, RowClass { min: 5, max: usize::MAX });
    let (body, logits) = (SegmentName::Body, SegmentName::Logits);
    assert_eq!(classes, [(body, few), (body, many), (logits, few), (logits, many)]);
    // Values that another segment reads keep their number in every variant.
    let producers = |id: usize| {
        let nodes = fused.nodes();
        nodes.filter(|node| node.outputs.contains(&id)).count()
    };
    // The norm is written in the type of the product alone.
    assert_eq!([x, h, y, rows].map(|x| producers(x.id)), [1, 0, 2, 2]);
}

#[test]
fn segments_of_many_rows_have_no_variant_of_few() {
    let mut ops = Ops::new();
    ops.r.segment(SegmentName::Encoder, Rows { count: Count::Windows, each: 5 });
    let x = ops.r.import(Port::STREAM, Rows { count: Count::Windows, each: 5 }, D);
    ops.output(x);
    let fused = fuse(&ops.r.finish(), &gpu_rules());
    let variants = fused.segments.iter().filter(|segment| segment.name == SegmentName::Encoder);
    assert_eq!(variants.map(|segment| segment.class.min).collect::<Vec<_>>(), [5]);
}

#[test]
fn the_encoder_of_whisper_in_any_order() {
    let mut ops = Ops::new();
    ops.r.pool(KvShape {
        n_layers: 1,
        n_pages: 1,
        n_kv_heads: 1,
        head_dim: D,
        dtype: crate::KvDType::F16,
    });
    ops.r.segment(SegmentName::Encoder, Rows { count: Count::Windows, each: 3 });
    let mut x = ops.r.import(Port::STREAM, Rows { count: Count::Windows, each: 3 }, D);
    for _ in 0..3 {
        let h = ops.layer_norm(x);
        let qkv = ops.matmul(h, 3 * D);
        let [q, k, v] = [0, 1, 2].map(|i| qkv.columns(i * D, D));
        ops.kv_write((2, 0), k, v);
        let attn = ops.attention((2, 0), q);
        let out = ops.matmul(attn, D);
        x = ops.r.add(x, out);
        let h = ops.layer_norm(x);
        let h = ops.activated(h, F);
        let ffn = ops.matmul(h, D);
        x = ops.r.add(x, ffn);
    }
    ops.r.output(Port::HIDDEN, x);
    let program = ops.r.finish();
    let expected = fuse(&program, &all_rules());
    let layer = [
        "layer_norm",
        "matmul",
        "kv_write",
        "attention",
        "matmul onto",
        "layer_norm",
        "matmul",
        "matmul onto",
    ];
    let layers: Vec<&str> = std::iter::repeat_n(layer, 3).flatten().collect();
    assert_eq!(names(&expected), [&["import"], &layers[..]].concat());
    for seed in 0..20 {
        let shuffled = fuse(&shuffled(&program, seed), &all_rules());
        assert_eq!(multiset(&shuffled, 7), multiset(&expected, 7));
        assert_same_meaning(&shuffled, &program);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    /// A fused program computes what was recorded, has one producer a value, and fusing it again changes nothing.
    #[test]
    fn fusion_keeps_the_meaning_and_is_idempotent(program in programs()) {
        assert_well_formed(&program);
        for capabilities in &devices() {
            let fused = fuse(&program, capabilities);
            assert_well_formed(&fused);
            assert_same_meaning(&fused, &program);
            let again = fuse(&fused, capabilities);
            prop_assert_eq!(again.to_string(), fused.to_string(), "{}", program);
        }
    }

    /// The order of the recorded lines does not decide what is fused.
    #[test]
    fn a_shuffled_program_is_fused_alike(program in programs(), seed: u64) {
        let shuffled = shuffled(&program, seed);
        assert_well_formed(&shuffled);
        assert_same_meaning(&shuffled, &program);
        for capabilities in &devices() {
            let (a, b) = (fuse(&program, capabilities), fuse(&shuffled, capabilities));
            assert_well_formed(&b);
            for n_rows in N_ROWS {
                prop_assert_eq!(multiset(&a, n_rows), multiset(&b, n_rows), "{}\n{}", a, b);
            }
        }
    }

    /// A device without kernels for fused ops runs what was recorded.
    #[test]
    fn a_device_without_fusion_runs_recorded_ops(program in programs()) {
        let fused = fuse(&program, &crate::Capabilities::none());
        for node in fused.nodes() {
            prop_assert!(node.residual.is_none() && node.norm.is_none());
            let is_fused =
                matches!(node.op, Op::MatmulGroup(_) | Op::GatedProduct(_) | Op::RopeKv(_) | Op::Convert(_));
            let is_lowered = matches!(node.op, Op::MoeRoute(_) | Op::Im2col(_));
            prop_assert!(!is_fused && !is_lowered);
        }
    }
}
