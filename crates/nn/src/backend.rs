//! The op vocabulary: a device runs a model if it implements [`Backend`].
//!
//! Every op has a contract (formula, shapes), an f64 reference in `stonechat-testkit` and one
//! conformance suite that runs on every backend and ISA. Ops enqueue work; only [`Backend::read`] and
//! [`Backend::kv_read_page`] wait for it, and they are async so that a browser is never blocked.
//! Shapes are the caller's duty: an op panics on a mismatch and never reads out of bounds.
//!
//! Matrices are row-major. Shape letters: see the crate root.

use std::fmt::Debug;
use std::future::Future;

pub use stonechat_compute::cpu::{
    Activation, GatedActivation, KvDType, KvRow, Precision, QueryRow, RopePairs, TopKEntry,
};
pub use stonechat_compute::op::{KvShape, MAX_TOP_K, MAX_TOP_K_COLS, Routing};
use stonechat_compute::{DType, SharedBytes};

use crate::maybe_send::MaybeSend;
use crate::{Error, LoadStats};

/// Batch sizes for [`Backend::warm_up`]: the powers of two below `max_rows`, by which devices select kernels, and
/// `max_rows`.
pub fn warmup_batch_sizes(max_rows: usize) -> impl Iterator<Item = usize> {
    (0..usize::BITS).map(|power| 1 << power).take_while(move |&n| n < max_rows).chain([max_rows])
}

/// Strided matrix in a device buffer: element `[r, c]` is value `offset + r * stride + c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Index of element `[0, 0]`.
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

    /// One past the index of the last element; 0 without rows.
    #[must_use]
    pub fn end(self) -> usize {
        if self.rows == 0 { 0 } else { self.offset + (self.rows - 1) * self.stride + self.cols }
    }

    /// Whether there are no gaps between the rows.
    #[must_use]
    pub fn is_packed(self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }
}

/// A read-only matrix in a buffer.
#[derive(Debug)]
pub struct View<'a, B: Backend> {
    /// The buffer.
    pub buffer: &'a B::Buffer,
    /// Layout in the buffer.
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

/// A range of a buffer to read to the host: `out[i] = src[offset + i]`.
#[derive(Debug)]
pub struct Read<'a, B: Backend> {
    /// The buffer.
    pub src: &'a B::Buffer,
    /// Index of the first value.
    pub offset: usize,
    /// Destination; its length is the number of values.
    pub out: &'a mut [f32],
}

/// Epilogue of a matmul or convolution: `y = act(x·Wᵀ + bias)`, or `y += act(x·Wᵀ + bias)`.
#[derive(Debug)]
pub struct Epilogue<'a, B: Backend> {
    /// `[N]`, added to every row.
    pub bias: Option<&'a B::Buffer>,
    /// Applied after the bias.
    pub activation: Activation,
    /// Adds to the output (a residual connection) instead of replacing it.
    pub accumulate: bool,
}

/// One matmul of [`Backend::matmul`], which takes several of the same input.
#[derive(Debug)]
pub struct MatmulOp<'a, B: Backend> {
    /// Packed `[T, N]`.
    pub out: &'a mut B::Buffer,
    /// `[N, K]`.
    pub w: &'a B::Matrix,
    /// Bias, activation, accumulation.
    pub epilogue: Epilogue<'a, B>,
    /// Weight of the matmul that is the sole reader of `out`, if there is one. A hint for the output layout: a backend
    /// may store `out` only as that matmul's quantized activations.
    pub consumer: Option<&'a B::Matrix>,
}

/// A weight matrix `[N, K]` in a file's format.
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
    /// `rows` consecutive rows; any alignment. A backend keeps a reference, or copies them and releases the source in
    /// chunks of a few MB ([`SharedBytes::release`]).
    pub bytes: &'a SharedBytes,
}

/// Arguments of [`Backend::attention`].
#[derive(Debug)]
pub struct Attention<'a, B: Backend> {
    /// `[T, H*C]`.
    pub q: View<'a, B>,
    /// Pool of keys and values.
    pub kv: &'a B::Kv,
    /// Layer of the pool.
    pub layer: usize,
    /// Query heads `H`, a multiple of the KV heads `G`; head `h` reads KV head `h / (H / G)`.
    pub n_heads: usize,
    /// Factor of the scores, usually `1/sqrt(C)`.
    pub scale: f32,
    /// Soft cap: `cap * tanh(score / cap)`, before masking (Gemma 2).
    pub soft_cap: Option<f32>,
    /// `[H]`: `ALiBi` slopes. Adds `slope * (pos_k - pos_q)` to a score, `pos_q = kv_len - 1`.
    pub slopes: Option<&'a B::Buffer>,
    /// `[H]`: attention sinks, an extra logit per head in the softmax's denominator (gpt-oss).
    pub sinks: Option<&'a B::Buffer>,
    /// Pages and visible positions of each query row, `[T]`; rows of one sequence are adjacent.
    pub rows: &'a [QueryRow],
    /// Page ids of all sequences, concatenated; [`QueryRow::first_page`] indexes it.
    pub page_table: &'a [u32],
    /// Precision of the factors of `Q·Kᵀ` and `P·V` in prefill.
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
    /// Token ids, `[T]`.
    pub tokens: &'a [u32],
    /// Factor of the table's rows.
    pub scale: f32,
    /// Learned position embeddings `[n_ctx, D]` and the position of each token, `[T]`; added after scaling.
    pub positions: Option<(&'a B::Buffer, &'a [u32])>,
}

/// Arguments of [`Backend::rope`].
#[derive(Debug)]
pub struct Rope<'a, B: Backend> {
    /// Width of a head `C`.
    pub head_dim: usize,
    /// QK norm, the RMS norm of every head before the rotation: weight `[C]` and epsilon (Qwen 3, Gemma 3).
    pub norm: Option<(&'a B::Buffer, f32)>,
    /// Rotation after the norm; `None` only norms.
    pub rotation: Option<Rotation<'a, B>>,
}

/// Angles of a rotary embedding.
#[derive(Debug)]
pub struct Rotation<'a, B: Backend> {
    /// `[n_ctx, R]`: `R/2` cosines, then `R/2` sines of each position, times the model's `mscale` if it has one.
    /// Only the first `R` of the `C` channels of a head are rotated.
    pub table: &'a B::Buffer,
    /// Position of each row, `[T]`: its row of the table.
    pub positions: &'a [u32],
    /// Rotated channels `R`, even.
    pub n_rot: usize,
    /// Pairing of the channels: adjacent (GPT-J) or `(i, i + R/2)` (GPT-NeoX).
    pub pairs: RopePairs,
}

/// Expert weights of a mixture-of-experts (`MoE`) layer, stacked: expert `e` is rows `e * N .. (e + 1) * N`.
#[derive(Debug)]
pub struct Experts<'a, B: Backend> {
    /// `[E * F, D]`.
    pub gate: &'a B::Matrix,
    /// `[E * F, D]`.
    pub up: &'a B::Matrix,
    /// `[E * D, F]`.
    pub down: &'a B::Matrix,
    /// `[E * F]`.
    pub gate_bias: Option<&'a B::Buffer>,
    /// `[E * F]`.
    pub up_bias: Option<&'a B::Buffer>,
    /// `[E * D]`.
    pub down_bias: Option<&'a B::Buffer>,
    /// Experts `E`.
    pub n_experts: usize,
    /// Experts per token (top-k).
    pub n_used: usize,
    /// Weights of the routed experts.
    pub routing: Routing,
    /// Combines gate and up.
    pub activation: GatedActivation,
}

/// Weight and bias of a linear layer.
pub type LinearRef<'a, B> = (&'a <B as Backend>::Matrix, Option<&'a <B as Backend>::Buffer>);

/// A gated MLP (`SwiGLU`, `GeGLU`), the argument of [`Backend::gated_mlp`].
#[derive(Debug)]
pub struct GatedMlp<'a, B: Backend> {
    /// `[F, D]` and bias `[F]`.
    pub gate: LinearRef<'a, B>,
    /// `[F, D]` and bias `[F]`.
    pub up: LinearRef<'a, B>,
    /// `[D, F]` and bias `[D]`.
    pub down: LinearRef<'a, B>,
    /// Combines gate and up.
    pub activation: GatedActivation,
    /// Intermediate width `F`.
    pub d_ff: usize,
    /// Adds to the output instead of replacing it.
    pub accumulate: bool,
    /// Scratch for gate, up and their combination, `[T, F]` each; contents are unspecified afterwards.
    pub scratch: [&'a mut B::Buffer; 3],
}

/// A device and its ops. Values are f32 unless stated otherwise.
///
/// # Panics
/// Every op panics if shapes do not fit.
pub trait Backend: Clone + Debug + Send + Sync + 'static {
    /// f32 values on the device.
    type Buffer: Debug + Send + Sync;
    /// An immutable weight matrix in the layout of the kernels.
    type Matrix: Debug + Send + Sync;
    /// KV pages of all layers; [`Pages`](crate::Pages) counts their references.
    type Kv: Debug + Send + Sync;

    /// Whether reads are complete at their first poll, as on the CPU.
    const READS_AT_ONCE: bool = false;

    /// Name for messages, for example `cpu`.
    fn name(&self) -> &'static str;

    /// Names of the kernels and device in use, for logs and benchmarks.
    fn describe(&self) -> String;

    /// Cost of loading so far; zeros if the device does not count it.
    fn load_stats(&self) -> LoadStats {
        LoadStats::default()
    }

    /// Memory of the device in bytes, in use or not; `None` if it is unknown or shared with the host.
    fn total_memory_bytes(&self) -> Option<u64> {
        None
    }

    /// Type in which weights of `dtype` are stored: `dtype`, unless no kernel reads it.
    fn stored_dtype(&self, dtype: DType) -> DType {
        dtype
    }

    /// Splits the device into at most `n` that share its weights and run passes concurrently; one if the device runs
    /// passes one by one.
    ///
    /// # Errors
    /// If threads cannot be started.
    fn divide(&self, n: usize) -> Result<Vec<Self>, Error> {
        let _ = n;
        Ok(vec![self.clone()])
    }

    /// Warms up: compiles the kernels and allocates the memory of the ops that `ops` enqueues, which are dropped instead
    /// of run. A device without kernels to compile does not call `ops`.
    ///
    /// # Errors
    /// Errors of `ops` and of the device.
    fn warm_up<E: From<Error>>(&self, ops: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let _ = ops;
        Ok(())
    }

    /// Calls `task` on the host for each item, on the device's host threads if it has any.
    fn for_each<T: Send>(&self, items: &mut [T], task: impl Fn(&mut T) + Sync) {
        items.iter_mut().for_each(task);
    }

    /// A buffer of `len` zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn alloc(&self, len: usize) -> Result<Self::Buffer, Error>;

    /// Loads a weight matrix, repacked for the kernels if that pays.
    ///
    /// # Errors
    /// [`Error::UnsupportedWeight`] if the type has no kernel, [`Error::WeightSize`] if the bytes do not fit the shape,
    /// [`Error::OutOfMemory`].
    fn matrix(&self, source: MatrixSource<'_>) -> Result<Self::Matrix, Error>;

    /// A KV pool with unspecified contents.
    ///
    /// # Errors
    /// If there is no memory for it, or [`Error::Unsupported`] if attention has no kernel for the shape.
    fn kv(&self, shape: KvShape) -> Result<Self::Kv, Error>;

    /// `dst[offset + i] = values[i]`.
    fn write(&self, dst: &mut Self::Buffer, offset: usize, values: &[f32]);

    /// `out[i] = src[offset + i]`, after all earlier ops. Resolves to an error if the device failed in one of them.
    fn read(
        &self,
        src: &Self::Buffer,
        offset: usize,
        out: &mut [f32],
    ) -> impl Future<Output = Result<(), Error>> + MaybeSend {
        async move { self.read_all(&mut [Read { src, offset, out }]).await }
    }

    /// [`read`](Self::read) of several ranges, in one round trip to the device.
    fn read_all(
        &self,
        reads: &mut [Read<'_, Self>],
    ) -> impl Future<Output = Result<(), Error>> + MaybeSend;

    /// Packs the rows of `src`: `dst[offset + r * cols + c] = src[r, c]`.
    fn copy(&self, dst: &mut Self::Buffer, offset: usize, src: View<'_, Self>);

    /// Sum: `out[t] += x[t]`.
    ///
    /// Shapes: `x` = `[T, D]`, `out` packed `[T, D]`.
    fn add(&self, out: &mut Self::Buffer, x: View<'_, Self>);

    /// Token embedding: `out[t] = scale * table[tokens[t]] + positions[pos[t]]`.
    ///
    /// Shapes: `table` = `[V, D]`, `out` packed `[T, D]`.
    fn embed(&self, out: &mut Self::Buffer, table: &Self::Matrix, args: Embed<'_, Self>);

    /// Layer norm: `out[t] = (x[t] - mean(x[t])) / sqrt(var(x[t]) + eps) * weight + bias`, `var` the mean squared
    /// deviation.
    ///
    /// Shapes: `x` = `[T, D]`, `out` packed `[T, D]`, `weight` and `bias` = `[D]`.
    fn layer_norm(
        &self,
        out: &mut Self::Buffer,
        x: View<'_, Self>,
        weight: &Self::Buffer,
        bias: Option<&Self::Buffer>,
        eps: f32,
    );

    /// RMS norm: `out[t] = x[t] / sqrt(mean(x[t]²) + eps) * weight`, or `out[t] += …` with `accumulate`.
    ///
    /// Shapes: `x` = `[T, D]`, `out` packed `[T, D]`, `weight` = `[D]`.
    fn rms_norm(
        &self,
        out: &mut Self::Buffer,
        x: View<'_, Self>,
        weight: &Self::Buffer,
        eps: f32,
        accumulate: bool,
    );

    /// Rotary embedding in place, after an optional RMS norm of each head: a pair `(u, v)` of channels becomes
    /// `(u cos - v sin, u sin + v cos)`.
    ///
    /// Shapes: `rows` of `x` = `[T, H*C]`. Source: Su et al. 2021, eq. 34.
    fn rope(&self, x: &mut Self::Buffer, rows: Rows, args: Rope<'_, Self>);

    /// Gated activation: `out[t, f] = act(gate[t, f]) * up[t, f]`, see [`GatedActivation`].
    ///
    /// Shapes: `gate` and `up` = `[T, F]`, `out` packed `[T, F]`.
    fn gated(
        &self,
        out: &mut Self::Buffer,
        gate: View<'_, Self>,
        up: View<'_, Self>,
        activation: GatedActivation,
    );

    /// Gated MLP: `out[t] = down · (act(gate · x[t]) * (up · x[t]))`, or `out[t] += …`.
    ///
    /// Shapes: `x` = `[T, D]`, `out` packed `[T, D]`. A device may fuse the three matmuls and leave the scratch buffers
    /// unwritten; the default runs them as separate ops.
    fn gated_mlp(&self, out: &mut Self::Buffer, x: View<'_, Self>, mlp: GatedMlp<'_, Self>) {
        let GatedMlp { activation, d_ff, scratch: [gate, up, hidden], .. } = mlp;
        let t = x.rows.rows;
        fn op<'a, B: Backend>(
            out: &'a mut B::Buffer,
            (w, bias): LinearRef<'a, B>,
            accumulate: bool,
        ) -> MatmulOp<'a, B> {
            let epilogue = Epilogue { bias, activation: Activation::None, accumulate };
            MatmulOp { out, w, epilogue, consumer: None }
        }
        self.matmul(x, [op(gate, mlp.gate, false), op(up, mlp.up, false)]);
        let both = [gate, up].map(|buffer| View::packed(buffer, t, d_ff));
        self.gated(hidden, both[0], both[1], activation);
        self.matmul(View::packed(hidden, t, d_ff), [op(out, mlp.down, mlp.accumulate)]);
    }

    /// Mixture of experts (`MoE`): `out[t] += Σ_e weight[t, e] * mlp_e(x[t])` over the top-k experts `e` of row `t`, `mlp_e` a
    /// gated MLP.
    ///
    /// Shapes: `x` = `[T, D]`, router `logits` = `[T, E]`, `out` packed `[T, D]`.
    fn moe(
        &self,
        out: &mut Self::Buffer,
        x: View<'_, Self>,
        logits: View<'_, Self>,
        experts: &Experts<'_, Self>,
    );

    /// Matmuls of one input: `out[t, n] = Σ_k x[t, k] w[n, k]` with its epilogue, for each of `ops`. `x` is quantized at
    /// most once for all of them.
    ///
    /// Shapes: `x` = `[T, K]`; `w` = `[N, K]` and `out` packed `[T, N]` of each op.
    fn matmul<const N: usize>(&self, x: View<'_, Self>, ops: [MatmulOp<'_, Self>; N]);

    /// Convolution over time with kernel size 3 and padding 1:
    /// `out[t, o] = Σ_{tap,i} x[t * stride + tap - 1, i] w[o, tap * C_in + i]` with the epilogue.
    ///
    /// Shapes: `x` packed `[T, C_in]`, `w` = `[C_out, 3 * C_in]`, `out` packed `[ceil(T / stride), C_out]`.
    fn conv1d(
        &self,
        out: &mut Self::Buffer,
        x: View<'_, Self>,
        w: &Self::Matrix,
        stride: usize,
        epilogue: Epilogue<'_, Self>,
    );

    /// Top-k of every row: row `t` of `out` holds the `k` largest values of `x[t]` in descending order, then their
    /// column indices as f32. Equal values are ordered by ascending column; NaN counts as −∞, +∞ as `f32::MAX`.
    ///
    /// Shapes: `x` = `[T, V]`, `out` packed `[T, 2k]`; `1 <= k <= min(V, MAX_TOP_K)`, `V <= MAX_TOP_K_COLS`.
    fn top_k(&self, out: &mut Self::Buffer, x: View<'_, Self>, k: usize);

    /// Writes `k[t]` and `v[t]` to position `rows[t]` of `layer`, rounded to the pool's element type.
    ///
    /// Shapes: `k` and `v` = `[T, G*C]`.
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

    /// Appends the bytes of page `page` of every layer to `out`, after all earlier ops. The format is that of
    /// [`kv_write_page`](Self::kv_write_page) for a pool of the same shape and backend.
    fn kv_read_page(
        &self,
        kv: &Self::Kv,
        page: u32,
        out: &mut Vec<u8>,
    ) -> impl Future<Output = Result<(), Error>> + MaybeSend;

    /// Replaces page `page` of every layer by the bytes of [`kv_read_page`](Self::kv_read_page).
    ///
    /// # Errors
    /// [`Error::KvPage`] if `bytes` has not the length of a page in every layer.
    fn kv_write_page(&self, kv: &mut Self::Kv, page: u32, bytes: &[u8]) -> Result<(), Error>;

    /// Paged attention: `out[t, h] = Σ_p softmax_p(scale * q[t, h] · k[p, g]) * v[p, g]` over positions
    /// `kv_start .. kv_len` of the row's pages, `g = h / (H / G)`; soft cap, slopes and sinks as in [`Attention`].
    ///
    /// Shapes: `q` = `[T, H*C]`, `out` packed `[T, H*C]`.
    fn attention(&self, out: &mut Self::Buffer, args: Attention<'_, Self>);
}
