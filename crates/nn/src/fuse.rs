//! Fusion: a pure function from a recorded program to a program of the ops that a device has kernels for.
//!
//! | rule | pattern | result |
//! |---|---|---|
//! | gated MLP | `Gated` of two matmuls of one operand, read by a matmul | [`Op::GatedMlp`] |
//! | residual | `Add` of a value and the result of an op that takes a residual | the residual on that op |
//! | group | matmuls of one operand, without activation and residual | [`Op::MatmulGroup`] |
//! | dead value | an op without effect whose results nobody reads | removed |
//!
//! Rules match data flow (producer, sole reader), never neighbors in the list. The order of the result is topological with
//! the recorded order as tie-break; readers of a value come before the op that may overwrite it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use stonechat_compute::op::{GatedMlpArgs, MatmulArgs, Op, Tensor};

use crate::Activation;
use crate::program::{Node, Program, Segment};

/// Kernels of a device that fusion depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Most matmuls of a [`Op::MatmulGroup`]; 1 without that op.
    pub max_group: usize,
    /// Whether there is [`Op::GatedMlp`].
    pub has_gated_mlp: bool,
}

/// Fuses the ops of a program.
#[must_use]
pub fn fuse(program: &Program, capabilities: &Capabilities) -> Program {
    let mut fused = program.clone();
    let n_reads = program.n_reads();
    for segment in &mut fused.segments {
        let nodes = std::mem::take(&mut segment.nodes).into_iter().map(Some).collect();
        let mut rules = Rules { program, n_reads: &n_reads, nodes };
        if capabilities.has_gated_mlp {
            rules.gated_mlps();
        }
        rules.residuals();
        rules.groups(capabilities.max_group);
        segment.nodes = rules.nodes.into_iter().flatten().collect();
    }
    remove_dead(&mut fused);
    for Segment { nodes, .. } in &mut fused.segments {
        *nodes = ordered(std::mem::take(nodes));
    }
    fused
}

/// Rules on the ops of one segment. A fused op takes the place of the last of its parts, if not said otherwise.
struct Rules<'a> {
    program: &'a Program,
    n_reads: &'a [usize],
    nodes: Vec<Option<Node>>,
}

impl Rules<'_> {
    /// Index of the op in this segment that produces `x`, if `x` is all of its value and read once.
    fn sole_producer(&self, x: Tensor) -> Option<usize> {
        if self.n_reads[x.id] != 1 || !self.program.is_whole(x) {
            return None;
        }
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

    fn gated_mlps(&mut self) {
        for gated in 0..self.nodes.len() {
            if let Some((down, [gate, up], mlp)) = self.gated_mlp(gated) {
                self.nodes[down] = Some(mlp);
                [gated, gate, up].into_iter().for_each(|index| self.nodes[index] = None);
            }
        }
    }

    /// Gated MLP around the op at `gated`: index of its last matmul, indexes of its first ones, the fused op.
    fn gated_mlp(&self, gated: usize) -> Option<(usize, [usize; 2], Node)> {
        let node = self.nodes[gated].as_ref()?;
        let Op::Gated(activation) = node.op else { return None };
        let &[gate, up] = &node.inputs[..] else { return None };
        let (gate, up) = (self.sole_producer(gate)?, self.sole_producer(up)?);
        let (gate_args, gate_node) = self.plain_matmul(gate)?;
        let (up_args, up_node) = self.plain_matmul(up)?;
        let hidden = *node.outputs.first()?;
        let reads_hidden = |node: &Option<Node>| {
            node.as_ref().is_some_and(|n| n.inputs.iter().any(|x| x.id == hidden))
        };
        let down = self.nodes.iter().position(reads_hidden)?;
        let (down_args, down_node) = self.plain_matmul(down)?;
        let is_mlp = gate_node.inputs == up_node.inputs
            && self.sole_producer(down_node.inputs[0]) == Some(gated);
        is_mlp.then(|| {
            let args = GatedMlpArgs {
                gate: gate_args.clone(),
                up: up_args.clone(),
                down: down_args.clone(),
                activation,
            };
            let outputs =
                [&down_node.outputs[..], &gate_node.outputs, &up_node.outputs, &[hidden]].concat();
            let inputs = gate_node.inputs.clone();
            (down, [gate, up], Node { op: Op::GatedMlp(args), inputs, residual: None, outputs })
        })
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
                if takes_residual && self.program.is_whole(residual) {
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
}

/// Removes ops without effect whose results nobody reads.
fn remove_dead(program: &mut Program) {
    let mut n_reads = program.n_reads();
    for segment in program.segments.iter_mut().rev() {
        let mut kept = Vec::with_capacity(segment.nodes.len());
        for node in std::mem::take(&mut segment.nodes).into_iter().rev() {
            if node.has_effect() || node.outputs.iter().any(|&id| n_reads[id] > 0) {
                kept.push(node);
            } else {
                node.reads().for_each(|x| n_reads[x.id] -= 1);
            }
        }
        kept.reverse();
        segment.nodes = kept;
    }
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
