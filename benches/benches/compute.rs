//! The dense kernels at the shapes of Whisper base: encoder (1500 positions) and one decode step.
//!
//! Weights and inputs are made up; the shapes are real. Throughput is floating-point operations a
//! second for the encoder, bytes of weights or cached keys and values a second for the decoder.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stonechat_compute::Cpu;
use stonechat_compute::cpu::{
    Attention, DenseWeight, Epilogue, KvPool, MatMut, MatRef, attention, layer_norm, matmul,
};
use stonechat_compute::op::{
    AttentionArgs, KvDType, KvLayout, KvRow, NormArgs, PAGE_LEN, PoolId, Precision, QueryRow,
    RowTable,
};

const T: usize = 1500;
const D_MODEL: usize = 512;
const D_FF: usize = 2048;
const N_HEADS: usize = 8;
const VOCAB: usize = 51_865;

fn made_up(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1999) as f32 / 1000.0 - 1.0).collect()
}

fn each_cpu(mut f: impl FnMut(&Cpu, &str)) {
    for n_threads in [1, 0] {
        let cpu = Cpu::new(n_threads).expect("STONECHAT_ISA names a tier");
        let label = format!("{}x{}", cpu.isa, cpu.threads.n_threads());
        f(&cpu, &label);
    }
}

fn bench_matmul(c: &mut Criterion) {
    let shapes = [
        (T, D_MODEL, D_MODEL),
        (T, D_FF, D_MODEL),
        (T, D_MODEL, D_FF),
        (T, D_MODEL, 3 * D_MODEL),
        (1, D_MODEL, D_MODEL),
        (1, D_FF, D_MODEL),
        (5, VOCAB, D_MODEL),
    ];
    let mut group = c.benchmark_group("matmul");
    group.sample_size(10);
    for (m, n, k) in shapes {
        let (x, w, mut y) = (made_up(m * k), made_up(n * k), vec![0.0; m * n]);
        group.throughput(if m == T {
            Throughput::Elements(2 * (m * n * k) as u64)
        } else {
            Throughput::Bytes(4 * (n * k) as u64)
        });
        each_cpu(|cpu, label| {
            group.bench_function(BenchmarkId::new(label, format!("{m}x{n}x{k}")), |b| {
                {
                    b.iter(|| {
                        let (y, x) = (MatMut::packed(&mut y, m, n), MatRef::packed(&x, m, k));
                        matmul(cpu, y, x, DenseWeight::F32(&w), Epilogue::default());
                    });
                };
            });
        });
    }
}

fn bench_attention(c: &mut Criterion) {
    let mut group = c.benchmark_group("attention");
    group.sample_size(10);
    let head_dim = D_MODEL / N_HEADS;
    let n_pages = T.div_ceil(PAGE_LEN);
    let page_table: Vec<u32> = (0..n_pages as u32).collect();
    let slots: Vec<KvRow> = (0..T)
        .map(|pos| KvRow { page: (pos / PAGE_LEN) as u32, slot: (pos % PAGE_LEN) as u32 })
        .collect();
    let x = made_up(T * D_MODEL);
    for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
        let layout = KvLayout { n_kv_heads: N_HEADS, head_dim, dtype };
        let mut pool = KvPool::new(layout, n_pages).expect("a few MiB");
        let all = MatRef::packed(&x, T, D_MODEL);
        pool.write(&Cpu::new(1).expect("one thread"), all, all, &slots);
        for t in [1, T] {
            group.throughput(if t == T {
                Throughput::Elements(4 * (t * T * D_MODEL) as u64)
            } else {
                Throughput::Bytes(pool.bytes() as u64)
            });
            let row =
                QueryRow { first_page: 0, n_pages: n_pages as u32, kv_start: 0, kv_len: T as u32 };
            let rows = vec![row; t];
            let op = AttentionArgs {
                pool: PoolId(0),
                layer: 0,
                n_heads: N_HEADS,
                scale: 0.125,
                soft_cap: None,
                slopes: None,
                sinks: None,
                rows: RowTable::FULL,
                precision: Precision::F32,
            };
            let mut out = vec![0.0; t * D_MODEL];
            each_cpu(|cpu, label| {
                let id = BenchmarkId::new(label, format!("{dtype:?} T{t} kv{T}"));
                group.bench_function(id, |b| {
                    {
                        b.iter(|| {
                            let args = Attention {
                                q: MatRef::packed(&x, t, D_MODEL),
                                kv: &pool,
                                rows: &rows,
                                page_table: &page_table,
                                op,
                            };
                            attention(cpu, MatMut::packed(&mut out, t, D_MODEL), args);
                        });
                    };
                });
            });
        }
    }
}

fn bench_small(c: &mut Criterion) {
    let mut group = c.benchmark_group("small");
    let (x, weight) = (made_up(T * D_MODEL), made_up(D_MODEL));
    let mut y = x.clone();
    each_cpu(|cpu, label| {
        group.bench_function(BenchmarkId::new(label, "layer_norm 1500x512"), |b| {
            let norm = NormArgs { weight: &weight[..], bias: Some(&weight[..]), eps: 1e-5 };
            b.iter(|| {
                let out = MatMut::packed(&mut y, T, D_MODEL);
                layer_norm(cpu, out, MatRef::packed(&x, T, D_MODEL), norm);
            });
        });
        group.bench_function(BenchmarkId::new(label, "empty parallel loop"), |b| {
            {
                b.iter(|| {
                    cpu.threads.run(8, |i| {
                        black_box(i);
                    });
                });
            };
        });
    });
}

criterion_group!(benches, bench_matmul, bench_attention, bench_small);
criterion_main!(benches);
