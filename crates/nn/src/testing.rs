//! Random programs, shuffles and the meaning of programs, for tests of fusion and of memory plans.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use proptest::prelude::*;
use stonechat_compute::DType;
use stonechat_compute::op::{
    AttentionArgs, ConvArgs, Count, EmbedArgs, KvWriteArgs, MatmulArgs, MoeArgs, MoeRouteArgs,
    NormArgs, Op, PoolId, Port, RopeArgs, RopeAttentionArgs, RopeKvArgs, Routing, RowTable, Rows,
    SlotTable, Tensor, TensorType, Weight, WeightInfo, WeightLayout,
};

use crate::fuse::CapabilityKind::{Read, Run, Write};
use crate::fuse::{
    Capabilities, Capability, CapabilityKind, Conv1dKernels, Limit, MoeKernels, OpKind,
};
use crate::program::{Node, Program, RowClass, Segment, SegmentName};
use crate::{Activation, GatedActivation, KvDType, KvShape, Precision, Recorder};

/// Width of the residual stream, of a head and of a row of keys.
pub(crate) const D: usize = 4;
/// Width of hidden values.
pub(crate) const F: usize = 8;

/// Rows of a decode step.
const FEW_ROWS: RowClass = RowClass { min: 1, max: 4 };
/// Rows of a prompt.
pub(crate) const MANY_ROWS: RowClass = RowClass { min: 5, max: usize::MAX };
/// Numbers of rows of every class.
pub(crate) const N_ROWS: [usize; 2] = [1, 7];

/// Compares `text` with the snapshot `name`, or writes it if `UPDATE_SNAPSHOTS` is set.
///
/// # Panics
/// If they differ.
#[track_caller]
pub(crate) fn check_snapshot(name: &str, text: &str) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden");
    let path = std::path::Path::new(folder).join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some_and(|value| !value.is_empty()) {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, text).expect("a written snapshot");
    }
    let expected = std::fs::read_to_string(path).expect("a snapshot: UPDATE_SNAPSHOTS=1 writes it");
    assert_eq!(text, expected, "{name}: UPDATE_SNAPSHOTS=1 writes it");
}

/// Ops that fusion makes of recorded ones, but groups.
const FUSED: &[OpKind] = &[OpKind::GatedProduct, OpKind::RopeKv, OpKind::AllReduceNorm];

/// Kernels of groups of up to `max` matmuls.
pub(crate) fn groups(max: usize, rows: RowClass) -> Capability {
    Capability::new(&[OpKind::MatmulGroup], Run, rows, [Limit::Matrices(max)])
}

/// Every rule for values in f32, for any number of rows; none for one row.
pub(crate) fn all_rules() -> Capabilities {
    Capabilities {
        residuals: true,
        table: vec![
            Capability::new(FUSED, Run, RowClass::ALL, []),
            groups(3, RowClass::ALL),
            Capability::new(OpKind::PRODUCTS, CapabilityKind::Norm, RowClass::ALL, []),
        ],
        ..Capabilities::none()
    }
}

/// Residuals and groups alone.
pub(crate) fn plain_rules() -> Capabilities {
    Capabilities { residuals: true, table: vec![groups(3, RowClass::ALL)], ..Capabilities::none() }
}

/// Products that read a type of their own in a class of rows, and gated products in that type, as on a CPU.
pub(crate) fn cpu_rules() -> Capabilities {
    let gated = [Limit::Results(&[TensorType::Operand])];
    Capabilities {
        row_classes: &[FEW_ROWS, MANY_ROWS],
        moe: MoeKernels::Mlp,
        table: vec![
            Capability::new(&[OpKind::Matmul], Read(TensorType::Operand), MANY_ROWS, []),
            Capability::new(&[OpKind::GatedProduct], Run, MANY_ROWS, gated),
            groups(3, RowClass::ALL),
        ],
        ..plain_rules()
    }
}

/// Operands of a type of their own in each class of rows, which other ops write; rotations, norms and gated products of few
/// rows, as on a GPU.
pub(crate) fn gpu_rules() -> Capabilities {
    let (any, q8, f16) = (RowClass::ALL, TensorType::Q8, TensorType::F16);
    let norm = &[OpKind::RmsNorm];
    let writers =
        &[OpKind::LayerNorm, OpKind::Gated, OpKind::Attention, OpKind::Matmul, OpKind::RmsNorm];
    Capabilities {
        row_classes: &[FEW_ROWS, MANY_ROWS],
        moe: MoeKernels::Products { sorted: true },
        conv1d: Conv1dKernels::Im2col { col_multiple: 16 },
        residuals: true,
        table: vec![
            Capability::new(&[OpKind::ExpertMatmul], Read(q8), any, []),
            Capability::new(&[OpKind::Matmul], Read(q8), FEW_ROWS, []),
            Capability::new(&[OpKind::Matmul], Read(f16), MANY_ROWS, []),
            Capability::new(FUSED, Run, FEW_ROWS, []),
            Capability::new(&[OpKind::RopeAttention], Run, FEW_ROWS, []),
            // In a longer list of matmuls, the order would decide which ones may write another type.
            groups(99, FEW_ROWS),
            Capability::new(OpKind::PRODUCTS, CapabilityKind::Norm, FEW_ROWS, []),
            Capability::new(writers, Write(q8), FEW_ROWS, []),
            Capability::new(writers, Write(f16), MANY_ROWS, []),
            Capability::new(norm, Write(q8), any, []),
            Capability::new(norm, Write(f16), any, []),
        ],
    }
}

/// Products that read an operand of another type than f32, in part of the tests.
pub(crate) fn mixed_rules() -> Capabilities {
    let mut rules = Capabilities { residuals: false, ..all_rules() };
    let (read, wide) = (Read(TensorType::Operand), [Limit::NMultiple(F)]);
    rules.table.push(Capability::new(&[OpKind::Matmul], read, RowClass::ALL, wide));
    rules
}

/// Capabilities of devices.
pub(crate) fn devices() -> [Capabilities; 6] {
    [all_rules(), Capabilities::none(), plain_rules(), cpu_rules(), gpu_rules(), mixed_rules()]
}

/// Recorder of ops with weights that are told apart by number.
#[derive(Debug)]
pub(crate) struct Ops {
    pub(crate) r: Recorder,
    n_weights: usize,
    n_ports: usize,
}

impl Ops {
    /// A program in its first segment, with two KV pools of two layers.
    pub(crate) fn new() -> Self {
        let mut r = Recorder::new();
        let shape =
            KvShape { n_layers: 2, n_pages: 1, n_kv_heads: 1, head_dim: D, dtype: KvDType::F32 };
        for _ in 0..2 {
            r.pool(shape);
        }
        r.segment(SegmentName::Body, Rows::of(Count::Tokens));
        Self { r, n_weights: 0, n_ports: 0 }
    }

    /// Starts a segment of the rows of logits.
    pub(crate) fn next_segment(&mut self, name: SegmentName) {
        self.r.segment(name, Rows::of(Count::Logits));
    }

    pub(crate) fn weight(&mut self, rows: usize, cols: usize) -> Weight {
        self.n_weights += 1;
        let info = WeightInfo { dtype: DType::F32, rows, cols, layout: WeightLayout::Rows };
        Weight::new(info, Arc::new(self.n_weights))
    }

    pub(crate) fn embed(&mut self) -> Tensor {
        let table = self.weight(16, D);
        self.r.embed(EmbedArgs { table, positions: None, scale: 1.0 })
    }

    pub(crate) fn matmul_args(&mut self, k: usize, n: usize) -> MatmulArgs {
        MatmulArgs { weight: self.weight(n, k), bias: None, activation: Activation::None }
    }

    pub(crate) fn matmul(&mut self, x: Tensor, n: usize) -> Tensor {
        let args = self.matmul_args(x.cols, n);
        self.r.op(Op::Matmul(args), &[x])
    }

    pub(crate) fn activated(&mut self, x: Tensor, n: usize) -> Tensor {
        let args = self.matmul_args(x.cols, n);
        self.r.op(Op::Matmul(MatmulArgs { activation: Activation::Gelu, ..args }), &[x])
    }

    pub(crate) fn rms_norm(&mut self, x: Tensor) -> Tensor {
        let weight = self.weight(1, x.cols);
        self.r.op(Op::RmsNorm(NormArgs { weight, bias: None, eps: 1e-5 }), &[x])
    }

    pub(crate) fn layer_norm(&mut self, x: Tensor) -> Tensor {
        let weight = self.weight(1, x.cols);
        self.r.op(Op::LayerNorm(NormArgs { weight, bias: None, eps: 1e-5 }), &[x])
    }

    pub(crate) fn rope(&mut self, x: Tensor) -> Tensor {
        self.r.rope(x, RopeArgs { head_dim: D, norm: None, rotation: None })
    }

    pub(crate) fn gated(&mut self, gate: Tensor, up: Tensor) -> Tensor {
        self.r.gated(gate, up, GatedActivation::Silu)
    }

    /// The parts of a gated MLP.
    pub(crate) fn mlp(&mut self, x: Tensor) -> Tensor {
        let (gate, up) = (self.matmul(x, F), self.matmul(x, F));
        let hidden = self.gated(gate, up);
        self.matmul(hidden, D)
    }

    pub(crate) fn moe(&mut self, x: Tensor, logits: Tensor) -> Tensor {
        let n_experts = logits.cols;
        let args = MoeArgs {
            gate: self.weight(n_experts * F, x.cols),
            up: self.weight(n_experts * F, x.cols),
            down: self.weight(n_experts * x.cols, F),
            gate_bias: None,
            up_bias: None,
            down_bias: None,
            n_experts,
            n_used: 1,
            routing: Routing::Softmax,
            activation: GatedActivation::Silu,
        };
        self.r.moe(x, logits, args)
    }

    /// A convolution of the rows of each token.
    pub(crate) fn conv1d(&mut self, x: Tensor) -> Tensor {
        let weight = self.weight(D, 3 * x.cols);
        let matmul = MatmulArgs { weight, bias: None, activation: Activation::Gelu };
        self.r.op(Op::Conv1d(ConvArgs { matmul, stride: 1 }), &[x])
    }

    pub(crate) fn kv_write(&mut self, (pool, layer): (usize, usize), k: Tensor, v: Tensor) {
        self.r.kv_write(KvWriteArgs { pool: PoolId(pool), layer, slots: SlotTable::TOKENS }, k, v);
    }

    pub(crate) fn attention(&mut self, (pool, layer): (usize, usize), q: Tensor) -> Tensor {
        let args = AttentionArgs {
            pool: PoolId(pool),
            layer,
            n_heads: q.cols / D,
            scale: 1.0,
            soft_cap: None,
            slopes: None,
            sinks: None,
            rows: RowTable::FULL,
            precision: Precision::F32,
        };
        self.r.attention(q, args)
    }

    pub(crate) fn output(&mut self, x: Tensor) {
        self.n_ports += 1;
        self.r.output(Port::value(self.n_ports), x);
    }

    pub(crate) fn export(&mut self, x: Tensor) {
        self.n_ports += 1;
        self.r.export(Port::value(self.n_ports), x);
    }
}

/// Random programs: several segments, views, outputs, values that cross segments, the patterns of fusion and near misses.
pub(crate) fn programs() -> impl Strategy<Value = Program> {
    prop::collection::vec((0..25u8, any::<[u8; 3]>()), 1..50).prop_map(|choices| {
        let mut ops = Ops::new();
        let mut values = vec![ops.embed()];
        let mut segments =
            [SegmentName::Logits, SegmentName::Hidden, SegmentName::CrossKv].into_iter();
        for (kind, choice) in choices {
            if kind == 0
                && choice[0] < 128
                && let Some(name) = segments.next()
            {
                ops.next_segment(name);
            }
            values.extend(random_op(&mut ops, &values, kind, choice));
        }
        ops.output(*values.last().expect("a value"));
        ops.r.finish()
    })
}

/// Records an op, or the ops of a pattern, on values that `choice` selects.
fn random_op(ops: &mut Ops, values: &[Tensor], kind: u8, choice: [u8; 3]) -> Option<Tensor> {
    let [a, b, c] = choice.map(usize::from);
    // Late values are likelier, so that chains form.
    let x = values[values.len() - 1 - (a * a / 256) % values.len()];
    let shape = |x: &Tensor| (x.rows, x.cols);
    let alike: Vec<Tensor> = values.iter().copied().filter(|y| shape(y) == shape(&x)).collect();
    let y = alike[b % alike.len()];
    let layer = (b % 2, c % 2);
    let is_tokens = x.rows == Rows::of(Count::Tokens);
    Some(match kind {
        0..=2 => ops.matmul(x, [D, F][c % 2]),
        3 => ops.activated(x, [D, F][c % 2]),
        4..=6 => ops.r.add(x, y),
        7 => ops.gated(x, y),
        8 => ops.rms_norm(x),
        9 => ops.layer_norm(x),
        10 => ops.rope(x),
        11 if x.cols == D && is_tokens => {
            ops.kv_write(layer, x, y);
            return None;
        }
        12 if is_tokens => ops.attention(layer, x),
        13 => {
            ops.export(x);
            return None;
        }
        14 => {
            ops.output(x);
            return None;
        }
        15 => {
            let mlp = ops.mlp(x);
            if c % 2 == 0 && x.cols == D { ops.r.add(x, mlp) } else { mlp }
        }
        16 => {
            let h = if c % 2 == 0 { x } else { ops.rms_norm(x) };
            let term = ops.matmul(h, x.cols);
            if c % 4 < 2 { ops.r.add(y, term) } else { ops.r.add(term, y) }
        }
        17 if x.cols == F => x.columns(c % 2 * D, D),
        17 if is_tokens => ops.r.gather(x, [Count::Logits, Count::Hidden][b % 2]),
        17 if x.rows == Rows::of(Count::Logits) => x.first(Count::TopK),
        18 if c % 2 == 0 => ops.embed(),
        18 => ops.r.import(Port::value(1000 + c), Rows::of(Count::Tokens), F),
        19 => {
            let logits = ops.matmul(x, D);
            ops.moe(x, logits)
        }
        20 if is_tokens => {
            // Self-attention, with near misses.
            let h = if a % 2 == 0 { ops.rms_norm(x) } else { x };
            let [q, k, v] = [(); 3].map(|()| ops.matmul(h, D));
            let k = ops.rope(k);
            let q = if c % 4 > 0 { ops.rope(q) } else { q };
            ops.kv_write(layer, k, if c % 8 == 7 { q } else { v });
            let attn = ops.attention(layer, q);
            ops.matmul(attn, D)
        }
        21 => {
            let h = ops.rms_norm(x);
            let mlp = ops.mlp(h);
            if x.cols == D { ops.r.add(x, mlp) } else { mlp }
        }
        22 => {
            // A norm with readers of all kinds.
            let h = ops.rms_norm(x);
            let other = if a % 2 == 0 { ops.rope(h) } else { h };
            let product = ops.matmul(h, x.cols);
            ops.r.add(other, product)
        }
        23 => ops.r.logit_filter(x),
        24 => ops.conv1d(x),
        _ => return None,
    })
}

/// The program with the ops of each segment in another order that respects data flow and the order of KV accesses.
pub(crate) fn shuffled(program: &Program, mut seed: u64) -> Program {
    let mut result = program.clone();
    for segment in &mut result.segments {
        let nodes = std::mem::take(&mut segment.nodes);
        let follows = |first: &Node, second: &Node| {
            let reads = second.reads().any(|x| first.outputs.contains(&x.id));
            let kv = match (first.op.kv_access(), second.op.kv_access()) {
                (Some((pool, layer, a_writes)), Some((other, other_layer, b_writes))) => {
                    (pool, layer) == (other, other_layer) && (a_writes || b_writes)
                }
                _ => false,
            };
            reads || kv
        };
        let mut left: Vec<usize> = (0..nodes.len()).collect();
        while !left.is_empty() {
            let is_ready =
                |&&i: &&usize| left.iter().all(|&j| j >= i || !follows(&nodes[j], &nodes[i]));
            let ready: Vec<usize> = left.iter().filter(is_ready).copied().collect();
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let next = ready[(seed >> 33) as usize % ready.len()];
            left.retain(|&i| i != next);
            segment.nodes.push(nodes[next].clone());
        }
    }
    result
}

/// The variant of each segment for a number of rows.
pub(crate) fn variants(program: &Program, n_rows: usize) -> impl Iterator<Item = &Segment> {
    program.segments.iter().filter(move |segment| segment.class.contains(n_rows))
}

/// Checks that every value has one producer, which comes before its readers, in steps of any number of rows.
#[track_caller]
pub(crate) fn assert_well_formed(program: &Program) {
    for n_rows in N_ROWS {
        let mut is_produced = vec![false; program.tensors.len()];
        for node in variants(program, n_rows).flat_map(|segment| &segment.nodes) {
            for x in node.reads() {
                assert!(is_produced[x.id], "value {} is read first: {node:?}\n{program}", x.id);
            }
            for &id in &node.outputs {
                let second = std::mem::replace(&mut is_produced[id], true);
                assert!(!second, "two producers of value {id}\n{program}");
            }
        }
        let mut outputs = program.outputs.iter();
        assert!(outputs.all(|(_, x)| is_produced[x.id]), "no producer\n{program}");
    }
}

pub(crate) fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

pub(crate) fn number(weight: &Weight) -> usize {
    *weight.data().expect("a weight of `Ops`")
}

/// Symbols of what a program computes: hashes of formulas. Fused ops have the formulas of their parts.
#[derive(Debug, Default)]
pub(crate) struct Meaning {
    /// Symbol of each value.
    pub(crate) values: BTreeMap<usize, u64>,
    /// Symbol of the contents of each port, and of each layer of a KV pool.
    pub(crate) contents: BTreeMap<String, u64>,
}

fn sum(a: u64, b: u64) -> u64 {
    hash(("add", a.min(b), a.max(b)))
}

/// `act(x·Wᵀ + bias)`.
pub(crate) fn product(args: &MatmulArgs, x: u64) -> u64 {
    let bias = args.bias.as_ref().map(number);
    hash((number(&args.weight), bias, format!("{:?}", args.activation), x))
}

fn rope(args: &RopeArgs, x: u64) -> u64 {
    hash(("rope", format!("{args:?}"), x))
}

fn rms_norm(args: &NormArgs, x: u64) -> u64 {
    hash(("rms_norm", number(&args.weight), x))
}

fn gated(activation: &GatedActivation, gate: u64, up: u64) -> u64 {
    hash(("gated", format!("{activation:?}"), gate, up))
}

fn route(n_used: usize, routing: Routing, logits: u64) -> u64 {
    hash(("route", n_used, format!("{routing:?}"), logits))
}

fn expert_product(weight: &Weight, bias: Option<&Weight>, x: u64, routes: u64) -> u64 {
    hash(("expert", number(weight), bias.map(number), x, routes))
}

fn combine(results: u64, routes: u64) -> u64 {
    hash(("combine", results, routes))
}

fn experts(args: &MoeArgs, x: u64, routes: u64) -> u64 {
    let gate = expert_product(&args.gate, args.gate_bias.as_ref(), x, routes);
    let up = expert_product(&args.up, args.up_bias.as_ref(), x, routes);
    let hidden = gated(&args.activation, gate, up);
    combine(expert_product(&args.down, args.down_bias.as_ref(), hidden, routes), routes)
}

fn im2col(stride: usize, x: u64) -> u64 {
    hash(("im2col", stride, x))
}

impl Meaning {
    /// Meaning of a program for a number of rows.
    pub(crate) fn new(program: &Program, n_rows: usize) -> Self {
        let mut meaning = Self::default();
        for node in variants(program, n_rows).flat_map(|segment| &segment.nodes) {
            meaning.add(program, node);
        }
        for (port, x) in &program.outputs {
            let value = meaning.read(program, *x);
            meaning.contents.insert(format!("{port:?}"), value);
        }
        meaning
    }

    pub(crate) fn read(&self, program: &Program, x: Tensor) -> u64 {
        let value = self.values[&x.id];
        if program.is_whole(x) {
            return value;
        }
        hash(("view", value, x.rows, x.first_col, x.cols))
    }

    fn write(&mut self, args: &KvWriteArgs, k: u64, v: u64) {
        let content = self.contents.entry(format!("layer {:?}", (args.pool, args.layer)));
        let content = content.or_default();
        *content = hash((*content, args.slots, k, v));
    }

    fn attention(&self, args: &AttentionArgs, q: u64) -> u64 {
        let layer = format!("layer {:?}", (args.pool, args.layer));
        hash((self.contents.get(&layer), format!("{args:?}"), q))
    }

    fn add(&mut self, program: &Program, node: &Node) {
        let mut x: Vec<u64> = node.inputs.iter().map(|&x| self.read(program, x)).collect();
        let norm = node.norm.as_ref().map(|args| rms_norm(args, x[0]));
        x[..1.min(node.inputs.len())].iter_mut().for_each(|x| *x = norm.unwrap_or(*x));
        let mut results = match &node.op {
            Op::Matmul(args) => vec![product(args, x[0])],
            Op::MatmulGroup(all) => all.iter().map(|args| product(args, x[0])).collect(),
            Op::GatedProduct(args) => {
                let (gate, up) = (product(&args.gate, x[0]), product(&args.up, x[0]));
                let hidden = gated(&args.activation, gate, up);
                vec![hidden]
            }
            Op::Gated(activation) => vec![gated(activation, x[0], x[1])],
            Op::Add => vec![sum(x[0], x[1])],
            Op::Convert(_) => vec![x[0]],
            Op::Rope(args) => vec![rope(args, x[0])],
            Op::RopeKv(RopeKvArgs { q, k, write }) => {
                let (q, k) = (rope(q, x[0]), rope(k, x[1]));
                self.write(write, k, x[2]);
                vec![q, k]
            }
            Op::KvWrite(args) => {
                self.write(args, x[0], x[1]);
                vec![]
            }
            Op::Attention(args) => vec![self.attention(args, x[0])],
            Op::RopeAttention(RopeAttentionArgs { rope: args, attention, .. }) => {
                self.write(&args.write, rope(&args.k, x[1]), x[2]);
                vec![self.attention(attention, rope(&args.q, x[0]))]
            }
            Op::Moe(args) => vec![experts(args, x[0], route(args.n_used, args.routing, x[1]))],
            Op::ExpertMlp(args) => vec![experts(args, x[0], x[1])],
            Op::MoeRoute(MoeRouteArgs { n_used, routing }) => vec![route(*n_used, *routing, x[0])],
            Op::MoeSort(_) => vec![hash(("sort", x[0]))],
            Op::ExpertMatmul(args) => {
                vec![expert_product(&args.weight, args.bias.as_ref(), x[0], x[1])]
            }
            Op::MoeCombine => vec![combine(x[0], x[1])],
            Op::Conv1d(args) => vec![product(&args.matmul, im2col(args.stride, x[0]))],
            Op::Im2col(args) => vec![im2col(args.stride, x[0])],
            Op::Export(port) => {
                self.contents.insert(format!("{port:?}"), x[0]);
                vec![]
            }
            Op::RmsNorm(args) => vec![rms_norm(args, x[0])],
            Op::LayerNorm(args) => vec![hash(("layer_norm", number(&args.weight), &x))],
            Op::AllReduce | Op::AllReduceNorm(_) => vec![hash(("all_reduce", &x))],
            op => vec![hash((format!("{op:?}"), &x))],
        };
        if let Some(residual) = node.residual {
            results[0] = sum(self.read(program, residual), results[0]);
        }
        results.extend(norm);
        if let Op::AllReduceNorm(args) = &node.op {
            results.push(rms_norm(args, results[0]));
        }
        if let Op::LayerNorm(_) | Op::RmsNorm(_) = node.op {
            // The result in another type.
            results.resize(node.outputs.len(), results[0]);
        }
        assert_eq!(results.len(), node.outputs.len(), "results of {node:?}");
        self.values.extend(node.outputs.iter().copied().zip(results));
    }
}
