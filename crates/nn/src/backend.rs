//! The op vocabulary: what a device must be able to do for a model to run on it.
//!
//! Every op has a contract (shapes, what is read and written), an f64 reference in
//! `stonechat-testkit` and one conformance suite that runs on every backend and ISA. Ops enqueue
//! work; only [`Backend::read`] waits for it, and it is async so that a browser is never blocked.
//! Shapes are the caller's duty: an op panics on a mismatch, it never reads out of bounds.

use std::fmt::Debug;
use std::future::Future;
use std::ops::Add;
use std::time::Duration;

use stonechat_compute::cpu::KvLayout;
pub use stonechat_compute::cpu::{
    Activation, GatedActivation, KvDType, KvRow, Precision, QueryRow, RopePairs, TopKEntry,
};
use stonechat_compute::{DType, SharedBytes};

use crate::{Error, Linear};

/// Most values of a row that [`Backend::top_k`] finds.
pub const MAX_TOP_K: usize = 128;
/// Most columns of a row that it searches: f32 holds all of their numbers.
pub const MAX_TOP_K_COLS: usize = 1 << 24;

/// Numbers of rows to [warm_up](Backend::warm_up) passes of up to `most` with: devices choose kernels by powers of two.
pub fn warmup_batch_sizes(most: usize) -> impl Iterator<Item = usize> {
    (0..usize::BITS).map(|power| 1 << power).take_while(move |&n| n < most).chain([most])
}

/// `rows × cols` values of a device buffer: row `r` starts at `offset + r * stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Index of the first value.
    pub offset: usize,
    /// Number of rows.
    pub rows: usize,
    /// Values in a row.
    pub cols: usize,
    /// Distance between the starts of two rows.
    pub stride: usize,
}

impl Rows {
    /// `rows × cols` values packed from the start of a buffer.
    #[must_use]
    pub fn packed(rows: usize, cols: usize) -> Self {
        Self { offset: 0, rows, cols, stride: cols }
    }

    /// The columns `from .. from + cols` of the same rows.
    ///
    /// # Panics
    /// If the columns are not inside these rows.
    #[must_use]
    #[track_caller]
    pub fn columns(self, from: usize, cols: usize) -> Self {
        assert!(from + cols <= self.cols, "columns {from}+{cols} of {}", self.cols);
        Self { offset: self.offset + from, cols, ..self }
    }

    /// The rows `from .. from + rows`.
    ///
    /// # Panics
    /// If the rows are not inside these rows.
    #[must_use]
    #[track_caller]
    pub fn slice(self, from: usize, rows: usize) -> Self {
        assert!(from + rows <= self.rows, "rows {from}+{rows} of {}", self.rows);
        Self { offset: self.offset + from * self.stride, rows, ..self }
    }

    /// One past the last index that is touched; 0 when there is nothing.
    #[must_use]
    pub fn end(self) -> usize {
        if self.rows == 0 { 0 } else { self.offset + (self.rows - 1) * self.stride + self.cols }
    }

    /// Whether the rows follow each other without gaps.
    #[must_use]
    pub fn is_packed(self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }
}

/// A readable matrix in a buffer.
#[derive(Debug)]
pub struct View<'a, B: Backend> {
    /// The buffer.
    pub buffer: &'a B::Buffer,
    /// Where in the buffer.
    pub rows: Rows,
}

impl<B: Backend> Clone for View<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for View<'_, B> {}

impl<'a, B: Backend> View<'a, B> {
    /// `rows` of `buffer`.
    #[must_use]
    pub fn new(buffer: &'a B::Buffer, rows: Rows) -> Self {
        Self { buffer, rows }
    }

    /// `rows × cols` values packed from the start of `buffer`.
    #[must_use]
    pub fn packed(buffer: &'a B::Buffer, rows: usize, cols: usize) -> Self {
        Self { buffer, rows: Rows::packed(rows, cols) }
    }
}

/// What happens to a matmul's or convolution's result before it is stored:
/// `y = act(x·Wᵀ + bias)`, added to what `y` held when `accumulate` is set.
#[derive(Debug)]
pub struct Epilogue<'a, B: Backend> {
    /// `[N]`, added to every row.
    pub bias: Option<&'a B::Buffer>,
    /// Applied after the bias.
    pub activation: Activation,
    /// Whether the result is added to the output (a residual connection) or replaces it.
    pub accumulate: bool,
}

/// One of the matrix products of an input.
#[derive(Debug)]
pub struct MatmulOp<'a, B: Backend> {
    /// Packed `[T, N]`.
    pub out: &'a mut B::Buffer,
    /// `[N, K]`.
    pub w: &'a B::Matrix,
    /// What happens to the result.
    pub epilogue: Epilogue<'a, B>,
    /// Weight of the matmul that is the sole reader of `out`, if there is one: a backend may then store `out` only in the
    /// form in which that matmul reads it.
    pub consumer: Option<&'a B::Matrix>,
}

/// A weight matrix as a file holds it.
#[derive(Debug, Clone, Copy)]
pub struct MatrixSource<'a> {
    /// Name for error messages.
    pub name: &'a str,
    /// Output features `N`.
    pub rows: usize,
    /// Input features `K`.
    pub cols: usize,
    /// Type of the stored values.
    pub dtype: DType,
    /// `rows` consecutive rows; any alignment. A backend keeps them, or copies them and releases each few
    /// MB as it goes ([`SharedBytes::release`]).
    pub bytes: &'a SharedBytes,
}

/// Geometry of a KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers; each has its own pages.
    pub n_layers: usize,
    /// Pages of a layer.
    pub n_pages: usize,
    /// KV heads `G`.
    pub n_kv_heads: usize,
    /// Width of a head `C`.
    pub head_dim: usize,
    /// Element type.
    pub dtype: KvDType,
}

impl KvShape {
    /// Bytes of the pool.
    #[must_use]
    pub fn bytes(self) -> u64 {
        let Self { n_layers, n_pages, .. } = self;
        self.layout().page_bytes() as u64 * n_pages as u64 * n_layers as u64
    }

    /// Geometry of a page.
    pub(crate) fn layout(self) -> KvLayout {
        let Self { n_kv_heads, head_dim, dtype, .. } = self;
        KvLayout { n_kv_heads, head_dim, dtype }
    }
}

/// Arguments of [`Backend::attention`].
#[derive(Debug)]
pub struct Attention<'a, B: Backend> {
    /// `[T, H*C]`.
    pub q: View<'a, B>,
    /// Pool that holds the keys and values.
    pub kv: &'a B::Kv,
    /// Layer of the pool.
    pub layer: usize,
    /// Query heads `H`, a multiple of the pool's KV heads.
    pub n_heads: usize,
    /// Factor of the scores, usually `1/sqrt(C)`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)` before masking (Gemma 2).
    pub soft_cap: Option<f32>,
    /// `[H]`: `ALiBi` slopes; `slope * (pos_k - pos_q)` is added to a score, where the query stands
    /// at its last visible position.
    pub slopes: Option<&'a B::Buffer>,
    /// `[H]`: a logit of each head that takes part in the softmax and has no value (gpt-oss).
    pub sinks: Option<&'a B::Buffer>,
    /// One entry a query row; rows of one sequence are adjacent.
    pub rows: &'a [QueryRow],
    /// The page lists of all sequences; each row says where its own begins.
    pub page_table: &'a [u32],
    /// Precision of the factors in blocks of many rows.
    pub precision: Precision,
}

impl<'a, B: Backend> Attention<'a, B> {
    /// Scaled dot-product attention in f32: scale `1/sqrt(C)`, without soft cap, slopes and sinks.
    #[must_use]
    pub fn plain(
        q: View<'a, B>,
        kv: &'a B::Kv,
        layer: usize,
        n_heads: usize,
        rows: &'a [QueryRow],
        page_table: &'a [u32],
    ) -> Self {
        let head_dim = q.rows.cols / n_heads;
        Self {
            q,
            kv,
            layer,
            n_heads,
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: None,
            slopes: None,
            sinks: None,
            rows,
            page_table,
            precision: Precision::F32,
        }
    }
}

/// Arguments of [`Backend::embed`].
#[derive(Debug)]
pub struct Embed<'a, B: Backend> {
    /// `[T]` token ids.
    pub tokens: &'a [u32],
    /// Factor of the table's rows.
    pub scale: f32,
    /// Learned positions `[n_ctx, D]` and the row of each token, added after scaling.
    pub positions: Option<(&'a B::Buffer, &'a [u32])>,
}

/// Arguments of [`Backend::rope`].
#[derive(Debug)]
pub struct Rope<'a, B: Backend> {
    /// Width of a head `C`.
    pub head_dim: usize,
    /// RMS norm of every head before the rotation: weight `[C]` and epsilon (Qwen 3, Gemma 3).
    pub norm: Option<(&'a B::Buffer, f32)>,
    /// The rotation of each row; none leaves the heads as the norm made them.
    pub rotation: Option<Rotation<'a, B>>,
}

/// Angles of a rotary embedding.
#[derive(Debug)]
pub struct Rotation<'a, B: Backend> {
    /// `[T, R]`: `R/2` cosines then `R/2` sines a row, scaled by the model's factor if it has one.
    /// The first `R` of the `C` channels of a head are rotated, the others stay.
    pub cos_sin: &'a B::Buffer,
    /// `R`, even.
    pub n_rot: usize,
    /// Which channels form a pair.
    pub pairs: RopePairs,
}

/// Weights of a layer's experts, stacked: expert `e` is the rows `e * N .. (e + 1) * N`.
#[derive(Debug)]
pub struct Experts<B: Backend> {
    /// `[E * F, D]`.
    pub gate: B::Matrix,
    /// `[E * F, D]`.
    pub up: B::Matrix,
    /// `[E * D, F]`.
    pub down: B::Matrix,
    /// `[E * F]`.
    pub gate_bias: Option<B::Buffer>,
    /// `[E * F]`.
    pub up_bias: Option<B::Buffer>,
    /// `[E * D]`.
    pub down_bias: Option<B::Buffer>,
    /// Experts `E`.
    pub n_experts: usize,
    /// Experts of a token.
    pub n_used: usize,
    /// How router logits become weights.
    pub routing: Routing,
    /// Between gate and up.
    pub activation: GatedActivation,
}

/// How router logits become the weights of the chosen experts. The `n_used` largest logits are
/// chosen; of equals the lower expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Softmax over all experts; the chosen weights keep what that gives them (Mixtral-like
    /// without renormalisation).
    Softmax,
    /// Softmax over all experts, the chosen weights divided by their sum; equal to a softmax over
    /// the chosen logits (Qwen 3, gpt-oss).
    NormalizedTopK,
}

/// What taking weights over, and getting ready to use them, has cost. Reading the file is part of it, where that was not done before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadStats {
    /// Bytes that were rearranged.
    pub repacked_bytes: u64,
    /// Time that took.
    pub repacking: Duration,
    /// Bytes that were copied as they are, here or by the model that put them together.
    pub copied_bytes: u64,
    /// Time that took here.
    pub copying: Duration,
    /// Kernels that were compiled.
    pub kernels: u64,
    /// Time that took.
    pub compiling: Duration,
    /// Bytes that stayed in a file's map.
    pub kept_bytes: u64,
}

impl Add for LoadStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            repacked_bytes: self.repacked_bytes + other.repacked_bytes,
            repacking: self.repacking + other.repacking,
            copied_bytes: self.copied_bytes + other.copied_bytes,
            copying: self.copying + other.copying,
            kept_bytes: self.kept_bytes + other.kept_bytes,
            kernels: self.kernels + other.kernels,
            compiling: self.compiling + other.compiling,
        }
    }
}

/// A feed-forward network with a gate, an argument of [`Backend::gated_mlp`].
#[derive(Debug)]
pub struct GatedMlp<'a, B: Backend> {
    /// `[F, D]`.
    pub gate: &'a Linear<B>,
    /// `[F, D]`.
    pub up: &'a Linear<B>,
    /// `[D, F]`.
    pub down: &'a Linear<B>,
    /// Between gate and up.
    pub activation: GatedActivation,
    /// `F`.
    pub width: usize,
    /// Whether the result is added to the output or replaces it.
    pub accumulate: bool,
    /// `[T, F]` each: room for what lies between, with any content afterwards.
    pub scratch: [&'a mut B::Buffer; 3],
}

/// A device and its ops. Values are f32 unless said otherwise.
pub trait Backend: Clone + Debug + Send + Sync + 'static {
    /// f32 values on the device.
    type Buffer: Debug + Send + Sync;
    /// An immutable weight matrix in the layout that the kernels stream.
    type Matrix: Debug + Send + Sync;
    /// Pages of keys and values, see [`KvCache`](crate::KvCache).
    type Kv: Debug + Send + Sync;

    /// Name for messages, for example `cpu`.
    fn name(&self) -> &'static str;

    /// Names of the kernels and device in use, for logs and benchmarks.
    fn describe(&self) -> String;

    /// What weights have cost so far; nothing where a device does not count it.
    fn load_stats(&self) -> LoadStats {
        LoadStats::default()
    }

    /// The device's memory, of which other programs may have a part; none where it does not say or has none of its own.
    fn total_memory_bytes(&self) -> Option<u64> {
        None
    }

    /// The type that weights of `dtype` have here: their own, unless no kernel reads that.
    fn stored_dtype(&self, dtype: DType) -> DType {
        dtype
    }

    /// Devices for up to `n` passes at the same time over weights of this one, of which each has its
    /// share; one where the device does one pass after the other.
    ///
    /// # Errors
    /// If threads cannot be started.
    fn divide(&self, n: usize) -> Result<Vec<Self>, Error> {
        let _ = n;
        Ok(vec![self.clone()])
    }

    /// Lets a device that has kernels to compile or memory to find do so for what `ops` enqueues, which is then
    /// forgotten instead of run. A device that has not calls nothing.
    ///
    /// # Errors
    /// What `ops` returns, and what the device lacks for it.
    fn warm_up<E: From<Error>>(&self, ops: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let _ = ops;
        Ok(())
    }

    /// Calls `task`, which works on the host, for each item; on several threads where the device has
    /// some.
    fn for_each<T: Send>(&self, items: &mut [T], task: impl Fn(&mut T) + Sync) {
        items.iter_mut().for_each(task);
    }

    /// A buffer of `len` zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn alloc(&self, len: usize) -> Result<Self::Buffer, Error>;

    /// A weight matrix on the device, in the layout that it wants.
    ///
    /// # Errors
    /// If the type has no kernel here or the bytes do not fit the shape.
    fn matrix(&self, source: MatrixSource<'_>) -> Result<Self::Matrix, Error>;

    /// An empty KV pool.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn kv(&self, shape: KvShape) -> Result<Self::Kv, Error>;

    /// Copies `values` to `dst[offset..]`.
    fn write(&self, dst: &mut Self::Buffer, offset: usize, values: &[f32]);

    /// Copies `src[offset .. offset + out.len()]` to `out` once all earlier ops are done.
    fn read(
        &self,
        src: &Self::Buffer,
        offset: usize,
        out: &mut [f32],
    ) -> impl Future<Output = Result<(), Error>>;

    /// Copies the rows of `src` one after the other to `dst[offset..]`.
    fn copy(&self, dst: &mut Self::Buffer, offset: usize, src: View<'_, Self>);

    /// `out[t] = scale * table[tokens[t]] + positions[pos[t]]`, `[T, D]`.
    fn embed(&self, out: &mut Self::Buffer, table: &Self::Matrix, args: Embed<'_, Self>);

    /// `out[t] = (x[t] - mean) / sqrt(var + eps) * weight + bias`, `x` and `out` `[T, D]`.
    fn layer_norm(
        &self,
        out: &mut Self::Buffer,
        x: View<'_, Self>,
        weight: &Self::Buffer,
        bias: Option<&Self::Buffer>,
        eps: f32,
    );

    /// `y[t] = x[t] / sqrt(mean(x[t]²) + eps) * weight`, `x` and `out` `[T, D]`; `y` is added to
    /// what `out` held when `accumulate` is set, else it replaces it.
    fn rms_norm(
        &self,
        out: &mut Self::Buffer,
        x: View<'_, Self>,
        weight: &Self::Buffer,
        eps: f32,
        accumulate: bool,
    );

    /// Norms and rotates the heads of `rows` (`[T, H*C]`) of `x` in place.
    fn rope(&self, x: &mut Self::Buffer, rows: Rows, args: Rope<'_, Self>);

    /// `out[t] = act(gate[t]) * up[t]`, all `[T, F]`, `out` packed; see [`GatedActivation`].
    fn gated(
        &self,
        out: &mut Self::Buffer,
        gate: View<'_, Self>,
        up: View<'_, Self>,
        activation: GatedActivation,
    );

    /// `out[t] = down · gated(gate · x[t], up · x[t])`, `x` and `out` `[T, D]`, `out` packed. A device whose
    /// kernels multiply other numbers than f32 need not write those between.
    fn gated_mlp(&self, out: &mut Self::Buffer, x: View<'_, Self>, network: GatedMlp<'_, Self>) {
        let GatedMlp { activation, width, scratch: [gate, up, hidden], .. } = network;
        let t = x.rows.rows;
        self.matmul(x, [network.gate.matmul_op(gate), network.up.matmul_op(up)]);
        let both = [gate, up].map(|buffer| View::packed(buffer, t, width));
        self.gated(hidden, both[0], both[1], activation);
        network.down.forward_into(self, out, View::packed(hidden, t, width), network.accumulate);
    }

    /// A mixture of experts:
    /// `out[t] += Σ_chosen weight * (down · gated(gate · x[t], up · x[t]))`, `x` and `out`
    /// `[T, D]`, `logits` `[T, E]` of the router.
    fn moe(
        &self,
        out: &mut Self::Buffer,
        x: View<'_, Self>,
        logits: View<'_, Self>,
        experts: &Experts<Self>,
    );

    /// For each product `out[t, n] = Σ_k x[t, k] w[n, k]` with its epilogue. What the products share,
    /// such as rounding `x` to what a kernel multiplies, is done once.
    fn matmul<const N: usize>(&self, x: View<'_, Self>, products: [MatmulOp<'_, Self>; N]);

    /// Convolution over time with kernel 3 and padding 1: `w` is `[C_out, 3 * C_in]`, tap-major
    /// (`w[o, tap * C_in + i]`), `x` packed `[T, C_in]`, `out` packed `[ceil(T / stride), C_out]`.
    fn conv1d(
        &self,
        out: &mut Self::Buffer,
        x: View<'_, Self>,
        w: &Self::Matrix,
        stride: usize,
        epilogue: Epilogue<'_, Self>,
    );

    /// The `k` greatest values of every row of `x`, `[T, V]`, in descending order, and where they stand: row `t` of
    /// `out`, packed `[T, 2k]`, gets the values and then the numbers of their columns. Of equals that of the lower
    /// column comes first; NaN counts as −∞ and +∞ as the greatest finite value. `k` is 1 to
    /// [`MAX_TOP_K`] and at most `V`, `V` at most [`MAX_TOP_K_COLS`].
    fn top_k(&self, out: &mut Self::Buffer, x: View<'_, Self>, k: usize);

    /// Stores `k[t]` and `v[t]` (`[T, G*C]`) at `rows[t]` of `layer`.
    fn kv_write(
        &self,
        kv: &mut Self::Kv,
        layer: usize,
        k: View<'_, Self>,
        v: View<'_, Self>,
        rows: &[KvRow],
    );

    /// Copies page `src` to page `dst` in every layer.
    fn kv_copy_page(&self, kv: &mut Self::Kv, src: u32, dst: u32);

    /// Appends what page `page` holds in every layer to `out`, once all earlier ops are done: bytes
    /// for [`kv_write_page`](Self::kv_write_page) of a pool of the same shape.
    fn kv_read_page(
        &self,
        kv: &Self::Kv,
        page: u32,
        out: &mut Vec<u8>,
    ) -> impl Future<Output = Result<(), Error>>;

    /// Replaces what page `page` holds in every layer.
    ///
    /// # Errors
    /// [`Error::KvPage`] if the bytes are not those of a page of this pool.
    fn kv_write_page(&self, kv: &mut Self::Kv, page: u32, bytes: &[u8]) -> Result<(), Error>;

    /// Softmax attention of every query row over the positions `kv_start .. kv_len` of its pages;
    /// `out` is packed `[T, H*C]`.
    fn attention(&self, out: &mut Self::Buffer, args: Attention<'_, Self>);
}
