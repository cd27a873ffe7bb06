//! Split of every op and value of a program among the ranks of a group.

use std::ops::Range;

use stonechat_compute::op::{KvShape, MatmulArgs, Op, Tensor};

use crate::Activation;
use crate::program::{Node, Program, SegmentName};

/// Columns in a group of a GEMM operand, a multiple of the rows in a panel of a matrix.
const COLUMN_GROUP: usize = 64;

/// Split of an op. Operands and results may be split by columns in any of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Split {
    /// All of the weights, on every rank.
    Whole,
    /// Rows of the weights.
    Columns(Ranges),
    /// As [`Columns`](Self::Columns), then the columns of all ranks side by side.
    Gather(Ranges),
    /// Columns of the weights, then the sum over ranks. Of experts, hidden columns of each.
    Sum(Ranges),
    /// Attention on an equal number of heads.
    Heads,
}

/// Range of each rank.
pub(super) type Ranges = Vec<Range<usize>>;

/// Index of a segment and of an op in it.
type Place = (usize, usize);

/// Splits of a program.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) n_ranks: usize,
    /// Split of each op, by segment.
    splits: Vec<Vec<Split>>,
    /// Columns of each value on each rank, if they are split.
    columns: Vec<Option<Ranges>>,
    /// Number of different parts of each pool.
    pub(super) pool_parts: Vec<usize>,
    /// Parts that are not split, with the reason.
    pub(super) replicated: Vec<String>,
}

impl Plan {
    pub(super) fn new(program: &Program, n_ranks: usize) -> Self {
        let whole = |segment: &crate::program::Segment| vec![Split::Whole; segment.nodes.len()];
        let plan = Self {
            n_ranks,
            splits: program.segments.iter().map(whole).collect(),
            columns: vec![None; program.tensors.len()],
            pool_parts: vec![1; program.pools.len()],
            replicated: Vec::new(),
        };
        if n_ranks == 1 {
            return plan;
        }
        let mut planner = Planner::new(program, plan);
        planner.split_pools();
        planner.split_hidden();
        planner.split_logits();
        planner.plan
    }

    pub(super) fn split(&self, segment: usize, node: usize) -> &Split {
        &self.splits[segment][node]
    }

    /// Columns of each rank of a value, if it is split.
    pub(super) fn columns(&self, id: usize) -> Option<&[Range<usize>]> {
        self.columns[id].as_deref()
    }
}

/// Splits that hold together.
#[derive(Debug, Default)]
struct Changes {
    splits: Vec<(Place, Split)>,
    columns: Vec<(usize, Ranges)>,
}

struct Planner<'a> {
    program: &'a Program,
    /// Op that writes each value.
    producers: Vec<Option<Place>>,
    /// Ops that read each value, with their operand.
    readers: Vec<Vec<(Place, Tensor)>>,
    /// Whether the host reads each value.
    is_output: Vec<bool>,
    plan: Plan,
}

impl<'a> Planner<'a> {
    fn new(program: &'a Program, plan: Plan) -> Self {
        let n = program.tensors.len();
        let (mut producers, mut readers) = (vec![None; n], vec![Vec::new(); n]);
        for (place, node) in places(program) {
            node.outputs.iter().for_each(|&id| producers[id] = Some(place));
            node.reads().for_each(|x| readers[x.id].push((place, x)));
        }
        let mut is_output = vec![false; n];
        program.outputs.iter().for_each(|(_, x)| is_output[x.id] = true);
        Self { program, producers, readers, is_output, plan }
    }

    fn node(&self, (segment, node): Place) -> &'a Node {
        &self.program.segments[segment].nodes[node]
    }

    fn is_whole(&self, (segment, node): Place) -> bool {
        self.plan.splits[segment][node] == Split::Whole
    }

    fn apply(&mut self, Changes { splits, columns }: Changes) {
        splits.into_iter().for_each(|((segment, node), split)| {
            self.plan.splits[segment][node] = split;
        });
        columns.into_iter().for_each(|(id, ranges)| self.plan.columns[id] = Some(ranges));
    }

    fn note(&mut self, text: String) {
        if !self.plan.replicated.contains(&text) {
            self.plan.replicated.push(text);
        }
    }

    /// The only op that reads a value, if it reads all of it.
    fn sole_reader(&self, id: usize) -> Option<Place> {
        match self.readers[id][..] {
            [(place, x)] if self.program.is_whole(x) && !self.is_output[id] => Some(place),
            _ => None,
        }
    }

    /// The op that produces `x`, if nothing else reads it.
    fn sole_producer(&self, x: Tensor) -> Option<Place> {
        self.sole_reader(x.id)?;
        self.producers[x.id]
    }

    /// The product whose result is `x`, which nothing else reads, if neither is split yet.
    fn product_of(&self, x: Tensor) -> Option<Place> {
        let place = self.sole_producer(x)?;
        let node = self.node(place);
        let is_whole = self.is_whole(place) && self.plan.columns[node.inputs.first()?.id].is_none();
        (matches!(node.op, Op::Matmul(_)) && is_whole).then_some(place)
    }

    /// Products whose terms ranks can sum, with their operand: no activation follows.
    fn summable(&self, place: Place) -> Option<(&'a MatmulArgs, Tensor)> {
        let node = self.node(place);
        match &node.op {
            Op::Matmul(args) if args.activation == Activation::None && self.is_whole(place) => {
                Some((args, node.inputs[0]))
            }
            _ => None,
        }
    }

    // Attention

    /// Splits attention by KV heads. More ranks than KV heads share them: each has one, and a part of its query heads.
    fn split_pools(&mut self) {
        let n_ranks = self.plan.n_ranks;
        for (index, &KvShape { n_kv_heads, .. }) in self.program.pools.iter().enumerate() {
            if self.accesses(index).next().is_none() {
                continue;
            }
            let n_parts = n_ranks.min(n_kv_heads);
            if !n_kv_heads.is_multiple_of(n_parts) || !n_ranks.is_multiple_of(n_parts) {
                self.note(format!("attention ({n_kv_heads} KV heads)"));
                continue;
            }
            match self.heads_of_pool(index, n_parts) {
                Some(changes) => {
                    self.plan.pool_parts[index] = n_parts;
                    self.apply(changes);
                }
                None => self.note(
                    "attention (heads that are no whole blocks or have other readers)".to_owned(),
                ),
            }
        }
    }

    /// Ops that write or read a pool.
    fn accesses(&self, pool: usize) -> impl Iterator<Item = (Place, &'a Node)> {
        places(self.program)
            .filter(move |(_, node)| node.op.kv_access().is_some_and(|(other, ..)| other.0 == pool))
    }

    /// Splits of all ops on the heads of a pool, whose KV heads are in `n_parts` parts; `None` if one of them cannot be split.
    fn heads_of_pool(&self, pool: usize, n_parts: usize) -> Option<Changes> {
        let mut changes = Changes::default();
        for (place, node) in self.accesses(pool) {
            let Op::Attention(args) = &node.op else {
                node.inputs.iter().try_for_each(|&x| self.heads(x, n_parts, &mut changes))?;
                continue;
            };
            self.heads(node.inputs[0], self.plan.n_ranks, &mut changes)?;
            let reader = self.sole_reader(*node.outputs.first()?)?;
            let (out, x) = self.summable(reader)?;
            let columns = self.parts(x.cols, self.plan.n_ranks);
            let is_block = columns[0].len().is_multiple_of(out.weight.info().dtype.block_len());
            if !is_block || !args.n_heads.is_multiple_of(self.plan.n_ranks) {
                return None;
            }
            changes.columns.push((x.id, columns.clone()));
            changes.splits.push((place, Split::Heads));
            changes.splits.push((reader, Split::Sum(columns)));
        }
        Some(changes)
    }

    /// Splits of the ops that make the heads `x`, in `n_parts` parts: a product, then a rotary embedding or none.
    fn heads(&self, x: Tensor, n_parts: usize, changes: &mut Changes) -> Option<()> {
        let columns = self.parts(x.cols, n_parts);
        let mut heads = x;
        let rope = self.node(self.sole_producer(x)?);
        if let Op::Rope(_) = rope.op {
            changes.columns.push((x.id, columns.clone()));
            heads = rope.inputs[0];
        }
        let product = self.product_of(heads)?;
        changes.columns.push((heads.id, columns.clone()));
        changes.splits.push((product, Split::Columns(columns)));
        Some(())
    }

    /// The part of each rank, of `n_parts` equal ones.
    fn parts(&self, len: usize, n_parts: usize) -> Ranges {
        let (n_ranks, each) = (self.plan.n_ranks, len / n_parts);
        let part = |rank: usize| rank * n_parts / n_ranks * each;
        (0..n_ranks).map(|rank| part(rank)..part(rank) + each).collect()
    }

    // FFNs

    /// Splits products of hidden columns that nothing else reads, and experts.
    fn split_hidden(&mut self) {
        for (place, node) in places(self.program) {
            if let Op::Moe(args) = &node.op {
                let d_ff = args.down.info().cols;
                match self.blocks(d_ff, args.down.info().dtype.block_len()) {
                    Some(columns) => {
                        let splits = vec![(place, Split::Sum(columns))];
                        self.apply(Changes { splits, ..Changes::default() });
                    }
                    None => self.note(format!("experts ({d_ff} hidden columns)")),
                }
            } else if let Some((down, x)) = self.summable(place)
                && let Some((mut values, products)) = self.hidden(x)
            {
                values.push(x.id);
                match self.blocks(x.cols, down.weight.info().dtype.block_len()) {
                    Some(columns) => {
                        let values = values.into_iter().map(|id| (id, columns.clone()));
                        let products = products.into_iter();
                        let products = products.map(|at| (at, Split::Columns(columns.clone())));
                        let sum = (place, Split::Sum(columns.clone()));
                        self.apply(Changes {
                            columns: values.collect(),
                            splits: products.chain([sum]).collect(),
                        });
                    }
                    None => self.note(format!("FFN ({} hidden columns)", x.cols)),
                }
            }
        }
    }

    /// The products that make hidden values `x`, and the values between: one product, or two and their gated activation.
    fn hidden(&self, x: Tensor) -> Option<(Vec<usize>, Vec<Place>)> {
        let node = self.node(self.sole_producer(x)?);
        if let Op::Gated(_) = node.op {
            let products = node.inputs.iter().map(|&x| self.product_of(x));
            let ids = node.inputs.iter().map(|x| x.id).collect();
            return Some((ids, products.collect::<Option<_>>()?));
        }
        Some((Vec::new(), vec![self.product_of(x)?]))
    }

    /// Parts of whole blocks, of groups of columns where possible; `None` if there are fewer than ranks.
    fn blocks(&self, len: usize, block_len: usize) -> Option<Ranges> {
        let units = [block_len.max(COLUMN_GROUP), block_len].into_iter();
        let mut units = units.filter(|unit| len.is_multiple_of(*unit));
        units.find_map(|unit| self.units(len, unit))
    }

    /// Parts of whole units, the last one of which may be incomplete; `None` if there are fewer than ranks.
    fn units(&self, len: usize, unit: usize) -> Option<Ranges> {
        let (n_ranks, n_units) = (self.plan.n_ranks, len.div_ceil(unit));
        let start = |rank: usize| len.min(rank * n_units / n_ranks * unit);
        (n_units >= n_ranks).then(|| (0..n_ranks).map(|r| start(r)..start(r + 1)).collect())
    }

    // Logits

    /// Splits the rows of the vocabulary projection.
    fn split_logits(&mut self) {
        for (place, node) in places(self.program) {
            let Op::Matmul(args) = &node.op else { continue };
            let is_logits = self.program.segments[place.0].name == SegmentName::Logits;
            let is_whole = self.is_whole(place) && self.plan.columns[node.inputs[0].id].is_none();
            if !is_logits || !is_whole {
                continue;
            }
            let n = args.weight.info().rows;
            if let Some(rows) = self.units(n, COLUMN_GROUP).or_else(|| self.units(n, 1)) {
                let splits = vec![(place, Split::Gather(rows))];
                self.apply(Changes { splits, ..Changes::default() });
            }
        }
    }
}

/// Ops with their places.
fn places(program: &Program) -> impl Iterator<Item = (Place, &Node)> {
    program.segments.iter().enumerate().flat_map(|(i, segment)| {
        segment.nodes.iter().enumerate().map(move |(j, node)| ((i, j), node))
    })
}
