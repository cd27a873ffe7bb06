//! Programs on a GPU. Steps of equal shape run one list of dispatches, recorded when the first of them runs:
//!
//! ```text
//! run     : submit the step before, unless a fetch did; shape of the step; its list, recorded if it is new; upload the inputs
//! fetch   : submit the list and the copies of the results; encode the list again
//! collect : wait for the oldest copies
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};

use stonechat_compute::op::{
    AttentionArgs, Count, EmbedInputs, ExpertMatmulArgs, ExpertRoutes, Im2colArgs, InputNorm,
    NormArgs, Op, PoolId, Port, SlotTable, Tensor, TensorInfo,
};
use stonechat_compute::wgpu::ops::attention::{AttentionGrid, AttentionShape};
use stonechat_compute::wgpu::ops::operand::{GpuOperand, GpuOutput, convert};
use stonechat_compute::wgpu::ops::{
    GpuRows, attention, conv_state, copy, elementwise, gated, kv, log_sum_exp, logit_filter, moe,
    norm, rope, top_k,
};
use stonechat_compute::wgpu::{CommandList, CopyRange, Gpu, GpuBuffer, HostCopies, Recorder};
use stonechat_quant::wgpu::{GpuInput, embed, matmul, matmul_experts, matmul_gated, matmul_group};

use web_time::Instant;

use super::capabilities::{ONE_ROW, operand_of};
use super::weights::{NAME, allocation_error, matrix, values};
use crate::device::{Executable, PortRange};
use crate::fuse::Capabilities;
use crate::inputs::{CheckedStep, InputLimits, Step, export_offset};
use crate::plan::{SlotInfo, plan_slots};
use crate::program::{Counts, Node, Program, RowClass, Segment};
use crate::step_words::{Grid, Places, StepWords, impl_grid};
use crate::{BoxFuture, Error, KvShape};

type StepShape = crate::step_words::StepShape<AttentionGrid>;

/// Maximum lists of an executable; one more drops all of them.
const MAX_LISTS: usize = 64;
/// Words of inputs that most steps fit: tokens of a short prompt with their pages.
const STEP_WORDS: usize = 1 << 14;

impl_grid!(AttentionGrid);

/// A compiled program.
#[derive(Debug)]
pub(super) struct GpuExecutable {
    gpu: Gpu,
    memory: ProgramMemory,
    recorder: Recorder,
    inputs: StepWords,
    limits: InputLimits,
    lists: HashMap<StepShape, CommandList>,
    /// Shape of the last step.
    shape: StepShape,
    /// Memory of the next one.
    next_shape: StepShape,
    /// Whether the last step is not submitted yet.
    is_pending: bool,
    /// Start of the last step.
    started: Instant,
    /// Whether steps only record their list.
    is_warming_up: bool,
    /// Groups of fetches, oldest first, and whether the last one goes on.
    fetches: VecDeque<HostCopies>,
    is_fetching: bool,
}

/// A program and the memory of its values.
#[derive(Debug)]
struct ProgramMemory {
    program: Program,
    slot_of: Vec<Option<usize>>,
    slots: Vec<GpuBuffer>,
    /// KV pool of each layer, by pool.
    pools: Vec<Vec<kv::GpuKvPool>>,
    exports: BTreeMap<Port, GpuBuffer>,
}

impl GpuExecutable {
    pub(super) fn new(
        gpu: &Gpu,
        capabilities: &Capabilities,
        program: &Program,
        max: &Counts,
    ) -> Result<Self, Error> {
        for segment in &program.segments {
            let check = |node| check_operand(capabilities, program, segment, node);
            segment.nodes.iter().try_for_each(check)?;
        }
        program.nodes().try_for_each(|node| check_op(program, node, max))?;
        let plan = plan_slots(program, max);
        let alloc = |bytes| GpuBuffer::new(gpu, bytes).map_err(allocation_error);
        let bytes = |slot: &SlotInfo| match operand_of(slot.dtype) {
            Some(format) => format.bytes(slot.rows, slot.cols),
            None => slot.len.saturating_mul(4),
        };
        let slots = plan.slots.iter().map(|slot| alloc(bytes(slot))).collect::<Result<_, _>>()?;
        let export = |(port, n): (Port, usize)| Ok((port, alloc(n.saturating_mul(4))?));
        let exports = program.exports(max).into_iter().map(export).collect::<Result<_, Error>>()?;
        let pools = program.pools.iter().map(|shape| pool(gpu, shape));
        let memory = ProgramMemory {
            slot_of: plan.slot_of,
            slots,
            pools: pools.collect::<Result<_, _>>()?,
            exports,
            program: program.clone(),
        };
        Ok(Self {
            gpu: gpu.clone(),
            memory,
            recorder: Recorder::new(gpu, STEP_WORDS).map_err(allocation_error)?,
            inputs: StepWords::new(program),
            limits: InputLimits::new(program),
            lists: HashMap::new(),
            shape: StepShape::default(),
            next_shape: StepShape::default(),
            is_pending: false,
            started: Instant::now(),
            is_warming_up: false,
            fetches: VecDeque::new(),
            is_fetching: false,
        })
    }

    /// Records the list of the current shape, if it is new.
    fn prepare_list(&mut self) -> Result<(), stonechat_compute::Error> {
        let Self { memory, recorder, inputs, lists, shape, .. } = self;
        if lists.get(shape).is_some_and(|list| recorder.is_valid(list)) {
            return Ok(());
        }
        let list = loop {
            memory.record(recorder, inputs, shape);
            if let Some(list) = recorder.finish()? {
                break list;
            }
        };
        lists.retain(|_, list| recorder.is_valid(list));
        if lists.len() == MAX_LISTS {
            lists.clear();
        }
        lists.insert(shape.clone(), list);
        Ok(())
    }

    /// Sets the shape of a step; records its list and uploads its inputs.
    fn prepare_step(&mut self, step: &Step<'_>) -> Result<(), stonechat_compute::Error> {
        self.inputs.set_shape(&mut self.next_shape, step, |n_heads, layout, rows| {
            AttentionGrid::new(&self.gpu, AttentionShape { n_heads, layout }, rows)
        });
        if self.next_shape != self.shape {
            if let Some(list) = self.lists.get_mut(&self.shape) {
                list.forget_encoded();
            }
            std::mem::swap(&mut self.shape, &mut self.next_shape);
        }
        self.inputs.fill(step, &self.shape);
        if !self.is_warming_up {
            self.recorder.write_step(&self.inputs.words)?;
        }
        self.prepare_list()
    }

    /// Submits the last step, unless it is submitted.
    fn flush(&mut self) {
        if std::mem::take(&mut self.is_pending)
            && let Some(list) = self.lists.get_mut(&self.shape)
        {
            self.gpu.submit(list);
        }
    }
}

/// Checks that there is a kernel for an op in steps of at most `max` rows.
fn check_op(program: &Program, node: &Node, max: &Counts) -> Result<(), Error> {
    let n_windows = node.outputs.first().map_or(0, |&id| max[program.tensors[id].rows.count]);
    let reason = match node.op {
        Op::Im2col(_) if n_windows > 1 => {
            format!("convolution: expected 1 window, got up to {n_windows}")
        }
        Op::Moe(_) | Op::Conv1d(_) | Op::ExpertMlp(_) | Op::MoeSort(_) | Op::RopeAttention(_) => {
            "no kernel, see `capabilities`".to_owned()
        }
        _ => return Ok(()),
    };
    Err(Error::Unsupported { backend: NAME, op: node.op.name(), reason })
}

/// Checks that an op reads its operand in the type of its kernels.
fn check_operand(
    capabilities: &Capabilities,
    program: &Program,
    segment: &Segment,
    node: &Node,
) -> Result<(), Error> {
    let is_product = matches!(node.op, Op::Matmul(_) | Op::MatmulGroup(_) | Op::GatedProduct(_));
    if !is_product && !matches!(node.op, Op::ExpertMatmul(_)) {
        return Ok(());
    }
    let dtype = program.tensors[node.inputs[0].id].dtype;
    // Kernels of all rows read one type, or the segment has to be fused.
    let most = RowClass { min: segment.class.max, ..segment.class };
    let [expected, of_one_row] = [most, ONE_ROW].map(|class| capabilities.operand(&node.op, class));
    let is_any = segment.class.min <= 1 && segment.class.max > 1 && expected != of_one_row;
    let fits = dtype == expected || node.norm.is_some();
    if fits && !is_any {
        return Ok(());
    }
    let reason = format!("operand: expected {}, got {}", expected.name(), dtype.name());
    Err(Error::Unsupported { backend: NAME, op: node.op.name(), reason })
}

impl ProgramMemory {
    fn slot(&self, id: usize) -> usize {
        self.slot_of[id].expect("a value of the program")
    }

    fn buffer(&self, id: usize) -> &GpuBuffer {
        &self.slots[self.slot(id)]
    }

    /// `x`, in f32, in a step of `counts`.
    fn view(&self, x: Tensor, counts: &Counts) -> GpuRows<'_> {
        let (buffer, stride) = (self.buffer(x.id), self.program.tensors[x.id].cols);
        GpuRows { buffer, offset: x.first_col, rows: counts.rows(x.rows), cols: x.cols, stride }
    }

    /// Operand `x` of products.
    fn operand(&self, x: Tensor, counts: &Counts) -> GpuOperand<'_> {
        match operand_of(self.program.tensors[x.id].dtype) {
            Some(format) => GpuOperand::Converted(format, self.buffer(x.id)),
            None => GpuOperand::Values(self.view(x, counts)),
        }
    }

    /// Memory of a result, in f32 or as an operand.
    fn output(&self, id: usize) -> GpuOutput<'_> {
        let buffer = self.buffer(id);
        match operand_of(self.program.tensors[id].dtype) {
            Some(format) => GpuOutput { values: None, operand: Some((format, buffer)) },
            None => GpuOutput::from(buffer),
        }
    }

    /// Records a step.
    fn record(&self, list: &mut Recorder, inputs: &StepWords, shape: &StepShape) {
        let step = RecordedStep { inputs, shape, places: shape.places() };
        if shape.n_copies > 0 {
            let pools = self.program.sequence_pools();
            for layer in pools.iter().flat_map(|pool| &self.pools[pool.0]) {
                kv::copy_pages(list, layer, (step.places.copies, shape.n_copies));
            }
        }
        for segment in self.program.segments.iter().filter(|segment| shape.runs(segment)) {
            segment.nodes.iter().for_each(|node| self.record_node(list, (segment, node), &step));
        }
    }

    /// Records one op.
    fn record_node(
        &self,
        list: &mut Recorder,
        (segment, node): (&Segment, &Node),
        step: &RecordedStep<'_>,
    ) {
        let counts = &step.shape.counts;
        let Some(rows) = self.program.rows_of(node) else { return };
        let n_rows = counts.rows(rows);
        if n_rows == 0 {
            return;
        }
        for (x, result) in node.overwrites() {
            if self.slot(x.id) != self.slot(result) {
                copy::copy(list, self.buffer(result), 0, x.cols, self.view(x, counts));
            }
        }
        let x = |i: usize| self.view(node.inputs[i], counts);
        match &node.op {
            Op::Import(_) => {}
            Op::Export(port) => {
                let x = node.inputs[0];
                let first = export_offset(x, step.shape.first_window);
                copy::copy(list, &self.exports[port], first, x.cols, self.view(x, counts));
            }
            Op::KvWrite(args) => {
                let slots = step.slots(args.slots);
                kv::write(list, self.layer(args.pool, args.layer), x(0), x(1), slots);
            }
            Op::RopeKv(args) => {
                let result = |i: usize| {
                    let TensorInfo { rows, cols, .. } = self.program.tensors[node.outputs[i]];
                    GpuRows::packed(self.buffer(node.outputs[i]), counts.rows(rows), cols)
                };
                let slots = step.slots(args.write.slots);
                let pool = self.layer(args.write.pool, args.write.layer);
                let words = [step.places.positions, slots];
                let (q, k) = ((result(0), args.q.map(values)), (result(1), args.k.map(values)));
                rope::rope_and_write(list, q, k, x(2), pool, words);
            }
            Op::MatmulGroup(all) => {
                let products = all.iter().zip(&node.outputs).map(|(args, &id)| {
                    let bias = args.bias.as_ref().map(values);
                    (self.buffer(id), matrix(&args.weight), bias)
                });
                let products: Vec<_> = products.collect();
                matmul_group(list, self.input(node, counts), &products);
            }
            Op::Attention(args) => {
                let pool = &self.program.pools[args.pool.0];
                let args = step.attention(segment, args, (self, pool, x(0)));
                attention::attention(list, self.output(node.outputs[0]), args);
            }
            op => self.record_op(list, op, node, step),
        }
    }

    /// Records an op with one result, which holds the residual, if there is one.
    fn record_op(&self, list: &mut Recorder, op: &Op, node: &Node, step: &RecordedStep<'_>) {
        let counts = &step.shape.counts;
        let (id, places) = (node.outputs[0], &step.places);
        let (out, output) = (self.buffer(id), self.output(id));
        let TensorInfo { rows, cols, .. } = self.program.tensors[id];
        let n_rows = counts.rows(rows);
        let accumulate = node.residual.is_some();
        let x = |i: usize| self.view(node.inputs[i], counts);
        match op {
            Op::Embed(args) => {
                let Places { tokens, positions, .. } = *places;
                let top_k = self.program.outputs.iter().find(|(port, _)| *port == Port::TOP_K);
                let top_k = top_k.map(|(_, x)| self.buffer(x.id));
                let inputs = EmbedInputs { n_tokens: n_rows, tokens, positions, top_k };
                embed(list, out, args.map(matrix, values), inputs);
            }
            Op::Constant(constant) => {
                for i in 0..counts[rows.count] {
                    let rows_of_one = GpuRows::packed(values(constant), rows.each, cols);
                    copy::copy(list, out, i * rows.each * cols, cols, rows_of_one);
                }
            }
            Op::Gather(count) => {
                let first = match count {
                    Count::Hidden => counts[Count::Logits],
                    _ => 0,
                };
                copy::gather(list, out, x(0), (places.outputs + first, n_rows));
            }
            Op::LayerNorm(args) => {
                norm::layer_norm(list, self.norm_output(node), x(0), args.map(values));
            }
            Op::RmsNorm(args) => {
                norm::rms_norm(list, self.norm_output(node), x(0), args.map(values), accumulate);
            }
            Op::Rope(args) => {
                let positions = places.positions;
                rope::rope(list, GpuRows::packed(out, n_rows, cols), args.map(values), positions);
            }
            Op::Add => elementwise::add(list, out, x(1)),
            Op::SoftCap(cap) => elementwise::soft_cap(list, out, [n_rows, cols], *cap),
            Op::Gated(activation) => gated::gated(list, output, x(0), x(1), *activation),
            Op::Convert(dtype) => {
                let format = operand_of(*dtype).expect("a type of operands");
                convert(list, out, format, x(0));
            }
            Op::Matmul(args) => {
                let (w, epilogue) = (matrix(&args.weight), args.epilogue(accumulate, values));
                matmul(list, output, self.input(node, counts), w, epilogue);
            }
            Op::GatedProduct(args) => {
                let weights = [&args.gate, &args.up].map(|args| matrix(&args.weight));
                matmul_gated(list, output, self.input(node, counts), weights, args.activation);
            }
            Op::ConvState(args) => {
                let states = &self.exports[&args.states.port];
                let args = args.map(values);
                conv_state::conv_state(list, out, x(0), args, (states, places.states));
            }
            Op::Im2col(Im2colArgs { stride, cols }) => {
                copy::im2col(list, out, *cols, *stride, x(0));
            }
            Op::MoeRoute(args) => moe::route(list, out, x(0), *args),
            Op::ExpertMatmul(ExpertMatmulArgs { weight, bias, .. }) => {
                let input = self.input(node, counts);
                let args = ExpertRoutes {
                    routes: self.buffer(node.inputs[1].id),
                    n_routes: n_rows,
                    routes_per_row: n_rows / input.rows,
                    n: cols,
                    bias: bias.as_ref().map(values),
                };
                matmul_experts(list, out, input, matrix(weight), args);
            }
            Op::MoeCombine => {
                let [results, routes] = [0, 1].map(|i| self.buffer(node.inputs[i].id));
                let shape = [n_rows, cols, node.inputs[1].cols / 2];
                moe::combine(list, out, routes, results, (shape, accumulate));
            }
            Op::LogitFilter => {
                logit_filter::logit_filter(list, out, [n_rows, cols], places.logit_filters);
            }
            Op::TopK => top_k::top_k(list, out, x(0), step.shape.k),
            Op::LogSumExp => log_sum_exp::log_sum_exp(list, out, x(0)),
            _ => unreachable!("{} has no single result", op.name()),
        }
    }

    /// Memory of the result of a norm: in f32, as an operand, or both.
    fn norm_output(&self, node: &Node) -> GpuOutput<'_> {
        let first = self.output(node.outputs[0]);
        match node.outputs[..] {
            [_, operand] => GpuOutput { values: first.values, ..self.output(operand) },
            _ => first,
        }
    }

    /// Input of the products of an op, with the norm that they apply to it.
    fn input<'a>(&'a self, node: &'a Node, counts: &Counts) -> GpuInput<'a> {
        let x = node.inputs[0];
        let norm = node.norm.as_ref().map(|NormArgs { weight, eps, .. }| {
            let out = self.buffer(*node.outputs.last().expect("the norm of the row"));
            InputNorm { weight: values(weight), eps: *eps, out }
        });
        GpuInput { x: self.operand(x, counts), rows: counts.rows(x.rows), norm }
    }

    fn layer(&self, pool: PoolId, layer: usize) -> &kv::GpuKvPool {
        &self.pools[pool.0][layer]
    }

    /// Buffer of a port.
    fn port(&self, port: Port) -> &GpuBuffer {
        if let Some(buffer) = self.exports.get(&port) {
            return buffer;
        }
        self.buffer(self.program.output(port).id)
    }
}

/// A step while its list is recorded.
struct RecordedStep<'a> {
    inputs: &'a StepWords,
    shape: &'a StepShape,
    places: Places,
}

impl RecordedStep<'_> {
    /// First word of the pages and slots of rows.
    fn slots(&self, table: SlotTable) -> usize {
        self.places.slots[table.index()]
    }

    fn attention<'a>(
        &self,
        segment: &Segment,
        args: &'a AttentionArgs,
        (memory, pool, q): (&'a ProgramMemory, &KvShape, GpuRows<'a>),
    ) -> attention::Attention<'a> {
        let index = self.inputs.attention(args, pool, segment.name);
        let (before, rest) = self.shape.grids.split_at(index);
        let first: usize = before.iter().map(Grid::n_words).sum();
        attention::Attention {
            q,
            kv: memory.layer(args.pool, args.layer),
            op: args.map(values),
            grid: rest[0],
            words: self.places.attention + first,
        }
    }
}

fn pool(gpu: &Gpu, shape: &KvShape) -> Result<Vec<kv::GpuKvPool>, Error> {
    let KvShape { n_layers, n_pages, head_dim, .. } = *shape;
    if head_dim > attention::MAX_HEAD_DIM {
        let reason =
            format!("heads: expected at most {} channels, got {head_dim}", attention::MAX_HEAD_DIM);
        return Err(Error::Unsupported { backend: NAME, op: "attention", reason });
    }
    let layer = |_| kv::GpuKvPool::new(gpu, shape.layout(), n_pages).map_err(allocation_error);
    (0..n_layers).map(layer).collect()
}

impl Executable for GpuExecutable {
    fn warm_up(&mut self, run: &mut dyn FnMut(&mut dyn Executable)) -> Result<(), Error> {
        self.flush();
        self.is_warming_up = true;
        run(self);
        self.is_warming_up = false;
        Ok(self.gpu.check()?)
    }

    fn import(&mut self, port: Port, values: &[f32]) {
        if !self.is_warming_up {
            self.flush();
            let buffer = self.memory.buffer(self.memory.program.import(port));
            self.gpu.write(buffer, 0, bytemuck::cast_slice(values));
        }
    }

    fn async_scheduling(&self) -> bool {
        true
    }

    fn limits(&self) -> &InputLimits {
        &self.limits
    }

    fn run_checked(&mut self, step: CheckedStep<'_>) {
        self.flush();
        self.started = Instant::now();
        match self.prepare_step(&step) {
            Ok(()) => self.is_pending = !self.is_warming_up,
            Err(error) => self.gpu.fault(error.to_string()),
        }
    }

    fn fetch(&mut self, ranges: &[PortRange], is_last: bool) {
        let Self { gpu, memory, lists, shape, is_pending, fetches, is_fetching, .. } = self;
        let is_pending = std::mem::take(is_pending);
        let mut list = lists.get_mut(shape).filter(|_| is_pending);
        if !std::mem::replace(is_fetching, !is_last) {
            fetches.push_back(HostCopies::default());
        }
        let copies = fetches.back_mut().expect("one was added");
        let ranges = ranges.iter().filter(|range| range.len > 0);
        let ranges: Vec<_> = ranges
            .map(|range| {
                let PortRange { port, offset, len } = *range;
                CopyRange { src: memory.port(port), offset: 4 * offset, len: 4 * len }
            })
            .collect();
        if let Err(error) = gpu.submit_with_copies(list.as_deref_mut(), &ranges, copies) {
            gpu.fault(error.to_string());
        }
        if is_last {
            gpu.map(copies);
        }
        if let Some(list) = list {
            gpu.count_host_time(self.started.elapsed());
            // Encodes the next step while the device runs this one.
            gpu.encode_ahead(list);
        }
    }

    fn collect_now(&mut self, _: &mut Vec<f32>) -> Option<Result<(), Error>> {
        None
    }

    fn collect<'a>(&'a mut self, values: &'a mut Vec<f32>) -> BoxFuture<'a, Result<(), Error>> {
        let copies = self.fetches.pop_front().expect("a group of fetches");
        values.clear();
        Box::pin(async move {
            let append = |bytes: &[u8]| {
                let first = values.len();
                values.resize(first + bytes.len() / 4, 0.0);
                bytemuck::cast_slice_mut(&mut values[first..]).copy_from_slice(bytes);
            };
            Ok(self.gpu.read(copies, append).await?)
        })
    }

    fn read_page<'a>(
        &'a mut self,
        pool: PoolId,
        page: u32,
        out: &'a mut Vec<u8>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.flush();
        Box::pin(async move {
            for layer in &self.memory.pools[pool.0] {
                kv::read_page(&self.gpu, layer, page, out).await?;
            }
            Ok(())
        })
    }

    fn write_checked_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error> {
        self.flush();
        let layers = &self.memory.pools[pool.0];
        for (layer, bytes) in layers.iter().zip(bytes.chunks_exact(bytes.len() / layers.len())) {
            kv::write_page(&self.gpu, layer, page, bytes)?;
        }
        Ok(())
    }
}
