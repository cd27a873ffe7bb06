//! Kernels of each op.

use stonechat_compute::cuda::ops::all_reduce::{Sum, all_gather, all_reduce, all_reduce_norm};
use stonechat_compute::cuda::ops::attention::{Attention, AttentionGrid, attention};
use stonechat_compute::cuda::ops::moe::ExpertOrder;
use stonechat_compute::cuda::ops::rope::{Heads, RopeKv, Rotation, Write, rope_kv};
use stonechat_compute::cuda::ops::rows::Norm;
use stonechat_compute::cuda::ops::{Output, Rows, kv, moe, rows, top_k};
use stonechat_compute::cuda::{CommandList, Gpu};
use stonechat_compute::op::{
    AttentionArgs, Count, EmbedArgs, ExpertMatmulArgs, Im2colArgs, KvWriteArgs, MatmulArgs,
    MoeRouteArgs, MoeSortArgs, NormArgs, Op, Port, RopeArgs, RopeAttentionArgs, RopeKvArgs,
    Routing, SlotTable, Tensor, TensorType,
};
use stonechat_quant::cuda::{
    CudaEmbed, CudaEpilogue, CudaMatrix, ExpertMatmul, Operand, RowNorm, Scratch as _, embed,
    expert_block_len, matmul, matmul_experts, matmul_gated, matmul_group,
};

use super::memory::{ProgramMemory, Scratch};
use super::weights::{matrix, optional, values};
use crate::RopePairs;
use crate::inputs::export_offset;
use crate::program::{Counts, Node, Segment};
use crate::step_words::{Grid, Places, StepShape, StepWords};

/// A step while its list is recorded.
pub(super) struct RecordedStep<'a> {
    pub(super) inputs: &'a StepWords,
    pub(super) shape: &'a StepShape<AttentionGrid>,
    pub(super) places: Places,
    /// Address of the inputs.
    pub(super) words: u64,
}

impl RecordedStep<'_> {
    fn address(&self, word: usize) -> u64 {
        self.words + 4 * word as u64
    }

    /// Address of the pages and slots of rows.
    fn slots(&self, table: SlotTable) -> u64 {
        self.address(self.places.slots[table.index()])
    }

    /// Address of the positions.
    fn positions(&self) -> u64 {
        self.address(self.places.positions)
    }

    fn rotation(&self, args: &RopeArgs) -> Rotation {
        match &args.rotation {
            Some(rotation) => Rotation {
                table: values(&rotation.table),
                positions: self.positions(),
                n_rot: rotation.n_rot,
                pairs: rotation.pairs,
            },
            None => Rotation { table: 0, positions: 0, n_rot: 0, pairs: RopePairs::Adjacent },
        }
    }
}

fn heads(args: &RopeArgs, x: Rows, out: u64) -> Heads {
    let norm = args.norm.as_ref().map_or((0, 0.0), |(weight, eps)| (values(weight), *eps));
    Heads { x, out, norm }
}

fn norm_args(args: &NormArgs, is_layer_norm: bool) -> Norm {
    let NormArgs { weight, bias, eps } = args;
    Norm { weight: values(weight), bias: optional(bias.as_ref()), eps: *eps, is_layer_norm }
}

fn epilogue(args: &MatmulArgs, accumulate: bool) -> CudaEpilogue {
    let bias = optional(args.bias.as_ref());
    CudaEpilogue { bias, activation: args.activation, accumulate }
}

impl ProgramMemory {
    /// Records a step.
    pub(super) fn record(
        &self,
        list: &mut CommandList,
        scratch: &mut Scratch,
        step: &RecordedStep<'_>,
    ) {
        if step.shape.n_copies > 0 {
            let pairs = step.address(step.places.copies);
            let pools = self.program.sequence_pools();
            for layer in pools.iter().flat_map(|pool| &self.pools[pool.0]) {
                kv::copy_pages(list, layer, (pairs, step.shape.n_copies));
            }
        }
        for segment in self.program.segments.iter().filter(|segment| step.shape.runs(segment)) {
            for node in &segment.nodes {
                self.record_node(list, scratch, (segment, node), step);
            }
        }
    }

    /// Records one op.
    fn record_node(
        &self,
        list: &mut CommandList,
        scratch: &mut Scratch,
        (segment, node): (&Segment, &Node),
        step: &RecordedStep<'_>,
    ) {
        let counts = &step.shape.counts;
        let Some(rows_of_op) = self.program.rows_of(node) else { return };
        let n_rows = counts.rows(rows_of_op);
        if n_rows == 0 {
            return;
        }
        if !matches!(node.op, Op::Rope(_) | Op::RopeKv(_) | Op::Add | Op::SoftCap(_)) {
            for (x, result) in node.overwrites() {
                if self.slot(x.id) != self.slot(result) {
                    let to = self.buffer(result).address();
                    rows::copy(list, to, x.cols, self.rows(x, counts), 1);
                }
            }
        }
        let x = |i: usize| self.rows(node.inputs[i], counts);
        match &node.op {
            Op::Import(_) => {}
            Op::Export(port) => {
                let x = node.inputs[0];
                let first = export_offset(x, step.shape.first_window);
                let to = self.export(*port) + 4 * first as u64;
                rows::copy(list, to, x.cols, self.rows(x, counts), 1);
            }
            Op::KvWrite(args) => {
                let none = RopeArgs { head_dim: self.head_dim(args), norm: None, rotation: None };
                let rotation = step.rotation(&none);
                let k = heads(&none, x(0), 0);
                let write = self.write(args, x(1), step);
                let (head_dim, k) = (none.head_dim, Some(k));
                rope_kv(list, RopeKv { q: None, k, head_dim, rotation, write: Some(write) });
            }
            Op::RopeKv(args) => {
                let results = [0, 1].map(|i| self.buffer(node.outputs[i]).address());
                rope_kv(list, self.rope(node, args, results, step));
            }
            Op::RopeAttention(RopeAttentionArgs { rope, attention, .. }) => {
                // The rotated queries and keys stay in the kernel.
                let rope = self.rope(node, rope, [0; 2], step);
                self.attention(list, scratch, (segment, node, attention), Some(rope), step);
            }
            Op::MatmulGroup(all) => {
                let products = all.iter().zip(&node.outputs).map(|(args, &id)| {
                    (matrix(&args.weight), self.output(id, counts), optional(args.bias.as_ref()))
                });
                let products: Vec<_> = products.collect();
                matmul_group(list, scratch, self.input(node, counts), &products);
            }
            Op::Attention(args) => {
                self.attention(list, scratch, (segment, node, args), None, step);
            }
            Op::MoeRoute(_) | Op::MoeSort(_) | Op::ExpertMatmul(_) | Op::MoeCombine => {
                self.record_moe(list, scratch, node, step);
            }
            op => self.record_op(list, scratch, (op, node), step),
        }
    }

    /// Rotations and KV write, with the addresses of the rotated queries and keys.
    fn rope<'a>(
        &'a self,
        node: &Node,
        args: &RopeKvArgs,
        [q_out, k_out]: [u64; 2],
        step: &RecordedStep<'_>,
    ) -> RopeKv<'a> {
        let x = |i: usize| self.rows(node.inputs[i], &step.shape.counts);
        RopeKv {
            q: Some(heads(&args.q, x(0), q_out)),
            k: Some(heads(&args.k, x(1), k_out)),
            head_dim: args.q.head_dim,
            rotation: step.rotation(&args.q),
            write: Some(self.write(&args.write, x(2), step)),
        }
    }

    fn head_dim(&self, args: &KvWriteArgs) -> usize {
        self.program.pools[args.pool.0].head_dim
    }

    fn write(&self, args: &KvWriteArgs, v: Rows, step: &RecordedStep<'_>) -> Write<'_> {
        let slots = step.slots(args.slots);
        Write { v, pool: self.layer(args.pool, args.layer), slots }
    }

    /// Records an op with one result, which holds the residual, if there is one.
    fn record_op(
        &self,
        list: &mut CommandList,
        scratch: &mut Scratch,
        (op, node): (&Op, &Node),
        step: &RecordedStep<'_>,
    ) {
        let counts = &step.shape.counts;
        let id = node.outputs[0];
        let (out, output, result) =
            (self.buffer(id).address(), self.output(id, counts), self.result(id, counts));
        let accumulate = node.residual.is_some();
        let x = |i: usize| self.rows(node.inputs[i], counts);
        match op {
            Op::Embed(EmbedArgs { table, positions, scale }) => {
                let top_k = self.program.outputs.iter().find(|(port, _)| *port == Port::TOP_K);
                let args = CudaEmbed {
                    tokens: (step.address(step.places.tokens), result.rows),
                    top_k: top_k.map_or(0, |(_, x)| self.buffer(x.id).address()),
                    scale: *scale,
                    positions: positions.as_ref().map_or((0, 0), |p| (values(p), step.positions())),
                };
                embed(list, out, matrix(table), args);
            }
            Op::Constant(constant) => {
                let n = counts[self.program.tensors[id].rows.count];
                let each = Rows {
                    address: values(constant),
                    rows: self.program.tensors[id].rows.each,
                    cols: result.cols,
                    stride: result.cols,
                };
                rows::copy(list, out, result.cols, each, n);
            }
            Op::Gather(count) => {
                let first = match count {
                    Count::Hidden => counts[Count::Logits],
                    _ => 0,
                };
                let list_of_rows = step.address(step.places.outputs + first);
                rows::gather(list, out, x(0), (list_of_rows, result.rows));
            }
            Op::LayerNorm(args) | Op::RmsNorm(args) => {
                let norm = norm_args(args, matches!(op, Op::LayerNorm(_)));
                rows::norm(list, self.norm_output(node, counts), x(0), norm, accumulate);
            }
            Op::Rope(args) => {
                let rotation = step.rotation(args);
                let q = heads(args, x(0), out);
                let (head_dim, q) = (args.head_dim, Some(q));
                rope_kv(list, RopeKv { q, k: None, head_dim, rotation, write: None });
            }
            Op::Add => rows::add(list, output, x(0), x(1)),
            Op::SoftCap(cap) => rows::soft_cap(list, output, x(0), *cap),
            Op::Gated(activation) => rows::gated(list, output, x(0), x(1), *activation),
            Op::Convert(_) => rows::convert(list, out, x(0)),
            Op::Matmul(args) => {
                let x = self.input(node, counts);
                let w = matrix(&args.weight);
                matmul(list, scratch, output, x, w, epilogue(args, accumulate));
            }
            Op::GatedProduct(args) => {
                let weights = [&args.gate, &args.up].map(|args| matrix(&args.weight));
                let x = self.input(node, counts);
                matmul_gated(list, scratch, output, x, weights, args.activation);
            }
            Op::ConvState(args) => {
                let args = args.map(values);
                let memory = (self.export(args.states.port), step.address(step.places.states));
                rows::conv_state(list, out, x(0), &args, memory);
            }
            Op::Im2col(Im2colArgs { stride, .. }) => {
                let groups = (counts[node.inputs[0].rows.count], *stride);
                let is_operand = self.dtype(id) == TensorType::F16;
                rows::windows(list, out, x(0), groups, is_operand);
            }
            Op::LogitFilter => {
                rows::logit_filter(
                    list,
                    result,
                    (step.words, step.address(step.places.logit_filters)),
                );
            }
            Op::TopK => {
                let (x, k) = (x(0), step.shape.k);
                let counters = scratch.get("top-k counters", top_k::counter_bytes(x.rows));
                let candidates = scratch.get("top-k candidates", top_k::candidate_bytes(x, k));
                top_k::top_k(list, out, x, k, (counters, candidates));
            }
            Op::LogSumExp => rows::log_sum_exp(list, out, x(0)),
            Op::AllReduce => all_reduce(list, self.rank(), self.sum(node, counts)),
            Op::AllReduceNorm(NormArgs { weight, eps, .. }) => {
                let operand = self.buffer(node.outputs[1]).address();
                let norm = (operand, values(weight), *eps);
                all_reduce_norm(list, self.rank(), self.sum(node, counts), norm);
            }
            Op::AllGather(first_cols) => all_gather(list, self.rank(), out, x(0), first_cols),
            _ => unreachable!("{} has no single result", op.name()),
        }
    }

    /// Sum over ranks.
    fn sum(&self, node: &Node, counts: &Counts) -> Sum {
        let has_own_rows = |residual: &Tensor| {
            let mut nodes = self.program.nodes();
            nodes.any(|node| {
                matches!(node.op, Op::AllReduceNorm(_)) && node.outputs[0] == residual.id
            })
        };
        Sum {
            x: self.rows(node.inputs[0], counts),
            out: self.buffer(node.outputs[0]).address(),
            accumulate: node.residual.is_some(),
            has_own_rows: node.residual.as_ref().is_some_and(has_own_rows),
        }
    }

    /// Operand of the products of an op, with the norm that they apply to it.
    fn input(&self, node: &Node, counts: &Counts) -> Operand {
        let norm = node.norm.as_ref().map(|NormArgs { weight, eps, .. }| {
            let out = *node.outputs.last().expect("the norm of the row");
            RowNorm { weight: values(weight), eps: *eps, out: self.buffer(out).address() }
        });
        Operand { norm, ..self.operand(node.inputs[0], counts) }
    }

    /// Memory of the result of a norm: in f32, as an operand, or both.
    fn norm_output(&self, node: &Node, counts: &Counts) -> Output {
        let first = self.output(node.outputs[0], counts);
        match node.outputs[..] {
            [_, operand] => first.with_operand(self.result(operand, counts).address),
            _ => first,
        }
    }

    fn attention(
        &self,
        list: &mut CommandList,
        scratch: &mut Scratch,
        (segment, node, args): (&Segment, &Node, &AttentionArgs),
        rope: Option<RopeKv<'_>>,
        step: &RecordedStep<'_>,
    ) {
        let pool = &self.program.pools[args.pool.0];
        let index = step.inputs.attention(args, pool, segment.name);
        let (before, rest) = step.shape.grids.split_at(index);
        let first: usize = before.iter().map(Grid::n_words).sum();
        let grid = rest[0];
        let partial_bytes = grid.partial_bytes(args.n_heads, pool.layout());
        let args = Attention {
            q: self.rows(node.inputs[0], &step.shape.counts),
            rope,
            pool: self.layer(args.pool, args.layer),
            n_heads: args.n_heads,
            scale: args.scale,
            soft_cap: args.soft_cap,
            slopes: optional(args.slopes.as_ref()),
            sinks: optional(args.sinks.as_ref()),
            grid,
            words: step.words,
            first_word: step.places.attention + first,
            partials: scratch.get("attention partials", partial_bytes),
            counters: scratch.get("attention counters", grid.counter_bytes(args.n_heads)),
        };
        attention(list, self.output(node.outputs[0], &step.shape.counts), args);
    }

    /// Records an op of a mixture of experts.
    fn record_moe(
        &self,
        list: &mut CommandList,
        scratch: &mut Scratch,
        node: &Node,
        step: &RecordedStep<'_>,
    ) {
        let counts = &step.shape.counts;
        let result = self.result(node.outputs[0], counts);
        let out = result.address;
        match &node.op {
            Op::MoeRoute(MoeRouteArgs { n_used, routing }) => {
                let logits = self.rows(node.inputs[0], counts);
                moe::route(list, out, logits, *n_used, *routing == Routing::NormalizedTopK);
            }
            Op::MoeSort(args) => {
                let n_choices = result.rows * node.inputs[0].cols / 2;
                // Only products with quantized weights and f16 ones read the order.
                if args.weights.iter().any(|weight| matrix(weight).reads_operand()) {
                    let choices = self.buffer(node.inputs[0].id).address();
                    let order = expert_order(list.gpu(), out, n_choices, args);
                    moe::sort(list, choices, (n_choices, args.n_experts), order);
                }
            }
            Op::ExpertMatmul(args) => self.expert_matmul(list, scratch, (args, node), step),
            Op::MoeCombine => {
                let [results, routes] = [0, 1].map(|i| self.buffer(node.inputs[i].id).address());
                let shape = [result.rows, result.cols, node.inputs[1].cols / 2];
                moe::combine(list, out, (routes, results), shape, node.residual.is_some());
            }
            op => unreachable!("{} is no op of a mixture of experts", op.name()),
        }
    }

    fn expert_matmul(
        &self,
        list: &mut CommandList,
        scratch: &mut Scratch,
        (args, node): (&ExpertMatmulArgs, &Node),
        step: &RecordedStep<'_>,
    ) {
        let counts = &step.shape.counts;
        let (result, x) = (self.result(node.outputs[0], counts), self.input(node, counts));
        let (order, n_choices) = (args.order.as_ref().zip(node.inputs.get(2)), result.rows);
        let (order_args, order) = order.expect("products read the order, see `capabilities`");
        let order = self.buffer(order.id).address();
        let products = ExpertMatmul {
            assignments: self.buffer(node.inputs[1].id).address(),
            n_assignments: n_choices,
            assignments_per_row: n_choices / x.rows,
            order: expert_order(list.gpu(), order, n_choices, order_args),
            n: result.cols,
            bias: optional(args.bias.as_ref()),
        };
        matmul_experts(list, scratch, result.address, x, matrix(&args.weight), products);
    }
}

/// Places of the choices by expert and of their blocks in the memory of an [`Op::MoeSort`].
fn expert_order(gpu: &Gpu, order: u64, n_choices: usize, args: &MoeSortArgs) -> ExpertOrder {
    let weights: Vec<&CudaMatrix> = args.weights.iter().map(matrix).collect();
    let block_len = expert_block_len(gpu, &weights, (n_choices, args.n_experts));
    ExpertOrder {
        order,
        blocks: order + 4 * n_choices as u64,
        n_blocks: ExpertOrder::max_blocks(n_choices, args.n_experts, block_len),
        block_len,
    }
}
