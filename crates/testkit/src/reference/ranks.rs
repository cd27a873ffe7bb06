//! Tensor parallelism in f64: the programs of all ranks of a group, op by op.

use stonechat_compute::DType;
use stonechat_nn::op::{Op, PoolId, Port, Weight};
use stonechat_nn::{
    BoxFuture, Capabilities, CheckedStep, Counts, Device, DeviceApi, Error, Executable,
    InputLimits, MatrixSource, PortRange, Program, Step, fuse, shard, sharded_matrix,
    sharded_values,
};

use super::Reference;
use super::executable::{Matrix, ReferenceExecutable};

/// A group of `n` f64 oracles, each with a part of the weights.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceGroup(pub usize);

impl DeviceApi for ReferenceGroup {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn describe(&self) -> String {
        format!("f64 loops, {} ranks", self.0)
    }

    fn total_memory_bytes(&self) -> Option<u64> {
        None
    }

    fn stored_dtype(&self, dtype: DType) -> DType {
        dtype
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Weight, Error> {
        Ok(sharded_matrix(source))
    }

    fn load_values(&self, values: &[f32]) -> Result<Weight, Error> {
        Ok(sharded_values(values))
    }

    /// Programs are split before they are fused.
    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
    }

    fn compile_fused(&self, program: &Program, max: &Counts) -> Result<Box<dyn Executable>, Error> {
        let ranks = vec![Device::from(Reference); self.0];
        let programs = shard(program, &ranks)?.programs;
        let (capabilities, limits) = (Reference.capabilities(), InputLimits::new(program));
        let ranks = programs.iter().map(|program| fuse(program, &capabilities));
        let ranks = ranks.map(|program| ReferenceExecutable::new(&program, max));
        Ok(Box::new(GroupExecutable { ranks: ranks.collect(), limits }))
    }
}

#[derive(Debug)]
struct GroupExecutable {
    ranks: Vec<ReferenceExecutable>,
    /// Limits of the whole program.
    limits: InputLimits,
}

impl GroupExecutable {
    /// Runs op `node` of segment `segment` on all ranks.
    fn run_node(&mut self, (segment, node): (usize, usize), step: &Step<'_>) {
        let Self { ranks, .. } = self;
        let operands = |rank: &ReferenceExecutable| rank.operand((segment, node), step);
        let result = match ranks[0].node((segment, node)).op {
            Op::AllReduce => ranks.iter().map(operands).reduce(|sum, x| sum_of(&sum, &x)),
            Op::AllGather(_) => ranks.iter().map(operands).reduce(side_by_side),
            _ => return ranks.iter_mut().for_each(|rank| rank.run_at((segment, node), step)),
        };
        let result = result.expect("a group has ranks");
        ranks.iter_mut().for_each(|rank| rank.finish((segment, node), result.clone(), step));
    }
}

fn sum_of(x: &Matrix, y: &Matrix) -> Matrix {
    let sum = |(x, y): (&Vec<f64>, &Vec<f64>)| x.iter().zip(y).map(|(x, y)| x + y).collect();
    x.iter().zip(y).map(sum).collect()
}

fn side_by_side(mut x: Matrix, y: Matrix) -> Matrix {
    x.iter_mut().zip(y).for_each(|(x, y)| x.extend(y));
    x
}

impl Executable for GroupExecutable {
    fn warm_up(&mut self, _: &mut dyn FnMut(&mut dyn Executable)) -> Result<(), Error> {
        Ok(())
    }

    fn import(&mut self, port: Port, values: &[f32]) {
        self.ranks.iter_mut().for_each(|rank| rank.import(port, values));
    }

    fn async_scheduling(&self) -> bool {
        false
    }

    fn limits(&self) -> &InputLimits {
        &self.limits
    }

    fn run_checked(&mut self, step: CheckedStep<'_>) {
        self.ranks.iter_mut().for_each(|rank| rank.copy_pages(&step));
        for segment in 0..self.ranks[0].n_segments() {
            for node in 0..self.ranks[0].n_nodes(segment, &step) {
                self.run_node((segment, node), &step);
            }
        }
    }

    fn fetch(&mut self, ranges: &[PortRange], is_last: bool) {
        // Every rank has the same outputs; one after the other would hide that they differ.
        let [first, others @ ..] = &mut self.ranks[..] else { return };
        others.iter().for_each(|other| assert!(other.has_outputs_of(first), "outputs of ranks"));
        first.fetch(ranges, is_last);
    }

    fn collect_now(&mut self, values: &mut Vec<f32>) -> Option<Result<(), Error>> {
        self.ranks[0].collect_now(values)
    }

    fn read_page<'a>(
        &'a mut self,
        pool: PoolId,
        page: u32,
        out: &'a mut Vec<u8>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            for rank in &mut self.ranks {
                rank.read_page(pool, page, out).await?;
            }
            Ok(())
        })
    }

    fn page_bytes(&self, pool: PoolId) -> usize {
        self.ranks.iter().map(|rank| rank.page_bytes(pool)).sum()
    }

    fn write_checked_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let parts = bytes.chunks_exact(bytes.len() / self.ranks.len());
        let mut ranks = self.ranks.iter_mut().zip(parts);
        ranks.try_for_each(|(rank, part)| rank.write_checked_page(pool, page, part))
    }
}
