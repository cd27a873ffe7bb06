//! Kernels of each op.

use stonechat_compute::cuda::CommandList;
use stonechat_compute::cuda::ops::all_reduce::{Sum, all_gather, all_reduce, all_reduce_norm};
use stonechat_compute::cuda::ops::attention::{Attention, AttentionGrid, attention};
use stonechat_compute::cuda::ops::moe::ExpertOrder;
use stonechat_compute::cuda::ops::rope::{Heads, RopeKv, Rotation, Write, rope_kv};
use stonechat_compute::cuda::ops::rows::Norm;
use stonechat_compute::cuda::ops::{OPERAND_COLUMNS, Output, Rows, kv, moe, rows, top_k};
use stonechat_compute::op::{
    ConvArgs, Count, EmbedArgs, KvWriteArgs, MatmulArgs, MoeArgs, NormArgs, Op, Port, RopeArgs,
    RopeKvArgs, Routing, SlotTable, Tensor, TensorType,
};
use stonechat_quant::cuda::{
    CudaEmbed, CudaEpilogue, CudaMatrix, ExpertMatmul, Operand, RowNorm, Scratch as _, embed,
    expert_block_len, matmul, matmul_experts, matmul_gated, matmul_group,
};

use super::memory::{ProgramMemory, Scratch};
use super::{matrix, optional, values};
use crate::device::{Counts, export_offset};
use crate::program::{Node, Segment};
use crate::step_words::{Grid, Places, StepShape, StepWords};
use crate::{KvDType, RopePairs};

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

    /// Address of the pages and slots of `n_rows` rows.
    fn slots(&self, table: SlotTable, n_rows: usize) -> u64 {
        assert_eq!(self.shape.n_slots[table as usize], n_rows, "a slot a row of keys");
        self.address(self.places.slots[table as usize])
    }

    /// Address of the positions of `n_rows` rows.
    fn positions(&self, n_rows: usize) -> u64 {
        assert_eq!(self.shape.n_positions, n_rows, "a position a row");
        self.address(self.places.positions)
    }

    /// Address of the filters of `n_rows` rows.
    fn logit_filters(&self, n_rows: usize) -> u64 {
        assert_eq!(self.shape.n_logit_filters, n_rows, "a filter a row of logits");
        self.address(self.places.logit_filters)
    }

    fn rotation(&self, args: &RopeArgs, n_rows: usize) -> Rotation {
        match &args.rotation {
            Some(rotation) => Rotation {
                table: values(&rotation.table),
                positions: self.positions(n_rows),
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

fn operand_bytes(rows: usize, cols: usize) -> usize {
    2 * rows * cols.next_multiple_of(OPERAND_COLUMNS)
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
            for layer in &self.pools[0] {
                let pairs = step.address(step.places.copies);
                kv::copy_pages(list, layer, (pairs, step.shape.n_copies));
            }
        }
        for segment in self.program.segments.iter().filter(|segment| step.shape.runs(segment)) {
            let mut nodes = segment.nodes.iter();
            while let Some(node) = nodes.next() {
                match self.rope_for(node, nodes.as_slice().first(), step) {
                    Some(rope) => {
                        let attention = nodes.next().expect("an attention");
                        self.attention(list, scratch, (segment, attention), Some(rope), step);
                    }
                    None => self.record_node(list, scratch, (segment, node), step),
                }
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
                let rotation = step.rotation(&none, n_rows);
                let k = heads(&none, x(0), 0);
                let write = self.write(args, x(1), step);
                let (head_dim, k) = (none.head_dim, Some(k));
                rope_kv(list, RopeKv { q: None, k, head_dim, rotation, write: Some(write) });
            }
            Op::RopeKv(args) => rope_kv(list, self.rope(node, args, step)),
            Op::MatmulGroup(all) => {
                let products = all.iter().zip(&node.outputs).map(|(args, &id)| {
                    (matrix(&args.weight), self.output(id, counts), optional(args.bias.as_ref()))
                });
                let products: Vec<_> = products.collect();
                matmul_group(list, scratch, self.input(node, counts), &products);
            }
            Op::Attention(_) => self.attention(list, scratch, (segment, node), None, step),
            op => self.record_op(list, scratch, (op, node), step),
        }
    }

    fn rope<'a>(&'a self, node: &Node, args: &RopeKvArgs, step: &RecordedStep<'_>) -> RopeKv<'a> {
        let counts = &step.shape.counts;
        let x = |i: usize| self.rows(node.inputs[i], counts);
        let result = |i: usize| self.buffer(node.outputs[i]).address();
        let (q, k) = (heads(&args.q, x(0), result(0)), heads(&args.k, x(1), result(1)));
        RopeKv {
            q: Some(q),
            k: Some(k),
            head_dim: args.q.head_dim,
            rotation: step.rotation(&args.q, x(0).rows),
            write: Some(self.write(&args.write, x(2), step)),
        }
    }

    /// Rotation and KV write that the attention behind them does itself: of one row, if nothing else reads the results.
    fn rope_for<'a>(
        &'a self,
        node: &Node,
        next: Option<&Node>,
        step: &RecordedStep<'_>,
    ) -> Option<RopeKv<'a>> {
        let (Op::RopeKv(args), Some(next)) = (&node.op, next) else { return None };
        let Op::Attention(attention) = &next.op else { return None };
        let is_own = (attention.pool, attention.layer) == (args.write.pool, args.write.layer)
            && next.inputs[0].id == node.outputs[0];
        let n_rows = step.shape.counts.rows(node.inputs[0].rows);
        let pool = &self.program.pools[attention.pool.0];
        if n_rows != 1 || !is_own || pool.dtype == KvDType::F32 || !pool.head_dim.is_multiple_of(4)
        {
            return None;
        }
        let others = self.program.nodes().filter(|other| !std::ptr::eq(*other, next));
        let reads = others.flat_map(Node::reads).chain(self.program.outputs.iter().map(|x| x.1));
        let is_read = reads.into_iter().any(|x| node.outputs.contains(&x.id));
        (!is_read).then(|| self.rope(node, args, step))
    }

    fn head_dim(&self, args: &KvWriteArgs) -> usize {
        self.program.pools[args.pool.0].head_dim
    }

    fn write(&self, args: &KvWriteArgs, v: Rows, step: &RecordedStep<'_>) -> Write<'_> {
        let slots = step.slots(args.slots, v.rows);
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
                assert_eq!(step.shape.n_tokens, result.rows, "embed: a token a row");
                let top_k = self.program.outputs.iter().find(|(port, _)| *port == Port::TopK);
                let args = CudaEmbed {
                    tokens: (step.address(step.places.tokens), result.rows),
                    top_k: top_k.map_or(0, |(_, x)| self.buffer(x.id).address()),
                    scale: *scale,
                    positions: positions
                        .as_ref()
                        .map_or((0, 0), |p| (values(p), step.positions(result.rows))),
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
                let rotation = step.rotation(args, result.rows);
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
            Op::Conv1d(args) => {
                let n_windows = counts[node.inputs[0].rows.count];
                conv1d(list, scratch, output, (x(0), n_windows), (args, accumulate));
            }
            Op::Moe(args) => {
                let of_tokens = self.operand(node.inputs[0], counts);
                let is_operand = self.dtype(node.inputs[0].id) == TensorType::F16;
                experts(list, scratch, (out, accumulate), (of_tokens, is_operand, x(1)), args);
            }
            Op::LogitFilter => {
                rows::logit_filter(list, result, (step.words, step.logit_filters(result.rows)));
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
        (segment, node): (&Segment, &Node),
        rope: Option<RopeKv<'_>>,
        step: &RecordedStep<'_>,
    ) {
        let Op::Attention(args) = &node.op else { unreachable!("an attention") };
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
}

/// Convolution as a matmul over copied windows.
fn conv1d(
    list: &mut CommandList,
    scratch: &mut Scratch,
    out: Output,
    (x, n_groups): (Rows, usize),
    (args, accumulate): (&ConvArgs, bool),
) {
    let w = matrix(&args.matmul.weight);
    let n_rows = n_groups * (x.rows / n_groups).div_ceil(args.stride);
    let is_operand = w.reads_operand();
    let bytes = if is_operand { operand_bytes(n_rows, w.k()) } else { 4 * n_rows * w.k() };
    let address = scratch.get("conv1d", bytes);
    rows::windows(list, address, x, (n_groups, args.stride), is_operand);
    let x = Operand { address, rows: n_rows, stride: w.k(), norm: None };
    matmul(list, scratch, out, x, w, epilogue(&args.matmul, accumulate));
}

/// `out[t] (+)= Σ weight * expert(x[t])` over the top-k experts of the logits.
fn experts(
    list: &mut CommandList,
    scratch: &mut Scratch,
    (out, accumulate): (u64, bool),
    (x, is_operand, logits): (Operand, bool, Rows),
    args: &MoeArgs,
) {
    let MoeArgs { n_experts, n_used, .. } = *args;
    let [w_gate, w_up, w_down] = [&args.gate, &args.up, &args.down].map(matrix);
    let (d, f) = (w_gate.k(), w_gate.n() / n_experts);
    let n_choices = logits.rows * n_used;
    let choices = scratch.get("moe choices", 8 * n_choices);
    moe::route(list, choices, logits, n_used, args.routing == Routing::NormalizedTopK);
    let block_len = expert_block_len(list.gpu(), &[w_gate, w_up, w_down], (n_choices, n_experts));
    let n_blocks = ExpertOrder::max_blocks(n_choices, n_experts, block_len);
    let order = ExpertOrder {
        order: scratch.get("moe order", 4 * n_choices),
        blocks: scratch.get("moe blocks", 12 * n_blocks),
        n_blocks,
        block_len,
    };
    if [w_gate, w_up, w_down].iter().any(|w| w.reads_operand()) {
        moe::sort(list, choices, (n_choices, n_experts), order);
    }
    let expert_matmul = |n, bias, assignments_per_row| ExpertMatmul {
        assignments: choices,
        n_assignments: n_choices,
        assignments_per_row,
        order,
        n,
        bias,
    };
    // An operand of the type that a matrix reads.
    let mut operand = |list: &mut CommandList, name, x: Operand, cols: usize, w: &CudaMatrix| {
        // Fusion converts only if both read operands.
        if w.reads_operand() == is_operand {
            return x;
        }
        let address = scratch.get(name, operand_bytes(x.rows, cols));
        let rows_of_x = Rows { address: x.address, rows: x.rows, cols, stride: x.stride };
        rows::convert(list, address, rows_of_x);
        Operand { address, ..x }
    };
    let x_gate = operand(list, "moe x", x, d, w_gate);
    let x_up = operand(list, "moe x", x, d, w_up);
    let [gate, up] = ["moe gate", "moe up"].map(|name| scratch.get(name, 4 * n_choices * f));
    let of_gate = expert_matmul(f, optional(args.gate_bias.as_ref()), n_used);
    matmul_experts(list, scratch, gate, x_gate, w_gate, of_gate);
    let of_up = expert_matmul(f, optional(args.up_bias.as_ref()), n_used);
    matmul_experts(list, scratch, up, x_up, w_up, of_up);
    let packed = |address| Rows { address, rows: n_choices, cols: f, stride: f };
    let writes_operand = w_down.reads_operand() && f.is_multiple_of(OPERAND_COLUMNS);
    let hidden = scratch.get("moe hidden", 4 * n_choices * f);
    let to =
        if writes_operand { Output::default().with_operand(hidden) } else { Output::at(hidden) };
    rows::gated(list, to, packed(gate), packed(up), args.activation);
    let mut of_hidden = Operand { address: hidden, rows: n_choices, stride: f, norm: None };
    if w_down.reads_operand() && !writes_operand {
        of_hidden.address = scratch.get("moe hidden operand", operand_bytes(n_choices, f));
        rows::convert(list, of_hidden.address, packed(hidden));
    }
    let results = scratch.get("moe results", 4 * n_choices * d);
    let of_down = expert_matmul(d, optional(args.down_bias.as_ref()), 1);
    matmul_experts(list, scratch, results, of_hidden, w_down, of_down);
    moe::combine(list, out, (choices, results), [logits.rows, d, n_used], accumulate);
}
