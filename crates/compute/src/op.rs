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

mod tensor;
mod weight;

use crate::cpu::{Activation, GatedActivation, KvDType, KvLayout, Precision, RopePairs};

pub use tensor::{Count, Rows, Tensor, TensorInfo, TensorType};
pub use weight::{Weight, WeightInfo, WeightLayout};

/// Largest `k` of [`Op::TopK`].
pub const MAX_TOP_K: usize = 128;
/// Most columns of [`Op::TopK`]: an f32 represents every column index below it exactly.
pub const MAX_TOP_K_COLS: usize = 1 << 24;

/// KV pool of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolId(pub usize);

/// Geometry of a KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers. A page id stands for one page in each of them.
    pub n_layers: usize,
    /// Pages per layer.
    pub n_pages: usize,
    /// KV heads `G`.
    pub n_kv_heads: usize,
    /// Width of a head `C`.
    pub head_dim: usize,
    /// Element type.
    pub dtype: KvDType,
}

impl KvShape {
    /// Bytes of the whole pool.
    #[must_use]
    pub fn bytes(self) -> u64 {
        let Self { n_layers, n_pages, .. } = self;
        self.layout().page_bytes() as u64 * n_pages as u64 * n_layers as u64
    }

    /// Geometry of a page.
    #[must_use]
    pub fn layout(self) -> KvLayout {
        let Self { n_kv_heads, head_dim, dtype, .. } = self;
        KvLayout { n_kv_heads, head_dim, dtype }
    }
}

/// List of pages and slots of keys and values in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotTable {
    /// `[T]`: of tokens.
    Tokens,
    /// `[W * positions]`: of the encoder's own keys and values.
    Encoder,
    /// `[W * positions]`: of the keys and values that the decoder attends to.
    Cross,
}

/// List of pages and visible positions of query rows in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowTable {
    /// `[T]`: all earlier positions of the sequence.
    Full,
    /// `[T]`: the sliding window before the position.
    Window,
    /// `[W * positions]`: all positions of the window of audio.
    Encoder,
    /// `[T]`: the audio of the sequence.
    Cross,
}

/// Values that come from the host, or that the host reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// `[T, D]`: the residual stream between two stages of a model.
    Stream,
    /// `[H, D]`: hidden states after the last norm.
    Hidden,
    /// `[P, V]`: logits.
    Logits,
    /// `[Q, 2k]`: top-k logits, then their tokens.
    TopK,
    /// `[R, 1]`: log-sum-exp of logits.
    LogSumExp,
    /// `[W * 3000, n_mels]`: mel frames.
    Mel,
    /// `[W * positions, D]`: output of the encoder.
    Audio,
    /// `[W * positions, C]` of each captured window: keys of alignment head `i`.
    CapturedKeys(usize),
    /// `[T, C]`: queries of alignment head `i`.
    CapturedQueries(usize),
    /// A value of a program that is no model.
    Value(usize),
}

/// Arguments of [`Op::Embed`].
#[derive(Debug, Clone)]
pub struct EmbedArgs {
    /// `[V, D]`.
    pub table: Weight,
    /// Learned position embeddings `[n_ctx, D]`, added after scaling.
    pub positions: Option<Weight>,
    /// Factor of the table's rows.
    pub scale: f32,
}

/// Arguments of [`Op::LayerNorm`] and [`Op::RmsNorm`].
#[derive(Debug, Clone)]
pub struct NormArgs {
    /// `[D]`.
    pub weight: Weight,
    /// `[D]`; of layer norms only.
    pub bias: Option<Weight>,
    /// Added to the variance or the mean square.
    pub eps: f32,
}

/// Arguments of [`Op::Rope`].
#[derive(Debug, Clone)]
pub struct RopeArgs {
    /// Width of a head `C`.
    pub head_dim: usize,
    /// QK norm, the RMS norm of every head before the rotation: weight `[C]` and epsilon (Qwen 3, Gemma 3).
    pub norm: Option<(Weight, f32)>,
    /// Rotation after the norm; `None` only norms.
    pub rotation: Option<Rotation>,
}

impl RopeArgs {
    /// Whether both have the same width of a head and the same rotation.
    #[must_use]
    pub fn rotates_like(&self, other: &Self) -> bool {
        let same_rotation = match (&self.rotation, &other.rotation) {
            (Some(a), Some(b)) => a.table.is(&b.table) && (a.n_rot, a.pairs) == (b.n_rot, b.pairs),
            (None, None) => true,
            _ => false,
        };
        self.head_dim == other.head_dim && same_rotation
    }
}

/// Angles of a rotary embedding.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// `[n_ctx, R]`: `R/2` cosines, then `R/2` sines of a position, times the model's `mscale` if it has one. Only the
    /// first `R` of the `C` channels of a head are rotated.
    pub table: Weight,
    /// Rotated channels `R`, even.
    pub n_rot: usize,
    /// Pairing of the channels: adjacent (GPT-J) or `(i, i + R/2)` (GPT-NeoX).
    pub pairs: RopePairs,
}

/// Arguments of [`Op::Matmul`].
#[derive(Debug, Clone)]
pub struct MatmulArgs {
    /// `[N, K]`.
    pub weight: Weight,
    /// `[N]`, added to every row.
    pub bias: Option<Weight>,
    /// Applied after the bias.
    pub activation: Activation,
}

/// Arguments of [`Op::Conv1d`].
#[derive(Debug, Clone)]
pub struct ConvArgs {
    /// `[C_out, 3 * C_in]`, tap-major; bias `[C_out]`; activation.
    pub matmul: MatmulArgs,
    /// Input rows per output row.
    pub stride: usize,
}

/// Arguments of [`Op::Im2col`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Im2colArgs {
    /// Input rows per output row.
    pub stride: usize,
    /// Columns of a row, at least `3 * C_in`; those after the taps are zeros.
    pub cols: usize,
}

/// Arguments of [`Op::Moe`]. Expert weights are stacked: expert `e` is rows `e * N .. (e + 1) * N`.
#[derive(Debug, Clone)]
pub struct MoeArgs {
    /// `[E * F, D]`.
    pub gate: Weight,
    /// `[E * F, D]`.
    pub up: Weight,
    /// `[E * D, F]`.
    pub down: Weight,
    /// `[E * F]`.
    pub gate_bias: Option<Weight>,
    /// `[E * F]`.
    pub up_bias: Option<Weight>,
    /// `[E * D]`.
    pub down_bias: Option<Weight>,
    /// Experts `E`.
    pub n_experts: usize,
    /// Experts per token (top-k).
    pub n_used: usize,
    /// Weights of the routed experts.
    pub routing: Routing,
    /// Combines gate and up.
    pub activation: GatedActivation,
}

/// Weights of the routed experts, from the router logits. The `n_used` largest logits are routed to; of equal ones
/// that of the lower expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Softmax over all experts, not renormalized over the top-k.
    Softmax,
    /// Softmax over all experts, renormalized over the top-k, which equals a softmax over the top-k logits
    /// (Mixtral, Qwen 3, gpt-oss).
    NormalizedTopK,
}

/// Arguments of [`Op::MoeRoute`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeRouteArgs {
    /// Experts per token (top-k).
    pub n_used: usize,
    /// Weights of the routed experts.
    pub routing: Routing,
}

/// Arguments of [`Op::MoeSort`].
#[derive(Debug, Clone)]
pub struct MoeSortArgs {
    /// Experts `E`.
    pub n_experts: usize,
    /// Weights of the products that read the order, by which a device selects the length of its blocks.
    pub weights: Vec<Weight>,
}

/// Arguments of [`Op::ExpertMatmul`].
#[derive(Debug, Clone)]
pub struct ExpertMatmulArgs {
    /// `[E * N, K]`: expert `e` is rows `e * N .. (e + 1) * N`.
    pub weight: Weight,
    /// `[E * N]`.
    pub bias: Option<Weight>,
    /// Experts `E`.
    pub n_experts: usize,
    /// Arguments of the [`Op::MoeSort`] whose order is the third operand; `None` without that operand.
    pub order: Option<MoeSortArgs>,
}

/// Arguments of [`Op::KvWrite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvWriteArgs {
    /// The pool.
    pub pool: PoolId,
    /// Layer of the pool.
    pub layer: usize,
    /// Pages and slots of the rows.
    pub slots: SlotTable,
}

/// Arguments of [`Op::Attention`].
#[derive(Debug, Clone)]
pub struct AttentionArgs {
    /// The pool.
    pub pool: PoolId,
    /// Layer of the pool.
    pub layer: usize,
    /// Query heads `H`, a multiple of the KV heads `G`; head `h` reads KV head `h / (H / G)`.
    pub n_heads: usize,
    /// Factor of the scores, usually `1/sqrt(C)`.
    pub scale: f32,
    /// Soft cap: `cap * tanh(score / cap)`, before masking (Gemma 2).
    pub soft_cap: Option<f32>,
    /// `[H]`: `ALiBi` slopes. Adds `slope * (pos_k - pos_q)` to a score, `pos_q = kv_len - 1`.
    pub slopes: Option<Weight>,
    /// `[H]`: attention sinks, an extra logit per head in the softmax's denominator (gpt-oss).
    pub sinks: Option<Weight>,
    /// Pages and visible positions of the rows.
    pub rows: RowTable,
    /// Precision of the factors of `Q·Kᵀ` and `P·V` in prefill.
    pub precision: Precision,
}

/// Arguments of [`Op::GatedProduct`]: matmuls without activation.
#[derive(Debug, Clone)]
pub struct GatedProductArgs {
    /// `[F, D]`.
    pub gate: MatmulArgs,
    /// `[F, D]`.
    pub up: MatmulArgs,
    /// Combines gate and up.
    pub activation: GatedActivation,
    /// Type of the result.
    pub dtype: TensorType,
}

/// Arguments of [`Op::RopeKv`]. Both embeddings have the same width of a head and the same rotation.
#[derive(Debug, Clone)]
pub struct RopeKvArgs {
    /// Of the queries.
    pub q: RopeArgs,
    /// Of the keys.
    pub k: RopeArgs,
    /// Of the keys and values.
    pub write: KvWriteArgs,
}

/// Arguments of [`Op::RopeAttention`].
#[derive(Debug, Clone)]
pub struct RopeAttentionArgs {
    /// Rotations and KV write.
    pub rope: RopeKvArgs,
    /// Attention of the rotated queries, over the layer of the write.
    pub attention: AttentionArgs,
    /// Element type of the pool.
    pub kv: KvDType,
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
    /// A constant, once for each of the count: `[each * count, D]` of `[each, D]`.
    Constant(Weight),
    /// Rows of the step's list of outputs, of those whose logits or whose hidden states are read: `[T, D]` to `[P, D]`.
    Gather(Count),
    /// Copies `x` to a port with memory of its own, which holds it until the next step with rows. Windows have places of
    /// their own.
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
    /// `act(x·Wᵀ + bias)`: `[T, K]` to `[T, N]`. The zeros of an [`Op::Im2col`] may follow the `K` columns of `x`.
    Matmul(MatmulArgs),
    /// Convolution over time with kernel size 3 and padding 1 in each group of rows:
    /// `act(Σ_{tap,i} x[t * stride + tap - 1, i] w[o, tap * C_in + i] + bias)`, `[T, C_in]` to `[ceil(T / stride), C_out]`.
    Conv1d(ConvArgs),
    /// Mixture of experts of `x`, `[T, D]`, by the router logits `y`, `[T, E]`: `Σ_e weight[t, e] * mlp_e(x[t])` over the
    /// top-k experts, `mlp_e` a gated MLP. The terms are added to the residual one by one.
    Moe(MoeArgs),
    /// Writes keys `x` and values `y`, `[T, G*C]`, to the pool, rounded to its element type. No result.
    KvWrite(KvWriteArgs),
    /// Paged attention of queries `x`, `[T, H*C]`: `Σ_p softmax_p(scale * x[t, h] · k[p, g]) * v[p, g]` over positions
    /// `kv_start .. kv_len` of the row's pages, `g = h / (H / G)`.
    Attention(AttentionArgs),
    /// Sets logits `[T, V]` of tokens that may not follow to −∞, by the step's [`LogitFilter`](crate::cpu::LogitFilter) of
    /// each row: tokens in neither range, listed tokens, then all text if `ln Σ exp` of the timestamps exceeds its largest
    /// logit.
    LogitFilter,
    /// Top-k of every row, `k` of the step: the `k` largest values in descending order, then their column indices as f32,
    /// packed `[T, 2k]`. Equal values are ordered by ascending column; NaN counts as −∞, +∞ as `f32::MAX`.
    TopK,
    /// `ln Σ exp(x)` of every row, `[T, 1]`; −∞ of a row of −∞.
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
    /// each choice, in descending order of logits, of equal logits the lower expert first.
    MoeRoute(MoeRouteArgs),
    /// Lowered from [`Op::Moe`]: choices of an [`Op::MoeRoute`] in ascending order of (expert, choice), `T * n_used` words. Room for
    /// the device's blocks of choices of one expert follows, up to three words a choice.
    MoeSort(MoeSortArgs),
    /// Lowered from [`Op::Moe`]: `W_e·x + bias_e` for the expert `e` of each choice `y`, in the order `z` if there is one.
    /// `x`: a row of each token, or of each choice; result: `[T * n_used, N]` by choice.
    ExpertMatmul(ExpertMatmulArgs),
    /// Lowered from [`Op::Moe`]: `Σ_i weight[t, i] * x[t * n_used + i]` over the choices `y`: `[T * n_used, D]` to `[T, D]`. The
    /// terms are added to the residual one by one.
    MoeCombine,
    /// Lowered from [`Op::Moe`], fused: gate, up, activation, down and the weighted sum, one expert after the other, for the
    /// choices `y` in their order `z`. The terms are added to the residual one by one, in ascending order of experts.
    ExpertMlp(MoeArgs),
    /// Fused: [`Op::Matmul`]s of one operand, with one result each. `x` is quantized once.
    MatmulGroup(Vec<MatmulArgs>),
    /// Tensor parallelism: `Σ x` over the ranks of a group, in ascending order of ranks, so that all have equal bits.
    AllReduce,
    /// Fused: [`Op::AllReduce`] with a residual, of which each rank has its own rows, a part of all in order of ranks, and the RMS
    /// norm of all rows in f16 on every rank. Results: the sum, whose other rows are undefined, and the norm.
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
            Self::KvWrite(args) | Self::RopeKv(RopeKvArgs { write: args, .. }) => {
                Some((args.pool, args.layer, true))
            }
            Self::RopeAttention(RopeAttentionArgs { rope, .. }) => {
                Some((rope.write.pool, rope.write.layer, true))
            }
            Self::Attention(args) => Some((args.pool, args.layer, false)),
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
        assert_eq!(x.len(), self.n_operands(), "{name}: operands");
        let same = |x: &Tensor| TensorInfo::f32(x.rows, x.cols);
        let values = |what: &str, weight: &Weight, expected: usize| {
            let WeightInfo { rows, cols, .. } = weight.info();
            assert_eq!(rows * cols, expected, "{name}: values of the {what}");
        };
        let product = |args: &MatmulArgs, rows: Rows, k: usize| {
            let WeightInfo { rows: n, cols, .. } = args.weight.info();
            assert_eq!(cols, k, "{name}: columns of the weights and of the operand");
            args.bias.iter().for_each(|bias| values("bias", bias, n));
            TensorInfo::f32(rows, n)
        };
        Some(match self {
            Self::Embed(_) | Self::Import(_) | Self::Constant(_) => return None,
            Self::Export(_) => vec![],
            Self::Gather(count) => {
                assert_eq!(x[0].rows, Rows::of(Count::Tokens), "{name}: rows");
                vec![TensorInfo::f32(Rows::of(*count), x[0].cols)]
            }
            Self::Convert(dtype) => vec![TensorInfo { dtype: *dtype, ..same(&x[0]) }],
            Self::GatedProduct(GatedProductArgs { gate, up, dtype, .. }) => {
                let hidden = product(gate, x[0].rows, x[0].cols);
                assert_eq!(product(up, x[0].rows, x[0].cols), hidden, "{name}: gate and up");
                vec![TensorInfo { dtype: *dtype, ..hidden }]
            }
            Self::RopeKv(args) => {
                assert!(args.q.rotates_like(&args.k), "{name}: rotations");
                vec![same(&x[0]), same(&x[1])]
            }
            Self::RopeAttention(args) => {
                assert!(args.rope.q.rotates_like(&args.rope.k), "{name}: rotations");
                vec![same(&x[0])]
            }
            Self::LayerNorm(args) | Self::RmsNorm(args) => {
                values("weight", &args.weight, x[0].cols);
                args.bias.iter().for_each(|bias| values("bias", bias, x[0].cols));
                vec![same(&x[0])]
            }
            Self::Rope(RopeArgs { head_dim, norm, rotation }) => {
                assert!(x[0].cols.is_multiple_of(*head_dim), "{name}: whole heads");
                norm.iter().for_each(|(weight, _)| values("norm", weight, *head_dim));
                let n_rot = rotation.as_ref().map_or(0, |rotation| rotation.n_rot);
                assert!(n_rot <= *head_dim, "{name}: {n_rot} of {head_dim} channels");
                vec![same(&x[0])]
            }
            Self::Gated(_) | Self::Add => {
                assert_eq!(same(&x[0]), same(&x[1]), "{name}: shapes of the operands");
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
            Self::Im2col(Im2colArgs { stride, cols }) => {
                let (Rows { count, each }, n_taps) = (x[0].rows, 3 * x[0].cols);
                assert!(n_taps <= *cols, "{name}: expected {n_taps} columns or more, got {cols}");
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
                assert!(x[0].cols < cols, "{name}: a part of the columns");
                vec![TensorInfo::f32(x[0].rows, cols)]
            }
            Self::KvWrite(_) => {
                assert_eq!(same(&x[0]), same(&x[1]), "{name}: keys and values");
                vec![]
            }
            Self::Attention(args) => {
                assert!(x[0].cols.is_multiple_of(args.n_heads), "{name}: whole heads");
                vec![same(&x[0])]
            }
            Self::TopK => vec![TensorInfo::f32(x[0].rows, 2 * MAX_TOP_K)],
            Self::LogSumExp => vec![TensorInfo::f32(x[0].rows, 1)],
        })
    }

    /// Result of an op of a mixture of experts.
    #[track_caller]
    fn moe_result(&self, x: &[Tensor]) -> TensorInfo {
        let name = self.name();
        let same = |x: &Tensor| TensorInfo::f32(x.rows, x.cols);
        match self {
            Self::Moe(args) => {
                let logits = TensorInfo::f32(x[0].rows, args.n_experts);
                assert_eq!(same(&x[1]), logits, "{name}: router logits");
                assert_eq!(args.gate.info().cols, x[0].cols, "{name}: columns of the gate");
                same(&x[0])
            }
            Self::MoeRoute(MoeRouteArgs { n_used, .. }) => {
                let n_experts = x[0].cols;
                assert!(*n_used <= n_experts, "{name}: expected up to {n_experts}, got {n_used}");
                let (rows, dtype) = (x[0].rows, TensorType::U32);
                TensorInfo { rows, cols: 2 * n_used, dtype }
            }
            Self::MoeSort(_) => {
                let (rows, dtype) = (x[0].rows, TensorType::U32);
                TensorInfo { rows, cols: 2 * x[0].cols, dtype }
            }
            Self::ExpertMatmul(args) => {
                let (rows, WeightInfo { rows: n, cols, .. }) = (choices(x[1]), args.weight.info());
                let is_row = x[0].rows == rows || x[0].rows == x[1].rows;
                assert!(
                    is_row,
                    "{name}: expected a row of each token or choice, got {}",
                    x[0].rows
                );
                assert_eq!(cols, x[0].cols, "{name}: columns of the weights and of the operand");
                if let Some(bias) = args.bias.as_ref().map(Weight::info) {
                    assert_eq!(bias.rows * bias.cols, n, "{name}: values of the bias");
                }
                TensorInfo::f32(rows, n / args.n_experts)
            }
            Self::MoeCombine => {
                assert_eq!(x[0].rows, choices(x[1]), "{name}: rows of the choices");
                TensorInfo::f32(x[1].rows, x[0].cols)
            }
            Self::ExpertMlp(args) => {
                assert_eq!(x[0].rows, x[1].rows, "{name}: rows of the choices");
                assert_eq!(args.gate.info().cols, x[0].cols, "{name}: columns of the gate");
                same(&x[0])
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

/// Rows of the choices that an [`Op::MoeRoute`] made.
fn choices(routes: Tensor) -> Rows {
    let Rows { count, each } = routes.rows;
    Rows { count, each: each * routes.cols / 2 }
}
