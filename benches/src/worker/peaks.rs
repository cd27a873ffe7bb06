//! Peak rates of the machine: memory reads, f32 and int8 multiply-adds.

use std::hint::black_box;

use anyhow::Result;
use stonechat_benches::protocol::{Stage, Unit};
use stonechat_compute::AlignedVec;
use stonechat_compute::simd::{Kernel, Simd};
use stonechat_nn::Cpu;
use stonechat_quant::int8_peak;

use super::{Work, timed};

/// Sums that do not wait for each other: enough to hide the latency of an addition or multiplication.
const N_SUMS: usize = 12;
/// Floats that a thread reads at a time: more than memory pages, less than a core's share.
const READ_TASK: usize = 1 << 20;
/// Multiply-adds of every sum in one task, enough for the clock.
const F32_ROUNDS: usize = 1 << 22;
/// Thousands of instructions of a task of 8-bit multiply-adds.
const INT8_ROUNDS: usize = 1 << 15;

/// Reads a large buffer, then keeps every thread's units busy.
pub(super) struct Peaks {
    backend: Cpu,
    memory: AlignedVec,
}

impl Peaks {
    /// Takes `bytes` of memory.
    pub(super) fn new(backend: Cpu, bytes: usize) -> Self {
        let mut memory = AlignedVec::zeroed(bytes.div_ceil(4).next_multiple_of(READ_TASK));
        // Memory that was never written is one page of zeros.
        memory.fill(1.0);
        Self { backend, memory }
    }
}

impl Work for Peaks {
    fn stages(&self) -> Vec<Stage> {
        let isa = self.backend.isa();
        let n_threads = self.backend.device().threads.n_threads() as f64;
        let stage = |name: &str, amount, unit, kernel: String| Stage {
            name: name.to_owned(),
            amount,
            unit,
            peak: Vec::new(),
            kernel: Some(kernel),
        };
        let bytes = 4.0 * self.memory.len() as f64;
        let flops = n_threads * isa.dispatch(MultiplyAdds(1)) * F32_ROUNDS as f64;
        let (ops, tier) = int8_peak(isa, 1);
        let ops = n_threads * ops * INT8_ROUNDS as f64;
        vec![
            stage("read", bytes, Unit::Bytes, format!("f32 sums, {isa}")),
            stage("f32", flops, Unit::Flops, format!("multiply-adds, {isa}")),
            stage("int8", ops, Unit::IntOps, format!("8-bit multiply-adds, {tier}")),
        ]
    }

    fn sample(&mut self) -> Result<Vec<f64>> {
        let isa = self.backend.isa();
        let team = &self.backend.device().threads;
        let n_threads = team.n_threads();
        let memory = &self.memory[..];
        Ok({
            let read = timed(|| {
                team.run(memory.len() / READ_TASK, |i| {
                    black_box(isa.dispatch(Sum(&memory[i * READ_TASK..][..READ_TASK])));
                });
            });
            let f32 = timed(|| {
                team.run(n_threads, |_| {
                    black_box(isa.dispatch(MultiplyAdds(F32_ROUNDS)));
                });
            });
            let int8 = timed(|| {
                team.run(n_threads, |_| {
                    black_box(int8_peak(isa, INT8_ROUNDS));
                });
            });
            vec![read.0, f32.0, int8.0]
        })
    }
}

/// The sum of a slice.
struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (vectors, rest) = simd.split(self.0);
        let mut sums = [simd.splat(0.0); N_SUMS];
        let (groups, last) = vectors.as_chunks::<N_SUMS>();
        for group in groups {
            for i in 0..N_SUMS {
                sums[i] = simd.add(sums[i], group[i]);
            }
        }
        for &vector in last {
            sums[0] = simd.add(sums[0], vector);
        }
        let mut total = rest.iter().sum();
        for sum in sums {
            total += simd.reduce_sum(sum);
        }
        total
    }
}

/// Runs this many rounds of multiply-adds in registers; returns the operations per round.
struct MultiplyAdds(usize);

impl Kernel for MultiplyAdds {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f64 {
        let (factor, term) = (simd.splat(black_box(0.5)), simd.splat(black_box(1.0)));
        let mut sums = [simd.splat(black_box(0.0)); N_SUMS];
        for _ in 0..self.0 {
            for i in 0..N_SUMS {
                sums[i] = simd.mul_add(sums[i], factor, term);
            }
        }
        for sum in sums {
            black_box(simd.reduce_sum(sum));
        }
        (2 * N_SUMS * S::LANES) as f64
    }
}
