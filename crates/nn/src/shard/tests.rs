use std::collections::BTreeMap;
use std::sync::Arc;

use stonechat_compute::DType;
use stonechat_compute::op::{
    AttentionArgs, Count, EmbedArgs, KvWriteArgs, MatmulArgs, MoeArgs, Op, PoolId, Port, RopeArgs,
    Routing, RowTable, Rows, SlotTable, Tensor, Weight, WeightInfo, WeightLayout,
};

use super::{Part, Shards, shard_with};
use crate::program::{Node, Program, RowClass, SegmentName};
use crate::testing::{all_rules, assert_well_formed};
use crate::{
    Activation, Capability, CapabilityKind, GatedActivation, KvDType, KvShape, OpKind, Precision,
    Recorder, fuse,
};

/// Width of the residual stream.
const D: usize = 32;
/// Width of a head.
const C: usize = 8;
const V: usize = 1000;

/// Recorder of the parts of a model, with weights that have names.
struct Model {
    r: Recorder,
    dtype: DType,
    heads: (usize, usize),
    pool: PoolId,
}

impl Model {
    /// The embedding of a model with `heads` heads and KV heads, with matrices of a type.
    fn new(heads: (usize, usize), dtype: DType) -> (Self, Tensor) {
        let mut r = Recorder::new();
        let (n_kv_heads, dtype_kv) = (heads.1, KvDType::F32);
        let shape = KvShape { n_layers: 2, n_pages: 1, n_kv_heads, head_dim: C, dtype: dtype_kv };
        let pool = r.pool(shape);
        r.segment(SegmentName::Body, Rows::of(Count::Tokens));
        let table = weight("embd", DType::F32, V, D);
        let x = r.embed(EmbedArgs { table, positions: None, scale: 1.0 });
        (Self { r, dtype, heads, pool }, x)
    }

    fn matmul(&mut self, name: &'static str, x: Tensor, n: usize) -> Tensor {
        self.activated(name, x, n, Activation::None)
    }

    fn activated(&mut self, name: &'static str, x: Tensor, n: usize, act: Activation) -> Tensor {
        let bias = Some(values("bias", n));
        let weight = weight(name, self.dtype, n, x.cols);
        self.r.op(Op::Matmul(MatmulArgs { weight, bias, activation: act }), &[x])
    }

    /// Attention onto `x`.
    fn attention(&mut self, x: Tensor, layer: usize) -> Tensor {
        let (pool, (n_heads, n_kv_heads)) = (self.pool, self.heads);
        let q = self.matmul("q", x, n_heads * C);
        let [k, v] = ["k", "v"].map(|name| self.matmul(name, x, n_kv_heads * C));
        let rope = RopeArgs { head_dim: C, norm: Some((values("norm", C), 1e-5)), rotation: None };
        let (q, k) = (self.r.rope(q, rope.clone()), self.r.rope(k, rope));
        self.r.kv_write(KvWriteArgs { pool, layer, slots: SlotTable::TOKENS }, k, v);
        let args = AttentionArgs {
            pool,
            layer,
            n_heads,
            scale: 1.0,
            soft_cap: None,
            slopes: None,
            sinks: Some(values("sinks", n_heads)),
            rows: RowTable::FULL,
            precision: Precision::F32,
        };
        let attn = self.r.attention(q, args);
        let out = self.matmul("out", attn, D);
        self.r.add(x, out)
    }

    /// A gated MLP onto `x`.
    fn mlp(&mut self, x: Tensor, d_ff: usize) -> Tensor {
        let [gate, up] = ["gate", "up"].map(|name| self.matmul(name, x, d_ff));
        let hidden = self.r.gated(gate, up, GatedActivation::Silu);
        let down = self.matmul("down", hidden, D);
        self.r.add(x, down)
    }

    fn experts(&mut self, x: Tensor, (n_experts, d_ff): (usize, usize)) -> Tensor {
        let logits = self.matmul("router", x, n_experts);
        let dtype = self.dtype;
        let args = MoeArgs {
            gate: weight("gate", dtype, n_experts * d_ff, D),
            up: weight("up", dtype, n_experts * d_ff, D),
            down: weight("down", dtype, n_experts * D, d_ff),
            gate_bias: Some(values("gate bias", n_experts * d_ff)),
            up_bias: None,
            down_bias: Some(values("down bias", n_experts * D)),
            n_experts,
            n_used: 1,
            routing: Routing::Softmax,
            activation: GatedActivation::Silu,
        };
        let moe = self.r.moe(x, logits, args);
        self.r.add(x, moe)
    }

    /// The program with logits of `x`.
    fn finish(mut self, x: Tensor) -> Program {
        self.r.segment(SegmentName::Logits, Rows::of(Count::Logits));
        let h = self.r.gather(x, Count::Logits);
        let logits = self.matmul("logits", h, V);
        self.r.output(Port::LOGITS, logits);
        let top_k = self.r.top_k(logits.first(Count::TopK));
        self.r.output(Port::TOP_K, top_k);
        self.r.finish()
    }
}

fn weight(name: &'static str, dtype: DType, rows: usize, cols: usize) -> Weight {
    let info = WeightInfo { dtype, rows, cols, layout: WeightLayout::Rows };
    Weight::new(info, Arc::new(name))
}

fn values(name: &'static str, n: usize) -> Weight {
    Weight::new(WeightInfo::values(n), Arc::new(name))
}

/// Parts of weights by rank and name.
type Parts = BTreeMap<(usize, &'static str), Part>;

/// Splits a program with weights of the shapes of their parts. Checks that the programs of the ranks are well-formed and have
/// equal collective ops.
fn sharded(program: &Program, n_ranks: usize) -> (Shards, Parts) {
    let mut parts = Parts::new();
    let shards = shard_with(program, n_ranks, &mut |rank, weight, part| {
        let name = *weight.data::<&'static str>().expect("a weight with a name");
        let mut info = weight.info();
        let is_values = info.rows == 1 && info.dtype == DType::F32;
        let len = if is_values { &mut info.cols } else { &mut info.rows };
        *len = part.row_ranges(*len).map(|range| range.len()).sum();
        if let Some(cols) = &part.cols {
            info.cols = cols.len();
        }
        parts.insert((rank, name), part);
        Ok(Weight::new(info, Arc::new(name)))
    });
    let shards = shards.expect("weights that load");
    let mut rules = all_rules();
    rules.table.retain(|row| row.kind == CapabilityKind::Run);
    let kind = CapabilityKind::Run;
    rules.table.push(Capability::new(&[OpKind::RopeAttention], kind, RowClass::ALL, []));
    for rank in &shards.programs {
        assert_well_formed(rank);
        for node in rank.nodes().filter(|node| !node.inputs.is_empty()) {
            let results = node.op.results(&node.inputs).expect("no source");
            let infos: Vec<_> = node.outputs.iter().map(|&id| rank.tensors[id]).collect();
            assert_eq!(results, infos, "{node:?}\n{rank}");
        }
        let fused = fuse(rank, &rules);
        assert_eq!(collectives(&fused), collectives(&shards.programs[0]), "{fused}");
    }
    (shards, parts)
}

fn collectives(program: &Program) -> Vec<&'static str> {
    let all = program.nodes().filter(|node| node.op.is_collective());
    all.map(|node| node.op.name()).collect()
}

fn products<'a>(program: &'a Program, name: &str) -> Vec<&'a Node> {
    let is_named = |args: &MatmulArgs| args.weight.data() == Some(&name);
    let nodes = program.nodes();
    nodes.filter(|node| matches!(&node.op, Op::Matmul(args) if is_named(args))).collect()
}

#[test]
fn a_layer_has_two_sums_and_the_logits_one_gather() {
    let (mut model, x) = Model::new((8, 4), DType::F32);
    let x = model.attention(x, 0);
    let x = model.mlp(x, 192);
    let x = model.attention(x, 1);
    let x = model.mlp(x, 192);
    let program = model.finish(x);
    let (shards, parts) = sharded(&program, 2);
    assert!(shards.replicated.is_empty(), "{:?}", shards.replicated);
    assert_eq!(shards.pool_parts, [2]);
    let expected = ["all_reduce", "all_reduce", "all_reduce", "all_reduce", "all_gather"];
    for (rank, program) in shards.programs.iter().enumerate() {
        assert_eq!(collectives(program), expected);
        assert_eq!(program.pools[0].n_kv_heads, 2);
        let part = |name| parts[&(rank, name)].clone();
        let half = |len: usize| rank * len / 2..(rank + 1) * len / 2;
        for (name, rows) in [("q", 64), ("k", 32), ("v", 32), ("sinks", 8)] {
            assert_eq!(part(name), Part::rows(half(rows)), "{name}");
        }
        assert_eq!(part("out"), Part::cols(half(64)));
        // Three groups of 64 columns.
        let hidden = [0..64, 64..192][rank].clone();
        assert_eq!(part("gate"), Part::rows(hidden.clone()));
        assert_eq!(part("down"), Part::cols(hidden));
        assert_eq!(part("logits"), Part::rows([0..512, 512..1000][rank].clone()));
        assert_eq!(["embd", "norm"].map(part), [Part::default(), Part::default()]);
        // The bias of a sum is added once.
        for (name, has_bias) in [("q", true), ("gate", true), ("out", rank == 0)] {
            for node in products(program, name) {
                let Op::Matmul(args) = &node.op else { unreachable!() };
                assert_eq!(args.bias.is_some(), has_bias, "rank {rank}, {name}");
            }
        }
        for node in program.nodes() {
            if let Op::Attention(args) = &node.op {
                assert_eq!(args.n_heads, 4);
            }
        }
    }
}

#[test]
fn columns_are_split_in_whole_blocks() {
    // 11 blocks of 256, over 3 ranks.
    let (mut model, x) = Model::new((4, 2), DType::Q4K);
    let x = model.mlp(x, 11 * 256);
    let program = model.finish(x);
    let (shards, parts) = sharded(&program, 3);
    let bounds = [0, 3 * 256, 7 * 256, 11 * 256];
    for rank in 0..3 {
        let range = bounds[rank]..bounds[rank + 1];
        assert_eq!(parts[&(rank, "down")], Part::cols(range.clone()));
        assert_eq!(parts[&(rank, "up")], Part::rows(range));
    }
    assert!(shards.replicated.is_empty(), "{:?}", shards.replicated);
    assert_eq!(shards.pool_parts, [1], "a pool that no op uses");
}

#[test]
fn what_cannot_be_divided_is_computed_by_every_rank() {
    // As SmolLM2.
    let (mut model, x) = Model::new((9, 3), DType::F32);
    let x = model.attention(x, 0);
    let x = model.mlp(x, 128);
    let program = model.finish(x);
    let (shards, parts) = sharded(&program, 2);
    assert_eq!(shards.replicated, ["attention (3 KV heads)"]);
    assert_eq!(shards.pool_parts, [1]);
    assert_eq!(shards.programs[1].pools, program.pools);
    for name in ["q", "k", "v", "out", "sinks"] {
        assert_eq!(parts[&(1, name)], Part::default(), "{name}");
    }
    assert_eq!(collectives(&shards.programs[1]), ["all_reduce", "all_gather"]);

    // The columns of the output projection of a rank are no whole blocks, hidden columns are one block.
    let (mut model, x) = Model::new((4, 2), DType::Q4K);
    let x = model.attention(x, 0);
    let x = model.mlp(x, 256);
    let (shards, _) = sharded(&model.finish(x), 2);
    let notes = [
        "attention (heads that are no whole blocks or have other readers)",
        "FFN (256 hidden columns)",
    ];
    assert_eq!(shards.replicated, notes);
    assert_eq!(collectives(&shards.programs[0]), ["all_gather"]);
}

#[test]
fn more_ranks_than_kv_heads_share_them() {
    for (n_kv_heads, expected) in [(1, [0..8, 0..8, 0..8, 0..8]), (2, [0..8, 0..8, 8..16, 8..16])] {
        let (mut model, x) = Model::new((8, n_kv_heads), DType::F32);
        let x = model.attention(x, 0);
        let (shards, parts) = sharded(&model.finish(x), 4);
        assert_eq!(shards.pool_parts, [n_kv_heads]);
        for (rank, kv) in expected.into_iter().enumerate() {
            assert_eq!(shards.programs[rank].pools[0].n_kv_heads, 1);
            assert_eq!(parts[&(rank, "k")], Part::rows(kv), "rank {rank}");
            assert_eq!(parts[&(rank, "q")], Part::rows(rank * 16..(rank + 1) * 16));
        }
    }
    let (mut model, x) = Model::new((8, 2), DType::F32);
    let x = model.attention(x, 0);
    let (shards, _) = sharded(&model.finish(x), 3);
    assert_eq!(shards.replicated, ["attention (2 KV heads)"]);
}

#[test]
fn values_with_other_readers_are_whole() {
    let (mut model, x) = Model::new((4, 2), DType::F32);
    let hidden = model.activated("up", x, 128, Activation::Gelu);
    let down = model.matmul("down", hidden, D);
    model.r.output(Port::HIDDEN, hidden);
    let gated = model.r.gated(hidden, hidden, GatedActivation::Silu);
    let other = model.matmul("other", gated, D);
    let x = model.r.add(down, other);
    let (shards, parts) = sharded(&model.finish(x), 2);
    assert_eq!(parts[&(1, "up")], Part::default());
    assert_eq!(collectives(&shards.programs[1]), ["all_gather"]);

    // A plain MLP.
    let (mut model, x) = Model::new((4, 2), DType::F32);
    let hidden = model.activated("up", x, 128, Activation::Gelu);
    let down = model.matmul("down", hidden, D);
    let (shards, parts) = sharded(&model.finish(down), 2);
    assert_eq!(parts[&(1, "up")], Part::rows(64..128));
    assert_eq!(collectives(&shards.programs[1]), ["all_reduce", "all_gather"]);
}

#[test]
fn every_expert_is_split() {
    let (mut model, x) = Model::new((4, 2), DType::Q8_0);
    let x = model.experts(x, (3, 96));
    let (shards, parts) = sharded(&model.finish(x), 2);
    // Three blocks of 32: no whole groups of 64.
    let hidden = Part { stack: 3, ..Part::rows(32..96) };
    for name in ["gate", "up", "gate bias"] {
        assert_eq!(parts[&(1, name)], hidden, "{name}");
    }
    assert_eq!(parts[&(1, "down")], Part::cols(32..96));
    assert_eq!(parts[&(1, "router")], Part::default());
    assert_eq!(parts.get(&(0, "down bias")), Some(&Part::default()));
    assert_eq!(parts.get(&(1, "down bias")), None);
    assert_eq!(collectives(&shards.programs[0]), ["all_reduce", "all_gather"]);
}

#[test]
fn one_rank_runs_the_program() {
    let (mut model, x) = Model::new((4, 2), DType::F32);
    let x = model.attention(x, 0);
    let x = model.mlp(x, 128);
    let program = model.finish(x);
    let (shards, _) = sharded(&program, 1);
    assert_eq!(shards.programs[0].to_string(), program.to_string());
}
