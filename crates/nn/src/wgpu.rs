//! [`Backend`] on GPUs through wgpu.
//!
//! Ops record kernels of `stonechat-compute` and `stonechat-quant`, fused where `fusion` allows; [`Backend::read`] submits
//! the recording and waits for it.

mod fusion;
mod moe;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stonechat_compute::DType;
use stonechat_compute::wgpu::ops::{GpuRows, add, attention, copy, gated, kv, norm, rope, top_k};
use stonechat_compute::wgpu::{Adapter, Counters, Gpu, GpuBuffer, ReadRange, Variant};
use stonechat_quant::wgpu::{GpuEmbed, GpuEpilogue, GpuMatrix, matmul, matmul_all};

use self::fusion::{FusionWindow, PendingGateUp, PendingNorm, PendingRope};
use crate::{
    Attention, Backend, Embed, Epilogue, Error, Experts, GatedActivation, KvRow, KvShape,
    LoadStats, MatmulOp, MatrixSource, Read, Rope, Rotation, Rows, View,
};

const NAME: &str = "wgpu";

/// The wgpu backend: an open GPU. Clones share it.
#[derive(Debug, Clone)]
pub struct Wgpu {
    gpu: Gpu,
    /// Number of matrices of each type that were converted to f16, for lack of a kernel.
    converted: Arc<Mutex<BTreeMap<&'static str, usize>>>,
    fusion: Arc<FusionWindow>,
}

impl Wgpu {
    /// Opens an adapter; `variant` forces a kernel variant and turns cooperative matrices off.
    ///
    /// # Errors
    /// If the driver refuses, or the adapter lacks what `variant` needs.
    pub async fn open(adapter: &Adapter, variant: Option<Variant>) -> Result<Self, Error> {
        let gpu = Gpu::open(adapter, variant).await?;
        Ok(Self { gpu, converted: Arc::default(), fusion: Arc::default() })
    }

    /// The open device.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Flushes the fusion window and returns the device. Ops that do not use the window start with this.
    fn flush_pending(&self) -> &Gpu {
        self.fusion.flush(&self.gpu);
        &self.gpu
    }

    /// Counters of the device.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.gpu.counters()
    }
}

fn view_rows(view: View<'_, Wgpu>) -> GpuRows<'_> {
    gpu_rows(view.buffer, view.rows)
}

fn gpu_rows(buffer: &GpuBuffer, rows: Rows) -> GpuRows<'_> {
    let Rows { offset, rows, cols, stride } = rows;
    GpuRows { buffer, offset, rows, cols, stride }
}

fn gpu_epilogue<'a>(epilogue: &Epilogue<'a, Wgpu>) -> GpuEpilogue<'a> {
    GpuEpilogue {
        bias: epilogue.bias,
        activation: epilogue.activation,
        accumulate: epilogue.accumulate,
        consumer: None,
    }
}

fn allocation_error(error: stonechat_compute::Error) -> Error {
    match error {
        stonechat_compute::Error::OutOfMemory { bytes } => {
            Error::OutOfMemory { bytes, backend: NAME }
        }
        other => other.into(),
    }
}

impl Backend for Wgpu {
    type Buffer = GpuBuffer;
    type Matrix = GpuMatrix;
    type Kv = Vec<kv::GpuKvPool>;

    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let adapter = self.gpu.adapter();
        let mut text = format!(
            "wgpu {} ({}), {} kernels",
            adapter.name,
            adapter.api,
            self.gpu.variant().name()
        );
        if let Some(matrices) = self.gpu.matrices() {
            text += &format!(", cooperative matrices of {0}x{0}", matrices.side);
        }
        let converted = self.converted.lock().unwrap_or_else(PoisonError::into_inner);
        for (dtype, n) in converted.iter() {
            text += &format!(", {n} matrices of {dtype} as f16");
        }
        text
    }

    fn load_stats(&self) -> LoadStats {
        let Counters { pipelines, compiling_us, .. } = self.counters();
        let compile_time = Duration::from_micros(compiling_us);
        LoadStats { compiled_kernels: pipelines, compile_time, ..LoadStats::default() }
    }

    fn warm_up<E: From<Error>>(&self, ops: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.flush_pending().warm_up(|| {
            let result = ops();
            self.flush_pending();
            result
        })?;
        Ok(self.gpu.check().map_err(Error::from)?)
    }

    fn total_memory_bytes(&self) -> Option<u64> {
        self.gpu.adapter().total_memory_bytes
    }

    fn stored_dtype(&self, dtype: DType) -> DType {
        GpuMatrix::device_dtype(dtype)
    }

    fn alloc(&self, len: usize) -> Result<GpuBuffer, Error> {
        GpuBuffer::new(&self.gpu, len.saturating_mul(4)).map_err(allocation_error)
    }

    fn matrix(&self, source: MatrixSource<'_>) -> Result<GpuMatrix, Error> {
        let MatrixSource { name, rows, cols, dtype, bytes } = source;
        let expected =
            rows.checked_mul(cols).and_then(|n| dtype.bytes_for(n)).unwrap_or(usize::MAX);
        if bytes.len() != expected || !cols.is_multiple_of(dtype.block_len()) {
            let (name, shape) = (name.to_owned(), [rows, cols]);
            return Err(Error::WeightSize { name, dtype, shape, expected, got: bytes.len() });
        }
        if !stonechat_quant::is_float(dtype) || matches!(dtype, DType::Q8_1 | DType::Q8K) {
            return Err(Error::UnsupportedWeight { name: name.to_owned(), dtype, backend: NAME });
        }
        if self.stored_dtype(dtype) != dtype {
            let mut converted = self.converted.lock().unwrap_or_else(PoisonError::into_inner);
            *converted.entry(dtype.name()).or_default() += 1;
        }
        let matrix = GpuMatrix::load(&self.gpu, dtype, (rows, cols), bytes);
        let matrix = matrix.map_err(allocation_error)?;
        stonechat_quant::wgpu::warm_up(&self.gpu, &matrix);
        Ok(matrix)
    }

    fn kv(&self, shape: KvShape) -> Result<Vec<kv::GpuKvPool>, Error> {
        let KvShape { n_layers, n_pages, head_dim, .. } = shape;
        if head_dim > attention::MAX_HEAD_DIM {
            let reason =
                format!("heads of {head_dim} channels, at most {}", attention::MAX_HEAD_DIM);
            return Err(Error::Unsupported { backend: NAME, op: "attention", reason });
        }
        let pool =
            |_| kv::GpuKvPool::new(&self.gpu, shape.layout(), n_pages).map_err(allocation_error);
        (0..n_layers).map(pool).collect()
    }

    fn write(&self, dst: &mut GpuBuffer, offset: usize, values: &[f32]) {
        self.flush_pending().write(dst, offset, bytemuck::cast_slice(values));
    }

    async fn read_all(&self, reads: &mut [Read<'_, Self>]) -> Result<(), Error> {
        let mut ranges = Vec::with_capacity(reads.len());
        for Read { src, offset, out } in reads {
            ranges.push(ReadRange { src, offset: 4 * *offset, out: bytemuck::cast_slice_mut(out) });
        }
        Ok(self.flush_pending().read_all(&mut ranges).await?)
    }

    fn copy(&self, dst: &mut GpuBuffer, offset: usize, src: View<'_, Self>) {
        copy::copy(self.flush_pending(), dst, offset, src.rows.cols, view_rows(src));
    }

    fn add(&self, out: &mut GpuBuffer, x: View<'_, Self>) {
        add::add(self.flush_pending(), out, view_rows(x));
    }

    fn embed(&self, out: &mut GpuBuffer, table: &GpuMatrix, args: Embed<'_, Self>) {
        let Embed { tokens, scale, positions } = args;
        stonechat_quant::wgpu::embed(
            self.flush_pending(),
            out,
            table,
            GpuEmbed { tokens, scale, positions },
        );
    }

    fn layer_norm(
        &self,
        out: &mut GpuBuffer,
        x: View<'_, Self>,
        weight: &GpuBuffer,
        bias: Option<&GpuBuffer>,
        eps: f32,
    ) {
        norm::layer_norm(self.flush_pending(), out, view_rows(x), (weight, bias), eps);
    }

    fn rms_norm(
        &self,
        out: &mut GpuBuffer,
        x: View<'_, Self>,
        weight: &GpuBuffer,
        eps: f32,
        accumulate: bool,
    ) {
        let pending = PendingNorm::new(out, view_rows(x), weight, eps);
        if !accumulate && pending.can_fuse() {
            self.fusion.push_norm(&self.gpu, pending);
        } else {
            norm::rms_norm(self.flush_pending(), out, view_rows(x), weight, (eps, accumulate));
        }
    }

    fn rope(&self, x: &mut GpuBuffer, rows: Rows, args: Rope<'_, Self>) {
        let Rope { head_dim, norm, rotation } = args;
        let rotation = rotation.map(|Rotation { table, positions, n_rot, pairs }| rope::Rotation {
            table,
            positions,
            n_rot,
            pairs,
        });
        let (x, args) = (gpu_rows(x, rows), rope::Rope { head_dim, norm, rotation });
        if PendingRope::can_fuse(x) {
            self.fusion.push_rope(&self.gpu, PendingRope::new(x, args));
        } else {
            rope::rope(self.flush_pending(), x, args);
        }
    }

    fn gated(
        &self,
        out: &mut GpuBuffer,
        gate: View<'_, Self>,
        up: View<'_, Self>,
        activation: GatedActivation,
    ) {
        let (gate, up) = (view_rows(gate), view_rows(up));
        if !self.fusion.fuse_gated(&self.gpu, out, (gate, up), activation) {
            gated::gated(&self.gpu, out, gate, up, activation);
        }
    }

    fn moe(
        &self,
        out: &mut GpuBuffer,
        x: View<'_, Self>,
        logits: View<'_, Self>,
        experts: &Experts<'_, Self>,
    ) {
        if let Err(error) = self.moe_experts(out, view_rows(x), view_rows(logits), experts) {
            self.gpu.fault(error.to_string());
        }
    }

    fn matmul<const N: usize>(&self, x: View<'_, Self>, ops: [MatmulOp<'_, Self>; N]) {
        let gpu = &self.gpu;
        let norm = self.fusion.take_norm(gpu, view_rows(x));
        if let [first, second] = &ops[..] {
            let w = [first.w, second.w];
            let epilogues = [gpu_epilogue(&first.epilogue), gpu_epilogue(&second.epilogue)];
            if PendingGateUp::can_fuse(gpu, x.rows, w, epilogues) {
                let (x, x_rows) = (x.buffer.clone(), x.rows);
                let out = [first.out.clone(), second.out.clone()];
                let w = w.map(GpuMatrix::clone);
                return self.fusion.push_gate_up(PendingGateUp { norm, x, x_rows, out, w });
            }
        }
        let matmuls = ops.iter().map(|op| {
            let epilogue = GpuEpilogue { consumer: op.consumer, ..gpu_epilogue(&op.epilogue) };
            (&*op.out, op.w, epilogue)
        });
        matmul_all(gpu, view_rows(x), norm.as_ref().map(PendingNorm::args), matmuls);
    }

    fn conv1d(
        &self,
        out: &mut GpuBuffer,
        x: View<'_, Self>,
        w: &GpuMatrix,
        stride: usize,
        epilogue: Epilogue<'_, Self>,
    ) {
        let (gpu, x) = (self.flush_pending(), view_rows(x));
        assert_eq!(w.k(), 3 * x.cols, "conv1d: columns of the weights");
        let (n_rows, width) = (x.rows.div_ceil(stride), w.padded_k());
        let windows = match gpu.scratch("conv1d", 4 * n_rows * width) {
            Ok(windows) => windows,
            Err(error) => return gpu.fault(error.to_string()),
        };
        copy::im2col(gpu, &windows, width, stride, x);
        let windows = GpuRows::packed(&windows, n_rows, width);
        matmul(gpu, out, windows, w, gpu_epilogue(&epilogue));
    }

    fn top_k(&self, out: &mut GpuBuffer, x: View<'_, Self>, k: usize) {
        let gpu = self.flush_pending();
        if let Err(error) = top_k::top_k(gpu, out, view_rows(x), k) {
            gpu.fault(error.to_string());
        }
    }

    fn kv_write(
        &self,
        kv: &mut Vec<kv::GpuKvPool>,
        layer: usize,
        k: View<'_, Self>,
        v: View<'_, Self>,
        slots: &[KvRow],
    ) {
        let (pool, k, v) = (&kv[layer], view_rows(k), view_rows(v));
        if !self.fusion.fuse_kv_write(&self.gpu, pool, (k, v), slots) {
            kv::write(&self.gpu, pool, k, v, slots);
        }
    }

    fn kv_copy_page(&self, kv: &mut Vec<kv::GpuKvPool>, src: u32, dst: u32) {
        for pool in kv {
            kv::copy_page(self.flush_pending(), pool, src, dst);
        }
    }

    async fn kv_read_page(
        &self,
        kv: &Vec<kv::GpuKvPool>,
        page: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        for pool in kv {
            kv::read_page(self.flush_pending(), pool, page, out).await?;
        }
        Ok(())
    }

    fn kv_write_page(
        &self,
        kv: &mut Vec<kv::GpuKvPool>,
        page: u32,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let expected = kv.iter().map(|pool| pool.layout().page_bytes()).sum();
        if bytes.len() != expected {
            return Err(Error::KvPage { expected, got: bytes.len() });
        }
        let mut rest = bytes;
        for pool in kv {
            let (head, tail) = rest.split_at(pool.layout().page_bytes());
            kv::write_page(self.flush_pending(), pool, page, head)?;
            rest = tail;
        }
        Ok(())
    }

    fn attention(&self, out: &mut GpuBuffer, args: Attention<'_, Self>) {
        let Attention { q, kv, layer, n_heads, scale, soft_cap, slopes, sinks, .. } = args;
        let args = attention::Attention {
            q: view_rows(q),
            kv: &kv[layer],
            n_heads,
            scale,
            soft_cap,
            slopes,
            sinks,
            rows: args.rows,
            page_table: args.page_table,
        };
        attention::attention(self.flush_pending(), out, args);
    }
}
