//! Sums over the ranks of NVIDIA GPUs, by size: `cargo bench -p stonechat-benches --features cuda --bench collectives`.
//!
//! Prints the time of a sum and the rate of a link in one direction, also as percent of `NVLink` 4. `norm`: sums whose RMS norm is
//! gathered in f16 instead. All GPUs take part. Times are those of sums that follow each other in a graph.

#![expect(clippy::print_stdout, reason = "a bench prints its results")]

use std::sync::Arc;
use std::time::Instant;

use stonechat_compute::cuda::ops::Rows;
use stonechat_compute::cuda::ops::all_reduce::{Sum, all_reduce, all_reduce_norm, connect};
use stonechat_compute::cuda::{Buffer, CommandList, Communicator, Gpu, devices};
use stonechat_nn::CudaGroup;

/// Columns of the rows of a model of 8B.
const COLS: usize = 4096;
/// Sums of a graph.
const CALLS: usize = 50;
/// Measured graphs.
const SAMPLES: usize = 21;
/// Rate of `NVLink` 4 in one direction in GB/s.
const NVLINK_4: f64 = 450.0;

struct BenchRank {
    gpu: Gpu,
    list: CommandList,
    /// Memory of the list's kernels.
    _buffers: [Buffer; 4],
}

fn rank(
    communicator: &Arc<Communicator>,
    (i, gpu): (usize, &Gpu),
    rows: usize,
    has_norm: bool,
) -> BenchRank {
    let buffer = |bytes: usize| Buffer::new(gpu, bytes).expect("memory");
    let n = rows * COLS;
    let buffers = [buffer(4 * n), buffer(4 * n), buffer(2 * n), buffer(4 * COLS)];
    let [x, out, operand, weight] = buffers.each_ref().map(Buffer::address);
    let x = Rows { address: x, rows, cols: COLS, stride: COLS };
    let sum = Sum { x, out, accumulate: true, has_own_rows: has_norm };
    let (mut list, own) = (CommandList::new(gpu), communicator.rank(i));
    for _ in 0..CALLS {
        if has_norm {
            all_reduce_norm(&mut list, &own, sum, (operand, weight, 1e-5));
        } else {
            all_reduce(&mut list, &own, sum);
        }
    }
    BenchRank { gpu: gpu.clone(), list, _buffers: buffers }
}

/// Seconds of a run of all lists.
fn run(ranks: &mut [BenchRank]) -> f64 {
    let started = Instant::now();
    let mut lists: Vec<_> = ranks.iter_mut().map(|rank| &mut rank.list).collect();
    CommandList::run_in_turn(&mut lists).expect("a run");
    ranks.iter().for_each(|rank| rank.gpu.synchronize().expect("a run"));
    started.elapsed().as_secs_f64()
}

fn main() {
    let devices = devices().unwrap_or_default();
    if devices.len() < 2 {
        println!("two NVIDIA GPUs are needed, got {}", devices.len());
        return;
    }
    let group = CudaGroup::open(&devices).expect("GPUs that access each other");
    let gpus: Vec<Gpu> = group.ranks().iter().map(|rank| rank.gpu().clone()).collect();
    let communicator = connect(&gpus).expect("memory");
    let n_ranks = gpus.len() as f64;
    println!("{} x {}", gpus.len(), gpus[0].device().name);
    println!("      MB   sum us  GB/s    %   norm us  GB/s    %");
    for rows in [1, 2, 8, 32, 64, 128, 256, 512, 1024, 2048] {
        let bytes = (4 * rows * COLS) as f64;
        print!("{:8.3}", bytes / 1e6);
        // A link carries the partial sums of other ranks, and the sums in f32 or norms in f16 to them.
        for (has_norm, factor) in [(false, 2.0), (true, 1.5)] {
            let ranks = gpus.iter().enumerate();
            let mut ranks: Vec<_> =
                ranks.map(|gpu| rank(&communicator, gpu, rows, has_norm)).collect();
            (0..3).for_each(|_| _ = run(&mut ranks));
            let mut seconds: Vec<f64> = (0..SAMPLES).map(|_| run(&mut ranks)).collect();
            seconds.sort_by(f64::total_cmp);
            let second = seconds[SAMPLES / 2] / CALLS as f64;
            let rate = factor * bytes * (n_ranks - 1.0) / n_ranks / second / 1e9;
            print!(" {:8.1} {rate:5.0} {:4.0}", 1e6 * second, 100.0 * rate / NVLINK_4);
        }
        println!();
    }
}
