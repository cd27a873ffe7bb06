//! Fusion: a pure function from a recorded program to a program of the ops that a device has kernels for.
//!
//! Every recorded segment becomes one variant for each class of rows of the device.
//!
//! | rule | pattern | result |
//! |---|---|---|
//! | lowering | an MoE or convolution without a kernel of its own | its kernels, see [`MoeKernels`] and [`Conv1dKernels`] |
//! | operand | a matmul or expert product that reads another type than f32 | [`Op::Convert`], one for equal operands |
//! | gated product | `Gated` of two matmuls of one operand | [`Op::GatedProduct`], converted if that is all that reads it |
//! | rotation | `Rope` of the queries of one attention and of its keys, KV write of the keys | [`Op::RopeKv`] |
//! | residual | `Add` of a value and the result of an op that takes a residual | the residual on that op |
//! | group | matmuls of one operand, without activation and residual | [`Op::MatmulGroup`] |
//! | norm | RMS norm, read by a product or group before all others | the norm on that op |
//! | result | `Convert` of the result of an op that can write this type | that type as the result; norms write f32, too, if it is read |
//! | reduced norm | RMS norm that writes an operand, of a sum over ranks that nothing else reads but the next such sum | [`Op::AllReduceNorm`] |
//! | rotation and attention | [`Op::RopeKv`] and the attention that alone reads its queries | [`Op::RopeAttention`] |
//! | dead value | an op without effect whose results nobody reads | removed |
//!
//! Rules match data flow (producer, sole reader), never neighbors in the list. The order of the result is topological with
//! the recorded order as tie-break; readers of a value come before the op that may overwrite it.

mod capabilities;
mod lower;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use stonechat_compute::op::{
    GatedProductArgs, KvShape, MatmulArgs, Op, PoolId, RopeAttentionArgs, RopeKvArgs, Tensor,
    TensorInfo, TensorType,
};

pub use capabilities::{
    Capabilities, Capability, CapabilityKind, Conv1dKernels, Limit, MoeKernels, OpKind,
};

use crate::Activation;
use crate::program::{Node, Program, Segment};

/// Fuses the ops of a program.
#[must_use]
pub fn fuse(program: &Program, capabilities: &Capabilities) -> Program {
    let mut fused = program.clone();
    // Comes first: a dead op is no reader of its operands.
    remove_dead(&mut fused);
    let is_pinned = fused.pinned();
    for segment in std::mem::take(&mut fused.segments) {
        let mut is_first = true;
        for &class in capabilities.row_classes {
            let is_part = [class.min, class.max].into_iter().all(|n| segment.class.contains(n));
            if class.max < segment.rows.each || !is_part {
                continue;
            }
            let mut nodes = segment.nodes.clone();
            if !std::mem::take(&mut is_first) {
                rename_values(&mut nodes, &mut fused.tensors, &is_pinned);
            }
            let mut rules = Rules {
                tensors: &mut fused.tensors,
                pools: &fused.pools,
                is_pinned: &is_pinned,
                nodes: Vec::new(),
            };
            rules.lower(nodes, capabilities);
            rules.operands(|op| capabilities.operand(op, class));
            let accepts = |op: &Op| capabilities.runs(op, class);
            rules.gated_products(accepts);
            rules.rotations(accepts);
            if capabilities.residuals {
                rules.residuals();
            }
            rules.groups(accepts);
            rules.norms(|op| capabilities.fuses_norm(op, class));
            rules.results(|op, dtype, cols| capabilities.writes(op, class, (dtype, cols)));
            rules.reduced_norms(accepts);
            rules.rotated_attention(accepts);
            let nodes = ordered(rules.nodes.into_iter().flatten().collect());
            fused.segments.push(Segment { class, nodes, ..segment });
        }
    }
    fused
}

/// Removes ops without effect whose results nobody reads.
fn remove_dead(program: &mut Program) {
    let mut is_read = vec![false; program.tensors.len()];
    program.outputs.iter().for_each(|(_, x)| is_read[x.id] = true);
    for segment in program.segments.iter_mut().rev() {
        let mut alive = Vec::with_capacity(segment.nodes.len());
        for node in std::mem::take(&mut segment.nodes).into_iter().rev() {
            if node.has_effect() || node.outputs.iter().any(|&id| is_read[id]) {
                node.reads().for_each(|x| is_read[x.id] = true);
                alive.push(node);
            }
        }
        alive.reverse();
        segment.nodes = alive;
    }
}

/// Gives values that only these ops use numbers of their own.
fn rename_values(nodes: &mut [Node], tensors: &mut Vec<TensorInfo>, is_pinned: &[bool]) {
    let mut renamed = BTreeMap::new();
    for node in nodes {
        for x in node.inputs.iter_mut().chain(&mut node.residual) {
            x.id = renamed.get(&x.id).copied().unwrap_or(x.id);
        }
        for id in &mut node.outputs {
            if !is_pinned[*id] {
                tensors.push(tensors[*id]);
                *id = *renamed.entry(*id).or_insert(tensors.len() - 1);
            }
        }
    }
}

/// Rules on the ops of one segment. A fused op takes the place of the last of its parts, if not said otherwise.
struct Rules<'a> {
    tensors: &'a mut Vec<TensorInfo>,
    pools: &'a [KvShape],
    /// Whether each recorded value is read or written outside of its segment.
    is_pinned: &'a [bool],
    nodes: Vec<Option<Node>>,
}

impl Rules<'_> {
    fn is_pinned(&self, id: usize) -> bool {
        self.is_pinned.get(id).is_some_and(|&is_pinned| is_pinned)
    }

    fn is_whole(&self, x: Tensor) -> bool {
        self.tensors[x.id].is_whole(x)
    }

    /// Indexes of the ops that read a value, once for each read.
    fn readers(&self, id: usize) -> impl Iterator<Item = usize> {
        let nodes = self.nodes.iter().enumerate();
        let reads = move |(i, node): (usize, &Option<Node>)| {
            let reads = node.iter().flat_map(Node::reads).filter(|x| x.id == id).count();
            std::iter::repeat_n(i, reads)
        };
        nodes.flat_map(reads)
    }

    /// Index of the only op that reads `id`, if it reads all of the value once.
    fn sole_reader(&self, id: usize) -> Option<usize> {
        let mut readers = self.readers(id);
        let reader = readers.next().filter(|_| !self.is_pinned(id))?;
        let is_sole = readers.next().is_none();
        let mut reads = self.nodes[reader].iter().flat_map(Node::reads);
        (is_sole && reads.all(|x| x.id != id || self.is_whole(x))).then_some(reader)
    }

    /// Index of the op that produces `x`, if `x` is all of its value and read once.
    fn sole_producer(&self, x: Tensor) -> Option<usize> {
        self.sole_reader(x.id)?;
        let is_producer = |node: &Option<Node>| {
            node.as_ref().is_some_and(|node| node.outputs.first() == Some(&x.id))
        };
        self.nodes.iter().position(is_producer)
    }

    /// The matmul at `index`, if it has neither activation nor norm nor residual.
    fn plain_matmul(&self, index: usize) -> Option<(&MatmulArgs, &Node)> {
        match &self.nodes[index] {
            Some(node @ Node { op: Op::Matmul(args), residual: None, norm: None, .. })
                if args.activation == Activation::None =>
            {
                Some((args, node))
            }
            _ => None,
        }
    }

    /// Converts operands of products, right before the first product that reads them.
    fn operands(&mut self, operand: impl Fn(&Op) -> TensorType) {
        let mut converted: Vec<(Tensor, TensorType, Tensor)> = Vec::new();
        let nodes = std::mem::take(&mut self.nodes);
        for mut node in nodes.into_iter().flatten() {
            if let (Op::Matmul(_) | Op::ExpertMatmul(_), None) = (&node.op, &node.norm) {
                let (x, dtype) = (node.inputs[0], operand(&node.op));
                let known = converted.iter().find(|(y, t, _)| (*y, *t) == (x, dtype));
                node.inputs[0] = match known {
                    _ if self.tensors[x.id].dtype == dtype => x,
                    Some((.., result)) => *result,
                    None => {
                        let id = self.tensors.len();
                        self.tensors.push(TensorInfo { rows: x.rows, cols: x.cols, dtype });
                        let result = Tensor { id, first_col: 0, ..x };
                        converted.push((x, dtype, result));
                        let (op, inputs) = (Op::Convert(dtype), vec![x]);
                        self.nodes.push(Some(Node::new(op, inputs, vec![id])));
                        result
                    }
                };
            }
            self.nodes.push(Some(node));
        }
    }

    fn gated_products(&mut self, accepts: impl Fn(&Op) -> bool) {
        for gated in 0..self.nodes.len() {
            let Some((last, parts, product)) = self.gated_product(gated) else { continue };
            if accepts(&product.op) {
                parts.into_iter().for_each(|index| self.nodes[index] = None);
                self.nodes[last] = Some(product);
            }
        }
    }

    /// Gated product around the op at `gated`: index of its last part, indexes of all parts, the fused op.
    fn gated_product(&self, gated: usize) -> Option<(usize, [usize; 3], Node)> {
        let node = self.nodes[gated].as_ref()?;
        let Op::Gated(activation) = node.op else { return None };
        let &[gate_out, up_out] = &node.inputs[..] else { return None };
        let (gate, up) = (self.sole_producer(gate_out)?, self.sole_producer(up_out)?);
        let (gate_args, gate_node) = self.plain_matmul(gate)?;
        let (up_args, up_node) = self.plain_matmul(up)?;
        if gate_node.inputs != up_node.inputs {
            return None;
        }
        let hidden = node.outputs[0];
        let reader = self.sole_reader(hidden);
        let convert = reader.and_then(|reader| match &self.nodes[reader] {
            Some(Node { op: Op::Convert(dtype), outputs, .. }) => Some((reader, *dtype, outputs)),
            _ => None,
        });
        let (last, dtype, outputs) = match convert {
            Some((convert, dtype, outputs)) => (convert, dtype, outputs.clone()),
            None => (gated, TensorType::F32, vec![hidden]),
        };
        let (gate_args, up_args) = (gate_args.clone(), up_args.clone());
        let args = GatedProductArgs { gate: gate_args, up: up_args, activation, dtype };
        let node = Node::new(Op::GatedProduct(args), gate_node.inputs.clone(), outputs);
        Some((last, [gate, up, gated], node))
    }

    fn rotations(&mut self, accepts: impl Fn(&Op) -> bool) {
        for write in 0..self.nodes.len() {
            let Some((ropes, node)) = self.rotation(write) else { continue };
            if accepts(&node.op) {
                ropes.into_iter().for_each(|index| self.nodes[index] = None);
                self.nodes[write] = Some(node);
            }
        }
    }

    /// Rotary embeddings around the KV write at `index`, which one attention reads: their indexes, the fused op.
    fn rotation(&self, index: usize) -> Option<([usize; 2], Node)> {
        let node = self.nodes[index].as_ref()?;
        let Op::KvWrite(write) = node.op else { return None };
        let &[k_out, v] = &node.inputs[..] else { return None };
        let mut accesses = self.later_accesses(index, (write.pool, write.layer));
        let (_, attention) = accesses.next().filter(is_attention)?;
        if accesses.next().as_ref().is_some_and(is_attention) {
            return None;
        }
        let q_out = attention.inputs[0];
        let ropes = [self.sole_producer(q_out)?, self.sole_producer(k_out)?];
        let [Some(q), Some(k)] = ropes.map(|index| self.nodes[index].as_ref()) else { return None };
        let (Op::Rope(q_args), Op::Rope(k_args)) = (&q.op, &k.op) else { return None };
        let is_apart = v.id != q.inputs[0].id && v.id != k.inputs[0].id;
        if !is_apart || !q_args.rotates_like(k_args) {
            return None;
        }
        let args = RopeKvArgs { q: q_args.clone(), k: k_args.clone(), write };
        let inputs = vec![q.inputs[0], k.inputs[0], v];
        let outputs = vec![q_out.id, k_out.id];
        Some((ropes, Node::new(Op::RopeKv(args), inputs, outputs)))
    }

    /// Ops that read or write a layer of a pool, of those that follow the one at `index`.
    fn later_accesses(
        &self,
        index: usize,
        layer: (PoolId, usize),
    ) -> impl Iterator<Item = (usize, &Node)> {
        let later = self.nodes.iter().enumerate().skip(index + 1);
        let nodes = later.filter_map(|(i, node)| Some((i, node.as_ref()?)));
        nodes.filter(move |(_, node)| {
            node.op.kv_access().is_some_and(|(pool, of_pool, _)| (pool, of_pool) == layer)
        })
    }

    fn rotated_attention(&mut self, accepts: impl Fn(&Op) -> bool) {
        for rope in 0..self.nodes.len() {
            let Some((attention, node)) = self.attention_of(rope) else { continue };
            if accepts(&node.op) {
                self.nodes[rope] = None;
                self.nodes[attention] = Some(node);
            }
        }
    }

    /// Attention of the queries that the op at `rope` rotates, if nothing else reads its results: its index, the fused op.
    fn attention_of(&self, rope: usize) -> Option<(usize, Node)> {
        let node = self.nodes[rope].as_ref()?;
        let Op::RopeKv(args) = &node.op else { return None };
        let &[q, k] = &node.outputs[..] else { return None };
        let layer = (args.write.pool, args.write.layer);
        let (index, attention) = self.later_accesses(rope, layer).next()?;
        let Op::Attention(attention_args) = &attention.op else { return None };
        let is_unread = self.readers(k).next().is_none() && !self.is_pinned(k);
        if attention.inputs[0].id != q || self.sole_reader(q) != Some(index) || !is_unread {
            return None;
        }
        let op = Op::RopeAttention(RopeAttentionArgs {
            rope: args.clone(),
            attention: attention_args.clone(),
            kv: self.pools[layer.0.0].dtype,
        });
        Some((index, Node { op, inputs: node.inputs.clone(), ..attention.clone() }))
    }

    /// A product that reads a norm, or an operand converted from it, applies it, and writes the norm for other readers.
    fn norms(&mut self, fuses_norm: impl Fn(&Op) -> bool) {
        for norm in 0..self.nodes.len() {
            let Some(node) = &self.nodes[norm] else { continue };
            let (Op::RmsNorm(args), None) = (&node.op, &node.residual) else { continue };
            let (args, x, h) = (args.clone(), node.inputs[0], node.outputs[0]);
            let converted =
                self.readers(h).filter_map(|reader| match self.nodes[reader].as_ref()? {
                    Node { op: Op::Convert(_), inputs, outputs, .. }
                        if self.is_whole(inputs[0]) =>
                    {
                        Some((Some(reader), outputs[0]))
                    }
                    _ => None,
                });
            let operands: Vec<(Option<usize>, usize)> =
                [(None, h)].into_iter().chain(converted).collect();
            let reader = operands.into_iter().find_map(|(convert, operand)| {
                let reader = self.norm_reader((x, h), (convert, operand), &fuses_norm)?;
                Some((convert.filter(|_| self.sole_reader(operand).is_some()), reader))
            });
            let Some((convert, reader)) = reader else { continue };
            let Some(product) = &mut self.nodes[reader] else { continue };
            product.norm = Some(args);
            product.inputs[0] = x;
            product.outputs.push(h);
            self.nodes[norm] = None;
            convert.into_iter().for_each(|convert| self.nodes[convert] = None);
        }
    }

    /// Product that can apply the norm `h` of `x`, of the readers of `operand`, which `convert` makes of the norm: all other
    /// readers can follow it.
    fn norm_reader(
        &self,
        (x, h): (Tensor, usize),
        (convert, operand): (Option<usize>, usize),
        fuses_norm: impl Fn(&Op) -> bool,
    ) -> Option<usize> {
        let alive: Vec<usize> =
            (0..self.nodes.len()).filter(|&i| self.nodes[i].is_some()).collect();
        let nodes: Vec<&Node> = self.nodes.iter().flatten().collect();
        let readers: Vec<usize> =
            self.readers(h).chain(self.readers(operand)).filter(|&i| Some(i) != convert).collect();
        let is_product = |node: &Node| {
            let overwrites = node.overwrites().any(|(y, _)| y.id == x.id || y.id == h);
            let reads_all =
                node.inputs.first().is_some_and(|y| y.id == operand && self.is_whole(*y));
            reads_all && !overwrites && node.norm.is_none() && fuses_norm(&node.op)
        };
        let mut products =
            readers.iter().filter(|&&i| self.nodes[i].as_ref().is_some_and(is_product)).peekable();
        products.peek()?;
        let graph = Graph::of_data_flow(&nodes);
        let position = |index: usize| alive.partition_point(|&i| i < index);
        let is_after = |first: usize, second| {
            first != second && graph.is_before(position(first), position(second))
        };
        // The choice does not depend on the order of the list.
        let first = |&product: &usize| self.nodes[product].as_ref().map(|node| node.outputs[0]);
        let can_be_first = |product: usize| !readers.iter().any(|&other| is_after(other, product));
        products.copied().filter(|&product| can_be_first(product)).min_by_key(first)
    }

    /// Ops write their result in the type to which it is converted.
    fn results(&mut self, writes: impl Fn(&Op, TensorType, usize) -> bool) {
        for convert in 0..self.nodes.len() {
            let Some(Node { op: Op::Convert(dtype), inputs, outputs, .. }) = &self.nodes[convert]
            else {
                continue;
            };
            let (dtype, x, y) = (*dtype, inputs[0], outputs[0]);
            let is_sole = self.sole_reader(x.id).is_some();
            let is_producer = |node: &&mut Node| node.outputs.first() == Some(&x.id);
            if !self.is_whole(x) {
                continue;
            }
            let Some(node) = self.nodes.iter_mut().flatten().find(is_producer) else { continue };
            let is_norm = matches!(node.op, Op::LayerNorm(_) | Op::RmsNorm(_));
            let is_plain =
                node.residual.is_none() && node.norm.is_none() && node.outputs.len() == 1;
            if !is_plain || !writes(&node.op, dtype, x.cols) {
                continue;
            }
            if is_sole {
                node.outputs[0] = y;
            } else if is_norm {
                node.outputs.push(y);
            } else {
                continue;
            }
            self.nodes[convert] = None;
        }
    }

    /// Sums over ranks apply the norm that reads them. Other rows than the own ones of the sum are undefined then.
    fn reduced_norms(&mut self, accepts: impl Fn(&Op) -> bool) {
        for norm in 0..self.nodes.len() {
            let Some(Node { op: Op::RmsNorm(args), inputs, outputs, residual: None, .. }) =
                &self.nodes[norm]
            else {
                continue;
            };
            let (op, x) = (Op::AllReduceNorm(args.clone()), inputs[0]);
            let &[operand] = &outputs[..] else { continue };
            let is_operand = self.tensors[operand].dtype == TensorType::F16;
            if !is_operand || !self.is_whole(x) || self.is_pinned(x.id) || !accepts(&op) {
                continue;
            }
            let reads_own_rows = |reader: usize| {
                reader == norm
                    || self.nodes[reader].as_ref().is_some_and(|node| {
                        matches!(node.op, Op::AllReduce | Op::AllReduceNorm(_))
                            && node.residual.is_some_and(|y| y.id == x.id)
                    })
            };
            let is_sum =
                |node: &&mut Node| matches!(node.op, Op::AllReduce) && node.outputs == [x.id];
            if !self.readers(x.id).all(reads_own_rows) {
                continue;
            }
            let Some(sum) = self.nodes.iter_mut().flatten().find(is_sum) else { continue };
            sum.op = op;
            sum.outputs.push(operand);
            self.nodes[norm] = None;
        }
    }

    fn residuals(&mut self) {
        for add in 0..self.nodes.len() {
            let Some(Node { op: Op::Add, inputs, outputs, .. }) = &self.nodes[add] else {
                continue;
            };
            let &[x, y] = &inputs[..] else { continue };
            let outputs = outputs.clone();
            for (residual, term) in [(x, y), (y, x)] {
                let Some(producer) = self.sole_producer(term) else { continue };
                let takes_residual = self.nodes[producer].as_ref().is_some_and(|node| {
                    // A norm in two types has one value.
                    let is_one = node.norm.is_some() || node.outputs.len() == 1;
                    is_one && node.op.takes_residual() && node.residual.is_none()
                });
                if takes_residual && self.is_whole(residual) {
                    let mut node = self.nodes[producer].take().expect("checked above");
                    node.residual = Some(residual);
                    node.outputs.splice(..1, outputs);
                    self.nodes[add] = Some(node);
                    break;
                }
            }
        }
    }

    /// Groups take the place of their first matmul.
    fn groups(&mut self, accepts: impl Fn(&Op) -> bool) {
        for first in 0..self.nodes.len() {
            let Some((_, node)) = self.plain_matmul(first) else { continue };
            let inputs = node.inputs.clone();
            let (mut group, mut all, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
            for index in first..self.nodes.len() {
                let Some((args, node)) = self.plain_matmul(index) else { continue };
                if node.inputs != inputs {
                    continue;
                }
                all.push(args.clone());
                if all.len() > 1 && !accepts(&Op::MatmulGroup(all.clone())) {
                    all.pop();
                    continue;
                }
                group.push(index);
                outputs.extend(&node.outputs);
            }
            if group.len() > 1 {
                group.into_iter().for_each(|index| self.nodes[index] = None);
                self.nodes[first] = Some(Node::new(Op::MatmulGroup(all), inputs, outputs));
            }
        }
    }
}

fn is_attention((_, node): &(usize, &Node)) -> bool {
    matches!(node.op, Op::Attention(_))
}

/// Sorts ops: those that others follow come first, then readers of a value before the op that may overwrite it, then the
/// given order.
fn ordered(nodes: Vec<Node>) -> Vec<Node> {
    let refs: Vec<&Node> = nodes.iter().collect();
    let mut graph = Graph::of_data_flow(&refs);
    graph.put_readers_first(&nodes);
    let mut n_left: Vec<usize> = graph.before.iter().map(Vec::len).collect();
    let ready = (0..nodes.len()).filter(|&i| n_left[i] == 0).map(Reverse);
    let mut ready: BinaryHeap<Reverse<usize>> = ready.collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(Reverse(next)) = ready.pop() {
        order.push(next);
        for &after in &graph.after[next] {
            n_left[after] -= 1;
            if n_left[after] == 0 {
                ready.push(Reverse(after));
            }
        }
    }
    assert_eq!(order.len(), nodes.len(), "data flow has no circle");
    let mut nodes: Vec<Option<Node>> = nodes.into_iter().map(Some).collect();
    order.into_iter().filter_map(|index| nodes[index].take()).collect()
}

/// Order between the ops of a segment.
struct Graph {
    /// Ops that come before each op.
    before: Vec<Vec<usize>>,
    /// Ops that come after each op.
    after: Vec<Vec<usize>>,
}

impl Graph {
    /// Edges by values, by layers of KV pools and between collective ops.
    fn of_data_flow(nodes: &[&Node]) -> Self {
        let empty = || vec![Vec::new(); nodes.len()];
        let mut graph = Self { before: empty(), after: empty() };
        let outputs = |(i, node): (usize, &&Node)| {
            node.outputs.iter().map(move |&id| (id, i)).collect::<Vec<_>>()
        };
        let producers: BTreeMap<usize, usize> =
            nodes.iter().enumerate().flat_map(outputs).collect();
        // Last write of each layer of a pool, and the reads since.
        let mut layers: BTreeMap<(usize, usize), (Option<usize>, Vec<usize>)> = BTreeMap::new();
        let mut last_collective = None;
        for (i, node) in nodes.iter().enumerate() {
            if node.op.is_collective() {
                // Collective ops keep their order, since all ranks must run them in the same one.
                last_collective.replace(i).into_iter().for_each(|last| graph.add(last, i));
            }
            node.reads().filter_map(|x| producers.get(&x.id)).for_each(|&p| graph.add(p, i));
            let Some((pool, layer, writes)) = node.op.kv_access() else { continue };
            let (last_write, reads) = layers.entry((pool.0, layer)).or_default();
            last_write.iter().for_each(|&write| graph.add(write, i));
            if writes {
                reads.drain(..).for_each(|read| graph.add(read, i));
                *last_write = Some(i);
            } else {
                reads.push(i);
            }
        }
        graph
    }

    fn add(&mut self, first: usize, second: usize) {
        if first != second && !self.before[second].contains(&first) {
            self.before[second].push(first);
            self.after[first].push(second);
        }
    }

    /// Puts readers of a value before an op that may write its result in the value's memory, unless they follow it. Where two
    /// such orders contradict each other, the given one decides, so that sorting a sorted list changes nothing.
    fn put_readers_first(&mut self, nodes: &[Node]) {
        for is_before in [true, false] {
            for (i, node) in nodes.iter().enumerate() {
                let readers = if is_before { 0..i } else { i + 1..nodes.len() };
                for (overwritten, _) in node.overwrites() {
                    for reader in readers.clone() {
                        let reads = nodes[reader].reads().any(|x| x.id == overwritten.id);
                        if reads && !self.is_before(i, reader) {
                            self.add(reader, i);
                        }
                    }
                }
            }
        }
    }

    /// Whether `second` follows `first`, directly or not.
    fn is_before(&self, first: usize, second: usize) -> bool {
        let mut is_seen = vec![false; self.after.len()];
        let mut open = vec![first];
        while let Some(next) = open.pop() {
            if next == second {
                return true;
            }
            if !std::mem::replace(&mut is_seen[next], true) {
                open.extend(&self.after[next]);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
