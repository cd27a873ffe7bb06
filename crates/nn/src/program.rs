//! Programs: lists of ops in segments, over values with one producer.
//!
//! ```text
//! Program
//! ├─ tensors   shape of every value                        [T, 576] [T, 1536] ...
//! ├─ pools     geometry of the KV pools
//! ├─ segments  "body"    matmul %1 -> %2, rope %2 -> %5, ...    runs if the step asks for it
//! │            "logits"  gather, norm, matmul
//! └─ outputs   values that the host reads                  Logits -> %97
//! ```
//!
//! Order follows from data flow alone: an op comes after the producers of its operands, attention after the last KV write of
//! its layer, a KV write after the attention that reads what it overwrites.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Index, IndexMut};

use stonechat_compute::op::{
    AttentionArgs, Count, EmbedArgs, ExpertMatmulArgs, Im2colArgs, KvShape, KvWriteArgs,
    MatmulArgs, MoeArgs, MoeRouteArgs, NormArgs, Op, PoolId, Port, RopeArgs, RopeAttentionArgs,
    RopeKvArgs, Rows, SlotTable, Tensor, TensorInfo, TensorType,
};

use crate::{Activation, Precision};

/// Range of numbers of rows for which a device has the same kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowClass {
    /// Smallest number.
    pub min: usize,
    /// Largest number.
    pub max: usize,
}

impl RowClass {
    /// Any number of rows.
    pub const ALL: Self = Self { min: 0, max: usize::MAX };

    /// Whether `n_rows` are in the range.
    #[must_use]
    pub fn contains(self, n_rows: usize) -> bool {
        (self.min..=self.max).contains(&n_rows)
    }

    /// Whether all of `other` is in the range.
    pub(crate) fn includes(self, other: Self) -> bool {
        self.contains(other.min) && self.contains(other.max)
    }
}

impl fmt::Display for RowClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            &Self::ALL => f.write_str("any number of rows"),
            Self { min, max: usize::MAX } => write!(f, "{min} rows and more"),
            Self { min, max } => write!(f, "{min} to {max} rows"),
        }
    }
}

/// Number of each [`Count`] in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counts([usize; Count::N]);

impl Counts {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self, rows: Rows) -> usize {
        self[rows.count] * rows.each
    }
}

impl Index<Count> for Counts {
    type Output = usize;

    fn index(&self, count: Count) -> &usize {
        &self.0[count as usize]
    }
}

impl IndexMut<Count> for Counts {
    fn index_mut(&mut self, count: Count) -> &mut usize {
        &mut self.0[count as usize]
    }
}

/// Part of a program that a step runs as a whole or not at all. Values may cross segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SegmentName {
    /// Tokens to the residual stream.
    Body,
    /// Residual stream to logits and top-k logits.
    Logits,
    /// Residual stream to hidden states.
    Hidden,
    /// Mel frames to encoded audio.
    Encoder,
    /// Encoded audio to the keys and values that the decoder attends to.
    CrossKv,
}

/// Ops of a segment in an order that respects their data flow.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Name.
    pub name: SegmentName,
    /// Rows of its products.
    pub rows: Rows,
    /// Number of rows that this variant of the segment is for.
    pub class: RowClass,
    /// Ops.
    pub nodes: Vec<Node>,
}

/// An op with its operands and results.
#[derive(Debug, Clone)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// Operands.
    pub inputs: Vec<Tensor>,
    /// Value to which the result is added, see [`Op::takes_residual`].
    pub residual: Option<Tensor>,
    /// RMS norm of the operand, before the products of one row. The norm of the row is the last result.
    pub norm: Option<NormArgs>,
    /// Values that the op produces, by index in [`Program::tensors`]. A norm may have a second one: its result in another
    /// type.
    pub outputs: Vec<usize>,
}

impl Node {
    /// An op without residual and norm.
    pub(crate) fn new(op: Op, inputs: Vec<Tensor>, outputs: Vec<usize>) -> Self {
        Self { op, inputs, residual: None, norm: None, outputs }
    }

    /// Operands and the residual.
    pub fn reads(&self) -> impl Iterator<Item = Tensor> {
        self.inputs.iter().copied().chain(self.residual)
    }

    /// Whether the op has an effect beside its results.
    pub(crate) fn has_effect(&self) -> bool {
        let writes = self.op.kv_access().is_some_and(|(_, _, writes)| writes);
        writes || self.op.states().is_some() || matches!(self.op, Op::Export(_))
    }

    /// Results that hold another value before the op runs, in whose memory they may be: the residual, operands of an op in
    /// place.
    pub fn overwrites(&self) -> impl Iterator<Item = (Tensor, usize)> {
        let in_place = &self.inputs[..self.op.n_in_place()];
        self.residual.iter().chain(in_place).copied().zip(self.outputs.iter().copied())
    }
}

/// A program, recorded by [`Recorder`](crate::Recorder).
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// Shape of every value.
    pub tensors: Vec<TensorInfo>,
    /// KV pools.
    pub pools: Vec<KvShape>,
    /// Segments in the order of their data flow.
    pub segments: Vec<Segment>,
    /// Values that the host reads.
    pub outputs: Vec<(Port, Tensor)>,
}

impl Program {
    /// Whether each value outlives its segment: another one reads it, or the host reads or writes it.
    pub(crate) fn pinned(&self) -> Vec<bool> {
        let mut is_pinned = vec![false; self.tensors.len()];
        self.outputs.iter().for_each(|(_, x)| is_pinned[x.id] = true);
        for segment in &self.segments {
            let mut is_own = vec![false; self.tensors.len()];
            for node in &segment.nodes {
                for &id in &node.outputs {
                    is_own[id] = true;
                    is_pinned[id] |= matches!(node.op, Op::Import(_));
                }
            }
            let reads = segment.nodes.iter().flat_map(Node::reads);
            reads.filter(|x| !is_own[x.id]).for_each(|x| is_pinned[x.id] = true);
        }
        is_pinned
    }

    /// Whether `x` is all of its value.
    pub(crate) fn is_whole(&self, x: Tensor) -> bool {
        self.tensors[x.id].is_whole(x)
    }

    /// Ops of all segments.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.segments.iter().flat_map(|segment| &segment.nodes)
    }

    /// The value that an [`Op::Import`] of a port produces.
    ///
    /// # Panics
    /// If there is no such import.
    #[must_use]
    pub fn import(&self, port: Port) -> usize {
        let import = self.nodes().find(|node| matches!(&node.op, Op::Import(p) if *p == port));
        import.map(|node| node.outputs[0]).unwrap_or_else(|| panic!("no import {port:?}"))
    }

    /// Ports with memory of their own and their values in steps of at most `max` rows: exports and states.
    #[must_use]
    pub fn exports(&self, max: &Counts) -> BTreeMap<Port, usize> {
        // Variants of a segment export to the same memory.
        let exports = self.nodes().filter_map(|node| match node.op {
            Op::Export(port) => Some((port, max.rows(node.inputs[0].rows) * node.inputs[0].cols)),
            _ => node.op.states().map(|states| (states.port, states.n_slots * states.len)),
        });
        exports.collect()
    }

    /// Pools whose pages the sequences of a step hold: those written at [`SlotTable::TOKENS`]. A page id stands for the same
    /// positions in all of them, and a page is copied in all of them.
    #[must_use]
    pub fn sequence_pools(&self) -> Vec<PoolId> {
        let writes = self.nodes().filter_map(|node| node.op.kv_write());
        let pools = writes.filter(|args| args.slots == SlotTable::TOKENS).map(|args| args.pool.0);
        let pools: BTreeSet<usize> = pools.collect();
        pools.into_iter().map(PoolId).collect()
    }

    /// Number of rows of an op.
    #[must_use]
    pub fn rows_of(&self, node: &Node) -> Option<Rows> {
        let result = node.outputs.first().map(|&id| self.tensors[id].rows);
        result.or_else(|| node.inputs.first().map(|x| x.rows))
    }

    /// The output at a port.
    ///
    /// # Panics
    /// If there is no such output.
    #[must_use]
    pub fn output(&self, port: Port) -> Tensor {
        let output = self.outputs.iter().find(|(other, _)| *other == port);
        output.map(|(_, x)| *x).unwrap_or_else(|| panic!("no output {port:?}"))
    }
}

impl fmt::Display for Program {
    /// Pools; one line per op: results, op, weights and arguments, operands; outputs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pool) in self.pools.iter().enumerate() {
            let KvShape { n_layers, n_pages, n_kv_heads, head_dim, dtype } = pool;
            write!(f, "pool {i}: {n_layers} layers, {n_pages} pages, ")?;
            writeln!(f, "{n_kv_heads} heads of {head_dim}, {dtype:?}")?;
        }
        // Values are numbered in the order of the list, so that the text does not depend on how ops were made.
        let mut numbers = vec![None; self.tensors.len()];
        let mut next = 0;
        for segment in &self.segments {
            writeln!(f, "{segment}")?;
            for Node { op, inputs, residual, norm, outputs } in &segment.nodes {
                write!(f, "  ")?;
                for &id in outputs {
                    numbers[id] = Some(next);
                    let TensorInfo { rows, cols, dtype } = self.tensors[id];
                    write!(f, "%{next}[{rows}, {cols}] ")?;
                    if dtype != TensorType::F32 {
                        write!(f, "{} ", dtype.name())?;
                    }
                    next += 1;
                }
                write!(f, "= {}", OpText(op))?;
                inputs.iter().try_for_each(|&x| write!(f, " {}", self.text(&numbers, x)))?;
                if let Some(norm) = norm {
                    write!(f, " normed eps {:e}", norm.eps)?;
                }
                if let Some(x) = residual {
                    write!(f, " onto {}", self.text(&numbers, *x))?;
                }
                writeln!(f)?;
            }
        }
        for (port, x) in &self.outputs {
            writeln!(f, "{port:?}: {}", self.text(&numbers, *x))?;
        }
        Ok(())
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, class, .. } = self;
        match *class {
            RowClass::ALL => write!(f, "{name:?}:"),
            class => write!(f, "{name:?}, {class}:"),
        }
    }
}

impl Program {
    /// Number of a value, with the rows and columns that are read if they are a part.
    fn text(&self, numbers: &[Option<usize>], x: Tensor) -> String {
        let TensorInfo { rows, cols, .. } = self.tensors[x.id];
        let number = numbers[x.id].map_or_else(|| "?".to_owned(), |number| number.to_string());
        let columns = x.first_col..x.first_col + x.cols;
        let part = match (x.rows == rows, x.cols == cols) {
            (true, true) => String::new(),
            (true, false) => format!("[{columns:?}]"),
            (false, true) => format!("[{}]", x.rows),
            (false, false) => format!("[{}, {columns:?}]", x.rows),
        };
        format!("%{number}{part}")
    }
}

/// Name and arguments of an op in one line.
struct OpText<'a>(&'a Op);

impl fmt::Display for OpText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(op) = self;
        write!(f, "{}", op.name())?;
        match op {
            Op::Embed(EmbedArgs { table, positions, scale }) => {
                write!(f, " {table:?}")?;
                positions.iter().try_for_each(|positions| write!(f, " positions {positions:?}"))?;
                write!(f, " scale {scale}")
            }
            Op::Constant(values) => write!(f, " {values:?}"),
            Op::Gather(count) => write!(f, " {count:?}"),
            Op::LayerNorm(args) | Op::RmsNorm(args) => {
                let bias = if args.bias.is_some() { " +bias" } else { "" };
                write!(f, "{bias} eps {:e}", args.eps)
            }
            Op::Matmul(args) => matmuls(f, &[args]),
            Op::MatmulGroup(all) => matmuls(f, &all.iter().collect::<Vec<_>>()),
            Op::Conv1d(args) => {
                matmuls(f, &[&args.matmul])?;
                write!(f, " stride {}", args.stride)
            }
            Op::GatedProduct(args) => {
                matmuls(f, &[&args.gate, &args.up])?;
                write!(f, " {:?}", args.activation)
            }
            Op::Gated(activation) => write!(f, " {activation:?}"),
            Op::Moe(args) | Op::ExpertMlp(args) => moe(f, args),
            Op::MoeRoute(MoeRouteArgs { n_used, routing }) => write!(f, " {n_used} {routing:?}"),
            Op::MoeSort(args) => write!(f, " {} experts", args.n_experts),
            Op::ExpertMatmul(ExpertMatmulArgs { weight, bias, n_experts, .. }) => {
                let bias = if bias.is_some() { " +bias" } else { "" };
                write!(f, " {n_experts} experts {weight:?}{bias}")
            }
            Op::Im2col(Im2colArgs { stride, .. }) => write!(f, " stride {stride}"),
            Op::Rope(args) => rope(f, args),
            Op::RopeKv(args) => rope_kv(f, args),
            Op::RopeAttention(RopeAttentionArgs { rope, attention: args, .. }) => {
                rope_kv(f, rope)?;
                write!(f, ",")?;
                attention(f, args)
            }
            Op::KvWrite(args) => kv_write(f, args),
            Op::Attention(args) => attention(f, args),
            Op::Import(port) | Op::Export(port) => write!(f, " {port:?}"),
            Op::Add
            | Op::LogitFilter
            | Op::TopK
            | Op::LogSumExp
            | Op::Convert(_)
            | Op::MoeCombine => Ok(()),
            // Arguments without weights.
            op => {
                let text = format!("{op:?}");
                let arguments = text.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
                write!(f, " {}", arguments.unwrap_or_default())
            }
        }
    }
}

fn matmuls(f: &mut fmt::Formatter<'_>, all: &[&MatmulArgs]) -> fmt::Result {
    for (i, MatmulArgs { weight, bias, activation }) in all.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let bias = if bias.is_some() { " +bias" } else { "" };
        write!(f, "{comma} {weight:?}{bias}")?;
        if *activation != Activation::None {
            write!(f, " {activation:?}")?;
        }
    }
    Ok(())
}

fn moe(f: &mut fmt::Formatter<'_>, args: &MoeArgs) -> fmt::Result {
    let MoeArgs { gate, up, down, n_experts, n_used, routing, activation, .. } = args;
    write!(f, " {n_used} of {n_experts} {routing:?}")?;
    let weights = [(gate, &args.gate_bias), (up, &args.up_bias), (down, &args.down_bias)];
    for (weight, bias) in weights {
        write!(f, ", {weight:?}{}", if bias.is_some() { " +bias" } else { "" })?;
    }
    write!(f, " {activation:?}")
}

fn rope(f: &mut fmt::Formatter<'_>, args: &RopeArgs) -> fmt::Result {
    write!(f, " heads of {}", args.head_dim)?;
    args.norm.iter().try_for_each(|(_, eps)| write!(f, " norm eps {eps:e}"))?;
    args.rotation.iter().try_for_each(|rotation| {
        write!(f, " {:?} {} by {:?}", rotation.pairs, rotation.n_rot, rotation.table)
    })
}

fn rope_kv(f: &mut fmt::Formatter<'_>, args: &RopeKvArgs) -> fmt::Result {
    let RopeKvArgs { q, k, write } = args;
    rope(f, q)?;
    write!(f, ",")?;
    rope(f, k)?;
    kv_write(f, write)
}

fn kv_write(f: &mut fmt::Formatter<'_>, args: &KvWriteArgs) -> fmt::Result {
    let KvWriteArgs { pool, layer, slots } = args;
    write!(f, " pool {} layer {layer} {slots:?}", pool.0)
}

fn attention(f: &mut fmt::Formatter<'_>, args: &AttentionArgs) -> fmt::Result {
    let AttentionArgs { pool, layer, n_heads, scale, soft_cap, rows, precision, .. } = args;
    write!(f, " pool {} layer {layer} {rows:?} {n_heads} heads scale {scale}", pool.0)?;
    soft_cap.iter().try_for_each(|cap| write!(f, " cap {cap}"))?;
    args.slopes.iter().try_for_each(|_| write!(f, " slopes"))?;
    args.sinks.iter().try_for_each(|_| write!(f, " sinks"))?;
    match precision {
        Precision::F32 => Ok(()),
        precision => write!(f, " {precision:?}"),
    }
}
