//! Programs on a GPU: every op records its kernels; a read submits the recording and waits for it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use stonechat_compute::op::{
    AttentionArgs, EmbedArgs, GatedProductArgs, MatmulArgs, NormArgs, Op, PoolId, Port, RopeArgs,
    RopeKvArgs, Tensor, TensorInfo, TensorType, Weight,
};
use stonechat_compute::wgpu::ops::{GpuRows, add, attention, copy, gated, kv, norm, rope, top_k};
use stonechat_compute::wgpu::{Gpu, GpuBuffer, ReadRange};
use stonechat_quant::wgpu::{
    GateUpOutput, GpuEmbed, GpuEpilogue, GpuMatrix, InputNorm, MAX_GEMV_ROWS, can_fuse_gate_up,
    embed, matmul, matmul_all, matmul_gated,
};

use super::moe::run_experts;
use super::{NAME, allocation_error};
use crate::device::{AttentionRows, Counts, Executable, ReadPort, Step};
use crate::fuse::Capabilities;
use crate::plan::plan_slots;
use crate::program::{Node, Program, RowClass};
use crate::weight_data::WeightData;
use crate::{BoxFuture, Error, KvShape, PageCopy};

const ONE_ROW: RowClass = RowClass { min: 1, max: 1 };
const FEW_ROWS: RowClass = RowClass { min: 2, max: MAX_GEMV_ROWS };
const MANY_ROWS: RowClass = RowClass { min: MAX_GEMV_ROWS + 1, max: usize::MAX };
/// Most matmuls of a group.
const MAX_GROUP: usize = 3;

/// Kernels that fusion depends on.
pub(super) fn capabilities(gpu: &Gpu) -> Capabilities {
    let gpu = gpu.clone();
    Capabilities {
        row_classes: &[ONE_ROW, FEW_ROWS, MANY_ROWS],
        max_group: MAX_GROUP,
        residuals: true,
        operand: |_, _| TensorType::F32,
        accepts: Box::new(move |op, class| match op {
            Op::GatedProduct(args) if class != MANY_ROWS => {
                let plain = [&args.gate, &args.up].into_iter().all(|args| args.bias.is_none());
                let [gate, up] = [&args.gate, &args.up].map(|args| matrix(&args.weight));
                plain && can_fuse_gate_up(&gpu, gate, up, class.max)
            }
            Op::RopeKv(_) => class != MANY_ROWS,
            _ => false,
        }),
        fuses_norm: |op, class| {
            let is_product = matches!(op, Op::Matmul(_) | Op::MatmulGroup(_) | Op::GatedProduct(_));
            class == ONE_ROW && is_product
        },
    }
}

/// Weights on a GPU.
pub(super) type GpuWeight = WeightData<GpuMatrix, GpuBuffer>;

pub(super) fn matrix(weight: &Weight) -> &GpuMatrix {
    GpuWeight::matrix(weight)
}

pub(super) fn values(weight: &Weight) -> &GpuBuffer {
    GpuWeight::values(weight)
}

fn epilogue(args: &MatmulArgs, accumulate: bool) -> GpuEpilogue<'_> {
    let bias = args.bias.as_ref().map(values);
    GpuEpilogue { bias, activation: args.activation, accumulate, consumer: None }
}

/// A compiled program.
#[derive(Debug)]
pub(super) struct GpuExecutable {
    gpu: Gpu,
    program: Program,
    slot_of: Vec<Option<usize>>,
    slots: Vec<GpuBuffer>,
    /// By pool and layer.
    pools: Vec<Vec<kv::GpuKvPool>>,
    exports: BTreeMap<Port, GpuBuffer>,
    /// Weights of the matmul that is the sole reader of each value.
    consumers: Vec<Option<Weight>>,
}

impl GpuExecutable {
    pub(super) fn new(gpu: &Gpu, program: &Program, max: &Counts) -> Result<Self, Error> {
        let plan = plan_slots(program, max);
        let alloc =
            |len: usize| GpuBuffer::new(gpu, len.saturating_mul(4)).map_err(allocation_error);
        let slots = plan.slots.iter().map(|slot| alloc(slot.len)).collect::<Result<_, _>>()?;
        let mut exports = BTreeMap::new();
        for node in program.nodes() {
            // Variants of a segment export to the same memory.
            if let Op::Export(port) = node.op
                && let Entry::Vacant(entry) = exports.entry(port)
            {
                let Tensor { rows, cols, .. } = node.inputs[0];
                entry.insert(alloc(max.rows(rows) * cols)?);
            }
        }
        let pools = program.pools.iter().map(|shape| pool(gpu, shape));
        Ok(Self {
            gpu: gpu.clone(),
            slot_of: plan.slot_of,
            slots,
            pools: pools.collect::<Result<_, _>>()?,
            exports,
            consumers: consumers(program),
            program: program.clone(),
        })
    }

    fn slot(&self, id: usize) -> usize {
        self.slot_of[id].expect("a value of the program")
    }

    fn buffer(&self, id: usize) -> &GpuBuffer {
        &self.slots[self.slot(id)]
    }

    /// `x` in a step of `counts`.
    fn view(&self, x: Tensor, counts: &Counts) -> GpuRows<'_> {
        let (buffer, stride) = (self.buffer(x.id), self.program.tensors[x.id].cols);
        GpuRows { buffer, offset: x.first_col, rows: counts.rows(x.rows), cols: x.cols, stride }
    }

    /// Records one op.
    fn record(&self, node: &Node, step: &Step<'_>) {
        let (gpu, counts) = (&self.gpu, &step.counts);
        let Some(rows) = self.program.rows_of(node) else { return };
        let n_rows = counts.rows(rows);
        if n_rows == 0 {
            return;
        }
        for (x, result) in node.overwrites() {
            if self.slot(x.id) != self.slot(result) {
                copy::copy(gpu, self.buffer(result), 0, x.cols, self.view(x, counts));
            }
        }
        let x = |i: usize| self.view(node.inputs[i], counts);
        match &node.op {
            Op::Import(_) => {}
            Op::Export(port) => self.export(*port, node.inputs[0], step),
            Op::KvWrite(args) => {
                kv::write(
                    gpu,
                    self.layer(args.pool, args.layer),
                    x(0),
                    x(1),
                    step.slots(args.slots),
                );
            }
            Op::RopeKv(args) => self.rope_kv(node, args, step),
            Op::Matmul(args) => self.matmuls(node, std::slice::from_ref(args), counts),
            Op::MatmulGroup(all) => self.matmuls(node, all, counts),
            Op::GatedProduct(args) => self.gated_product(node, args, counts),
            op => self.record_op(op, node, n_rows, step),
        }
    }

    /// Records an op with one result, which holds the residual, if there is one.
    fn record_op(&self, op: &Op, node: &Node, n_rows: usize, step: &Step<'_>) {
        let (gpu, counts, out) = (&self.gpu, &step.counts, self.buffer(node.outputs[0]));
        let TensorInfo { rows, cols, .. } = self.program.tensors[node.outputs[0]];
        let accumulate = node.residual.is_some();
        let x = |i: usize| self.view(node.inputs[i], counts);
        let fault = |result: stonechat_compute::Result<()>| {
            if let Err(error) = result {
                gpu.fault(error.to_string());
            }
        };
        match op {
            Op::Embed(EmbedArgs { table, positions, scale }) => {
                let positions = positions.as_ref().map(|p| (values(p), step.positions));
                let args = GpuEmbed { tokens: step.tokens, scale: *scale, positions };
                embed(gpu, out, matrix(table), args);
            }
            Op::Constant(constant) => {
                for i in 0..counts[rows.count] {
                    let rows_of_one = GpuRows::packed(values(constant), rows.each, cols);
                    copy::copy(gpu, out, i * rows.each * cols, cols, rows_of_one);
                }
            }
            Op::Gather(count) => {
                let x = x(0);
                for (i, &row) in step.output_rows(*count).iter().enumerate() {
                    let row = GpuRows { offset: x.offset + row * x.stride, rows: 1, ..x };
                    copy::copy(gpu, out, i * cols, cols, row);
                }
            }
            Op::LayerNorm(NormArgs { weight, bias, eps }) => {
                norm::layer_norm(gpu, out, x(0), (values(weight), bias.as_ref().map(values)), *eps);
            }
            Op::RmsNorm(NormArgs { weight, eps, .. }) => {
                norm::rms_norm(gpu, out, x(0), values(weight), (*eps, accumulate));
            }
            Op::Rope(args) => {
                rope::rope(gpu, GpuRows::packed(out, n_rows, cols), rope_of(args, step))
            }
            Op::Add => add::add(gpu, out, x(1)),
            Op::Gated(activation) => gated::gated(gpu, out, x(0), x(1), *activation),
            Op::Conv1d(args) => {
                assert_eq!(counts[rows.count], 1, "a convolution of one window");
                let epilogue = epilogue(&args.matmul, accumulate);
                conv1d(gpu, out, x(0), matrix(&args.matmul.weight), args.stride, epilogue);
            }
            Op::Moe(args) => {
                if !accumulate {
                    gpu.write(out, 0, &vec![0; n_rows * cols]);
                }
                fault(run_experts(gpu, out, (x(0), x(1)), args));
            }
            Op::Attention(args) => {
                attention::attention(gpu, out, self.attention(args, x(0), step));
            }
            Op::TopK => fault(top_k::top_k(gpu, out, x(0), step.k)),
            _ => unreachable!("{} has no single result", op.name()),
        }
    }

    /// RMS norm that a product applies to its operand, if there is one, and the operand after it.
    fn operand<'a>(
        &'a self,
        node: &'a Node,
        counts: &Counts,
    ) -> (GpuRows<'a>, Option<InputNorm<'a>>) {
        let x = self.view(node.inputs[0], counts);
        let Some(NormArgs { weight, eps, .. }) = &node.norm else { return (x, None) };
        let h = self.buffer(*node.outputs.last().expect("the norm of the row"));
        let input_norm = InputNorm { x, weight: values(weight), eps: *eps };
        (GpuRows::packed(h, x.rows, x.cols), Some(input_norm))
    }

    fn matmuls(&self, node: &Node, all: &[MatmulArgs], counts: &Counts) {
        let (x, norm) = self.operand(node, counts);
        let products = all.iter().zip(&node.outputs).map(|(args, &id)| {
            let consumer = self.consumers[id].as_ref().map(matrix);
            let epilogue = GpuEpilogue { consumer, ..epilogue(args, node.residual.is_some()) };
            (self.buffer(id), matrix(&args.weight), epilogue)
        });
        matmul_all(&self.gpu, x, norm, products);
    }

    fn gated_product(&self, node: &Node, args: &GatedProductArgs, counts: &Counts) {
        let [out, gate, up] = [0, 1, 2].map(|i| self.buffer(node.outputs[i]));
        let weights = [&args.gate, &args.up].map(|args| matrix(&args.weight));
        let outputs = GateUpOutput { gate, up, out };
        matmul_gated(&self.gpu, outputs, self.operand(node, counts), weights, args.activation);
    }

    fn rope_kv(&self, node: &Node, args: &RopeKvArgs, step: &Step<'_>) {
        let result = |i: usize| {
            let TensorInfo { rows, cols, .. } = self.program.tensors[node.outputs[i]];
            GpuRows::packed(self.buffer(node.outputs[i]), step.counts.rows(rows), cols)
        };
        let RopeKvArgs { q, k, write } = args;
        let v = self.view(node.inputs[2], &step.counts);
        let pool = (self.layer(write.pool, write.layer), step.slots(write.slots));
        let (q, k) = ((result(0), rope_of(q, step)), (result(1), rope_of(k, step)));
        rope::rope_and_write(&self.gpu, q, k, v, pool);
    }

    fn layer(&self, pool: PoolId, layer: usize) -> &kv::GpuKvPool {
        &self.pools[pool.0][layer]
    }

    fn attention<'a>(
        &'a self,
        args: &'a AttentionArgs,
        q: GpuRows<'a>,
        step: &Step<'a>,
    ) -> attention::Attention<'a> {
        let AttentionRows { rows, page_table } = step.rows(args.rows);
        attention::Attention {
            q,
            kv: self.layer(args.pool, args.layer),
            n_heads: args.n_heads,
            scale: args.scale,
            soft_cap: args.soft_cap,
            slopes: args.slopes.as_ref().map(values),
            sinks: args.sinks.as_ref().map(values),
            rows,
            page_table,
        }
    }

    fn export(&self, port: Port, x: Tensor, step: &Step<'_>) {
        let first = step.export_offset(x);
        let out = &self.exports[&port];
        copy::copy(&self.gpu, out, first, x.cols, self.view(x, &step.counts));
    }

    /// Buffer of a port.
    fn port(&self, port: Port) -> &GpuBuffer {
        if let Some(buffer) = self.exports.get(&port) {
            return buffer;
        }
        self.buffer(self.program.output(port).id)
    }
}

fn pool(gpu: &Gpu, shape: &KvShape) -> Result<Vec<kv::GpuKvPool>, Error> {
    let KvShape { n_layers, n_pages, head_dim, .. } = *shape;
    if head_dim > attention::MAX_HEAD_DIM {
        let reason = format!("heads of {head_dim} channels, at most {}", attention::MAX_HEAD_DIM);
        return Err(Error::Unsupported { backend: NAME, op: "attention", reason });
    }
    let layer = |_| kv::GpuKvPool::new(gpu, shape.layout(), n_pages).map_err(allocation_error);
    (0..n_layers).map(layer).collect()
}

/// Weights of the matmul that is the sole reader of each value.
fn consumers(program: &Program) -> Vec<Option<Weight>> {
    let is_pinned = program.pinned();
    let nodes = || program.nodes();
    let mut n_reads = vec![0; program.tensors.len()];
    nodes().flat_map(Node::reads).for_each(|x| n_reads[x.id] += 1);
    let mut consumers = vec![None; program.tensors.len()];
    for node in nodes() {
        if let (Op::Matmul(args), [x]) = (&node.op, &node.inputs[..])
            && n_reads[x.id] == 1
            && !is_pinned[x.id]
            && program.is_whole(*x)
        {
            consumers[x.id] = Some(args.weight.clone());
        }
    }
    consumers
}

fn rope_of<'a>(args: &'a RopeArgs, step: &Step<'a>) -> rope::Rope<'a> {
    let norm = args.norm.as_ref().map(|(weight, eps)| (values(weight), *eps));
    let rotation = args.rotation.as_ref().map(|rotation| rope::Rotation {
        table: values(&rotation.table),
        positions: step.positions,
        n_rot: rotation.n_rot,
        pairs: rotation.pairs,
    });
    rope::Rope { head_dim: args.head_dim, norm, rotation }
}

/// Convolution as a matmul over copied windows.
fn conv1d(
    gpu: &Gpu,
    out: &GpuBuffer,
    x: GpuRows<'_>,
    w: &GpuMatrix,
    stride: usize,
    epilogue: GpuEpilogue<'_>,
) {
    assert_eq!(w.k(), 3 * x.cols, "conv1d: columns of the weights");
    let (n_rows, width) = (x.rows.div_ceil(stride), w.padded_k());
    let windows = match gpu.scratch("conv1d", 4 * n_rows * width) {
        Ok(windows) => windows,
        Err(error) => return gpu.fault(error.to_string()),
    };
    copy::im2col(gpu, &windows, width, stride, x);
    matmul(gpu, out, GpuRows::packed(&windows, n_rows, width), w, epilogue);
}

impl Executable for GpuExecutable {
    fn warm_up(&mut self, run: &mut dyn FnMut(&mut dyn Executable)) -> Result<(), Error> {
        let gpu = self.gpu.clone();
        gpu.warm_up(|| run(self));
        Ok(gpu.check()?)
    }

    fn import(&mut self, port: Port, values: &[f32]) {
        let buffer = self.buffer(self.program.import(port));
        self.gpu.write(buffer, 0, bytemuck::cast_slice(values));
    }

    fn run(&mut self, step: &Step<'_>) {
        for &PageCopy { from, to } in step.copies {
            self.pools[0].iter().for_each(|layer| kv::copy_page(&self.gpu, layer, from, to));
        }
        for segment in self.program.segments.iter().filter(|segment| step.runs(segment)) {
            segment.nodes.iter().for_each(|node| self.record(node, step));
        }
    }

    fn read_now(&self, _: &mut [ReadPort<'_>]) -> Option<Result<(), Error>> {
        None
    }

    fn read<'a, 'b: 'a>(
        &'a self,
        reads: &'a mut [ReadPort<'b>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        let range = |read: &'a mut ReadPort<'b>| {
            let (src, offset) = (self.port(read.port), 4 * read.offset);
            ReadRange { src, offset, out: bytemuck::cast_slice_mut(&mut *read.out) }
        };
        let reads = reads.iter_mut().filter(|read| !read.out.is_empty());
        let mut ranges: Vec<ReadRange<'a>> = reads.map(range).collect();
        Box::pin(async move { Ok(self.gpu.read_all(&mut ranges).await?) })
    }

    fn read_page<'a>(
        &'a self,
        pool: PoolId,
        page: u32,
        out: &'a mut Vec<u8>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            for layer in &self.pools[pool.0] {
                kv::read_page(&self.gpu, layer, page, out).await?;
            }
            Ok(())
        })
    }

    fn write_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let layers = &self.pools[pool.0];
        let expected = layers.iter().map(|layer| layer.layout().page_bytes()).sum();
        if bytes.len() != expected {
            return Err(Error::KvPage { expected, got: bytes.len() });
        }
        let mut rest = bytes;
        for layer in layers {
            let (head, tail) = rest.split_at(layer.layout().page_bytes());
            kv::write_page(&self.gpu, layer, page, head)?;
            rest = tail;
        }
        Ok(())
    }
}
