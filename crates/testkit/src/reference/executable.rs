//! Programs in f64: every value has memory of its own.

use std::collections::BTreeMap;
use std::future::ready;

use stonechat_nn::op::{
    AttentionArgs, ConvArgs, ConvStateArgs, EmbedArgs, ExpertMatmulArgs, GatedProductArgs,
    Im2colArgs, MatmulArgs, MoeArgs, MoeRouteArgs, NormArgs, Op, PoolId, Port, RopeArgs,
    RopeAttentionArgs, RopeKvArgs, Rotation, Routing, Tensor, TensorInfo, Weight, WeightInfo,
};
use stonechat_nn::{
    AttentionRows, BoxFuture, CheckedStep, Counts, Error, Executable, GatedActivation, HostFetches,
    InputLimits, KvRow, KvShape, LogitFilter, Node, PAGE_LEN, PageCopy, PortRange, Program,
    RopePairs, StateRun, Step, resolve_token,
};

use super::{ReferenceKv, activated, gated, inverse_rms, round_kv, route, values};

/// A compiled program.
#[derive(Debug)]
pub(super) struct ReferenceExecutable {
    program: Program,
    /// By value.
    values: Vec<Vec<f64>>,
    pools: Vec<ReferenceKv>,
    exports: BTreeMap<Port, Vec<f64>>,
    fetches: HostFetches,
    limits: InputLimits,
}

/// A matrix.
pub(super) type Matrix = Vec<Vec<f64>>;

impl ReferenceKv {
    /// NaN shows reads of unwritten positions.
    fn new(shape: KvShape) -> Self {
        let len = shape.n_layers * shape.n_pages * PAGE_LEN * shape.n_kv_heads * shape.head_dim;
        Self { shape, keys: vec![f64::NAN; len], values: vec![f64::NAN; len] }
    }

    fn write(&mut self, layer: usize, (k, v): (Matrix, Matrix), rows: &[KvRow]) {
        let width = self.width();
        for ((&at, k), v) in rows.iter().zip(k).zip(v) {
            let start = self.row(layer, at);
            let row = start..start + width;
            self.keys[row.clone()].copy_from_slice(&round_kv(&k, &self.shape));
            self.values[row].copy_from_slice(&round_kv(&v, &self.shape));
        }
    }

    fn copy_page(&mut self, src: u32, dst: u32) {
        for layer in 0..self.shape.n_layers {
            let from = self.row(layer, KvRow { page: src, slot: 0 });
            let to = self.row(layer, KvRow { page: dst, slot: 0 });
            let len = PAGE_LEN * self.width();
            self.keys.copy_within(from..from + len, to);
            self.values.copy_within(from..from + len, to);
        }
    }
}

impl ReferenceExecutable {
    pub(super) fn new(program: &Program, max: &Counts) -> Self {
        let exports = program.exports(max).into_iter();
        let len = |info: &TensorInfo| max.rows(info.rows) * info.cols;
        Self {
            values: program.tensors.iter().map(|info| vec![f64::NAN; len(info)]).collect(),
            pools: program.pools.iter().map(|&shape| ReferenceKv::new(shape)).collect(),
            exports: exports.map(|(port, len)| (port, vec![f64::NAN; len])).collect(),
            fetches: HostFetches::default(),
            limits: InputLimits::new(program),
            program: program.clone(),
        }
    }

    fn rows(&self, x: Tensor, counts: &Counts) -> Matrix {
        let stride = self.program.tensors[x.id].cols;
        let row = |r: usize| self.values[x.id][r * stride + x.first_col..][..x.cols].to_vec();
        (0..counts.rows(x.rows)).map(row).collect()
    }

    fn set(&mut self, id: usize, rows: Matrix) {
        for (to, row) in self.values[id].chunks_mut(self.program.tensors[id].cols).zip(rows) {
            to[..row.len()].copy_from_slice(&row);
        }
    }

    fn run_node(&mut self, node: &Node, step: &Step<'_>) {
        let counts = &step.counts;
        if self.program.rows_of(node).is_none_or(|rows| counts.rows(rows) == 0) {
            return;
        }
        let mut operands: Vec<Matrix> = node.inputs.iter().map(|&x| self.rows(x, counts)).collect();
        if let Some(norm) = &node.norm {
            let normed = rms_norm(&operands[0], norm);
            self.set(*node.outputs.last().expect("the norm of the rows"), normed.clone());
            operands[0] = normed;
        }
        let x = |i: usize| &operands[i];
        let result = match &node.op {
            Op::Import(_) => return,
            Op::Export(port) => return self.export(*port, node.inputs[0], step),
            Op::KvWrite(args) => {
                let kv = (x(0).clone(), x(1).clone());
                return self.pools[args.pool.0].write(args.layer, kv, step.slots(args.slots));
            }
            Op::RopeKv(RopeKvArgs { q, k, write }) => {
                let (q, k) = (rope(x(0), q, step), rope(x(1), k, step));
                let kv = (k.clone(), x(2).clone());
                self.pools[write.pool.0].write(write.layer, kv, step.slots(write.slots));
                self.set(node.outputs[0], q);
                return self.set(node.outputs[1], k);
            }
            Op::MatmulGroup(all) => {
                for (args, &id) in all.iter().zip(&node.outputs) {
                    self.set(id, matmul(x(0), args));
                }
                return;
            }
            Op::GatedProduct(GatedProductArgs { gate, up, activation, .. }) => {
                let (gate, up) = (matmul(x(0), gate), matmul(x(0), up));
                zip(&gate, &up, |gate, up| gated(gate, up, *activation))
            }
            Op::Embed(args) => self.embed(args, step),
            Op::Constant(constant) => {
                let TensorInfo { rows, cols, .. } = self.program.tensors[node.outputs[0]];
                let rows_of_one = values(constant).chunks(cols).map(<[f64]>::to_vec);
                let all = std::iter::repeat_n(rows_of_one, counts[rows.count]);
                all.flatten().collect()
            }
            Op::Gather(count) => {
                step.output_rows(*count).iter().map(|&row| x(0)[row].clone()).collect()
            }
            Op::LayerNorm(args) => layer_norm(x(0), args),
            Op::RmsNorm(args) => rms_norm(x(0), args),
            Op::Rope(args) => rope(x(0), args, step),
            Op::Gated(activation) => zip(x(0), x(1), |gate, up| gated(gate, up, *activation)),
            Op::Add => zip(x(0), x(1), |x, y| x + y),
            Op::SoftCap(cap) => {
                let cap = f64::from(*cap);
                zip(x(0), x(0), |x, _| cap * (x / cap).tanh())
            }
            Op::Convert(_) => x(0).clone(),
            Op::Matmul(args) => matmul(x(0), args),
            Op::Conv1d(args) => {
                let each = node.inputs[0].rows.each;
                x(0).chunks(each).flat_map(|x| conv1d(x, args)).collect()
            }
            Op::ConvState(args) => self.conv_state(x(0), args, step.states),
            Op::Im2col(args) => {
                let each = node.inputs[0].rows.each;
                x(0).chunks(each).flat_map(|x| im2col(x, args)).collect()
            }
            Op::Moe(_)
            | Op::ExpertMlp(_)
            | Op::MoeCombine
            | Op::MoeRoute(_)
            | Op::MoeSort(_)
            | Op::ExpertMatmul(_) => return self.run_moe(node, &operands, counts),
            Op::RopeAttention(RopeAttentionArgs {
                rope: args, attention: attention_args, ..
            }) => {
                let (q, k) = (rope(x(0), &args.q, step), rope(x(1), &args.k, step));
                let (write, slots) = (args.write, step.slots(args.write.slots));
                self.pools[write.pool.0].write(write.layer, (k, x(2).clone()), slots);
                let rows = step.rows(attention_args.rows);
                attention(&q, &self.pools[write.pool.0], attention_args, rows)
            }
            Op::Attention(args) => {
                attention(x(0), &self.pools[args.pool.0], args, step.rows(args.rows))
            }
            Op::LogitFilter => {
                let filters = x(0).iter().zip(step.logit_filters);
                filters.map(|(row, filter)| filtered(row, filter, step.suppressed)).collect()
            }
            Op::LogSumExp => x(0).iter().map(|row| vec![log_sum_exp(row)]).collect(),
            Op::TopK => return self.top_k(node.outputs[0], x(0), step.k),
            op @ (Op::AllReduce | Op::AllReduceNorm(_) | Op::AllGather(_)) => {
                panic!("{} of one rank", op.name())
            }
        };
        self.finish_node(node, result, counts);
    }

    /// Runs an op of a mixture of experts.
    fn run_moe(&mut self, node: &Node, operands: &[Matrix], counts: &Counts) {
        let x = |i: usize| &operands[i];
        let result = match &node.op {
            Op::Moe(args) => {
                let routes = moe_route(x(1), (args.n_used, args.routing));
                self.combine(node, &expert_mlps(x(0), &routes, args), &routes, counts)
            }
            Op::ExpertMlp(args) => self.combine(node, &expert_mlps(x(0), x(1), args), x(1), counts),
            Op::MoeCombine => self.combine(node, x(0), x(1), counts),
            Op::MoeRoute(MoeRouteArgs { n_used, routing }) => moe_route(x(0), (*n_used, *routing)),
            Op::MoeSort(_) => {
                let mut order: Vec<(f64, usize)> = choices(x(0)).map(|c| c.0).zip(0..).collect();
                order.sort_by(|a, b| a.partial_cmp(b).expect("experts"));
                let order: Vec<f64> = order.into_iter().map(|(_, choice)| choice as f64).collect();
                order.chunks(2 * x(0)[0].len()).map(<[f64]>::to_vec).collect()
            }
            Op::ExpertMatmul(args) => {
                let ExpertMatmulArgs { weight, bias, n_experts, .. } = args;
                expert_matmul(x(0), x(1), (weight, bias.as_ref(), *n_experts))
            }
            op => unreachable!("{} is no op of a mixture of experts", op.name()),
        };
        self.set(node.outputs[0], result);
    }

    /// Weighted results of the choices of experts, added to the residual one by one.
    fn combine(&self, node: &Node, results: &Matrix, routes: &Matrix, counts: &Counts) -> Matrix {
        let n_used = results.len() / routes.len();
        let residual = node.residual.map(|residual| self.rows(residual, counts));
        let zeros = || vec![vec![0.0; results[0].len()]; routes.len()];
        let mut sum = residual.unwrap_or_else(zeros);
        for (choice, (result, (_, weight))) in results.iter().zip(choices(routes)).enumerate() {
            let row = sum[choice / n_used].iter_mut().zip(result);
            row.for_each(|(sum, v)| *sum += weight * v);
        }
        sum
    }

    fn conv_state(&mut self, x: &Matrix, args: &ConvStateArgs, runs: &[StateRun]) -> Matrix {
        let ConvStateArgs { kernel, weight, bias, silu, states } = args;
        let (weight, bias, cols) = (values(weight), bias.as_ref().map(values), x[0].len());
        let memory = self.exports.get_mut(&states.port).expect("`new` made every port");
        let slot = |slot: u32| slot as usize * states.len..(slot as usize + 1) * states.len;
        let at = |inputs: &[Vec<f64>], c: usize| {
            let term = |(tap, x): (usize, &Vec<f64>)| weight[c * kernel + tap] * x[c];
            let bias = bias.map_or(0.0, |bias| bias[c]);
            let sum = inputs.iter().enumerate().map(term).sum::<f64>() + bias;
            if *silu { gated(sum, 1.0, GatedActivation::Silu) } else { sum }
        };
        let (mut rows, mut out) = (x.iter(), Matrix::new());
        for &StateRun { n_rows, from, to } in runs {
            let state = from.map_or(vec![0.0; states.len], |from| memory[slot(from)].to_vec());
            let mut inputs: Matrix = state.chunks_exact(cols).map(<[f64]>::to_vec).collect();
            inputs.extend(rows.by_ref().take(n_rows as usize).cloned());
            let windows = inputs.windows(*kernel);
            out.extend(windows.map(|inputs| (0..cols).map(|c| at(inputs, c)).collect()));
            memory[slot(to)].copy_from_slice(&inputs[n_rows as usize..].concat());
        }
        out
    }

    /// Adds the residual of an op with one result.
    fn finish_node(&mut self, node: &Node, result: Matrix, counts: &Counts) {
        let result = match node.residual {
            Some(residual) => zip(&self.rows(residual, counts), &result, |x, y| x + y),
            None => result,
        };
        self.set(node.outputs[0], result);
    }

    fn embed(&self, EmbedArgs { table, positions, scale }: &EmbedArgs, step: &Step<'_>) -> Matrix {
        let d = table.info().cols;
        let row = |t: usize| {
            let token = resolve_token(step.tokens[t], |index| self.port(Port::TOP_K)[index] as f32);
            let token = &values(table)[token as usize * d..][..d];
            let at = |positions| &values(positions)[step.positions[t] as usize * d..][..d];
            let position = positions.as_ref().map(at);
            let value = |i: usize| f64::from(*scale) * token[i] + position.map_or(0.0, |p| p[i]);
            (0..d).map(value).collect()
        };
        (0..step.tokens.len()).map(row).collect()
    }

    fn export(&mut self, port: Port, x: Tensor, step: &Step<'_>) {
        let first = step.export_offset(x);
        let rows = self.rows(x, &step.counts).concat();
        let out = self.exports.get_mut(&port).expect("`new` made every port");
        out[first..first + rows.len()].copy_from_slice(&rows);
    }

    fn top_k(&mut self, id: usize, x: &Matrix, k: usize) {
        let finite = |v: &f64| if v.is_nan() { f64::NEG_INFINITY } else { v.min(f32::MAX.into()) };
        for (row, out) in x.iter().zip(self.values[id].chunks_exact_mut(2 * k)) {
            let values: Vec<f64> = row.iter().map(finite).collect();
            let mut order: Vec<usize> = (0..values.len()).collect();
            // A stable sort keeps equal values in column order; -0 equals +0.
            order.sort_by(|&a, &b| values[b].partial_cmp(&values[a]).expect("numbers"));
            for (i, &column) in order[..k].iter().enumerate() {
                (out[i], out[k + i]) = (values[column], column as f64);
            }
        }
    }

    fn port(&self, port: Port) -> &[f64] {
        if let Some(values) = self.exports.get(&port) {
            return values;
        }
        &self.values[self.program.output(port).id]
    }
}

/// Single ops of a program, for ranks that run side by side.
impl ReferenceExecutable {
    pub(super) fn n_segments(&self) -> usize {
        self.program.segments.len()
    }

    /// Ops of a segment that a step runs.
    pub(super) fn n_nodes(&self, segment: usize, step: &Step<'_>) -> usize {
        let segment = &self.program.segments[segment];
        if step.runs(segment) { segment.nodes.len() } else { 0 }
    }

    pub(super) fn node(&self, (segment, node): (usize, usize)) -> &Node {
        &self.program.segments[segment].nodes[node]
    }

    /// First operand of an op.
    pub(super) fn operand(&self, place: (usize, usize), step: &Step<'_>) -> Matrix {
        self.rows(self.node(place).inputs[0], &step.counts)
    }

    /// Runs an op.
    pub(super) fn run_at(&mut self, place: (usize, usize), step: &Step<'_>) {
        let node = self.node(place).clone();
        self.run_node(&node, step);
    }

    /// Sets the result of an op.
    pub(super) fn finish(&mut self, place: (usize, usize), result: Matrix, step: &Step<'_>) {
        let node = self.node(place).clone();
        self.finish_node(&node, result, &step.counts);
    }

    pub(super) fn copy_pages(&mut self, step: &Step<'_>) {
        for pool in self.program.sequence_pools() {
            for &PageCopy { from, to } in step.copies {
                self.pools[pool.0].copy_page(from, to);
            }
        }
    }

    /// Whether both have equal outputs, bit by bit.
    pub(super) fn has_outputs_of(&self, other: &Self) -> bool {
        let is_equal = |(port, x): &(Port, Tensor)| {
            let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            bits(&self.values[x.id]) == bits(&other.values[other.program.output(*port).id])
        };
        self.program.outputs.iter().all(is_equal)
    }
}

fn zip(x: &Matrix, y: &Matrix, f: impl Fn(f64, f64) -> f64) -> Matrix {
    let row = |(x, y): (&Vec<f64>, &Vec<f64>)| x.iter().zip(y).map(|(&x, &y)| f(x, y)).collect();
    x.iter().zip(y).map(row).collect()
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

fn matmul(x: &Matrix, args: &MatmulArgs) -> Matrix {
    let WeightInfo { cols: k, .. } = args.weight.info();
    let weights = values(&args.weight).chunks_exact(k);
    let bias = args.bias.as_ref().map(values);
    let out = |row: &[f64], (n, w): (usize, &[f64])| {
        activated(dot(w, row) + bias.map_or(0.0, |bias| bias[n]), args.activation)
    };
    x.iter().map(|row| weights.clone().enumerate().map(|w| out(row, w)).collect()).collect()
}

fn largest(row: &[f64]) -> f64 {
    row.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn log_sum_exp(row: &[f64]) -> f64 {
    match largest(row) {
        f64::NEG_INFINITY => f64::NEG_INFINITY,
        max => max + row.iter().map(|v| (v - max).exp()).sum::<f64>().ln(),
    }
}

/// The logits of columns that are kept; −∞ elsewhere.
fn filtered(row: &[f64], filter: &LogitFilter, suppressed: &[u32]) -> Vec<f64> {
    let LogitFilter { kept: [first, second], suppressed: lists } = filter;
    let in_lists = |token: &u32| {
        lists.iter().any(|list| suppressed[list.start as usize..list.end as usize].contains(token))
    };
    let in_ranges = |token: &u32| first.contains(token) || second.contains(token);
    let with = |row: &[f64], is_kept: &dyn Fn(&u32) -> bool| {
        let kept = (0..).zip(row).map(|(t, &v)| if is_kept(&t) { v } else { f64::NEG_INFINITY });
        kept.collect::<Vec<_>>()
    };
    let row = with(row, &|token| in_ranges(token) && !in_lists(token));
    let second_wins = log_sum_exp(&row[second.start as usize..second.end as usize])
        > largest(&row[first.start as usize..first.end as usize]);
    with(&row, &|token| !(second_wins && first.contains(token)))
}

fn conv1d(x: &[Vec<f64>], &ConvArgs { matmul: ref args, stride }: &ConvArgs) -> Matrix {
    matmul(&im2col(x, &Im2colArgs { stride, cols: 3 * x[0].len() }), args)
}

fn im2col(x: &[Vec<f64>], &Im2colArgs { stride, cols }: &Im2colArgs) -> Matrix {
    let zeros = vec![0.0; x[0].len()];
    let frame = |t: usize| t.checked_sub(1).and_then(|t| x.get(t)).unwrap_or(&zeros);
    let taps = |t: usize| {
        let mut taps: Vec<f64> = (0..3).flat_map(|tap| frame(t * stride + tap).clone()).collect();
        taps.resize(cols, 0.0);
        taps
    };
    (0..x.len().div_ceil(stride)).map(taps).collect()
}

fn layer_norm(x: &Matrix, NormArgs { weight, bias, eps }: &NormArgs) -> Matrix {
    let (weight, bias) = (values(weight), bias.as_ref().map(values));
    let norm = |row: &Vec<f64>| {
        let n = row.len() as f64;
        let mean = row.iter().sum::<f64>() / n;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        let normal = |v: f64| (v - mean) / (variance + f64::from(*eps)).sqrt();
        let value = |d: usize| normal(row[d]) * weight[d] + bias.map_or(0.0, |bias| bias[d]);
        (0..row.len()).map(value).collect()
    };
    x.iter().map(norm).collect()
}

fn rms_norm(x: &Matrix, NormArgs { weight, eps, .. }: &NormArgs) -> Matrix {
    let norm = |row: &Vec<f64>| {
        let scale = inverse_rms(row, *eps);
        row.iter().zip(values(weight)).map(|(v, w)| v * scale * w).collect()
    };
    x.iter().map(norm).collect()
}

fn rope(x: &Matrix, RopeArgs { head_dim, norm, rotation }: &RopeArgs, step: &Step<'_>) -> Matrix {
    let mut x = x.clone();
    for (t, row) in x.iter_mut().enumerate() {
        for head in row.chunks_exact_mut(*head_dim) {
            if let Some((weight, eps)) = norm {
                let scale = inverse_rms(head, *eps);
                head.iter_mut().zip(values(weight)).for_each(|(v, w)| *v *= scale * w);
            }
            let Some(Rotation { table, n_rot, pairs }) = rotation else { continue };
            let angles = &values(table)[step.positions[t] as usize * n_rot..][..*n_rot];
            let (cos, sin) = angles.split_at(n_rot / 2);
            for i in 0..n_rot / 2 {
                let (a, b) = match pairs {
                    RopePairs::Adjacent => (2 * i, 2 * i + 1),
                    RopePairs::Neox => (i, i + n_rot / 2),
                };
                let (u, v) = (head[a], head[b]);
                head[a] = u * cos[i] - v * sin[i];
                head[b] = u * sin[i] + v * cos[i];
            }
        }
    }
    x
}

/// Expert and weight of each choice, `n_used` pairs per row.
fn moe_route(logits: &Matrix, (n_used, routing): (usize, Routing)) -> Matrix {
    let pairs = |(expert, weight): (usize, f64)| [expert as f64, weight];
    let row = |row: &Vec<f64>| route(row, n_used, routing).into_iter().flat_map(pairs).collect();
    logits.iter().map(row).collect()
}

/// Expert and weight of all choices.
fn choices(routes: &Matrix) -> impl Iterator<Item = (f64, f64)> {
    routes.iter().flat_map(|row| row.chunks(2).map(|pair| (pair[0], pair[1])))
}

/// Product with the weights of the expert of each choice: stacked weights, bias, number of experts.
fn expert_matmul(
    x: &Matrix,
    routes: &Matrix,
    (weight, bias, n_experts): (&Weight, Option<&Weight>, usize),
) -> Matrix {
    let WeightInfo { rows, cols: k, .. } = weight.info();
    let (n, choices): (_, Vec<_>) = (rows / n_experts, choices(routes).collect());
    let choices_per_row = choices.len() / x.len();
    let out = |(choice, (expert, _)): (usize, (f64, f64))| {
        let rows = expert as usize * n..(expert as usize + 1) * n;
        let value = |n: usize| {
            let bias = bias.map_or(0.0, |bias| values(bias)[n]);
            dot(&values(weight)[n * k..][..k], &x[choice / choices_per_row]) + bias
        };
        rows.map(value).collect()
    };
    choices.into_iter().enumerate().map(out).collect()
}

/// Outputs of the gated MLPs of all choices.
fn expert_mlps(x: &Matrix, routes: &Matrix, args: &MoeArgs) -> Matrix {
    let product = |x, weight, bias: &Option<Weight>| {
        expert_matmul(x, routes, (weight, bias.as_ref(), args.n_experts))
    };
    let gate = product(x, &args.gate, &args.gate_bias);
    let up = product(x, &args.up, &args.up_bias);
    let hidden = zip(&gate, &up, |gate, up| gated(gate, up, args.activation));
    product(&hidden, &args.down, &args.down_bias)
}

fn attention(
    q: &Matrix,
    kv: &ReferenceKv,
    args: &AttentionArgs,
    AttentionRows { rows, page_table }: AttentionRows<'_>,
) -> Matrix {
    let head_dim = kv.shape.head_dim;
    let group = args.n_heads / kv.shape.n_kv_heads;
    let head = |t: usize, head: usize| {
        let query = &rows[t];
        let pages = &page_table[query.first_page as usize..][..query.n_pages as usize];
        let q = &q[t][head * head_dim..][..head_dim];
        let at = |pos: usize| {
            let slot = KvRow { page: pages[pos / PAGE_LEN], slot: (pos % PAGE_LEN) as u32 };
            kv.row(args.layer, slot) + head / group * head_dim
        };
        let visible = query.kv_start as usize..query.kv_len as usize;
        let score = |pos: usize| {
            let score = f64::from(args.scale) * dot(q, &kv.keys[at(pos)..][..head_dim]);
            let capped =
                args.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
            let distance = pos as f64 - f64::from(query.kv_len - 1);
            let slope = args.slopes.as_ref().map_or(0.0, |slopes| values(slopes)[head]);
            capped + slope * distance
        };
        let scores: Vec<f64> = visible.clone().map(score).collect();
        let sink = args.sinks.as_ref().map(|sinks| values(sinks)[head]);
        let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().chain(&sink).map(|s| (s - max).exp()).sum();
        let mut sums = vec![0.0; head_dim];
        for (score, pos) in scores.iter().zip(visible) {
            let weight = (score - max).exp() / total;
            let value = &kv.values[at(pos)..][..head_dim];
            sums.iter_mut().zip(value).for_each(|(sum, v)| *sum += weight * v);
        }
        sums
    };
    (0..q.len()).map(|t| (0..args.n_heads).flat_map(|h| head(t, h)).collect()).collect()
}

impl Executable for ReferenceExecutable {
    fn warm_up(&mut self, _: &mut dyn FnMut(&mut dyn Executable)) -> Result<(), Error> {
        Ok(())
    }

    fn import(&mut self, port: Port, values: &[f32]) {
        let id = self.program.import(port);
        self.values[id].iter_mut().zip(values).for_each(|(to, &from)| *to = f64::from(from));
    }

    fn async_scheduling(&self) -> bool {
        false
    }

    fn limits(&self) -> &InputLimits {
        &self.limits
    }

    fn run_checked(&mut self, step: CheckedStep<'_>) {
        self.copy_pages(&step);
        let segments = std::mem::take(&mut self.program.segments);
        for segment in segments.iter().filter(|segment| step.runs(segment)) {
            segment.nodes.iter().for_each(|node| self.run_node(node, &step));
        }
        self.program.segments = segments;
    }

    fn fetch(&mut self, ranges: &[PortRange], is_last: bool) {
        let mut fetches = std::mem::take(&mut self.fetches);
        let out = fetches.fetch(ranges.iter().map(|range| range.len).sum(), is_last);
        let range = |range: &PortRange| &self.port(range.port)[range.offset..][..range.len];
        let values = ranges.iter().filter(|range| range.len > 0).flat_map(range);
        out.iter_mut().zip(values).for_each(|(to, from)| *to = *from as f32);
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
        let kv = &self.pools[pool.0];
        for range in kv.page_ranges(page) {
            out.extend_from_slice(bytemuck::cast_slice(&kv.keys[range.clone()]));
            out.extend_from_slice(bytemuck::cast_slice(&kv.values[range]));
        }
        Box::pin(ready(Ok(())))
    }

    /// Keys and values are in f64.
    fn page_bytes(&self, pool: PoolId) -> usize {
        self.pools[pool.0].page_ranges(0).map(|range| range.len() * 2 * size_of::<f64>()).sum()
    }

    fn write_checked_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let kv = &mut self.pools[pool.0];
        let ranges: Vec<_> = kv.page_ranges(page).collect();
        let values: Vec<f64> = bytemuck::pod_collect_to_vec(bytes);
        let mut rest = &values[..];
        for range in ranges {
            for side in [&mut kv.keys, &mut kv.values] {
                let (head, tail) = rest.split_at(range.len());
                side[range.clone()].copy_from_slice(head);
                rest = tail;
            }
        }
        Ok(())
    }
}
