//! Ops whose operands and results are resolved: a step brings only counts, inputs and pages.

use stonechat_compute::AlignedVec;
use stonechat_compute::Cpu;
use stonechat_compute::cpu::{self, MatMut, MatRef, RoutedExpert, conv, elementwise};
use stonechat_compute::op::{
    EmbedArgs, GatedProductArgs, MatmulArgs, MoeRouteArgs, Op, Port, Rows, TensorType, Weight,
    WeightInfo, WeightLayout,
};
use stonechat_quant::{ActivationBuffer, gated_packed};

use super::capabilities::MAX_GROUP;
use super::expert_mlp::{self, expert_mlp};
use super::host::Host;
use super::logits;
use super::matmul::{Matmul, matmul_group, quantize_and_matmul};
use super::memory::{Memory, View};
use super::profile::label;
use super::row_kernels;
use super::weights::{matrix, values};
use crate::Error;
use crate::inputs::{AttentionRows, Step, resolve_token};
use crate::program::Node;

/// An op with its operands and results in the memory of a program.
#[derive(Debug)]
pub(super) struct CpuNode {
    op: Op,
    rows: Rows,
    inputs: Vec<View>,
    results: Vec<View>,
    /// The residual or the operand that the first result overwrites, if it is in another slot.
    overwritten: Option<View>,
    /// Whether the op adds to its result.
    accumulate: bool,
}

/// Memory within an op.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    experts: expert_mlp::Scratch,
    /// Operand of a convolution.
    windows: ActivationBuffer,
    /// Candidates of each row.
    top_k: Vec<Vec<cpu::TopKEntry>>,
}

/// Values of the CPU in the arguments of an op.
fn slice(weight: &Weight) -> &[f32] {
    values(weight)
}

fn bias(args: &MatmulArgs) -> Option<&[f32]> {
    args.bias.as_ref().map(slice)
}

/// Matmuls of one operand in an op.
fn matmuls(op: &Op) -> &[MatmulArgs] {
    match op {
        Op::Matmul(args) => std::slice::from_ref(args),
        Op::MatmulGroup(all) => all,
        _ => &[],
    }
}

/// Packs the rows of `x`.
fn copy_rows(out: &mut [f32], x: MatRef<'_>) {
    for (r, row) in out.chunks_exact_mut(x.cols).take(x.rows).enumerate() {
        row.copy_from_slice(x.row(r));
    }
}

/// Checks that there is a kernel for an op with a first operand of type `dtype`.
fn check(op: &Op, dtype: Option<TensorType>) -> Result<(), Error> {
    let fits = |args: &MatmulArgs| match args.weight.info() {
        WeightInfo { layout: WeightLayout::Packed, .. } => dtype == Some(TensorType::Operand),
        WeightInfo { dtype: weight, .. } => {
            row_kernels::has(weight) || dtype == Some(TensorType::F32)
        }
    };
    let reason = match op {
        Op::RopeKv(_) | Op::RopeAttention(_) => "the CPU rotates, writes and attends in three ops",
        Op::Moe(_) | Op::ExpertMatmul(_) | Op::MoeCombine => "the CPU runs expert_mlp",
        Op::Im2col(_) => "the CPU reads the rows of a convolution in place",
        op if matmuls(op).iter().all(fits) => return Ok(()),
        _ => &format!(
            "operand: expected the type of the weights, got {}",
            dtype.unwrap_or(TensorType::F32).name()
        ),
    };
    Err(Error::Unsupported { backend: "cpu", op: op.name(), reason: reason.to_owned() })
}

impl CpuNode {
    /// Resolves an op, with scratch for decode steps; `None` if it has nothing to run. Fails if there is no kernel.
    pub(super) fn new(
        memory: &Memory,
        scratch: &mut Scratch,
        node: &Node,
    ) -> Option<Result<Self, Error>> {
        let rows = memory.program.rows_of(node)?;
        let inputs: Vec<_> = node.inputs.iter().map(|&x| memory.view(x)).collect();
        let mut results: Vec<_> = node.outputs.iter().map(|&id| memory.whole(id)).collect();
        let mut overwritten = None;
        if let Some((x, id)) = node.overwrites().next() {
            overwritten = Some(memory.view(x)).filter(|x| x.slot != memory.whole(id).slot);
        }
        match &node.op {
            Op::Import(_) => return None,
            Op::Export(port) => results.push(View { slot: memory.port(*port), ..inputs[0] }),
            Op::ConvState(args) => {
                results.push(View { slot: memory.port(args.states.port), ..inputs[0] });
            }
            Op::ExpertMlp(args) => scratch.experts.reserve(args),
            _ => {}
        }
        let (op, accumulate) = (node.op.clone(), node.residual.is_some());
        let checked = check(&op, inputs.first().map(|x| x.dtype));
        Some(checked.map(|()| Self { op, rows, inputs, results, overwritten, accumulate }))
    }

    /// Runs the op, unless the step has no rows for it.
    pub(super) fn run(
        &self,
        host: &Host,
        memory: &mut Memory,
        scratch: &mut Scratch,
        step: &Step<'_>,
    ) {
        let (device, counts) = (&host.device, &step.counts);
        let n_rows = counts.rows(self.rows);
        if n_rows == 0 {
            return;
        }
        let _timer = host.profile.as_ref().map(|it| it.timer(label(&self.op, step, n_rows)));
        // Results leave the memory while the op reads its operands.
        let mut outs: [AlignedVec; MAX_GROUP] = Default::default();
        for (out, result) in outs.iter_mut().zip(&self.results) {
            *out = std::mem::take(&mut memory.values[result.slot]);
        }
        let values = &memory.values;
        let x = |i: usize| self.inputs[i].read(values, counts);
        if let Some(x) = &self.overwritten {
            copy_rows(&mut outs[0], x.read(values, counts));
        }
        match &self.op {
            Op::Matmul(_) | Op::MatmulGroup(_) => {
                let mut all = matmuls(&self.op).iter().zip(&self.results);
                let all = outs.each_mut().map(|out| {
                    let (args, result) = all.next()?;
                    Some(self.matmul(args, result.write(out, counts)))
                });
                let operand = match self.inputs[0] {
                    View { dtype: TensorType::Operand, slot, .. } => {
                        (None, Some(&memory.operands[slot]))
                    }
                    _ => (Some(x(0)), None),
                };
                matmul_group(device, operand, all);
            }
            Op::KvWrite(args) => {
                let pool = &mut memory.pools[args.pool.0][args.layer];
                pool.write(device, x(0), x(1), step.slots(args.slots));
            }
            Op::ConvState(args) => {
                let [out, states, _] = &mut outs;
                let result = self.results[0].write(out, counts);
                conv::conv_state(device, result, x(0), &args.map(slice), (states, step.states));
            }
            Op::Export(_) => {
                let first = step.export_offset(self.inputs[0].tensor);
                copy_rows(&mut outs[0][first..], x(0));
            }
            op if self.results[0].dtype == TensorType::Operand => {
                let slot = self.results[0].slot;
                let mut out = std::mem::take(&mut memory.operands[slot]);
                self.run_to_operand(op, device, &mut out, memory, step);
                memory.operands[slot] = out;
            }
            op => {
                let result = self.results[0].write(&mut outs[0], counts);
                self.run_op(op, device, result, (memory, scratch), step);
            }
        }
        for (out, result) in outs.into_iter().zip(&self.results) {
            memory.values[result.slot] = out;
        }
        if let [y, View { dtype: TensorType::Operand, slot, .. }] = &self.results[..] {
            // The norm in f32 and as an operand.
            memory.operands[*slot].prepare(device, y.read(&memory.values, counts));
        }
    }

    fn matmul<'a>(&self, args: &'a MatmulArgs, out: MatMut<'a>) -> Matmul<'a> {
        (out, matrix(&args.weight).all(), args.epilogue(self.accumulate, slice))
    }

    /// Runs an op whose result is an operand of matmuls.
    fn run_to_operand(
        &self,
        op: &Op,
        device: &Cpu,
        out: &mut ActivationBuffer,
        memory: &Memory,
        step: &Step<'_>,
    ) {
        if let Op::GatedProduct(GatedProductArgs { gate, up, activation, .. }) = op {
            let factors = [gate, up].map(|args| {
                let panels = matrix(&args.weight).all().panels(bias(args));
                panels.expect("`capabilities` accepts panels")
            });
            let x = &memory.operands[self.inputs[0].slot];
            return gated_packed(device, out, x, factors, *activation);
        }
        let (x, isa) = (self.inputs[0].read(&memory.values, &step.counts), device.isa);
        let shape = [x.rows, x.cols];
        match op {
            Op::LayerNorm(args) => out.prepare_rows(device, shape, |rows, out| {
                cpu::layer_norm_rows(isa, out, x.slice(rows.start, rows.len()), args.map(slice));
            }),
            Op::RmsNorm(args) => out.prepare_rows(device, shape, |rows, out| {
                cpu::rms_norm_rows(isa, out, x.slice(rows.start, rows.len()), args.map(slice));
            }),
            _ => out.prepare(device, x),
        }
    }

    /// Runs an op with one result, which holds the residual, if there is one.
    fn run_op(
        &self,
        op: &Op,
        device: &Cpu,
        mut result: MatMut<'_>,
        (memory, scratch): (&Memory, &mut Scratch),
        step: &Step<'_>,
    ) {
        let x = |i: usize| self.inputs[i].read(&memory.values, &step.counts);
        match op {
            Op::Embed(args) => embed(device, result, args, memory, step),
            Op::Constant(constant) => {
                let constant = values(constant);
                let copies = result.data.chunks_exact_mut(constant.len());
                copies.for_each(|out| out.copy_from_slice(constant));
            }
            Op::Gather(count) => {
                let x = x(0);
                for (i, &row) in step.output_rows(*count).iter().enumerate() {
                    result.row_mut(i).copy_from_slice(x.row(row));
                }
            }
            Op::LayerNorm(args) => cpu::layer_norm(device, result, x(0), args.map(slice)),
            Op::RmsNorm(args) => {
                cpu::rms_norm(device, result, x(0), args.map(slice), self.accumulate);
            }
            Op::Rope(args) => cpu::rope(device, result, args.map(slice), step.positions),
            Op::Add => elementwise::add(device, result, x(1)),
            Op::SoftCap(cap) => elementwise::soft_cap(device, result, *cap),
            Op::Gated(activation) => cpu::gated(device, result, x(0), x(1), *activation),
            Op::Conv1d(args) => {
                let (each, x_each) = (self.rows.each, self.inputs[0].tensor.rows.each);
                for window in 0..step.counts[self.rows.count] {
                    let out = result.reborrow().slice(window * each, each);
                    let x = x(0).slice(window * x_each, x_each);
                    conv::conv1d(out, x, args.stride, |out, x| {
                        let all = [Some(self.matmul(&args.matmul, out))];
                        quantize_and_matmul(device, &mut scratch.windows, x, all);
                    });
                }
            }
            Op::MoeRoute(MoeRouteArgs { n_used, routing }) => {
                cpu::route(bytemuck::cast_slice_mut(result.data), x(0), *n_used, *routing);
            }
            Op::MoeSort(_) => {
                let routes: &[RoutedExpert] = bytemuck::cast_slice(x(0).data);
                let order = bytemuck::cast_slice_mut(&mut result.data[..routes.len()]);
                cpu::sort_by_expert(order, routes);
            }
            Op::ExpertMlp(args) => {
                if !self.accumulate {
                    result.data.fill(0.0);
                }
                let routes: &[RoutedExpert] = bytemuck::cast_slice(x(1).data);
                let order = &bytemuck::cast_slice(x(2).data)[..routes.len()];
                expert_mlp(device, &mut scratch.experts, result, (x(0), routes, order), args);
            }
            Op::Attention(args) => {
                let AttentionRows { rows, page_table } = step.rows(args.rows);
                let (q, kv) = (x(0), &memory.pools[args.pool.0][args.layer]);
                let op = args.map(slice);
                cpu::attention(device, result, cpu::Attention { q, kv, rows, page_table, op });
            }
            Op::LogitFilter => logits::filter(device, result, step.logit_filters, step.suppressed),
            Op::TopK => {
                let out = &mut result.data[..2 * step.k * result.rows];
                logits::top_k(device, out, x(0), step.k, &mut scratch.top_k);
            }
            Op::LogSumExp => logits::log_sum_exp(device, result.data, x(0)),
            _ => unreachable!("{} has no single f32 result", op.name()),
        }
    }
}

fn embed(device: &Cpu, mut out: MatMut<'_>, args: &EmbedArgs, memory: &Memory, step: &Step<'_>) {
    let EmbedArgs { table, positions, scale } = args;
    let (table, d) = (matrix(table), out.cols);
    for (t, &token) in step.tokens.iter().enumerate() {
        let row = out.row_mut(t);
        let token = resolve_token(token, |i| memory.values[memory.port(Port::TOP_K)][i]);
        table.dequantize_row(device.isa, token as usize, row);
        if *scale != 1.0 {
            row.iter_mut().for_each(|r| *r *= scale);
        }
        if let Some(positions) = positions {
            let position = &values(positions)[step.positions[t] as usize * d..][..d];
            row.iter_mut().zip(position).for_each(|(r, p)| *r += p);
        }
    }
}
