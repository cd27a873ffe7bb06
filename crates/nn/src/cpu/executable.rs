//! Programs on the CPU: one call of a kernel an op, over slots.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::future::ready;
use std::ops::Range;
use std::sync::Arc;

use stonechat_compute::AlignedVec;
use stonechat_compute::cpu::{self, KvPool, MatMut, MatRef, RoutedExpert, elementwise};
use stonechat_compute::op::{
    AttentionArgs, EmbedArgs, GatedProductArgs, MatmulArgs, MoeRouteArgs, Op, PoolId, Port, Tensor,
    TensorInfo, TensorType, Weight, WeightInfo, WeightLayout,
};
use stonechat_quant::{ActivationBuffer, PackedRows, QuantMatrix, gated_packed};

use super::capabilities::MAX_GROUP;
use super::expert_mlp::{self, expert_mlp};
use super::host::Host;
use super::logits;
use super::matmul::{Operand, Product, products, quantized_products};
use super::profile::label;
use super::weights::{CpuMatrix, MAX_INT_DOT_ROWS, Weights, matrix, values};
use crate::device::{Executable, HostFetches, PortRange};
use crate::inputs::{AttentionRows, CheckedStep, InputLimits, Step, resolve_token};
use crate::plan::{SlotInfo, plan_slots};
use crate::program::{Counts, Node, Program};
use crate::tasks::for_each;
use crate::{BoxFuture, Error, PageCopy};

/// Values that one thread copies in a read: more than the logits of a token.
const READ_LEN: usize = 1 << 18;

fn bias(args: &MatmulArgs) -> Option<&[f32]> {
    args.bias.as_ref().map(|bias| &values(bias)[..])
}

/// Values of the CPU in the arguments of an op.
fn slice(weight: &Weight) -> &[f32] {
    values(weight)
}

fn epilogue(args: &MatmulArgs, accumulate: bool) -> cpu::Epilogue<'_> {
    cpu::Epilogue { bias: bias(args), activation: args.activation, accumulate }
}

/// A compiled program.
#[derive(Debug)]
pub(super) struct CpuExecutable {
    host: Host,
    program: Program,
    slot_of: Vec<Option<usize>>,
    /// By slot; empty for slots of operands.
    values: Vec<AlignedVec>,
    /// By slot; empty for slots of values.
    operands: Vec<ActivationBuffer>,
    /// By pool and layer.
    pools: Vec<Vec<KvPool>>,
    exports: BTreeMap<Port, AlignedVec>,
    scratch: Scratch,
    fetches: HostFetches,
    limits: InputLimits,
}

/// Memory within an op.
#[derive(Debug, Default)]
struct Scratch {
    experts: expert_mlp::Scratch,
    /// Operand of a convolution.
    windows: ActivationBuffer,
    /// Candidates of each row.
    top_k: Vec<Vec<cpu::TopKEntry>>,
}

fn alloc(len: usize) -> Result<AlignedVec, Error> {
    let out_of_memory = Error::OutOfMemory { bytes: len.saturating_mul(4), backend: "cpu" };
    AlignedVec::try_zeroed(len).ok_or(out_of_memory)
}

impl CpuExecutable {
    pub(super) fn new(host: &Host, program: &Program, max: &Counts) -> Result<Self, Error> {
        let plan = plan_slots(program, max);
        let mut executable = Self {
            host: host.clone(),
            program: program.clone(),
            slot_of: plan.slot_of,
            values: Vec::with_capacity(plan.slots.len()),
            operands: Vec::with_capacity(plan.slots.len()),
            pools: Vec::new(),
            exports: BTreeMap::new(),
            scratch: Scratch::default(),
            fetches: HostFetches::default(),
            limits: InputLimits::new(program),
        };
        for SlotInfo { dtype, rows, cols, len } in plan.slots {
            let mut operand = ActivationBuffer::new();
            let is_operand = dtype == TensorType::Operand;
            if is_operand {
                // A decode step must not allocate.
                operand.reserve(rows.min(MAX_INT_DOT_ROWS), cols);
            }
            executable.values.push(alloc(if is_operand { 0 } else { len })?);
            executable.operands.push(operand);
        }
        for shape in &program.pools {
            let pool = |_| KvPool::new(shape.layout(), shape.n_pages);
            let layers: Result<_, stonechat_compute::Error> =
                (0..shape.n_layers).map(pool).collect();
            executable.pools.push(layers?);
        }
        for node in program.nodes() {
            match &node.op {
                Op::Export(port) => {
                    // Variants of a segment export to the same memory.
                    if let Entry::Vacant(entry) = executable.exports.entry(*port) {
                        let Tensor { rows, cols, .. } = node.inputs[0];
                        entry.insert(alloc(max.rows(rows) * cols)?);
                    }
                }
                Op::ExpertMlp(args) => executable.scratch.experts.reserve(args),
                op => check_op(op)?,
            }
            executable.check_operand(node)?;
        }
        Ok(executable)
    }

    /// Checks that the operand of matmuls has the type that their weights need.
    fn check_operand(&self, node: &Node) -> Result<(), Error> {
        let all = match &node.op {
            Op::Matmul(args) => std::slice::from_ref(args),
            Op::MatmulGroup(all) => all,
            _ => return Ok(()),
        };
        let dtype = self.program.tensors[node.inputs[0].id].dtype;
        let fits = |args: &MatmulArgs| match args.weight.info() {
            WeightInfo { layout: WeightLayout::Packed, .. } => dtype == TensorType::Operand,
            WeightInfo { dtype: weight, .. } => {
                QuantMatrix::has_kernel(weight) || dtype == TensorType::F32
            }
        };
        if all.iter().all(fits) {
            return Ok(());
        }
        let reason = format!("an operand of {dtype:?}");
        Err(Error::Unsupported { backend: "cpu", op: node.op.name(), reason })
    }

    fn slot(&self, id: usize) -> usize {
        self.slot_of[id].expect("a value of the program")
    }

    /// `x` in a step of `counts`.
    fn view(&self, x: Tensor, counts: &Counts) -> MatRef<'_> {
        let (stride, rows) = (self.program.tensors[x.id].cols, counts.rows(x.rows));
        let end = if rows == 0 { 0 } else { (rows - 1) * stride + x.cols };
        let values = &self.values[self.slot(x.id)][x.first_col..x.first_col + end];
        MatRef::new(values, rows, x.cols, stride)
    }

    /// Operand `x` of products.
    fn operand(&self, x: Tensor, counts: &Counts) -> Operand<'_> {
        match self.program.tensors[x.id].dtype {
            TensorType::Operand => {
                Operand { values: None, quantized: Some(&self.operands[self.slot(x.id)]) }
            }
            _ => Operand { values: Some(self.view(x, counts)), quantized: None },
        }
    }

    /// Words of a value: choices of experts, or their order.
    fn words<T: bytemuck::Pod>(&self, x: Tensor, len: usize) -> &[T] {
        bytemuck::cast_slice(&self.values[self.slot(x.id)][..len * size_of::<T>() / 4])
    }

    fn take(&mut self, id: usize) -> AlignedVec {
        let slot = self.slot(id);
        std::mem::take(&mut self.values[slot])
    }

    fn put(&mut self, id: usize, values: AlignedVec) {
        let slot = self.slot(id);
        self.values[slot] = values;
    }

    /// Runs one op.
    fn run_node(&mut self, node: &Node, step: &Step<'_>) {
        let Some(rows) = self.program.rows_of(node) else { return };
        let n_rows = step.counts.rows(rows);
        if n_rows == 0 {
            return;
        }
        let timer = self.host.profile.clone();
        let _timer = timer.as_deref().map(|profile| profile.timer(label(node, step, n_rows)));
        match &node.op {
            Op::Import(_) => {}
            Op::Export(port) => self.export(*port, node.inputs[0], step),
            Op::KvWrite(args) => {
                let mut layers = std::mem::take(&mut self.pools[args.pool.0]);
                let [k, v] = [0, 1].map(|i| self.view(node.inputs[i], &step.counts));
                layers[args.layer].write(&self.host.device, k, v, step.slots(args.slots));
                self.pools[args.pool.0] = layers;
            }
            op if self.is_operand(node.outputs[0]) => {
                let slot = self.slot(node.outputs[0]);
                let mut out = std::mem::take(&mut self.operands[slot]);
                self.run_to_operand(op, &mut out, node.inputs[0], &step.counts);
                self.operands[slot] = out;
            }
            Op::Matmul(args) => {
                self.matmuls(&node.outputs, std::slice::from_ref(args), node, &step.counts);
            }
            Op::MatmulGroup(all) => self.matmuls(&node.outputs, all, node, &step.counts),
            op => {
                let mut out = self.take_result(node.outputs[0], node, &step.counts);
                let mut scratch = std::mem::take(&mut self.scratch);
                self.run_op(op, node, &mut out, (&mut scratch, step));
                self.scratch = scratch;
                self.put(node.outputs[0], out);
                if let (Op::LayerNorm(_) | Op::RmsNorm(_), [values, operand]) =
                    (op, &node.outputs[..])
                {
                    // The norm in f32 and as an operand.
                    let slot = self.slot(*operand);
                    let mut operand = std::mem::take(&mut self.operands[slot]);
                    let TensorInfo { rows, cols, .. } = self.program.tensors[*values];
                    let x = Tensor { id: *values, rows, first_col: 0, cols };
                    operand.prepare(&self.host.device, self.view(x, &step.counts));
                    self.operands[slot] = operand;
                }
            }
        }
    }

    fn is_operand(&self, id: usize) -> bool {
        self.program.tensors[id].dtype == TensorType::Operand
    }

    /// Runs an op whose result is an operand of products.
    fn run_to_operand(&self, op: &Op, out: &mut ActivationBuffer, x: Tensor, counts: &Counts) {
        let (device, isa) = (&self.host.device, self.host.device.isa);
        if let Op::GatedProduct(args) = op {
            return self.gated_product(out, x, args);
        }
        let x = self.view(x, counts);
        let part = |rows: Range<usize>| x.slice(rows.start, rows.len());
        match op {
            Op::LayerNorm(args) => out.prepare_rows(device, [x.rows, x.cols], |rows, out| {
                cpu::layer_norm_rows(isa, out, part(rows), args.map(slice));
            }),
            Op::RmsNorm(args) => out.prepare_rows(device, [x.rows, x.cols], |rows, out| {
                cpu::rms_norm_rows(isa, out, part(rows), args.map(slice));
            }),
            _ => out.prepare(device, x),
        }
    }

    /// Takes the memory of a result, which holds the value that the op overwrites.
    fn take_result(&mut self, id: usize, node: &Node, counts: &Counts) -> AlignedVec {
        let mut out = self.take(id);
        let overwritten = node.overwrites().find(|(_, result)| *result == id);
        if let Some((x, _)) = overwritten.filter(|(x, _)| self.slot(x.id) != self.slot(id)) {
            copy_rows(&mut out, self.view(x, counts));
        }
        out
    }

    /// Runs matmuls of one operand.
    fn matmuls(&mut self, ids: &[usize], all: &[MatmulArgs], node: &Node, counts: &Counts) {
        let mut outs: [AlignedVec; MAX_GROUP] = Default::default();
        for (out, &id) in outs.iter_mut().zip(ids) {
            *out = self.take_result(id, node, counts);
        }
        let n_rows = counts.rows(node.inputs[0].rows);
        let mut args = all.iter();
        let all = outs.each_mut().map(|out| {
            let args = args.next()?;
            let w = matrix(&args.weight);
            let (n, _) = w.shape();
            let out = MatMut::packed(&mut out[..n_rows * n], n_rows, n);
            Some((out, w.all(), epilogue(args, node.residual.is_some())))
        });
        products(&self.host.device, self.operand(node.inputs[0], counts), all);
        for (out, &id) in outs.into_iter().zip(ids) {
            self.put(id, out);
        }
    }

    fn gated_product(&self, out: &mut ActivationBuffer, x: Tensor, args: &GatedProductArgs) {
        let x = &self.operands[self.slot(x.id)];
        let factor = |args| {
            let Weights::Packed(w, start, end) = matrix_of(args).all() else {
                unreachable!("`capabilities` accepts panels")
            };
            PackedRows { w, rows: start..end, bias: bias(args) }
        };
        let factors = [factor(&args.gate), factor(&args.up)];
        gated_packed(&self.host.device, out, x, factors, args.activation);
    }

    /// Runs an op with one result, which holds the residual, if there is one.
    fn run_op(
        &self,
        op: &Op,
        node: &Node,
        out: &mut AlignedVec,
        (scratch, step): (&mut Scratch, &Step<'_>),
    ) {
        let (device, counts) = (&self.host.device, &step.counts);
        let TensorInfo { rows, cols, .. } = self.program.tensors[node.outputs[0]];
        let n_rows = counts.rows(rows);
        let x = |i: usize| self.view(node.inputs[i], counts);
        let accumulate = node.residual.is_some();
        let mut result = MatMut::packed(&mut out[..n_rows * cols], n_rows, cols);
        match op {
            Op::Embed(args) => self.embed(result, args, step),
            Op::Constant(constant) => {
                let constant = values(constant);
                result
                    .data
                    .chunks_exact_mut(constant.len())
                    .for_each(|w| w.copy_from_slice(constant));
            }
            Op::Gather(count) => {
                let x = x(0);
                for (i, &row) in step.output_rows(*count).iter().enumerate() {
                    result.row_mut(i).copy_from_slice(x.row(row));
                }
            }
            Op::LayerNorm(args) => cpu::layer_norm(device, result, x(0), args.map(slice)),
            Op::RmsNorm(args) => {
                cpu::rms_norm(device, result, x(0), args.map(slice), accumulate);
            }
            Op::Rope(args) => cpu::rope(device, result, args.map(slice), step.positions),
            Op::Add => elementwise::add(device, result, x(1)),
            Op::SoftCap(cap) => elementwise::soft_cap(device, result, *cap),
            Op::Gated(activation) => cpu::gated(device, result, x(0), x(1), *activation),
            Op::Conv1d(args) => {
                let each = (node.inputs[0].rows.each, rows.each);
                let w = matrix(&args.matmul.weight).all();
                let epilogue = epilogue(&args.matmul, accumulate);
                for window in 0..counts[rows.count] {
                    let out = result.reborrow().slice(window * each.1, each.1);
                    let x = x(0).slice(window * each.0, each.0);
                    cpu::conv1d(out, x, args.stride, |out, x| {
                        let product: Product<'_> = (out, w, epilogue);
                        quantized_products(device, &mut scratch.windows, x, [Some(product)]);
                    });
                }
            }
            Op::MoeRoute(MoeRouteArgs { n_used, routing }) => {
                let routes = bytemuck::cast_slice_mut(result.data);
                cpu::route(routes, x(0), *n_used, *routing);
            }
            Op::MoeSort(_) => {
                let n_choices = n_rows * node.inputs[0].cols / 2;
                let order = bytemuck::cast_slice_mut(&mut result.data[..n_choices]);
                cpu::sort_by_expert(order, self.words(node.inputs[0], n_choices));
            }
            Op::ExpertMlp(args) => {
                if !accumulate {
                    result.data.fill(0.0);
                }
                let n_choices = n_rows * args.n_used;
                let routes: &[RoutedExpert] = self.words(node.inputs[1], n_choices);
                let order: &[u32] = self.words(node.inputs[2], n_choices);
                expert_mlp(device, &mut scratch.experts, result, (x(0), routes, order), args);
            }
            Op::Attention(args) => cpu::attention(device, result, self.attention(args, x(0), step)),
            Op::LogitFilter => logits::filter(device, result, step.logit_filters, step.suppressed),
            Op::TopK => logits::top_k(
                device,
                &mut out[..2 * step.k * n_rows],
                x(0),
                step.k,
                &mut scratch.top_k,
            ),
            Op::LogSumExp => logits::log_sum_exp(device, result.data, x(0)),
            _ => unreachable!("{} has no single f32 result", op.name()),
        }
    }

    fn embed(&self, mut out: MatMut<'_>, args: &EmbedArgs, step: &Step<'_>) {
        let EmbedArgs { table, positions, scale } = args;
        let (table, d) = (matrix(table), out.cols);
        for (t, &token) in step.tokens.iter().enumerate() {
            let row = out.row_mut(t);
            let token = resolve_token(token, |index| self.port(Port::TOP_K)[index]);
            table.dequantize_row(self.host.device.isa, token as usize, row);
            if *scale != 1.0 {
                row.iter_mut().for_each(|r| *r *= scale);
            }
            if let Some(positions) = positions {
                let position = &values(positions)[step.positions[t] as usize * d..][..d];
                row.iter_mut().zip(position).for_each(|(r, p)| *r += p);
            }
        }
    }

    fn attention<'a>(
        &'a self,
        args: &'a AttentionArgs,
        q: MatRef<'a>,
        step: &Step<'a>,
    ) -> cpu::Attention<'a> {
        let AttentionRows { rows, page_table } = step.rows(args.rows);
        cpu::Attention {
            q,
            kv: &self.pools[args.pool.0][args.layer],
            rows,
            page_table,
            op: args.map(slice),
        }
    }

    fn export(&mut self, port: Port, x: Tensor, step: &Step<'_>) {
        let mut exports = std::mem::take(&mut self.exports);
        let first = step.export_offset(x);
        let out = exports.get_mut(&port).expect("`new` allocated every port");
        copy_rows(&mut out[first..], self.view(x, &step.counts));
        self.exports = exports;
    }

    /// Copies values, on all threads if there are many.
    fn copy_values(&self, out: &mut [f32], values: &[f32]) {
        let n_tasks = out.len().div_ceil(READ_LEN);
        if n_tasks == 1 {
            return out.copy_from_slice(values);
        }
        let parts = out.chunks_mut(READ_LEN).zip(values.chunks(READ_LEN));
        for_each(&self.host.device.threads, n_tasks, parts, |(to, from)| {
            to.copy_from_slice(from);
        });
    }

    /// Values of a port.
    fn port(&self, port: Port) -> &[f32] {
        if let Some(values) = self.exports.get(&port) {
            return values;
        }
        &self.values[self.slot(self.program.output(port).id)]
    }
}

fn matrix_of(args: &MatmulArgs) -> &CpuMatrix {
    matrix(&args.weight)
}

/// Packs the rows of `x`.
fn copy_rows(out: &mut [f32], x: MatRef<'_>) {
    for (r, row) in out.chunks_exact_mut(x.cols).take(x.rows).enumerate() {
        row.copy_from_slice(x.row(r));
    }
}

/// Checks that there is a kernel for an op that fusion makes for other devices, or lowers.
fn check_op(op: &Op) -> Result<(), Error> {
    let reason = match op {
        Op::RopeKv(_) | Op::RopeAttention(_) => "the CPU rotates, writes and attends in three ops",
        Op::Moe(_) | Op::ExpertMatmul(_) | Op::MoeCombine => "the CPU runs expert_mlp",
        Op::Im2col(_) => "the CPU reads the rows of a convolution in place",
        _ => return Ok(()),
    };
    Err(Error::Unsupported { backend: "cpu", op: op.name(), reason: reason.to_owned() })
}

impl Executable for CpuExecutable {
    /// There are no kernels to compile.
    fn warm_up(&mut self, _: &mut dyn FnMut(&mut dyn Executable)) -> Result<(), Error> {
        Ok(())
    }

    fn import(&mut self, port: Port, values: &[f32]) {
        let slot = self.slot(self.program.import(port));
        self.values[slot][..values.len()].copy_from_slice(values);
    }

    fn async_scheduling(&self) -> bool {
        false
    }

    fn limits(&self) -> &InputLimits {
        &self.limits
    }

    fn run_checked(&mut self, step: CheckedStep<'_>) {
        let (time_slices, is_background) =
            (Arc::clone(&self.host.time_slices), self.host.is_background);
        let mut slice = time_slices.take();
        for &PageCopy { from, to } in step.copies {
            self.pools[0].iter_mut().for_each(|pool| pool.copy_page(from, to));
        }
        let segments = std::mem::take(&mut self.program.segments);
        for segment in segments.iter().filter(|segment| step.runs(segment)) {
            for node in &segment.nodes {
                self.run_node(node, &step);
                if is_background {
                    slice.yield_slice();
                }
            }
        }
        self.program.segments = segments;
    }

    fn fetch(&mut self, ranges: &[PortRange], is_last: bool) {
        let mut fetches = std::mem::take(&mut self.fetches);
        let mut out = fetches.fetch(ranges.iter().map(|range| range.len).sum(), is_last);
        for &PortRange { port, offset, len } in ranges.iter().filter(|range| range.len > 0) {
            let (part, rest) = out.split_at_mut(len);
            self.copy_values(part, &self.port(port)[offset..offset + len]);
            out = rest;
        }
        self.fetches = fetches;
    }

    fn collect_now(&mut self, values: &mut Vec<f32>) -> Option<Result<(), Error>> {
        self.fetches.collect(values);
        Some(Ok(()))
    }

    fn read_page<'a>(
        &'a mut self,
        pool: PoolId,
        page: u32,
        out: &'a mut Vec<u8>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.pools[pool.0].iter().for_each(|layer| out.extend_from_slice(layer.page(page)));
        Box::pin(ready(Ok(())))
    }

    fn write_checked_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let layers = &mut self.pools[pool.0];
        let page_bytes = bytes.len() / layers.len();
        for (layer, bytes) in layers.iter_mut().zip(bytes.chunks_exact(page_bytes)) {
            layer.page_mut(page).copy_from_slice(bytes);
        }
        Ok(())
    }
}
