//! The CPU backend: maps every op to the kernels of `stonechat-compute` and `stonechat-quant`.
//!
//! | file | holds |
//! |---|---|
//! | `cpu/weights.rs` | [`CpuMatrix`]: loading, repacking, row ranges |
//! | `cpu/gated_mlp.rs` | gated MLP, fused for panels |
//! | `cpu/moe.rs` | mixture of experts, tokens grouped by expert |
//! | `cpu/profile.rs` | time per op |

mod gated_mlp;
mod moe;
mod profile;
mod weights;

use std::future::{Future, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stonechat_compute::cpu::{
    self, KvPool, LayerNorm, MatMut, MatRef, RmsNorm, TopKEntry, conv1d, layer_norm, matmul,
    matmul_dequantized, rms_norm,
};
use stonechat_compute::{AlignedVec, Isa, ThreadTeam};
use stonechat_quant::{ActivationBuffer, PackedProduct, matmul_packed};

use self::gated_mlp::MlpWeights;
pub use self::profile::OpTime;
use self::profile::Profile;
use self::weights::Weights;
pub use self::weights::{CpuMatrix, Repack};
use crate::{
    Attention, Backend, Embed, Epilogue, Error, Experts, GatedActivation, GatedMlp, KvRow, KvShape,
    LinearRef, LoadStats, MatmulOp, MatrixSource, Read, Rope, Rotation, Rows, View,
};

/// Most rows of activations for which a quantized matrix that is not repacked is multiplied by int8 dot products. With
/// more rows, each row of weights is dequantized once and multiplied in f32.
const MAX_INT_DOT_ROWS: usize = 16;

/// Values per task of a parallel [`Backend::read`]: more than the logits of a token, which one thread copies.
const READ_LEN: usize = 1 << 18;

/// The CPU backend: an instruction set and a thread team.
#[derive(Debug, Clone)]
pub struct Cpu {
    device: stonechat_compute::Cpu,
    /// Quantized input of the current matmul; the lock serializes ops of one backend.
    activations: Arc<Mutex<ActivationBuffer>>,
    /// Quantized intermediate activations of the current gated MLP.
    hidden: Arc<Mutex<ActivationBuffer>>,
    /// Scratch of the current `MoE`.
    moe: Arc<Mutex<moe::Scratch>>,
    /// Scratch of the current top-k.
    top_k_scratch: Arc<Mutex<Vec<TopKEntry>>>,
    repack: Repack,
    /// Shared by clones and by the parts of [`Backend::divide`].
    load_stats: Arc<Mutex<LoadStats>>,
    /// Time per op, if enabled.
    profile: Option<Arc<Profile>>,
}

impl Cpu {
    /// The best instruction set of this machine and `n_threads` threads (0: one per core).
    ///
    /// # Errors
    /// If `STONECHAT_ISA` names no instruction set or threads cannot be started.
    pub fn new(n_threads: usize) -> Result<Self, Error> {
        Ok(Self::with_device(stonechat_compute::Cpu::new(n_threads)?))
    }

    /// A backend with the given instruction set and thread team.
    #[must_use]
    pub fn with_device(device: stonechat_compute::Cpu) -> Self {
        Self {
            device,
            activations: Arc::default(),
            hidden: Arc::default(),
            moe: Arc::default(),
            top_k_scratch: Arc::default(),
            repack: Repack::default(),
            load_stats: Arc::default(),
            profile: None,
        }
    }

    /// Sets whether weights are repacked when they are loaded.
    #[must_use]
    pub fn with_repack(self, repack: Repack) -> Self {
        Self { repack, ..self }
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

    /// Matmuls of `x`, `[M, K]`, which is quantized at most once. Those with panels share one parallel loop.
    ///
    /// ```text
    /// storage of w      M <= MAX_INT_DOT_ROWS      M > MAX_INT_DOT_ROWS
    /// f32, f16, bf16    matmul                     matmul
    /// blocks of a file  int8 dot products          dequantize a row, f32
    /// panels            matmul_packed              matmul_packed
    /// ```
    fn matmul_all<const N: usize>(
        &self,
        x: MatRef<'_>,
        ops: [(MatMut<'_>, Weights<'_>, cpu::Epilogue<'_>); N],
    ) {
        let needs_quantized = ops.iter().any(|(_, w, _)| w.quantizes_activations(x.rows));
        let quantized = needs_quantized.then(|| self.quantize(x));
        let device = &self.device;
        let mut packed = [const { None }; N];
        for ((out, w, epilogue), packed) in ops.into_iter().zip(&mut packed) {
            match (w, &quantized) {
                (Weights::Dense(w), _) => matmul(device, out, x, w, epilogue),
                (Weights::Packed(w, start, end), _) => {
                    *packed = Some(PackedProduct { out, w, rows: start..end, epilogue });
                }
                (Weights::Quant(w), Some(x)) if x.rows() <= MAX_INT_DOT_ROWS => {
                    stonechat_quant::matmul(device, out, x, w, epilogue);
                }
                (Weights::Quant(w), _) => {
                    let dequantize = |rows, values: &mut [f32]| {
                        w.dequantize_rows(device.isa, rows, values);
                    };
                    matmul_dequantized(device, out, x, &dequantize, epilogue);
                }
            }
        }
        if let Some(x) = &quantized {
            matmul_packed(device, x, packed);
        }
    }

    /// Quantizes the rows of `x`. The activations are valid until the guard is dropped.
    fn quantize(&self, x: MatRef<'_>) -> MutexGuard<'_, ActivationBuffer> {
        let mut activations = self.activations.lock().unwrap_or_else(PoisonError::into_inner);
        if x.rows <= MAX_INT_DOT_ROWS {
            activations.quantize(&self.device, x);
        } else {
            // Only panels are multiplied with so many quantized rows.
            activations.prepare(&self.device, x);
        }
        activations
    }
}

fn mat(buffer: &[f32], rows: Rows) -> MatRef<'_> {
    MatRef::new(
        &buffer[rows.offset..rows.end().max(rows.offset)],
        rows.rows,
        rows.cols,
        rows.stride,
    )
}

/// Profile label: op, types and shapes of its weights, rows rounded up to a power of two.
fn op_label<'a>(
    op: &str,
    weights: impl IntoIterator<Item = &'a CpuMatrix>,
    n_rows: usize,
) -> String {
    let op = weights.into_iter().fold(op.to_owned(), |text, w| text + " " + &w.label());
    format!("{op}, {} rows", n_rows.next_power_of_two())
}

fn bias<'a>((_, bias): LinearRef<'a, Cpu>) -> Option<&'a [f32]> {
    bias.map(|bias| &bias[..])
}

fn cpu_epilogue<'a>(epilogue: &Epilogue<'a, Cpu>) -> cpu::Epilogue<'a> {
    cpu::Epilogue {
        bias: epilogue.bias.map(|bias| &bias[..]),
        activation: epilogue.activation,
        accumulate: epilogue.accumulate,
    }
}

impl Backend for Cpu {
    type Buffer = AlignedVec;
    type Matrix = CpuMatrix;
    type Kv = Vec<KvPool>;

    const READS_AT_ONCE: bool = true;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn describe(&self) -> String {
        let (isa, n_threads) = (self.device.isa.name(), self.device.threads.n_threads());
        let layout = match self.repack {
            Repack::On => "",
            Repack::Off => ", weights as stored",
        };
        format!("cpu {isa}, {n_threads} threads{layout}")
    }

    fn for_each<T: Send>(&self, items: &mut [T], task: impl Fn(&mut T) + Sync) {
        let n_items = items.len();
        let items = Mutex::new(items.iter_mut());
        self.device.threads.run(n_items, |_| {
            let item = items.lock().unwrap_or_else(PoisonError::into_inner).next();
            item.into_iter().for_each(&task);
        });
    }

    fn load_stats(&self) -> LoadStats {
        *self.load_stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn divide(&self, n: usize) -> Result<Vec<Self>, Error> {
        let n_threads = self.device.threads.n_threads();
        let n = n.clamp(1, n_threads);
        let share = |i: usize| n_threads * (i + 1) / n - n_threads * i / n;
        let divided = |i: usize| {
            let threads = ThreadTeam::new(share(i))?;
            Ok(Self {
                device: stonechat_compute::Cpu { isa: self.device.isa, threads },
                activations: Arc::default(),
                hidden: Arc::default(),
                moe: Arc::default(),
                top_k_scratch: Arc::default(),
                repack: self.repack,
                load_stats: Arc::clone(&self.load_stats),
                profile: self.profile.clone(),
            })
        };
        (0..n).map(divided).collect()
    }

    fn alloc(&self, len: usize) -> Result<AlignedVec, Error> {
        AlignedVec::try_zeroed(len)
            .ok_or(Error::OutOfMemory { bytes: len.saturating_mul(4), backend: "cpu" })
    }

    fn matrix(&self, source: MatrixSource<'_>) -> Result<CpuMatrix, Error> {
        self.load(source)
    }

    fn kv(&self, shape: KvShape) -> Result<Vec<KvPool>, Error> {
        let pool = |_| Ok(KvPool::new(shape.layout(), shape.n_pages)?);
        (0..shape.n_layers).map(pool).collect()
    }

    fn write(&self, dst: &mut AlignedVec, offset: usize, values: &[f32]) {
        dst[offset..offset + values.len()].copy_from_slice(values);
    }

    fn read_all(&self, reads: &mut [Read<'_, Self>]) -> impl Future<Output = Result<(), Error>> {
        for Read { src, offset, out } in reads {
            let from = &src[*offset..*offset + out.len()];
            if out.len() <= READ_LEN {
                out.copy_from_slice(from);
                continue;
            }
            let n_parts = out.len().div_ceil(READ_LEN);
            let parts = Mutex::new(out.chunks_mut(READ_LEN).zip(from.chunks(READ_LEN)));
            self.device.threads.run(n_parts, |_| {
                let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
                if let Some((to, from)) = part {
                    to.copy_from_slice(from);
                }
            });
        }
        ready(Ok(()))
    }

    fn copy(&self, dst: &mut AlignedVec, offset: usize, src: View<'_, Self>) {
        let _timer = self.timer(|| "copy".to_owned());
        let Rows { rows, cols, stride, .. } = src.rows;
        for r in 0..rows {
            let from = src.rows.offset + r * stride;
            dst[offset + r * cols..][..cols].copy_from_slice(&src.buffer[from..from + cols]);
        }
    }

    fn add(&self, out: &mut AlignedVec, x: View<'_, Self>) {
        let _timer = self.timer(|| "add".to_owned());
        let Rows { rows, cols, .. } = x.rows;
        let out = MatMut::packed(&mut out[..rows * cols], rows, cols);
        cpu::add(&self.device, out, mat(x.buffer, x.rows));
    }

    fn embed(&self, out: &mut AlignedVec, table: &CpuMatrix, args: Embed<'_, Self>) {
        let _timer = self.timer(|| "embed".to_owned());
        let (_, d) = table.shape();
        for (t, (row, &token)) in out.chunks_exact_mut(d).zip(args.tokens).enumerate() {
            let token = token as usize;
            table.dequantize_row(self.device.isa, token, row);
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
        let _timer = self.timer(|| "layer norm".to_owned());
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
        let _timer = self.timer(|| "rms norm".to_owned());
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
        let _timer = self.timer(|| "rope".to_owned());
        let Rows { offset, rows: n_rows, cols, stride } = rows;
        let x = &mut x[offset..rows.end().max(offset)];
        let rotation = args.rotation.filter(|rotation| rotation.n_rot > 0);
        let rotation = rotation.map(|Rotation { table, positions, n_rot, pairs }| cpu::Rotation {
            table: MatRef::packed(&table[..], table.len() / n_rot, n_rot),
            positions,
            pairs,
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
        let _timer = self.timer(|| "gated".to_owned());
        let Rows { rows, cols, .. } = gate.rows;
        let out = MatMut::packed(&mut out[..rows * cols], rows, cols);
        let (gate, up) = (mat(gate.buffer, gate.rows), mat(up.buffer, up.rows));
        cpu::gated(&self.device, out, gate, up, activation);
    }

    fn gated_mlp(&self, out: &mut AlignedVec, x: View<'_, Self>, mlp: GatedMlp<'_, Self>) {
        let _timer = self.timer(|| {
            op_label(
                "gated MLP",
                [mlp.gate, mlp.up, mlp.down].map(|(weight, _)| weight),
                x.rows.rows,
            )
        });
        let GatedMlp { gate, up, down, activation, d_ff, accumulate, scratch } = mlp;
        let Rows { rows, cols, .. } = x.rows;
        let out = MatMut::packed(&mut out[..rows * cols], rows, cols);
        let epilogue = cpu::Epilogue { bias: bias(down), accumulate, ..cpu::Epilogue::default() };
        let mlp = MlpWeights {
            gate: (gate.0.all(), bias(gate)),
            up: (up.0.all(), bias(up)),
            down: (down.0.all(), epilogue),
            activation,
        };
        let scratch = scratch.map(|buffer| &mut buffer[..rows * d_ff]);
        self.run_gated_mlp(out, mat(x.buffer, x.rows), mlp, scratch);
    }

    fn moe(
        &self,
        out: &mut AlignedVec,
        x: View<'_, Self>,
        logits: View<'_, Self>,
        experts: &Experts<'_, Self>,
    ) {
        let _timer = self.timer(|| "moe".to_owned());
        let Rows { rows, cols, .. } = x.rows;
        let out = MatMut::packed(&mut out[..rows * cols], rows, cols);
        self.moe_experts(out, mat(x.buffer, x.rows), mat(logits.buffer, logits.rows), experts);
    }

    fn matmul<const N: usize>(&self, x: View<'_, Self>, ops: [MatmulOp<'_, Self>; N]) {
        let _timer = self.timer(|| op_label("matmul", ops.iter().map(|op| op.w), x.rows.rows));
        let ops = ops.map(|MatmulOp { out, w, epilogue, consumer: _ }| {
            let (n, _) = w.shape();
            let out = MatMut::packed(&mut out[..x.rows.rows * n], x.rows.rows, n);
            (out, w.all(), cpu_epilogue(&epilogue))
        });
        self.matmul_all(mat(x.buffer, x.rows), ops);
    }

    fn conv1d(
        &self,
        out: &mut AlignedVec,
        x: View<'_, Self>,
        w: &CpuMatrix,
        stride: usize,
        epilogue: Epilogue<'_, Self>,
    ) {
        let _timer = self.timer(|| format!("conv1d {}", w.label()));
        let (n, _) = w.shape();
        let rows = x.rows.rows.div_ceil(stride);
        let out = MatMut::packed(&mut out[..rows * n], rows, n);
        let epilogue = cpu_epilogue(&epilogue);
        let w = w.all();
        conv1d(out, mat(x.buffer, x.rows), stride, |out, x| {
            self.matmul_all(x, [(out, w, epilogue)])
        });
    }

    fn top_k(&self, out: &mut AlignedVec, x: View<'_, Self>, k: usize) {
        let _timer = self.timer(|| "top k".to_owned());
        let Rows { offset, rows, cols, stride } = x.rows;
        assert!(k <= cols, "top_k: {k} of {cols} values");
        let mut top_k = self.top_k_scratch.lock().unwrap_or_else(PoisonError::into_inner);
        for (t, row) in out[..2 * k * rows].chunks_exact_mut(2 * k).enumerate() {
            cpu::top_k(&x.buffer[offset + t * stride..][..cols], k, &mut top_k);
            let (values, columns) = row.split_at_mut(k);
            for (entry, (value, column)) in top_k.iter().zip(values.iter_mut().zip(columns)) {
                (*value, *column) = (entry.value, entry.index as f32);
            }
        }
    }

    fn kv_write(
        &self,
        kv: &mut Vec<KvPool>,
        layer: usize,
        k: View<'_, Self>,
        v: View<'_, Self>,
        rows: &[KvRow],
    ) {
        let _timer = self.timer(|| "kv write".to_owned());
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
        let _timer = self.timer(|| {
            let n_positions = args.rows.iter().map(|row| row.kv_len as usize).max().unwrap_or(0);
            let round_up = usize::next_power_of_two;
            let (n_rows, n_positions) = (round_up(args.rows.len()), round_up(n_positions));
            format!("attention, {n_rows} rows, {n_positions} positions")
        });
        let Attention {
            q, kv, layer, n_heads, scale, soft_cap, rows, page_table, precision, ..
        } = args;
        let (slopes, sinks) = (args.slopes.map(|s| &s[..]), args.sinks.map(|s| &s[..]));
        let Rows { rows: n_rows, cols, .. } = q.rows;
        let out = MatMut::packed(&mut out[..n_rows * cols], n_rows, cols);
        let q = mat(q.buffer, q.rows);
        let kv = &kv[layer];
        cpu::attention(
            &self.device,
            out,
            cpu::Attention {
                q,
                kv,
                n_heads,
                scale,
                soft_cap,
                slopes,
                sinks,
                rows,
                page_table,
                precision,
            },
        );
    }
}
