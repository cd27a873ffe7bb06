//! Tensor parallelism: the program of each rank of a group of devices, by data flow alone.
//!
//! ```text
//! q, k, v     rows of the weights by KV heads           [T, H*C / n]   rope, KV pages and attention on heads of the rank
//! gate, up    rows                                      [T, F / n]     activation on columns of the rank
//! out, down   columns, whole blocks -> all_reduce       [T, D]         Σ over ranks; residual, norms come behind it
//! experts     rows of gate and up, columns of down of each expert -> all_reduce
//! logits      rows -> all_gather                        [P, V]         top-k, log-sum-exp on every rank
//! ```
//!
//! Everything else is computed by every rank, as are heads that cannot be divided evenly. More ranks than KV heads share them. A
//! bias before a sum is added by rank 0.
//!
//! | file | holds |
//! |---|---|
//! | `shard/plan.rs` | split of every op and value |
//! | `shard/weights.rs` | weights that ranks load parts of |

mod plan;
mod weights;

use stonechat_compute::op::{MatmulArgs, MoeArgs, Op, Tensor, TensorInfo, Weight};

use self::plan::{Plan, Split};
use self::weights::Part;
pub use self::weights::{sharded_matrix, sharded_values};
use crate::program::{Node, Program, Segment};
use crate::{Device, Error};

/// Programs of the ranks of a group.
#[derive(Debug)]
pub struct Shards {
    /// Program of each rank.
    pub programs: Vec<Program>,
    /// Number of equal parts of the KV heads of each pool. Rank `r` of `n` has part `r * parts / n`.
    pub pool_parts: Vec<usize>,
    /// Parts of the model that every rank computes as a whole, with the reason; each once.
    pub replicated: Vec<String>,
}

/// Splits a recorded program among `ranks` and loads their parts of its weights, which [`sharded_matrix`] and
/// [`sharded_values`] made. Parts are loaded once and shared by later programs.
///
/// # Errors
/// If a rank cannot load a part, as [`DeviceApi::load_matrix`](crate::DeviceApi::load_matrix).
pub fn shard(program: &Program, ranks: &[Device]) -> Result<Shards, Error> {
    shard_with(program, ranks.len(), &mut |rank, weight, part| {
        weights::load(weight, (rank, &ranks[rank]), part)
    })
}

/// A part of a weight on a rank.
type Load<'a> = &'a mut dyn FnMut(usize, &Weight, Part) -> Result<Weight, Error>;

fn shard_with(program: &Program, n_ranks: usize, load: Load<'_>) -> Result<Shards, Error> {
    let plan = Plan::new(program, n_ranks);
    let rank_of = |rank| RankProgram::new(program, &plan, rank);
    let mut ranks: Vec<RankProgram<'_>> = (0..n_ranks).map(rank_of).collect();
    for (i, segment) in program.segments.iter().enumerate() {
        ranks.iter_mut().for_each(|rank| rank.segment(segment));
        for (j, node) in segment.nodes.iter().enumerate() {
            // Ranks load a weight one after the other: pages of the file are read once.
            ranks.iter_mut().try_for_each(|rank| rank.node(node, plan.split(i, j), load))?;
        }
    }
    Ok(Shards {
        programs: ranks.into_iter().map(|rank| rank.program).collect(),
        pool_parts: plan.pool_parts,
        replicated: plan.replicated,
    })
}

/// Program of a rank in the making.
struct RankProgram<'a> {
    plan: &'a Plan,
    rank: usize,
    program: Program,
}

impl<'a> RankProgram<'a> {
    /// Program of `rank` before its segments are added.
    fn new(program: &Program, plan: &'a Plan, rank: usize) -> Self {
        let mut result = Program { segments: Vec::new(), ..program.clone() };
        for (id, info) in result.tensors.iter_mut().enumerate() {
            if let Some(columns) = plan.columns(id) {
                info.cols = columns[rank].len();
            }
        }
        let pools = result.pools.iter_mut().zip(&plan.pool_parts);
        pools.for_each(|(pool, n_parts)| pool.n_kv_heads /= n_parts);
        Self { plan, rank, program: result }
    }

    fn segment(&mut self, segment: &Segment) {
        self.program.segments.push(Segment { nodes: Vec::new(), ..*segment });
    }

    /// Appends an op and the collective op behind it.
    fn node(&mut self, node: &Node, split: &Split, load: Load<'_>) -> Result<(), Error> {
        let mut node = node.clone();
        for x in node.inputs.iter_mut().chain(&mut node.residual) {
            *x = self.part(*x);
        }
        let rank = self.rank;
        let mut load = |weight: &Weight, part: Part| load(rank, weight, part);
        self.load_weights(&mut node.op, split, &mut load)?;
        let collective = match split {
            Split::Whole | Split::Columns(_) | Split::Heads => None,
            Split::Sum(_) => Some(Op::AllReduce),
            Split::Gather(columns) => {
                let first = columns.iter().map(|columns| columns.start);
                let end = columns.last().map(|columns| columns.end);
                Some(Op::AllGather(first.chain(end).collect()))
            }
        };
        let Some(op) = collective else {
            self.push(node);
            return Ok(());
        };
        let result = node.outputs[0];
        let info @ TensorInfo { rows, cols, .. } = self.program.tensors[result];
        let cols = match split {
            Split::Gather(columns) => columns[rank].len(),
            _ => cols,
        };
        let id = self.program.tensors.len();
        self.program.tensors.push(TensorInfo { cols, ..info });
        node.outputs[0] = id;
        self.push(node);
        self.push(Node::new(op, vec![Tensor { id, rows, first_col: 0, cols }], vec![result]));
        Ok(())
    }

    fn push(&mut self, node: Node) {
        let segment = self.program.segments.last_mut().expect("a segment was added");
        segment.nodes.push(node);
    }

    /// Columns of a value on the rank.
    fn part(&self, x: Tensor) -> Tensor {
        match self.plan.columns(x.id) {
            Some(columns) => Tensor { first_col: 0, cols: columns[self.rank].len(), ..x },
            None => x,
        }
    }

    /// Replaces the weights of an op by their parts on the rank.
    fn load_weights(
        &self,
        op: &mut Op,
        split: &Split,
        load: &mut dyn FnMut(&Weight, Part) -> Result<Weight, Error>,
    ) -> Result<(), Error> {
        let mut whole = |weight: &mut Weight| {
            *weight = load(weight, Part::default())?;
            Ok(())
        };
        match op {
            Op::Matmul(args) => self.load_matmul(args, split, load),
            Op::Conv1d(args) => self.load_matmul(&mut args.matmul, split, load),
            Op::Moe(args) => self.load_experts(args, split, load),
            Op::Attention(args) => {
                let heads = match split {
                    Split::Heads => {
                        let n = args.n_heads / self.plan.n_ranks;
                        args.n_heads = n;
                        Part::rows(self.rank * n..(self.rank + 1) * n)
                    }
                    _ => Part::default(),
                };
                args.slopes.iter_mut().chain(&mut args.sinks).try_for_each(|weight| {
                    *weight = load(weight, heads.clone())?;
                    Ok(())
                })
            }
            Op::Embed(args) => {
                [&mut args.table].into_iter().chain(&mut args.positions).try_for_each(whole)
            }
            Op::Constant(values) => whole(values),
            Op::LayerNorm(args) | Op::RmsNorm(args) => {
                [&mut args.weight].into_iter().chain(&mut args.bias).try_for_each(whole)
            }
            Op::Rope(args) => {
                let norm = args.norm.iter_mut().map(|(weight, _)| weight);
                let table = args.rotation.iter_mut().map(|rotation| &mut rotation.table);
                norm.chain(table).try_for_each(whole)
            }
            op => {
                let is_fused =
                    matches!(op, Op::MatmulGroup(_) | Op::GatedProduct(_) | Op::RopeKv(_));
                assert!(!is_fused, "a recorded program, got {}", op.name());
                Ok(())
            }
        }
    }

    fn load_matmul(
        &self,
        args: &mut MatmulArgs,
        split: &Split,
        load: &mut dyn FnMut(&Weight, Part) -> Result<Weight, Error>,
    ) -> Result<(), Error> {
        let (part, bias) = match split {
            Split::Whole | Split::Heads => (Part::default(), Some(Part::default())),
            Split::Columns(columns) | Split::Gather(columns) => {
                let rows = Part::rows(columns[self.rank].clone());
                (rows.clone(), Some(rows))
            }
            Split::Sum(columns) => (Part::cols(columns[self.rank].clone()), self.bias_of_sum()),
        };
        args.weight = load(&args.weight, part)?;
        load_bias(&mut args.bias, bias, load)
    }

    /// The part of a bias that is added before a sum over ranks.
    fn bias_of_sum(&self) -> Option<Part> {
        (self.rank == 0).then(Part::default)
    }

    fn load_experts(
        &self,
        args: &mut MoeArgs,
        split: &Split,
        load: &mut dyn FnMut(&Weight, Part) -> Result<Weight, Error>,
    ) -> Result<(), Error> {
        let (hidden, down, down_bias) = match split {
            Split::Sum(columns) => {
                let hidden = columns[self.rank].clone();
                let rows = Part { stack: args.n_experts, ..Part::rows(hidden.clone()) };
                (rows, Part::cols(hidden), self.bias_of_sum())
            }
            _ => (Part::default(), Part::default(), Some(Part::default())),
        };
        args.gate = load(&args.gate, hidden.clone())?;
        args.up = load(&args.up, hidden.clone())?;
        args.down = load(&args.down, down)?;
        load_bias(&mut args.gate_bias, Some(hidden.clone()), load)?;
        load_bias(&mut args.up_bias, Some(hidden), load)?;
        load_bias(&mut args.down_bias, down_bias, load)
    }
}

/// Replaces a bias by its part, or removes it.
fn load_bias(
    bias: &mut Option<Weight>,
    part: Option<Part>,
    load: &mut dyn FnMut(&Weight, Part) -> Result<Weight, Error>,
) -> Result<(), Error> {
    *bias = match (bias.take(), part) {
        (Some(bias), Some(part)) => Some(load(&bias, part)?),
        _ => None,
    };
    Ok(())
}

#[cfg(test)]
mod tests;
