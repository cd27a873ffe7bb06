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

use std::fmt;

use stonechat_compute::op::{
    KvShape, KvWriteArgs, NormArgs, Op, Port, RopeArgs, Rows, Tensor, TensorInfo,
};

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
    /// Values that the op produces, by index in [`Program::tensors`].
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
        matches!(self.op, Op::Export(_) | Op::KvWrite(_) | Op::RopeKv(_))
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
        let TensorInfo { rows, cols, .. } = self.tensors[x.id];
        (x.first_col, x.cols, x.rows) == (0, cols, rows)
    }

    /// The output at a port.
    #[must_use]
    pub fn output(&self, port: Port) -> Option<Tensor> {
        self.outputs.iter().find(|(other, _)| *other == port).map(|(_, x)| *x)
    }
}

impl fmt::Display for Program {
    /// One line an op: results, op, weights, operands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values are numbered in the order of the list, so that the text does not depend on how ops were made.
        let mut numbers = vec![None; self.tensors.len()];
        let mut next = 0;
        for segment in &self.segments {
            match segment.class {
                RowClass::ALL => writeln!(f, "{:?}:", segment.name)?,
                RowClass { min, max: usize::MAX } => {
                    writeln!(f, "{:?}, {min} rows and more:", segment.name)?;
                }
                RowClass { min, max } => writeln!(f, "{:?}, {min} to {max} rows:", segment.name)?,
            }
            for Node { op, inputs, residual, norm, outputs } in &segment.nodes {
                write!(f, "  ")?;
                for &id in outputs {
                    numbers[id] = Some(next);
                    let TensorInfo { rows, cols, .. } = self.tensors[id];
                    write!(f, "%{next}[{rows}, {cols}] ")?;
                    next += 1;
                }
                write!(f, "= {}", OpText(op))?;
                let name = |f: &mut fmt::Formatter<'_>, x: &Tensor| {
                    let number = numbers[x.id].unwrap_or(usize::MAX);
                    write!(f, " %{number}")?;
                    if x.cols != self.tensors[x.id].cols {
                        write!(f, "[{}..{}]", x.first_col, x.first_col + x.cols)?;
                    }
                    Ok(())
                };
                inputs.iter().try_for_each(|x| name(f, x))?;
                if norm.is_some() {
                    write!(f, " normed")?;
                }
                if let Some(x) = residual {
                    write!(f, " onto")?;
                    name(f, x)?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

fn rope(f: &mut fmt::Formatter<'_>, args: &RopeArgs) -> fmt::Result {
    if args.norm.is_some() {
        write!(f, " norm")?;
    }
    match &args.rotation {
        Some(rotation) => write!(f, " {} {:?}", rotation.n_rot, rotation.pairs),
        None => Ok(()),
    }
}

/// Name and arguments of an op in one line.
struct OpText<'a>(&'a Op);

impl fmt::Display for OpText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(op) = self;
        write!(f, "{}", op.name())?;
        let matmul = |f: &mut fmt::Formatter<'_>, args: &stonechat_compute::op::MatmulArgs| {
            write!(f, " {:?}", args.weight)?;
            if args.bias.is_some() {
                write!(f, "+bias")?;
            }
            match args.activation {
                crate::Activation::None => Ok(()),
                activation => write!(f, " {activation:?}"),
            }
        };
        match op {
            Op::Matmul(args) => matmul(f, args),
            Op::MatmulGroup(all) => all.iter().try_for_each(|args| matmul(f, args)),
            Op::Conv1d(args) => {
                matmul(f, &args.matmul)?;
                write!(f, " stride {}", args.stride)
            }
            Op::GatedProduct(args) => {
                [&args.gate, &args.up].into_iter().try_for_each(|m| matmul(f, m))?;
                write!(f, " {:?}", args.activation)
            }
            Op::Gated(activation) => write!(f, " {activation:?}"),
            Op::Moe(args) => {
                write!(f, " {} of {} experts {:?}", args.n_used, args.n_experts, args.gate)
            }
            Op::Rope(args) => rope(f, args),
            Op::RopeKv(args) => {
                rope(f, &args.q)?;
                rope(f, &args.k)?;
                let KvWriteArgs { pool, layer, slots } = args.write;
                write!(f, " pool {} layer {layer} {slots:?}", pool.0)
            }
            Op::KvWrite(args) => {
                write!(f, " pool {} layer {} {:?}", args.pool.0, args.layer, args.slots)
            }
            Op::Attention(args) => {
                write!(f, " pool {} layer {} {:?}", args.pool.0, args.layer, args.rows)
            }
            Op::Import(port) | Op::Export(port) => write!(f, " {port:?}"),
            _ => Ok(()),
        }
    }
}
