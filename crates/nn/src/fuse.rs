//! Fusion: a pure function from a recorded program to a program of the ops that a device has kernels for.
//!
//! Every recorded segment becomes one variant for each class of rows of the device.
//!
//! | rule | pattern | result |
//! |---|---|---|
//! | operand | a matmul that reads another type than f32 | [`Op::Convert`], one for equal operands |
//! | gated product | `Gated` of two matmuls of one operand, read by a conversion | [`Op::GatedProduct`] |
//! | gated MLP | `Gated` of two matmuls of one operand, read by a matmul | [`Op::GatedMlp`] |
//! | residual | `Add` of a value and the result of an op that takes a residual | the residual on that op |
//! | group | matmuls of one operand, without activation and residual | [`Op::MatmulGroup`] |
//! | dead value | an op without effect whose results nobody reads | removed |
//!
//! Rules match data flow (producer, sole reader), never neighbors in the list. The order of the result is topological with
//! the recorded order as tie-break; readers of a value come before the op that may overwrite it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use stonechat_compute::op::{
    GatedMlpArgs, GatedProductArgs, MatmulArgs, Op, Tensor, TensorInfo, TensorType, WeightInfo,
};

use crate::Activation;
use crate::program::{Node, Program, RowClass, Segment};

/// Kernels of a device that fusion depends on.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities {
    /// Classes of rows, ascending, without gaps from 1 on.
    pub row_classes: &'static [RowClass],
    /// Most matmuls of a [`Op::MatmulGroup`]; 1 without that op.
    pub max_group: usize,
    /// Type in which matmuls with such weights read their operand.
    pub operand: fn(&WeightInfo, RowClass) -> TensorType,
    /// Whether there is a kernel for a [`Op::GatedProduct`] or [`Op::GatedMlp`].
    pub accepts: fn(&Op, RowClass) -> bool,
}

/// Fuses the ops of a program.
#[must_use]
pub fn fuse(program: &Program, capabilities: &Capabilities) -> Program {
    let mut fused = Program { segments: Vec::new(), ..program.clone() };
    let is_pinned = program.pinned();
    for segment in &program.segments {
        let mut is_first = true;
        for &class in capabilities.row_classes {
            if class.max < segment.rows.each {
                continue;
            }
            let mut nodes = segment.nodes.clone();
            if !std::mem::take(&mut is_first) {
                rename_values(&mut nodes, &mut fused.tensors, &is_pinned);
            }
            let mut rules =
                Rules { tensors: &mut fused.tensors, is_pinned: &is_pinned, nodes: Vec::new() };
            rules.nodes = nodes.into_iter().map(Some).collect();
            rules.operands(|weight| (capabilities.operand)(weight, class));
            let accepts = |op: &Op| (capabilities.accepts)(op, class);
            rules.gated_products(accepts);
            rules.gated_mlps(accepts);
            rules.residuals();
            rules.groups(capabilities.max_group);
            let nodes = ordered(rules.alive());
            fused.segments.push(Segment { class, nodes, ..*segment });
        }
    }
    fused
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
    /// Whether each recorded value is read or written outside of its segment.
    is_pinned: &'a [bool],
    nodes: Vec<Option<Node>>,
}

impl Rules<'_> {
    fn is_pinned(&self, id: usize) -> bool {
        self.is_pinned.get(id).is_some_and(|&is_pinned| is_pinned)
    }

    fn is_whole(&self, x: Tensor) -> bool {
        let TensorInfo { rows, cols, .. } = self.tensors[x.id];
        (x.first_col, x.cols, x.rows) == (0, cols, rows)
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

    /// The matmul at `index`, if it has neither activation nor residual.
    fn plain_matmul(&self, index: usize) -> Option<(&MatmulArgs, &Node)> {
        match &self.nodes[index] {
            Some(node @ Node { op: Op::Matmul(args), residual: None, .. })
                if args.activation == Activation::None =>
            {
                Some((args, node))
            }
            _ => None,
        }
    }

    /// Converts operands of matmuls, right before the first matmul that reads them.
    fn operands(&mut self, operand: impl Fn(&WeightInfo) -> TensorType) {
        let mut converted: Vec<(Tensor, TensorType, Tensor)> = Vec::new();
        let nodes = std::mem::take(&mut self.nodes);
        for mut node in nodes.into_iter().flatten() {
            if let Op::Matmul(args) = &node.op {
                let (x, dtype) = (node.inputs[0], operand(&args.weight.info()));
                let known = converted.iter().find(|(y, t, _)| (*y, *t) == (x, dtype));
                node.inputs[0] = match known {
                    _ if dtype == TensorType::F32 => x,
                    Some((.., result)) => *result,
                    None => {
                        let id = self.tensors.len();
                        self.tensors.push(TensorInfo { rows: x.rows, cols: x.cols, dtype });
                        let result = Tensor { id, first_col: 0, ..x };
                        converted.push((x, dtype, result));
                        let (op, inputs) = (Op::Convert(dtype), vec![x]);
                        self.nodes.push(Some(Node {
                            op,
                            inputs,
                            residual: None,
                            outputs: vec![id],
                        }));
                        result
                    }
                };
            }
            self.nodes.push(Some(node));
        }
    }

    fn gated_products(&mut self, accepts: impl Fn(&Op) -> bool) {
        for gated in 0..self.nodes.len() {
            if let Some((convert, [gate, up], product)) = self.gated_product(gated)
                && accepts(&product.op)
            {
                self.nodes[convert] = Some(product);
                [gated, gate, up].into_iter().for_each(|index| self.nodes[index] = None);
            }
        }
    }

    /// The gated activation at `gated`, of two plain matmuls of one operand: its activation, their indexes and arguments.
    fn gated_matmuls(&self, gated: usize) -> Option<GatedMatmuls> {
        let node = self.nodes[gated].as_ref()?;
        let Op::Gated(activation) = node.op else { return None };
        let &[gate, up] = &node.inputs[..] else { return None };
        let indexes = [self.sole_producer(gate)?, self.sole_producer(up)?];
        let (gate, gate_node) = self.plain_matmul(indexes[0])?;
        let (up, up_node) = self.plain_matmul(indexes[1])?;
        let args = GatedProductArgs { gate: gate.clone(), up: up.clone(), activation };
        let outputs = [gate_node.outputs[0], up_node.outputs[0], node.outputs[0]];
        let x = gate_node.inputs[0];
        (up_node.inputs[0] == x).then_some(GatedMatmuls { args, indexes, x, outputs })
    }

    /// Gated product around the op at `gated`: index of the conversion, indexes of the matmuls, the fused op.
    fn gated_product(&self, gated: usize) -> Option<(usize, [usize; 2], Node)> {
        let GatedMatmuls { args, indexes, x, outputs: [.., hidden] } = self.gated_matmuls(gated)?;
        let convert = self.sole_reader(hidden)?;
        let Some(Node { op: Op::Convert(_), outputs, .. }) = &self.nodes[convert] else {
            return None;
        };
        let (op, outputs) = (Op::GatedProduct(args), outputs.clone());
        Some((convert, indexes, Node { op, inputs: vec![x], residual: None, outputs }))
    }

    fn gated_mlps(&mut self, accepts: impl Fn(&Op) -> bool) {
        for gated in 0..self.nodes.len() {
            if let Some((down, [gate, up], mlp)) = self.gated_mlp(gated)
                && accepts(&mlp.op)
            {
                self.nodes[down] = Some(mlp);
                [gated, gate, up].into_iter().for_each(|index| self.nodes[index] = None);
            }
        }
    }

    /// Gated MLP around the op at `gated`: index of its last matmul, indexes of its first ones, the fused op.
    fn gated_mlp(&self, gated: usize) -> Option<(usize, [usize; 2], Node)> {
        let GatedMatmuls { args, indexes, x, outputs: [gate, up, hidden] } =
            self.gated_matmuls(gated)?;
        let down = self.sole_reader(hidden)?;
        let (down_args, down_node) = self.plain_matmul(down)?;
        let GatedProductArgs { gate: gate_args, up: up_args, activation } = args;
        let args =
            GatedMlpArgs { gate: gate_args, up: up_args, down: down_args.clone(), activation };
        let outputs = vec![down_node.outputs[0], gate, up, hidden];
        let node = Node { op: Op::GatedMlp(args), inputs: vec![x], residual: None, outputs };
        Some((down, indexes, node))
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
                let takes_residual = self.nodes[producer]
                    .as_ref()
                    .is_some_and(|node| node.op.takes_residual() && node.residual.is_none());
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
    fn groups(&mut self, max_group: usize) {
        for first in 0..self.nodes.len() {
            let Some((_, node)) = self.plain_matmul(first) else { continue };
            let inputs = node.inputs.clone();
            let others = first..self.nodes.len();
            let same_operand =
                |&index: &usize| self.plain_matmul(index).is_some_and(|(_, n)| n.inputs == inputs);
            let group: Vec<usize> = others.filter(same_operand).take(max_group).collect();
            if group.len() < 2 {
                continue;
            }
            let (mut all, mut outputs) = (Vec::new(), Vec::new());
            for index in group {
                if let Some(Node { op: Op::Matmul(args), outputs: own, .. }) =
                    self.nodes[index].take()
                {
                    all.push(args);
                    outputs.extend(own);
                }
            }
            let op = Op::MatmulGroup(all);
            self.nodes[first] = Some(Node { op, inputs, residual: None, outputs });
        }
    }

    /// The ops, without those that have no effect and whose results nobody reads.
    fn alive(self) -> Vec<Node> {
        let mut is_read = vec![false; self.tensors.len()];
        let mut alive = Vec::with_capacity(self.nodes.len());
        for node in self.nodes.iter().flatten().rev() {
            let is_used = |&id: &usize| is_read[id] || self.is_pinned(id);
            if node.has_effect() || node.outputs.iter().any(is_used) {
                node.reads().for_each(|x| is_read[x.id] = true);
                alive.push(node.clone());
            }
        }
        alive.reverse();
        alive
    }
}

/// Two matmuls of one operand and the gated activation of their results.
struct GatedMatmuls {
    args: GatedProductArgs,
    /// Indexes of gate and up.
    indexes: [usize; 2],
    /// Their operand.
    x: Tensor,
    /// Results of gate, up, and the activation.
    outputs: [usize; 3],
}

/// Sorts ops: those that others follow come first, then readers of a value before the op that may overwrite it, then the
/// given order.
fn ordered(nodes: Vec<Node>) -> Vec<Node> {
    let mut graph = Graph::of_data_flow(&nodes);
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
    /// Edges by values and by layers of KV pools.
    fn of_data_flow(nodes: &[Node]) -> Self {
        let empty = || vec![Vec::new(); nodes.len()];
        let mut graph = Self { before: empty(), after: empty() };
        let outputs = |(i, node): (usize, &Node)| {
            node.outputs.iter().map(move |&id| (id, i)).collect::<Vec<_>>()
        };
        let producers: BTreeMap<usize, usize> =
            nodes.iter().enumerate().flat_map(outputs).collect();
        // By layer: last write, and reads since.
        let mut layers: BTreeMap<(usize, usize), (Option<usize>, Vec<usize>)> = BTreeMap::new();
        for (i, node) in nodes.iter().enumerate() {
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

    /// Puts readers of a value before an op that may write its result in the value's memory, unless they follow it.
    fn put_readers_first(&mut self, nodes: &[Node]) {
        for (i, node) in nodes.iter().enumerate() {
            let Some(overwritten) = node.overwrites() else { continue };
            for (reader, other) in nodes.iter().enumerate() {
                let reads = reader != i && other.reads().any(|x| x.id == overwritten.id);
                if reads && !self.is_before(i, reader) {
                    self.add(reader, i);
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
