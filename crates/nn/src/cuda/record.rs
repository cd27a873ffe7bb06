//! Kernels of each op.

use stonechat_compute::cuda::ops::all_reduce::{Sum, all_gather, all_reduce, all_reduce_norm};
use stonechat_compute::cuda::ops::attention::{Attention, AttentionGrid, attention};
use stonechat_compute::cuda::ops::moe::ExpertOrder;
use stonechat_compute::cuda::ops::rope::{Heads, RopeKv, Write, rope_kv};
use stonechat_compute::cuda::ops::{Output, Rows, kv, moe, rows, top_k};
use stonechat_compute::cuda::{CommandList, Gpu};
use stonechat_compute::op::{
    AttentionArgs, Count, EmbedInputs, ExpertMatmulArgs, ExpertRoutes, Im2colArgs, InputNorm,
    KvWriteArgs, MoeSortArgs, NormArgs, Op, Port, RopeArgs, RopeAttentionArgs, RopeKvArgs,
    SlotTable, Tensor, TensorType,
};
use stonechat_quant::cuda::{
    CudaMatrix, Operand, Scratch as _, embed, expert_block_len, matmul, matmul_experts,
    matmul_gated, matmul_group,
};

use super::memory::{ProgramMemory, Scratch};
use super::weights::{matrix, optional, values};
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
                let head_dim = self.program.pools[args.pool.0].head_dim;
                let none = RopeArgs { head_dim, norm: None, rotation: None };
                let k = Heads { x: x(0), out: 0, args: none };
                let write = self.write(args, x(1), step);
                rope_kv(list, RopeKv { q: None, k: Some(k), positions: 0, write: Some(write) });
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
            q: Some(Heads { x: x(0), out: q_out, args: args.q.map(values) }),
            k: Some(Heads { x: x(1), out: k_out, args: args.k.map(values) }),
            positions: step.positions(),
            write: Some(self.write(&args.write, x(2), step)),
        }
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
            Op::Embed(args) => {
                let top_k = self.program.outputs.iter().find(|(port, _)| *port == Port::TOP_K);
                let inputs = EmbedInputs {
                    n_tokens: result.rows,
                    tokens: step.address(step.places.tokens),
                    positions: step.positions(),
                    top_k: top_k.map(|(_, x)| self.buffer(x.id).address()),
                };
                embed(list, out, args.map(matrix, values), inputs);
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
            Op::LayerNorm(args) => {
                let out = self.norm_output(node, counts);
                rows::layer_norm(list, out, x(0), args.map(values));
            }
            Op::RmsNorm(args) => {
                let out = self.norm_output(node, counts);
                rows::rms_norm(list, out, x(0), args.map(values), accumulate);
            }
            Op::Rope(args) => {
                let q = Some(Heads { x: x(0), out, args: args.map(values) });
                let positions = step.positions();
                rope_kv(list, RopeKv { q, k: None, positions, write: None });
            }
            Op::Add => rows::add(list, output, x(0), x(1)),
            Op::SoftCap(cap) => rows::soft_cap(list, output, x(0), *cap),
            Op::Gated(activation) => rows::gated(list, output, x(0), x(1), *activation),
            Op::Convert(_) => rows::convert(list, out, x(0)),
            Op::Matmul(args) => {
                let x = self.input(node, counts);
                let w = matrix(&args.weight);
                matmul(list, scratch, output, x, w, args.epilogue(accumulate, values));
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
                rows::im2col(list, out, x(0), groups, is_operand);
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
            Op::AllReduceNorm(args) => {
                let operand = self.buffer(node.outputs[1]).address();
                let norm = (operand, args.map(values));
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
            InputNorm { weight: values(weight), eps: *eps, out: self.buffer(out).address() }
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
            op: args.map(values),
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
            Op::MoeRoute(args) => {
                moe::route(list, out, self.rows(node.inputs[0], counts), *args);
            }
            Op::MoeSort(args) => {
                let n_routes = result.rows * node.inputs[0].cols / 2;
                // Only products with quantized weights and f16 ones read the order.
                if args.weights.iter().any(|weight| matrix(weight).reads_operand()) {
                    let routes = self.buffer(node.inputs[0].id).address();
                    let order = expert_order(list.gpu(), out, n_routes, args);
                    moe::sort(list, routes, (n_routes, args.n_experts), order);
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
        let (order, n_routes) = (args.order.as_ref().zip(node.inputs.get(2)), result.rows);
        let (order_args, order) = order.expect("products read the order, see `capabilities`");
        let order = self.buffer(order.id).address();
        let order = expert_order(list.gpu(), order, n_routes, order_args);
        let routes = ExpertRoutes {
            routes: self.buffer(node.inputs[1].id).address(),
            n_routes,
            routes_per_row: n_routes / x.rows,
            n: result.cols,
            bias: args.bias.as_ref().map(values),
        };
        let w = matrix(&args.weight);
        matmul_experts(list, scratch, result.address, x, w, (routes, order));
    }
}

/// Places of the routes by expert and of their blocks in the memory of an [`Op::MoeSort`].
fn expert_order(gpu: &Gpu, order: u64, n_routes: usize, args: &MoeSortArgs) -> ExpertOrder {
    let weights: Vec<&CudaMatrix> = args.weights.iter().map(matrix).collect();
    let block_len = expert_block_len(gpu, &weights, (n_routes, args.n_experts));
    ExpertOrder {
        order,
        blocks: order + 4 * n_routes as u64,
        n_blocks: ExpertOrder::max_blocks(n_routes, args.n_experts, block_len),
        block_len,
    }
}
