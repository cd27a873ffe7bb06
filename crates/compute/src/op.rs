//! Op vocabulary of programs: tensors with one producer, one struct of arguments an op, checks of shapes.
//!
//! An op is data. `stonechat-nn` records ops into a program and fuses them; a device compiles the result. The contract of
//! an op (formula, shapes) is the doc of its variant. Its f64 reference is in `stonechat-testkit`.
//!
//! ```text
//! Node    = Op, operands, residual, results          results are values with one producer
//! Tensor  = value, rows, range of columns            what an op reads
//! Rows    = count of the step * rows of each         T tokens, 3000 frames of each of W windows, ...
//! ```
//!
//! | file | what ops take |
//! |---|---|
//! | `tensor`, `weight`, `port` | operands and results; weights of a device; values of the host |
//! | `kv`, `attention`, `rope` | paged KV cache, query rows, rotations |
//! | `state` | states of sequences in slots |
//! | `matmul`, `moe`, `activation`, `norm` | products, mixtures of experts, what is fused with them |
//! | `logit_filter` | columns of logits that are kept |

mod activation;
mod attention;
mod kv;
mod logit_filter;
mod matmul;
mod moe;
mod norm;
mod port;
mod rope;
mod state;
mod tensor;
mod weight;

use crate::{check_at_most, check_below, check_eq, check_multiple};

pub use activation::{Activation, GatedActivation};
pub use attention::{AttentionArgs, Precision, QueryRow, RowTable};
#[cfg(all(test, any(feature = "wgpu", feature = "cuda")))]
pub(crate) use kv::PageElement;
pub(crate) use kv::Q8_BLOCK_LEN;
pub use kv::{KvDType, KvLayout, KvRow, KvShape, KvWriteArgs, PAGE_LEN, PoolId, SlotTable};
pub use logit_filter::LogitFilter;
pub use matmul::{ConvArgs, Epilogue, GatedProductArgs, Im2colArgs, MatmulArgs};
pub use moe::{ExpertMatmulArgs, ExpertRoutes, MoeArgs, MoeRouteArgs, MoeSortArgs, Routing};
pub use norm::{InputNorm, NormArgs};
pub use port::Port;
pub use rope::{RopeArgs, RopeAttentionArgs, RopeKvArgs, RopePairs, Rotation};
pub use state::{StateRun, States};
pub use tensor::{Count, Rows, Tensor, TensorInfo, TensorType};
pub use weight::{Weight, WeightInfo, WeightLayout};

/// Largest `k` of [`Op::TopK`].
pub const MAX_TOP_K: usize = 128;
/// Maximum columns of [`Op::TopK`]: an f32 represents every column index below it exactly.
pub const MAX_TOP_K_COLS: usize = 1 << 24;

/// Largest kernel of [`Op::ConvState`].
pub const MAX_CONV_STATE_KERNEL: usize = 4;

/// Arguments of [`Op::Embed`]. `M` holds a matrix and `W` values: a [`Weight`] in a program, or the memory of a device.
#[derive(Debug, Clone, Copy)]
pub struct EmbedArgs<M = Weight, W = Weight> {
    /// `[V, D]`.
    pub table: M,
    /// Learned position embeddings `[n_ctx, D]`, added after scaling.
    pub positions: Option<W>,
    /// Factor of the table's rows.
    pub scale: f32,
}

/// Arguments of [`Op::ConvState`]. `W` holds values: a [`Weight`] in a program, or the memory of a device.
#[derive(Debug, Clone, Copy)]
pub struct ConvStateArgs<W = Weight> {
    /// Kernel size `K`, 2 to [`MAX_CONV_STATE_KERNEL`].
    pub kernel: usize,
    /// `[D, K]`.
    pub weight: W,
    /// `[D]`.
    pub bias: Option<W>,
    /// Whether `SiLU` is the activation, as in Mamba; else there is none, as in LFM2.
    pub silu: bool,
    /// The last `K - 1` inputs of each sequence, the oldest first: `[K - 1, D]`.
    pub states: States,
}

impl<W> ConvStateArgs<W> {
    /// The same arguments with the values of a device.
    #[must_use]
    pub fn map<'a, V>(&'a self, values: impl Fn(&'a W) -> V) -> ConvStateArgs<V> {
        let Self { kernel, silu, states, .. } = *self;
        let bias = self.bias.as_ref().map(&values);
        ConvStateArgs { kernel, weight: values(&self.weight), bias, silu, states }
    }
}

impl EmbedArgs {
    /// The same arguments with the matrix and the values of a device.
    #[must_use]
    pub fn map<'a, M, W>(
        &'a self,
        matrix: impl Fn(&'a Weight) -> M,
        values: impl Fn(&'a Weight) -> W,
    ) -> EmbedArgs<M, W> {
        let Self { table, positions, scale } = self;
        let positions = positions.as_ref().map(values);
        EmbedArgs { table: matrix(table), positions, scale: *scale }
    }
}

/// Inputs of a step that an [`Op::Embed`] reads. `W` holds values of a device, `I` the place of an input.
#[derive(Debug, Clone, Copy)]
pub struct EmbedInputs<W, I> {
    /// Number of tokens `T`.
    pub n_tokens: usize,
    /// Tokens: rows of the table, or, with bit 31 set, indexes of values of `top_k` that are.
    pub tokens: I,
    /// Positions, which are read if there are position embeddings.
    pub positions: I,
    /// Result of a top-k, to which tokens refer.
    pub top_k: Option<W>,
}

/// An op. `x`, `y`, ... are its operands in order. Shape letters: `T` rows of any count, others as in `stonechat-nn`.
///
/// A node may have a residual `r`, the shape of the result: the result is then `r + op(..)`. See
/// [`Op::takes_residual`]. A product of one row may have a norm, which is applied to its operand first.
#[derive(Debug, Clone)]
pub enum Op {
    /// Token embedding of the step's tokens: `scale * table[token] + positions[pos]`, `[T, D]`.
    Embed(EmbedArgs),
    /// Values written by the host before the step.
    Import(Port),
    /// A constant `[each, D]`, repeated `count` times: `[each * count, D]`.
    Constant(Weight),
    /// Rows of the step's outputs whose logits, or whose hidden states, are read: `[T, D]` to `[P, D]`.
    Gather(Count),
    /// Copies `x` to the memory of a port, which holds it until the next step with rows. Each window has its own place.
    Export(Port),
    /// Layer norm: `(x - mean) / sqrt(var + eps) * weight + bias`, `var` the mean squared deviation (Ba et al. 2016).
    LayerNorm(NormArgs),
    /// RMS norm: `x / sqrt(mean(x²) + eps) * weight` (Zhang & Sennrich 2019, eq. 4).
    RmsNorm(NormArgs),
    /// Rotary embedding of `[T, H*C]`, after an optional RMS norm of each head: a pair `(u, v)` of channels becomes
    /// `(u cos - v sin, u sin + v cos)` with the angles of the token's position. Source: Su et al. 2021, eq. 34.
    Rope(RopeArgs),
    /// Gated activation: `act(x) * y`, see [`GatedActivation`].
    Gated(GatedActivation),
    /// `x + y`.
    Add,
    /// Soft cap: `cap * tanh(x / cap)` (Gemma 2).
    SoftCap(f32),
    /// `act(x·Wᵀ + bias)`: `[T, K]` to `[T, N]`. `x` may have more than `K` columns, the zeros of an [`Op::Im2col`].
    Matmul(MatmulArgs),
    /// Convolution over time with kernel size 3 and padding 1 in each group of rows:
    /// `act(Σ_{tap,i} x[t * stride + tap - 1, i] w[o, tap * C_in + i] + bias)`, `[T, C_in]` to `[ceil(T / stride), C_out]`.
    Conv1d(ConvArgs),
    /// Causal convolution of each channel over the rows of each [`StateRun`], which the last inputs of the sequence precede:
    /// `act(Σ_tap w[d, tap] x[t + tap - K + 1, d] + bias[d])`, `[T, D]`. Writes the last inputs after the run.
    ConvState(ConvStateArgs),
    /// Mixture of experts of `x`, `[T, D]`, by the router logits `y`, `[T, E]`: `Σ_e weight[t, e] * mlp_e(x[t])` over the
    /// top-k experts, `mlp_e` a gated MLP. The terms are added to the residual one by one.
    Moe(MoeArgs),
    /// Writes keys `x` and values `y`, `[T, G*C]`, to the pool, rounded to its element type. No result.
    KvWrite(KvWriteArgs),
    /// Paged attention of queries `x`, `[T, H*C]`: `Σ_p softmax_p(scale * x[t, h] · k[p, g]) * v[p, g]` over positions
    /// `kv_start .. kv_len` of the row's pages, `g = h / (H / G)`.
    Attention(AttentionArgs),
    /// Sets logits `[T, V]` of columns that may not be chosen to −∞, by the step's [`LogitFilter`] of each row: columns in
    /// neither range, listed columns, then the first range if `ln Σ exp` of the second exceeds its largest logit.
    LogitFilter,
    /// Top-k of every row, `k` of the step: the `k` largest values in descending order, then their column indices as f32,
    /// packed `[T, 2k]`. Equal values are ordered by ascending column; NaN counts as −∞, +∞ as `f32::MAX`.
    TopK,
    /// `ln Σ exp(x)` of every row, `[T, 1]`; −∞ for a row of −∞.
    LogSumExp,
    /// Made by fusion: `x` in another type, for the products that read it.
    Convert(TensorType),
    /// Fused: `act(gate · x) * (up · x)`.
    GatedProduct(GatedProductArgs),
    /// Fused: rotary embeddings of queries `x` and keys `y`, and the KV write of the keys and values `z`. Results: queries
    /// and keys.
    RopeKv(RopeKvArgs),
    /// Fused: [`Op::RopeKv`] and [`Op::Attention`] of its queries. The rotated queries and keys have no other reader.
    RopeAttention(RopeAttentionArgs),
    /// Lowered from [`Op::Conv1d`]: the three taps of each output row side by side, `[T, C_in]` to `[ceil(T / stride), cols]`:
    /// column `tap * C_in + i` of row `t` is `x[t * stride + tap - 1, i]`, 0 outside of the group of rows and from `3 * C_in` on.
    Im2col(Im2colArgs),
    /// Lowered from [`Op::Moe`]: top-k experts of router logits, `[T, E]` to `[T, 2 * n_used]` words: expert and weight (f32) of
    /// each route, in descending order of logits; the lower expert comes first of equal logits.
    MoeRoute(MoeRouteArgs),
    /// Lowered from [`Op::Moe`]: routes of an [`Op::MoeRoute`] in ascending order of (expert, route), `T * n_used` words, then
    /// the device's blocks of routes of one expert, up to three words per route.
    MoeSort(MoeSortArgs),
    /// Lowered from [`Op::Moe`]: `W_e·x + bias_e` for the expert `e` of each route `y`, in the order `z` if there is one.
    /// `x`: a row per token or per route; result: `[T * n_used, N]`, a row per route.
    ExpertMatmul(ExpertMatmulArgs),
    /// Lowered from [`Op::Moe`]: `Σ_i weight[t, i] * x[t * n_used + i]` over the routes `y`: `[T * n_used, D]` to `[T, D]`. The
    /// terms are added to the residual one by one.
    MoeCombine,
    /// Lowered from [`Op::Moe`], fused: gate, up, activation, down and the weighted sum, one expert after the other, for the
    /// routes `y` in their order `z`. The terms are added to the residual one by one, in ascending order of experts.
    ExpertMlp(MoeArgs),
    /// Fused: [`Op::Matmul`]s of one operand, with one result each. `x` is quantized once.
    MatmulGroup(Vec<MatmulArgs>),
    /// Tensor parallelism: `Σ x` over the ranks of a group, in ascending order of ranks, so that all have equal bits.
    AllReduce,
    /// Fused: [`Op::AllReduce`] with a residual, then the RMS norm in f16. The rows are divided among the ranks in their order.
    /// Results: the sum, defined in the rows of this rank only, and the norm of all rows.
    AllReduceNorm(NormArgs),
    /// Tensor parallelism: the columns of all ranks side by side, `[T, N_r]` to `[T, N]`. First column of each rank, then `N`.
    AllGather(Vec<usize>),
}

impl Op {
    /// Name for messages and profiles.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed(_) => "embed",
            Self::Import(_) => "import",
            Self::Constant(_) => "constant",
            Self::Gather(_) => "gather",
            Self::Export(_) => "export",
            Self::LayerNorm(_) => "layer_norm",
            Self::RmsNorm(_) => "rms_norm",
            Self::Rope(_) => "rope",
            Self::Gated(_) => "gated",
            Self::Add => "add",
            Self::SoftCap(_) => "soft_cap",
            Self::Matmul(_) => "matmul",
            Self::Conv1d(_) => "conv1d",
            Self::ConvState(_) => "conv_state",
            Self::Moe(_) => "moe",
            Self::KvWrite(_) => "kv_write",
            Self::Attention(_) => "attention",
            Self::LogitFilter => "logit_filter",
            Self::TopK => "top_k",
            Self::LogSumExp => "log_sum_exp",
            Self::Convert(_) => "convert",
            Self::GatedProduct(_) => "gated_product",
            Self::MatmulGroup(_) => "matmul_group",
            Self::RopeKv(_) => "rope_kv",
            Self::RopeAttention(_) => "rope_attention",
            Self::Im2col(_) => "im2col",
            Self::MoeRoute(_) => "moe_route",
            Self::MoeSort(_) => "moe_sort",
            Self::ExpertMatmul(_) => "expert_matmul",
            Self::MoeCombine => "moe_combine",
            Self::ExpertMlp(_) => "expert_mlp",
            Self::AllReduce => "all_reduce",
            Self::AllReduceNorm(_) => "all_reduce_norm",
            Self::AllGather(_) => "all_gather",
        }
    }

    /// Whether the op can add its result to a residual.
    #[must_use]
    pub fn takes_residual(&self) -> bool {
        let is_norm = matches!(self, Self::RmsNorm(_) | Self::AllReduceNorm(_));
        let is_moe = matches!(self, Self::Moe(_) | Self::MoeCombine | Self::ExpertMlp(_));
        is_norm || is_moe || matches!(self, Self::Matmul(_) | Self::Conv1d(_) | Self::AllReduce)
    }

    /// Whether the op waits for the same op of the other ranks of a group.
    #[must_use]
    pub fn is_collective(&self) -> bool {
        matches!(self, Self::AllReduce | Self::AllReduceNorm(_) | Self::AllGather(_))
    }

    /// Number of results that can be in the memory of the operand of the same index.
    #[must_use]
    pub fn n_in_place(&self) -> usize {
        match self {
            Self::Rope(_) | Self::Add | Self::SoftCap(_) | Self::LogitFilter => 1,
            Self::RopeKv(_) => 2,
            _ => 0,
        }
    }

    /// The pool and the layer that the op reads or writes, and whether it writes.
    #[must_use]
    pub fn kv_access(&self) -> Option<(PoolId, usize, bool)> {
        match self {
            Self::Attention(args) => Some((args.pool, args.layer, false)),
            op => op.kv_write().map(|args| (args.pool, args.layer, true)),
        }
    }

    /// The KV write of the op.
    #[must_use]
    pub fn kv_write(&self) -> Option<&KvWriteArgs> {
        match self {
            Self::KvWrite(args) | Self::RopeKv(RopeKvArgs { write: args, .. }) => Some(args),
            Self::RopeAttention(RopeAttentionArgs { rope, .. }) => Some(&rope.write),
            _ => None,
        }
    }

    /// The states that the op reads and writes.
    #[must_use]
    pub fn states(&self) -> Option<&States> {
        match self {
            Self::ConvState(args) => Some(&args.states),
            _ => None,
        }
    }

    /// Shapes of the results of a matmul, convolution, norm, ... of these operands; `None` for a source, whose recorder
    /// knows the shape.
    ///
    /// # Panics
    /// If the number or the shapes of the operands do not fit.
    #[track_caller]
    #[must_use]
    pub fn results(&self, x: &[Tensor]) -> Option<Vec<TensorInfo>> {
        let name = self.name();
        check_eq!(x.len(), self.n_operands(), "{name}: operands");
        let same = |x: &Tensor| TensorInfo::f32(x.rows, x.cols);
        let product = |args: &MatmulArgs, rows: Rows, k: usize| product(name, args, rows, k);
        let check_len = |what: &str, weight: &Weight, n: usize| check_len(name, what, weight, n);
        Some(match self {
            Self::Embed(_) | Self::Import(_) | Self::Constant(_) => return None,
            Self::Export(_) => vec![],
            Self::Gather(count) => {
                check_eq!(x[0].rows, Rows::of(Count::Tokens), "{name}: rows of the operand");
                vec![TensorInfo::f32(Rows::of(*count), x[0].cols)]
            }
            Self::Convert(dtype) => vec![TensorInfo { dtype: *dtype, ..same(&x[0]) }],
            Self::GatedProduct(GatedProductArgs { gate, up, dtype, .. }) => {
                let hidden = product(gate, x[0].rows, x[0].cols);
                check_eq!(product(up, x[0].rows, x[0].cols), hidden, "{name}: shape of up");
                vec![TensorInfo { dtype: *dtype, ..hidden }]
            }
            Self::RopeKv(args) => {
                check_rotations(name, args);
                vec![same(&x[0]), same(&x[1])]
            }
            Self::RopeAttention(args) => {
                check_rotations(name, &args.rope);
                vec![same(&x[0])]
            }
            Self::LayerNorm(args) | Self::RmsNorm(args) => {
                check_len("weight", &args.weight, x[0].cols);
                args.bias.iter().for_each(|bias| check_len("bias", bias, x[0].cols));
                vec![same(&x[0])]
            }
            Self::Rope(args) => {
                check_rope(name, args, x[0].cols);
                vec![same(&x[0])]
            }
            Self::Gated(_) | Self::Add => {
                check_eq!(same(&x[1]), same(&x[0]), "{name}: shape of the second operand");
                vec![same(&x[0])]
            }
            Self::Matmul(args) => vec![product(args, x[0].rows, x[0].cols)],
            Self::MatmulGroup(all) => {
                all.iter().map(|args| product(args, x[0].rows, x[0].cols)).collect()
            }
            Self::Conv1d(ConvArgs { matmul, stride }) => {
                let Rows { count, each } = x[0].rows;
                let rows = Rows { count, each: each.div_ceil(*stride) };
                vec![product(matmul, rows, 3 * x[0].cols)]
            }
            Self::ConvState(ConvStateArgs { kernel, weight, bias, states, .. }) => {
                let sizes = 2..=MAX_CONV_STATE_KERNEL;
                assert!(
                    sizes.contains(kernel),
                    "{name}: expected a kernel of {sizes:?}, got {kernel}"
                );
                check_len("weight", weight, kernel * x[0].cols);
                bias.iter().for_each(|bias| check_len("bias", bias, x[0].cols));
                check_eq!(states.len, (kernel - 1) * x[0].cols, "{name}: values of a state");
                vec![same(&x[0])]
            }
            Self::Im2col(Im2colArgs { stride, cols }) => {
                let (Rows { count, each }, n_taps) = (x[0].rows, 3 * x[0].cols);
                check_at_most!(n_taps, *cols, "{name}: columns of the taps");
                vec![TensorInfo::f32(Rows { count, each: each.div_ceil(*stride) }, *cols)]
            }
            Self::Moe(_)
            | Self::MoeRoute(_)
            | Self::MoeSort(_)
            | Self::ExpertMatmul(_)
            | Self::MoeCombine
            | Self::ExpertMlp(_) => vec![self.moe_result(x)],
            Self::SoftCap(_) | Self::LogitFilter | Self::AllReduce => vec![same(&x[0])],
            Self::AllReduceNorm(_) => {
                vec![same(&x[0]), TensorInfo { dtype: TensorType::F16, ..same(&x[0]) }]
            }
            Self::AllGather(first_cols) => {
                let cols = first_cols.last().copied().unwrap_or_default();
                check_below!(x[0].cols, cols, "{name}: columns of a rank");
                vec![TensorInfo::f32(x[0].rows, cols)]
            }
            Self::KvWrite(_) => {
                check_eq!(same(&x[1]), same(&x[0]), "{name}: shape of the values");
                vec![]
            }
            Self::Attention(args) => {
                check_multiple!(x[0].cols, args.n_heads, "{name}: columns by heads");
                vec![same(&x[0])]
            }
            Self::TopK => vec![TensorInfo::f32(x[0].rows, 2 * MAX_TOP_K)],
            Self::LogSumExp => vec![TensorInfo::f32(x[0].rows, 1)],
        })
    }

    /// Shape of the result of an op of a mixture of experts.
    #[track_caller]
    fn moe_result(&self, x: &[Tensor]) -> TensorInfo {
        let (name, same) = (self.name(), TensorInfo::f32(x[0].rows, x[0].cols));
        match self {
            Self::Moe(args) => {
                let (got, expected) = ((x[1].rows, x[1].cols), (x[0].rows, args.n_experts));
                check_eq!(got, expected, "{name}: shape of the router logits");
                check_eq!(args.gate.info().cols, x[0].cols, "{name}: columns of the gate");
                same
            }
            Self::MoeRoute(MoeRouteArgs { n_used, .. }) => {
                check_at_most!(*n_used, x[0].cols, "{name}: experts per token");
                let (rows, dtype) = (x[0].rows, TensorType::U32);
                TensorInfo { rows, cols: 2 * n_used, dtype }
            }
            Self::MoeSort(_) => {
                let (rows, dtype) = (x[0].rows, TensorType::U32);
                TensorInfo { rows, cols: 2 * x[0].cols, dtype }
            }
            Self::ExpertMatmul(args) => {
                let (rows, WeightInfo { rows: n, cols, .. }) = (n_routes(x[1]), args.weight.info());
                let is_row = x[0].rows == rows || x[0].rows == x[1].rows;
                assert!(is_row, "{name}: expected a row per token or per route, got {}", x[0].rows);
                check_eq!(x[0].cols, cols, "{name}: columns of the operand");
                args.bias.iter().for_each(|bias| check_len(name, "bias", bias, n));
                TensorInfo::f32(rows, n / args.n_experts)
            }
            Self::MoeCombine => {
                check_eq!(x[0].rows, n_routes(x[1]), "{name}: rows of the operand");
                TensorInfo::f32(x[1].rows, x[0].cols)
            }
            Self::ExpertMlp(args) => {
                check_eq!(x[1].rows, x[0].rows, "{name}: rows of the routes");
                check_eq!(args.gate.info().cols, x[0].cols, "{name}: columns of the gate");
                same
            }
            _ => unreachable!("{name} is no op of a mixture of experts"),
        }
    }

    fn n_operands(&self) -> usize {
        match self {
            Self::Embed(_) | Self::Import(_) | Self::Constant(_) => 0,
            Self::Gated(_) | Self::Add | Self::Moe(_) | Self::KvWrite(_) | Self::MoeCombine => 2,
            Self::ExpertMatmul(args) => 2 + usize::from(args.order.is_some()),
            Self::RopeKv(_) | Self::RopeAttention(_) | Self::ExpertMlp(_) => 3,
            _ => 1,
        }
    }
}

/// Asserts that `weight` holds `expected` values.
#[track_caller]
fn check_len(op: &str, what: &str, weight: &Weight, expected: usize) {
    let WeightInfo { rows, cols, .. } = weight.info();
    check_eq!(rows * cols, expected, "{op}: values of the {what}");
}

/// Shape of the product of `rows` rows of `k` columns.
#[track_caller]
fn product(op: &str, args: &MatmulArgs, rows: Rows, k: usize) -> TensorInfo {
    let WeightInfo { rows: n, cols, .. } = args.weight.info();
    check_eq!(k, cols, "{op}: columns of the operand");
    args.bias.iter().for_each(|bias| check_len(op, "bias", bias, n));
    TensorInfo::f32(rows, n)
}

/// Rows of the routes that an [`Op::MoeRoute`] made.
fn n_routes(routes: Tensor) -> Rows {
    let Rows { count, each } = routes.rows;
    Rows { count, each: each * routes.cols / 2 }
}

/// Asserts that keys rotate as the queries do.
#[track_caller]
fn check_rotations(op: &str, RopeKvArgs { q, k, .. }: &RopeKvArgs) {
    assert!(q.rotates_like(k), "{op}: expected keys to rotate as the queries, {q:?}, got {k:?}");
}

/// Asserts that rows of `cols` columns are heads that can be normed and rotated.
#[track_caller]
fn check_rope(op: &str, RopeArgs { head_dim, norm, rotation }: &RopeArgs, cols: usize) {
    check_multiple!(cols, *head_dim, "{op}: columns by head_dim");
    norm.iter().for_each(|(weight, _)| check_len(op, "norm", weight, *head_dim));
    let n_rot = rotation.as_ref().map_or(0, |rotation| rotation.n_rot);
    check_at_most!(n_rot, *head_dim, "{op}: rotated channels");
}
