//! [`DeviceApi`] of every [`Backend`]: runs a fused program op by op.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use stonechat_compute::DType;
use stonechat_compute::op::{
    AttentionArgs, Count, EmbedArgs, MatmulArgs, MoeArgs, NormArgs, Op, PoolId, Port, RopeArgs,
    Tensor, TensorInfo, TensorType, Weight, WeightInfo, WeightLayout,
};

use crate::device::{
    AttentionRows, Counts, Device, DeviceApi, Executable, HostTask, ReadPort, Step,
};
use crate::fuse::Capabilities;
use crate::plan::plan_slots;
use crate::program::{Node, Program, RowClass};
use crate::{
    Attention, Backend, BoxFuture, Embed, Epilogue, Error, Experts, LoadStats, MatmulOp,
    MatrixSource, PageCopy, Read, Rope, Rotation, Rows, View,
};

/// A backend as a device.
#[derive(Debug)]
pub(crate) struct BackendDevice<B>(pub(crate) B);

/// Weights of a backend.
enum Data<B: Backend> {
    Matrix(B::Matrix),
    Values(B::Buffer),
}

impl<B: Backend> DeviceApi for BackendDevice<B> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn load_stats(&self) -> LoadStats {
        self.0.load_stats()
    }

    fn total_memory_bytes(&self) -> Option<u64> {
        self.0.total_memory_bytes()
    }

    fn stored_dtype(&self, dtype: DType) -> DType {
        self.0.stored_dtype(dtype)
    }

    fn divide(&self, n: usize) -> Result<Vec<Device>, Error> {
        Ok(self.0.divide(n)?.into_iter().map(Device::from).collect())
    }

    fn run_on_host(&self, tasks: &mut [HostTask<'_>]) {
        self.0.for_each(tasks, |task| task());
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Weight, Error> {
        let MatrixSource { rows, cols, dtype, .. } = source;
        let data: Data<B> = Data::Matrix(self.0.matrix(source)?);
        Ok(Weight::new(
            WeightInfo { dtype, rows, cols, layout: WeightLayout::Rows },
            Arc::new(data),
        ))
    }

    fn load_values(&self, values: &[f32]) -> Result<Weight, Error> {
        let mut buffer = self.0.alloc(values.len())?;
        self.0.write(&mut buffer, 0, values);
        let info = WeightInfo::values(values.len());
        let data: Data<B> = Data::Values(buffer);
        Ok(Weight::new(info, Arc::new(data)))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            row_classes: &[RowClass { min: 1, max: usize::MAX }],
            max_group: MAX_GROUP,
            operand: |_, _| TensorType::F32,
            accepts: Box::new(|_, _| false),
            fuses_norm: |_, _| false,
        }
    }

    fn compile_fused(&self, program: &Program, max: &Counts) -> Result<Box<dyn Executable>, Error> {
        let Self(backend) = self;
        let plan = plan_slots(program, max);
        let slots = plan.slots.iter().map(|slot| backend.alloc(slot.len).map(Some));
        let mut exports = BTreeMap::new();
        for node in program.segments.iter().flat_map(|segment| &segment.nodes) {
            if let Op::Export(port) = node.op {
                let Tensor { rows, cols, .. } = node.inputs[0];
                exports.insert(port, backend.alloc(max.rows(rows) * cols)?);
            }
        }
        Ok(Box::new(Interpreter {
            backend: backend.clone(),
            slots: slots.collect::<Result<_, _>>()?,
            slot_of: plan.slot_of,
            pools: program
                .pools
                .iter()
                .map(|&shape| backend.kv(shape))
                .collect::<Result<_, _>>()?,
            exports,
            consumers: consumers(program),
            program: program.clone(),
        }))
    }
}

/// Most matmuls of a group.
const MAX_GROUP: usize = 3;

/// Weight of the matmul that is the sole reader of each value.
fn consumers(program: &Program) -> Vec<Option<Weight>> {
    let is_pinned = program.pinned();
    let nodes = || program.segments.iter().flat_map(|segment| &segment.nodes);
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

/// Program with the memory of a backend.
#[derive(Debug)]
struct Interpreter<B: Backend> {
    backend: B,
    program: Program,
    /// `None` while an op writes it.
    slots: Vec<Option<B::Buffer>>,
    slot_of: Vec<Option<usize>>,
    pools: Vec<B::Kv>,
    exports: BTreeMap<Port, B::Buffer>,
    consumers: Vec<Option<Weight>>,
}

fn data<B: Backend>(weight: &Weight) -> &Data<B> {
    weight.data().expect("weights of this device")
}

fn matrix<B: Backend>(weight: &Weight) -> &B::Matrix {
    match data::<B>(weight) {
        Data::Matrix(matrix) => matrix,
        Data::Values(_) => panic!("expected a matrix, got {weight:?}"),
    }
}

fn values<B: Backend>(weight: &Weight) -> &B::Buffer {
    match data::<B>(weight) {
        Data::Values(values) => values,
        Data::Matrix(_) => panic!("expected values, got {weight:?}"),
    }
}

fn epilogue<B: Backend>(args: &MatmulArgs, accumulate: bool) -> Epilogue<'_, B> {
    let bias = args.bias.as_ref().map(values::<B>);
    Epilogue { bias, activation: args.activation, accumulate }
}

impl<B: Backend> Interpreter<B> {
    fn slot(&self, id: usize) -> usize {
        self.slot_of[id].expect("a value of the program")
    }

    fn buffer(&self, id: usize) -> &B::Buffer {
        self.slots[self.slot(id)].as_ref().expect("an op writes no operand")
    }

    /// Rows and columns of `x` in its buffer, in a step of `counts`.
    fn rows(&self, x: Tensor, counts: &Counts) -> Rows {
        let stride = self.program.tensors[x.id].cols;
        Rows { offset: x.first_col, rows: counts.rows(x.rows), cols: x.cols, stride }
    }

    fn view(&self, x: Tensor, counts: &Counts) -> View<'_, B> {
        View::new(self.buffer(x.id), self.rows(x, counts))
    }

    fn take(&mut self, id: usize) -> B::Buffer {
        let slot = self.slot(id);
        self.slots[slot].take().expect("a result has one producer")
    }

    fn put(&mut self, id: usize, buffer: B::Buffer) {
        let slot = self.slot(id);
        self.slots[slot] = Some(buffer);
    }

    /// Runs one op.
    fn run_node(&mut self, node: &Node, step: &Step<'_>) {
        let rows = match (node.outputs.first(), node.inputs.first()) {
            (Some(&id), _) => self.program.tensors[id].rows,
            (None, Some(x)) => x.rows,
            (None, None) => return,
        };
        let n_rows = step.counts.rows(rows);
        if n_rows == 0 {
            return;
        }
        match &node.op {
            Op::Import(_) => {}
            Op::Export(port) => self.export(*port, node.inputs[0], step),
            Op::KvWrite(args) => {
                let mut pool = std::mem::take(&mut self.pools);
                let [k, v] = [0, 1].map(|i| self.view(node.inputs[i], &step.counts));
                let slots = step.slots(args.slots);
                self.backend.kv_write(&mut pool[args.pool.0], args.layer, k, v, slots);
                self.pools = pool;
            }
            Op::MatmulGroup(all) => self.matmul_group(node, all, &step.counts),
            op => {
                let mut out = self.take(node.outputs[0]);
                if let Some((x, _)) = node.overwrites().next()
                    && self.slot(x.id) != self.slot(node.outputs[0])
                {
                    self.backend.copy(&mut out, 0, self.view(x, &step.counts));
                }
                self.run_op(op, node, &mut out, step);
                self.put(node.outputs[0], out);
            }
        }
    }

    /// Runs an op with one result, which holds the residual, if there is one.
    fn run_op(&self, op: &Op, node: &Node, out: &mut B::Buffer, step: &Step<'_>) {
        let (backend, counts) = (&self.backend, &step.counts);
        let TensorInfo { rows, cols, .. } = self.program.tensors[node.outputs[0]];
        let accumulate = node.residual.is_some();
        let x = |i: usize| self.view(node.inputs[i], counts);
        match op {
            Op::Embed(EmbedArgs { table, positions, scale }) => {
                let positions = positions.as_ref().map(|p| (values::<B>(p), step.positions));
                let args = Embed { tokens: step.tokens, scale: *scale, positions };
                backend.embed(out, matrix::<B>(table), args);
            }
            Op::Constant(constant) => {
                let view = View::packed(values::<B>(constant), rows.each, cols);
                for i in 0..counts[rows.count] {
                    backend.copy(out, i * rows.each * cols, view);
                }
            }
            Op::Gather(count) => {
                let x = x(0);
                for (i, &row) in step.output_rows(*count).iter().enumerate() {
                    backend.copy(out, i * cols, View::new(x.buffer, x.rows.slice(row, 1)));
                }
            }
            Op::LayerNorm(NormArgs { weight, bias, eps }) => {
                let bias = bias.as_ref().map(values::<B>);
                backend.layer_norm(out, x(0), values::<B>(weight), bias, *eps);
            }
            Op::RmsNorm(NormArgs { weight, eps, .. }) => {
                backend.rms_norm(out, x(0), values::<B>(weight), *eps, accumulate);
            }
            Op::Rope(args) => {
                let rows = Rows::packed(counts.rows(rows), cols);
                backend.rope(out, rows, rope::<B>(args, step));
            }
            Op::Add => backend.add(out, x(1)),
            Op::Gated(activation) => backend.gated(out, x(0), x(1), *activation),
            Op::Matmul(args) => {
                let consumer = self.consumers[node.outputs[0]].as_ref().map(matrix::<B>);
                let (w, epilogue) = (matrix::<B>(&args.weight), epilogue(args, accumulate));
                backend.matmul(x(0), [MatmulOp { out, w, epilogue, consumer }]);
            }
            Op::Conv1d(args) => {
                assert_eq!(counts[rows.count], 1, "a convolution of one group of rows");
                let epilogue = epilogue(&args.matmul, accumulate);
                let w = matrix::<B>(&args.matmul.weight);
                backend.conv1d(out, x(0), w, args.stride, epilogue);
            }
            Op::Moe(args) => {
                if !accumulate {
                    backend.write(out, 0, &vec![0.0; counts.rows(rows) * cols]);
                }
                backend.moe(out, x(0), x(1), &experts::<B>(args));
            }
            Op::Attention(args) => backend.attention(out, self.attention(args, x(0), step)),
            Op::TopK => backend.top_k(out, x(0), step.k),
            _ => unreachable!("`compile` checked {}", op.name()),
        }
    }

    fn attention<'a>(
        &'a self,
        args: &'a AttentionArgs,
        q: View<'a, B>,
        step: &Step<'a>,
    ) -> Attention<'a, B> {
        let AttentionRows { rows, page_table } = step.rows(args.rows);
        Attention {
            q,
            kv: &self.pools[args.pool.0],
            layer: args.layer,
            n_heads: args.n_heads,
            scale: args.scale,
            soft_cap: args.soft_cap,
            slopes: args.slopes.as_ref().map(values::<B>),
            sinks: args.sinks.as_ref().map(values::<B>),
            rows,
            page_table,
            precision: args.precision,
        }
    }

    fn matmul_group(&mut self, node: &Node, all: &[MatmulArgs], counts: &Counts) {
        fn op<'a, B: Backend>(out: &'a mut B::Buffer, args: &'a MatmulArgs) -> MatmulOp<'a, B> {
            let w = matrix::<B>(&args.weight);
            MatmulOp { out, w, epilogue: epilogue(args, false), consumer: None }
        }
        match (all, &node.outputs[..]) {
            ([a, b], &[a_out, b_out]) => {
                let (mut a_buf, mut b_buf) = (self.take(a_out), self.take(b_out));
                let x = self.view(node.inputs[0], counts);
                self.backend.matmul(x, [op(&mut a_buf, a), op(&mut b_buf, b)]);
                self.put(a_out, a_buf);
                self.put(b_out, b_buf);
            }
            ([a, b, c], &[a_out, b_out, c_out]) => {
                let (mut a_buf, mut b_buf) = (self.take(a_out), self.take(b_out));
                let mut c_buf = self.take(c_out);
                let x = self.view(node.inputs[0], counts);
                let ops = [op(&mut a_buf, a), op(&mut b_buf, b), op(&mut c_buf, c)];
                self.backend.matmul(x, ops);
                self.put(a_out, a_buf);
                self.put(b_out, b_buf);
                self.put(c_out, c_buf);
            }
            _ => unreachable!("groups of at most {MAX_GROUP}"),
        }
    }

    fn export(&mut self, port: Port, x: Tensor, step: &Step<'_>) {
        let mut exports = std::mem::take(&mut self.exports);
        let offset = match x.rows.count {
            Count::Windows | Count::CapturedWindows => step.first_window * x.rows.each * x.cols,
            _ => 0,
        };
        let dst = exports.get_mut(&port).expect("`compile` allocated every port");
        self.backend.copy(dst, offset, self.view(x, &step.counts));
        self.exports = exports;
    }

    /// Buffer of a port.
    fn port(&self, port: Port) -> &B::Buffer {
        if let Some(buffer) = self.exports.get(&port) {
            return buffer;
        }
        let output = self.program.output(port);
        self.buffer(output.unwrap_or_else(|| panic!("no output {port:?}")).id)
    }
}

fn rope<'a, B: Backend>(args: &'a RopeArgs, step: &Step<'a>) -> Rope<'a, B> {
    let norm = args.norm.as_ref().map(|(weight, eps)| (values::<B>(weight), *eps));
    let rotation = args.rotation.as_ref().map(|rotation| Rotation {
        table: values::<B>(&rotation.table),
        positions: step.positions,
        n_rot: rotation.n_rot,
        pairs: rotation.pairs,
    });
    Rope { head_dim: args.head_dim, norm, rotation }
}

fn experts<B: Backend>(args: &MoeArgs) -> Experts<'_, B> {
    Experts {
        gate: matrix::<B>(&args.gate),
        up: matrix::<B>(&args.up),
        down: matrix::<B>(&args.down),
        gate_bias: args.gate_bias.as_ref().map(values::<B>),
        up_bias: args.up_bias.as_ref().map(values::<B>),
        down_bias: args.down_bias.as_ref().map(values::<B>),
        n_experts: args.n_experts,
        n_used: args.n_used,
        routing: args.routing,
        activation: args.activation,
    }
}

impl<B: Backend> Executable for Interpreter<B> {
    fn warm_up(&mut self, run: &mut dyn FnMut(&mut dyn Executable)) -> Result<(), Error> {
        let backend = self.backend.clone();
        backend.warm_up(|| {
            run(self);
            Ok::<_, Error>(())
        })
    }

    fn import(&mut self, port: Port, values: &[f32]) {
        let nodes = self.program.segments.iter().flat_map(|segment| &segment.nodes);
        let mut imports =
            nodes.filter(|node| matches!(&node.op, Op::Import(other) if *other == port));
        let id = imports.next().map(|node| node.outputs[0]);
        let slot = self.slot(id.unwrap_or_else(|| panic!("no import {port:?}")));
        let buffer = self.slots[slot].as_mut().expect("no op runs");
        self.backend.write(buffer, 0, values);
    }

    fn run(&mut self, step: &Step<'_>) {
        for &PageCopy { from, to } in step.copies {
            self.backend.kv_copy_page(&mut self.pools[0], from, to);
        }
        let segments = std::mem::take(&mut self.program.segments);
        for segment in segments.iter().filter(|segment| step.runs(segment)) {
            segment.nodes.iter().for_each(|node| self.run_node(node, step));
        }
        self.program.segments = segments;
    }

    fn read_now(&self, reads: &mut [ReadPort<'_>]) -> Option<Result<(), Error>> {
        if !B::READS_AT_ONCE {
            return None;
        }
        for ReadPort { port, offset, out } in reads.iter_mut().filter(|read| !read.out.is_empty()) {
            let read = pin!(self.backend.read(self.port(*port), *offset, out));
            match read.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Some(Err(error)),
                Poll::Pending => unreachable!("`READS_AT_ONCE`"),
            }
        }
        Some(Ok(()))
    }

    fn read<'a, 'b: 'a>(
        &'a self,
        reads: &'a mut [ReadPort<'b>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        let range = |read: &'a mut ReadPort<'b>| Read {
            src: self.port(read.port),
            offset: read.offset,
            out: &mut *read.out,
        };
        let reads = reads.iter_mut().filter(|read| !read.out.is_empty());
        let mut ranges: Vec<Read<'a, B>> = reads.map(range).collect();
        Box::pin(async move { self.backend.read_all(&mut ranges).await })
    }

    fn read_page<'a>(
        &'a self,
        pool: PoolId,
        page: u32,
        out: &'a mut Vec<u8>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.backend.kv_read_page(&self.pools[pool.0], page, out))
    }

    fn write_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error> {
        self.backend.kv_write_page(&mut self.pools[pool.0], page, bytes)
    }
}
