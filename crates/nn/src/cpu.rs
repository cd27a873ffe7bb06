//! The op vocabulary on this machine's SIMD.

mod moe;

use std::future::{Future, ready};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use stonechat_compute::cpu::{
    self, DenseWeight, KvLayout, KvPool, LayerNorm, MatMut, MatRef, RmsNorm, conv1d, layer_norm,
    matmul, matmul_dequantized, rms_norm,
};
use stonechat_compute::{AlignedVec, DType, Isa};
use stonechat_quant::{ActivationBuffer, PackedMatrix, QuantMatrix};

use crate::{
    Attention, Backend, Embed, Epilogue, Error, Experts, GatedActivation, KvRow, KvShape,
    MatrixSource, Product, Rope, Rows, View,
};

/// Rows of activations up to which a quantized matrix that was not rearranged is multiplied by integer
/// dot products; beyond, each of its rows is dequantized once and used for all of them.
const MAX_INTEGER_ROWS: usize = 16;
/// Bytes of weights that are taken over at a time, after which the pages they came from are released.
const CHUNK_BYTES: usize = 8 << 20;

/// The CPU backend: an instruction set and a thread team.
#[derive(Debug, Clone)]
pub struct Cpu {
    device: stonechat_compute::Cpu,
    /// Quantized activations of the matmul in flight; ops of one backend run one after the other.
    activations: Arc<Mutex<ActivationBuffer>>,
    /// Memory of the mixture of experts in flight.
    moe: Arc<Mutex<moe::Scratch>>,
}

/// A weight matrix in host memory.
#[derive(Debug)]
pub enum CpuMatrix {
    /// f32 values `[N, K]`.
    F32(usize, usize, Vec<f32>),
    /// f16 values `[N, K]`.
    F16(usize, usize, Vec<half::f16>),
    /// bf16 values `[N, K]`.
    BF16(usize, usize, Vec<half::bf16>),
    /// Blocks of a quantized type `[N, K]`.
    Quant(usize, usize, DType, Vec<u8>),
    /// The same, rearranged for this instruction set.
    Packed(PackedMatrix),
}

/// Some rows of a [`CpuMatrix`].
#[derive(Debug, Clone, Copy)]
enum Weights<'a> {
    Dense(DenseWeight<'a>),
    Quant(QuantMatrix<'a>),
    Packed(&'a PackedMatrix, usize, usize),
}

impl Weights<'_> {
    /// Whether so many rows of activations are quantized before they are multiplied.
    fn takes_integers(&self, n_rows: usize) -> bool {
        match self {
            Self::Dense(_) => false,
            Self::Quant(_) => n_rows <= MAX_INTEGER_ROWS,
            Self::Packed(..) => true,
        }
    }
}

impl CpuMatrix {
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::F32(n, k, _)
            | Self::F16(n, k, _)
            | Self::BF16(n, k, _)
            | Self::Quant(n, k, ..) => (*n, *k),
            Self::Packed(matrix) => (matrix.n(), matrix.k()),
        }
    }

    fn all(&self) -> Weights<'_> {
        self.rows(0..self.shape().0)
    }

    fn rows(&self, rows: Range<usize>) -> Weights<'_> {
        let (_, k) = self.shape();
        let values = rows.start * k..rows.end * k;
        match self {
            Self::F32(_, _, w) => Weights::Dense(DenseWeight::F32(&w[values])),
            Self::F16(_, _, w) => Weights::Dense(DenseWeight::F16(&w[values])),
            Self::BF16(_, _, w) => Weights::Dense(DenseWeight::BF16(&w[values])),
            Self::Quant(n, k, dtype, bytes) => {
                let row_bytes = bytes.len() / (*n).max(1);
                let bytes = &bytes[rows.start * row_bytes..rows.end * row_bytes];
                Weights::Quant(blocks(*dtype, rows.len(), *k, bytes))
            }
            Self::Packed(matrix) => Weights::Packed(matrix, rows.start, rows.end),
        }
    }
}

impl Cpu {
    /// The best instruction set of this machine and `n_threads` threads (0: one per core).
    ///
    /// # Errors
    /// If `STONECHAT_ISA` names no instruction set or threads cannot be started.
    pub fn new(n_threads: usize) -> Result<Self, Error> {
        Ok(Self::with_device(stonechat_compute::Cpu::new(n_threads)?))
    }

    /// A chosen instruction set and thread team.
    #[must_use]
    pub fn with_device(device: stonechat_compute::Cpu) -> Self {
        Self { device, activations: Arc::default(), moe: Arc::default() }
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.device.isa
    }

    /// The instruction set and the threads.
    #[must_use]
    pub fn device(&self) -> &stonechat_compute::Cpu {
        &self.device
    }

    /// Name of the kernel that multiplies `rows` rows of activations with `w`, for benches.
    #[must_use]
    pub fn matmul_kernel(&self, w: &CpuMatrix, rows: usize) -> String {
        let isa = self.device.isa;
        match w {
            CpuMatrix::F32(..) => format!("f32-{isa}"),
            CpuMatrix::F16(..) => format!("f16-{isa}"),
            CpuMatrix::BF16(..) => format!("bf16-{isa}"),
            CpuMatrix::Packed(w) => format!("{}-panels-{isa}", w.dtype()),
            CpuMatrix::Quant(_, _, dtype, _) if rows <= MAX_INTEGER_ROWS => {
                stonechat_quant::kernel_name(isa, *dtype)
            }
            CpuMatrix::Quant(_, _, dtype, _) => format!("{dtype}-dequantized-f32-{isa}"),
        }
    }

    /// Products of one input, which is quantized at most once.
    fn products<const N: usize>(
        &self,
        x: MatRef<'_>,
        products: [(MatMut<'_>, Weights<'_>, cpu::Epilogue<'_>); N],
    ) {
        let needs_integers = products.iter().any(|(_, w, _)| w.takes_integers(x.rows));
        let integers = needs_integers.then(|| self.quantize(x));
        let device = &self.device;
        for (out, w, epilogue) in products {
            match (w, &integers) {
                (Weights::Dense(w), _) => matmul(device, out, x, w, epilogue),
                (Weights::Packed(w, start, end), Some(x)) => {
                    stonechat_quant::matmul_packed(device, out, x, (w, start..end), epilogue);
                }
                (Weights::Quant(w), Some(x)) if x.rows() <= MAX_INTEGER_ROWS => {
                    stonechat_quant::matmul(device, out, x, w, epilogue);
                }
                (Weights::Quant(w), _) => {
                    let dequantize = |rows, values: &mut [f32]| {
                        w.dequantize_rows(device.isa, rows, values);
                    };
                    matmul_dequantized(device, out, x, &dequantize, epilogue);
                }
                (Weights::Packed(..), None) => unreachable!("panels take integers"),
            }
        }
    }

    /// The weights rearranged, if this instruction set has a kernel for that.
    fn packed(&self, source: &MatrixSource<'_>) -> Option<PackedMatrix> {
        if !PackedMatrix::has_kernel(self.device.isa, source.dtype) {
            return None;
        }
        let mut matrix = PackedMatrix::zeroed(source.dtype, source.rows, source.cols)?;
        let row_bytes = matrix.row_bytes().max(1);
        // Whole panels, whatever their height.
        let rows_at_once = (CHUNK_BYTES / row_bytes).next_multiple_of(64).max(64);
        in_pieces(source, rows_at_once * row_bytes, |i, bytes| {
            matrix.pack(&self.device, i * rows_at_once, bytes);
        });
        Some(matrix)
    }

    /// The rows of `x` as integers, until the guard is dropped.
    fn quantize(&self, x: MatRef<'_>) -> MutexGuard<'_, ActivationBuffer> {
        let mut activations = self.activations.lock().unwrap_or_else(PoisonError::into_inner);
        if x.rows <= MAX_INTEGER_ROWS {
            activations.quantize(&self.device, x);
        } else {
            // Weights that are no panels do not take integers of so many rows.
            activations.prepare(&self.device, x);
        }
        activations
    }
}

/// The view of a matrix whose sizes were checked when it was loaded.
fn blocks(dtype: DType, n: usize, k: usize, bytes: &[u8]) -> QuantMatrix<'_> {
    QuantMatrix::new(dtype, n, k, bytes).expect("checked by `Backend::matrix`")
}

fn mat(buffer: &[f32], rows: Rows) -> MatRef<'_> {
    MatRef::new(
        &buffer[rows.offset..rows.end().max(rows.offset)],
        rows.rows,
        rows.cols,
        rows.stride,
    )
}

fn host<'a>(epilogue: &Epilogue<'a, Cpu>) -> cpu::Epilogue<'a> {
    cpu::Epilogue {
        bias: epilogue.bias.map(|bias| &bias[..]),
        activation: epilogue.activation,
        accumulate: epilogue.accumulate,
    }
}

/// Calls `take` with each `len` bytes of a weight matrix, fewer at the end, and releases their pages.
fn in_pieces(source: &MatrixSource<'_>, len: usize, mut take: impl FnMut(usize, &[u8])) {
    for (i, bytes) in source.bytes.chunks(len).enumerate() {
        take(i, bytes);
        if let Some(pages) = source.pages {
            pages.release();
        }
    }
}

/// The values of a weight matrix in memory of their own.
fn copied<T: Pod>(source: &MatrixSource<'_>) -> Vec<T> {
    let mut values = bytemuck::allocation::zeroed_vec::<T>(source.bytes.len() / size_of::<T>());
    let to = bytemuck::cast_slice_mut::<T, u8>(&mut values);
    in_pieces(source, CHUNK_BYTES, |i, bytes| {
        to[i * CHUNK_BYTES..][..bytes.len()].copy_from_slice(bytes);
    });
    values
}

impl Backend for Cpu {
    type Buffer = AlignedVec;
    type Matrix = CpuMatrix;
    type Kv = Vec<KvPool>;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn describe(&self) -> String {
        format!("cpu {}, {} threads", self.device.isa.name(), self.device.threads.n_threads())
    }

    fn alloc(&self, len: usize) -> Result<AlignedVec, Error> {
        AlignedVec::try_zeroed(len)
            .ok_or(Error::OutOfMemory { bytes: len.saturating_mul(4), backend: "cpu" })
    }

    fn matrix(&self, source: MatrixSource<'_>) -> Result<CpuMatrix, Error> {
        let MatrixSource { name, rows, cols, dtype, bytes, pages: _ } = source;
        let expected =
            rows.checked_mul(cols).and_then(|n| dtype.bytes_for(n)).unwrap_or(usize::MAX);
        if bytes.len() != expected || !cols.is_multiple_of(dtype.block_len()) {
            let (name, shape) = (name.to_owned(), [rows, cols]);
            return Err(Error::WeightSize { name, dtype, shape, expected, got: bytes.len() });
        }
        Ok(match dtype {
            DType::F32 => CpuMatrix::F32(rows, cols, copied(&source)),
            DType::F16 => CpuMatrix::F16(rows, cols, copied(&source)),
            DType::BF16 => CpuMatrix::BF16(rows, cols, copied(&source)),
            _ if QuantMatrix::has_kernel(dtype) => {
                // Sized once: a decode step must not grow it.
                let mut activations =
                    self.activations.lock().unwrap_or_else(PoisonError::into_inner);
                activations.reserve(MAX_INTEGER_ROWS, cols);
                match self.packed(&source) {
                    Some(matrix) => CpuMatrix::Packed(matrix),
                    None => CpuMatrix::Quant(rows, cols, dtype, copied(&source)),
                }
            }
            _ => {
                let name = name.to_owned();
                return Err(Error::UnsupportedWeight { name, dtype, backend: "cpu" });
            }
        })
    }

    fn kv(&self, shape: KvShape) -> Result<Vec<KvPool>, Error> {
        let KvShape { n_layers, n_pages, n_kv_heads, head_dim, dtype } = shape;
        let layout = KvLayout { n_kv_heads, head_dim, dtype };
        (0..n_layers).map(|_| Ok(KvPool::new(layout, n_pages)?)).collect()
    }

    fn write(&self, dst: &mut AlignedVec, offset: usize, values: &[f32]) {
        dst[offset..offset + values.len()].copy_from_slice(values);
    }

    fn read(
        &self,
        src: &AlignedVec,
        offset: usize,
        out: &mut [f32],
    ) -> impl Future<Output = Result<(), Error>> {
        out.copy_from_slice(&src[offset..offset + out.len()]);
        ready(Ok(()))
    }

    fn copy(&self, dst: &mut AlignedVec, offset: usize, src: View<'_, Self>) {
        let Rows { rows, cols, stride, .. } = src.rows;
        for r in 0..rows {
            let from = src.rows.offset + r * stride;
            dst[offset + r * cols..][..cols].copy_from_slice(&src.buffer[from..from + cols]);
        }
    }

    fn embed(&self, out: &mut AlignedVec, table: &CpuMatrix, args: Embed<'_, Self>) {
        let (_, d) = table.shape();
        for (t, (row, &token)) in out.chunks_exact_mut(d).zip(args.tokens).enumerate() {
            let token = token as usize;
            let values = token * d..(token + 1) * d;
            match table {
                CpuMatrix::F32(_, _, table) => row.copy_from_slice(&table[values]),
                CpuMatrix::F16(_, _, table) => {
                    row.iter_mut().zip(&table[values]).for_each(|(r, v)| *r = v.to_f32());
                }
                CpuMatrix::BF16(_, _, table) => {
                    row.iter_mut().zip(&table[values]).for_each(|(r, v)| *r = v.to_f32());
                }
                CpuMatrix::Quant(n, k, dtype, bytes) => {
                    let table = blocks(*dtype, *n, *k, bytes);
                    table.dequantize_rows(self.device.isa, token..token + 1, row);
                }
                CpuMatrix::Packed(table) => table.dequantize_row(self.device.isa, token, row),
            }
            if args.scale != 1.0 {
                row.iter_mut().for_each(|r| *r *= args.scale);
            }
            if let Some((positions, pos)) = args.positions {
                let position = &positions[pos[t] as usize * d..][..d];
                row.iter_mut().zip(position).for_each(|(r, p)| *r += p);
            }
        }
    }

    fn layer_norm(
        &self,
        out: &mut AlignedVec,
        x: View<'_, Self>,
        weight: &AlignedVec,
        bias: Option<&AlignedVec>,
        eps: f32,
    ) {
        let Rows { rows, cols, .. } = x.rows;
        let out = MatMut::packed(&mut out[..rows * cols], rows, cols);
        layer_norm(
            &self.device,
            out,
            mat(x.buffer, x.rows),
            LayerNorm { weight, bias: bias.map(|b| &b[..]), eps },
        );
    }

    fn rms_norm(
        &self,
        out: &mut AlignedVec,
        x: View<'_, Self>,
        weight: &AlignedVec,
        eps: f32,
        accumulate: bool,
    ) {
        let Rows { rows, cols, .. } = x.rows;
        let out = MatMut::packed(&mut out[..rows * cols], rows, cols);
        rms_norm(
            &self.device,
            out,
            mat(x.buffer, x.rows),
            RmsNorm { weight: &weight[..], eps, accumulate },
        );
    }

    fn rope(&self, x: &mut AlignedVec, rows: Rows, args: Rope<'_, Self>) {
        let Rows { offset, rows: n_rows, cols, stride } = rows;
        let x = &mut x[offset..rows.end().max(offset)];
        let rotation = args.rotation.map(|rotation| cpu::Rotation {
            cos_sin: MatRef::packed(&rotation.cos_sin[..], n_rows, rotation.n_rot),
            pairs: rotation.pairs,
        });
        let norm = args.norm.map(|(weight, eps)| (&weight[..], eps));
        cpu::rope(
            &self.device,
            MatMut::new(x, n_rows, cols, stride),
            cpu::Rope { head_dim: args.head_dim, norm, rotation },
        );
    }

    fn gated(
        &self,
        out: &mut AlignedVec,
        gate: View<'_, Self>,
        up: View<'_, Self>,
        activation: GatedActivation,
    ) {
        let Rows { rows, cols, .. } = gate.rows;
        let out = MatMut::packed(&mut out[..rows * cols], rows, cols);
        let (gate, up) = (mat(gate.buffer, gate.rows), mat(up.buffer, up.rows));
        cpu::gated(&self.device, out, gate, up, activation);
    }

    fn moe(
        &self,
        out: &mut AlignedVec,
        x: View<'_, Self>,
        logits: View<'_, Self>,
        experts: &Experts<Self>,
    ) {
        let Rows { rows, cols, .. } = x.rows;
        let out = MatMut::packed(&mut out[..rows * cols], rows, cols);
        self.mixture(out, mat(x.buffer, x.rows), mat(logits.buffer, logits.rows), experts);
    }

    fn matmul<const N: usize>(&self, x: View<'_, Self>, products: [Product<'_, Self>; N]) {
        let products = products.map(|Product { out, w, epilogue }| {
            let (n, _) = w.shape();
            let out = MatMut::packed(&mut out[..x.rows.rows * n], x.rows.rows, n);
            (out, w.all(), host(&epilogue))
        });
        self.products(mat(x.buffer, x.rows), products);
    }

    fn conv1d(
        &self,
        out: &mut AlignedVec,
        x: View<'_, Self>,
        w: &CpuMatrix,
        stride: usize,
        epilogue: Epilogue<'_, Self>,
    ) {
        let (n, _) = w.shape();
        let rows = x.rows.rows.div_ceil(stride);
        let out = MatMut::packed(&mut out[..rows * n], rows, n);
        let epilogue = host(&epilogue);
        let w = w.all();
        conv1d(out, mat(x.buffer, x.rows), stride, |out, x| self.products(x, [(out, w, epilogue)]));
    }

    fn kv_write(
        &self,
        kv: &mut Vec<KvPool>,
        layer: usize,
        k: View<'_, Self>,
        v: View<'_, Self>,
        rows: &[KvRow],
    ) {
        kv[layer].write(&self.device, mat(k.buffer, k.rows), mat(v.buffer, v.rows), rows);
    }

    fn kv_copy_page(&self, kv: &mut Vec<KvPool>, src: u32, dst: u32) {
        for pool in kv {
            pool.copy_page(src, dst);
        }
    }

    fn kv_read_page(
        &self,
        kv: &Vec<KvPool>,
        page: u32,
        out: &mut Vec<u8>,
    ) -> impl Future<Output = Result<(), Error>> {
        for pool in kv {
            out.extend_from_slice(pool.page(page));
        }
        ready(Ok(()))
    }

    fn kv_write_page(&self, kv: &mut Vec<KvPool>, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let expected = kv.iter().map(|pool| pool.page(page).len()).sum();
        if bytes.len() != expected {
            return Err(Error::KvPage { expected, got: bytes.len() });
        }
        let mut rest = bytes;
        for pool in kv {
            let page = pool.page_mut(page);
            let (head, tail) = rest.split_at(page.len());
            page.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    fn attention(&self, out: &mut AlignedVec, args: Attention<'_, Self>) {
        let Attention { q, kv, layer, n_heads, scale, soft_cap, rows, page_table, .. } = args;
        let (slopes, sinks) = (args.slopes.map(|s| &s[..]), args.sinks.map(|s| &s[..]));
        let Rows { rows: n_rows, cols, .. } = q.rows;
        let out = MatMut::packed(&mut out[..n_rows * cols], n_rows, cols);
        let q = mat(q.buffer, q.rows);
        let kv = &kv[layer];
        cpu::attention(
            &self.device,
            out,
            cpu::Attention { q, kv, n_heads, scale, soft_cap, slopes, sinks, rows, page_table },
        );
    }
}
