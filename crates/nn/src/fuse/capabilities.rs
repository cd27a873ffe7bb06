//! Capabilities: a table of the kernels of a device that fusion depends on.

use std::fmt;

use stonechat_compute::DType;
use stonechat_compute::op::{KvDType, MatmulArgs, Op, TensorType, WeightInfo, WeightLayout};

use crate::program::RowClass;

/// Ops that a device lowers an [`Op::Moe`] to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoeKernels {
    /// The op itself.
    Whole,
    /// Route, sort, [`Op::ExpertMlp`].
    Mlp,
    /// Route, sort if `sorted`, expert products of gate and up, gated activation, expert product of down, combine.
    Products {
        /// Whether products read the routes in the order of experts.
        sorted: bool,
    },
}

/// Ops that a device lowers an [`Op::Conv1d`] to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conv1dKernels {
    /// The op itself.
    Whole,
    /// [`Op::Im2col`] and a matmul.
    Im2col {
        /// Multiple to which the columns are padded with zeros.
        col_multiple: usize,
    },
}

macro_rules! op_kinds {
    ($($kind:ident,)*) => {
        /// Ops of which a device may have kernels that fusion depends on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum OpKind {
            $(#[doc = concat!("[`Op::", stringify!($kind), "`].")] $kind,)*
        }

        impl OpKind {
            fn of(op: &Op) -> Option<Self> {
                match op {
                    $(Op::$kind(_) => Some(Self::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

op_kinds! {
    AllReduceNorm, Attention, ExpertMatmul, Gated, GatedProduct, Im2col, LayerNorm, Matmul, MatmulGroup, RmsNorm,
    RopeAttention, RopeKv,
}

impl OpKind {
    /// Products of one operand, which may be normed.
    pub const PRODUCTS: &'static [Self] = &[Self::Matmul, Self::MatmulGroup, Self::GatedProduct];
}

/// Ability of a kernel beyond the recorded op in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapabilityKind {
    /// Runs an op that fusion makes.
    Run,
    /// Reads the first operand of a product in a type; f32 without such a kernel.
    Read(TensorType),
    /// Applies an RMS norm to the operand of a product.
    Norm,
    /// Writes the result in another type than f32.
    Write(TensorType),
}

/// Condition on an op. `N`, `K`: rows and columns of its weight matrices, each of which has to fulfill the condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    /// Types of the weights in the file.
    Types(Vec<DType>),
    /// Largest number of matrices of another type than the first.
    OtherTypes(usize),
    /// Order of the weights in memory.
    Layout(WeightLayout),
    /// Multiple of the rows of the slices, if a matrix is split.
    SliceMultiple(usize),
    /// Largest number of matrices.
    Matrices(usize),
    /// Multiple of `N`.
    NMultiple(usize),
    /// Multiple of `K`.
    KMultiple(usize),
    /// Largest `K`.
    MaxK(usize),
    /// Largest number of workgroups, of which each computes a number of rows of one matrix.
    Workgroups {
        /// Rows of a workgroup.
        rows: usize,
        /// Largest number for all matrices.
        max: usize,
    },
    /// No bias.
    NoBias,
    /// Multiple of the columns of the result.
    ColMultiple(usize),
    /// Multiple of the channels of a head.
    HeadMultiple(usize),
    /// Types of the cached keys and values.
    KvTypes(&'static [KvDType]),
    /// Types of the result of a gated product.
    Results(&'static [TensorType]),
}

impl Limit {
    /// [`Types`](Self::Types) that fulfill a condition.
    pub(crate) fn types(is_included: impl Fn(DType) -> bool) -> Self {
        Self::Types(DType::ALL.iter().copied().filter(|&dtype| is_included(dtype)).collect())
    }

    /// Whether `op`, with a result of `cols` columns, is within the limit.
    fn holds(&self, op: &Op, cols: usize) -> bool {
        let weights = weights(op);
        let mut all = weights.iter();
        match self {
            Self::Types(types) => all.all(|w| types.contains(&w.dtype)),
            Self::OtherTypes(max) => all.filter(|w| w.dtype != weights[0].dtype).count() <= *max,
            Self::Layout(layout) => all.all(|w| w.layout == *layout),
            Self::SliceMultiple(n) => all.all(|w| match w.layout {
                WeightLayout::Slices(rows) => rows.is_multiple_of(*n),
                WeightLayout::Rows | WeightLayout::Packed => true,
            }),
            Self::Matrices(max) => weights.len() <= *max,
            Self::NMultiple(n) => all.all(|w| w.rows.is_multiple_of(*n)),
            Self::KMultiple(n) => all.all(|w| w.cols.is_multiple_of(*n)),
            Self::MaxK(max) => all.all(|w| w.cols <= *max),
            Self::Workgroups { rows, max } => {
                all.map(|w| w.rows.div_ceil(*rows)).sum::<usize>() <= *max
            }
            Self::NoBias => !has_bias(op),
            Self::ColMultiple(n) => cols.is_multiple_of(*n),
            Self::HeadMultiple(n) => match op {
                Op::Attention(args) => (cols / args.n_heads).is_multiple_of(*n),
                Op::RopeAttention(args) => args.rope.q.head_dim.is_multiple_of(*n),
                _ => false,
            },
            Self::KvTypes(types) => {
                matches!(op, Op::RopeAttention(args) if types.contains(&args.kv))
            }
            Self::Results(types) => {
                matches!(op, Op::GatedProduct(args) if types.contains(&args.dtype))
            }
        }
    }
}

/// Matrices of a product.
fn weights(op: &Op) -> Vec<WeightInfo> {
    let info = |args: &MatmulArgs| args.weight.info();
    match op {
        Op::Matmul(args) => vec![info(args)],
        Op::MatmulGroup(all) => all.iter().map(info).collect(),
        Op::GatedProduct(args) => vec![info(&args.gate), info(&args.up)],
        Op::ExpertMatmul(args) => vec![args.weight.info()],
        _ => Vec::new(),
    }
}

fn has_bias(op: &Op) -> bool {
    match op {
        Op::GatedProduct(args) => args.gate.bias.is_some() || args.up.bias.is_some(),
        Op::AllReduceNorm(args) => args.bias.is_some(),
        _ => false,
    }
}

/// A kernel of some ops: a row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// Ops.
    pub ops: &'static [OpKind],
    /// Ability of the kernel.
    pub kind: CapabilityKind,
    /// Numbers of rows.
    pub rows: RowClass,
    /// Conditions, all of which hold.
    pub limits: Vec<Limit>,
}

impl Capability {
    /// A row of the table.
    #[must_use]
    pub fn new(
        ops: &'static [OpKind],
        kind: CapabilityKind,
        rows: RowClass,
        limits: impl Into<Vec<Limit>>,
    ) -> Self {
        Self { ops, kind, rows, limits: limits.into() }
    }
}

/// Kernels of a device that fusion depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Classes of rows, ascending, without gaps from 1 on.
    pub row_classes: &'static [RowClass],
    /// Kernels of a mixture of experts.
    pub moe: MoeKernels,
    /// Kernels of a convolution.
    pub conv1d: Conv1dKernels,
    /// Whether ops can add their result to a residual, see [`Op::takes_residual`].
    pub residuals: bool,
    /// Kernels of fused ops, of normed products, of other types than f32. The order is without meaning.
    pub table: Vec<Capability>,
}

impl Capabilities {
    /// No kernel but those of recorded ops, for any number of rows.
    #[must_use]
    pub fn none() -> Self {
        Self {
            row_classes: &[RowClass { min: 1, max: usize::MAX }],
            moe: MoeKernels::Whole,
            conv1d: Conv1dKernels::Whole,
            residuals: false,
            table: Vec::new(),
        }
    }

    /// Abilities of the kernels for all numbers of rows of `class` of an op with a result of `cols` columns.
    fn kinds(&self, op: &Op, class: RowClass, cols: usize) -> impl Iterator<Item = CapabilityKind> {
        let kind = OpKind::of(op);
        let rows = self.table.iter().filter(move |row| {
            kind.is_some_and(|kind| row.ops.contains(&kind))
                && row.rows.includes(class)
                && row.limits.iter().all(|limit| limit.holds(op, cols))
        });
        rows.map(|row| row.kind)
    }

    /// Type in which a product of a class of rows reads its first operand.
    #[must_use]
    pub fn operand(&self, op: &Op, class: RowClass) -> TensorType {
        let read = |kind| match kind {
            CapabilityKind::Read(dtype) => Some(dtype),
            _ => None,
        };
        self.kinds(op, class, 0).find_map(read).unwrap_or(TensorType::F32)
    }

    /// Whether kernels have an ability for an op of a class of rows with a result of `cols` columns.
    pub(super) fn has(&self, kind: CapabilityKind, op: &Op, class: RowClass, cols: usize) -> bool {
        self.kinds(op, class, cols).any(|other| other == kind)
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row_classes, moe, conv1d, residuals, table } = self;
        for class in *row_classes {
            writeln!(f, "class: {class}")?;
        }
        writeln!(f, "moe: {moe:?}\nconv1d: {conv1d:?}\nresiduals: {residuals}")?;
        table.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ops, kind, rows, limits } = self;
        write!(f, "{ops:?} {kind:?}, {rows}")?;
        limits.iter().try_for_each(|limit| write!(f, ", {limit:?}"))
    }
}
