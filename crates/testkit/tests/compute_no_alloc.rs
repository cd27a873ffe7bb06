//! The ops of a decode step do not allocate, on two threads.

use stonechat_compute::cpu::{
    Attention, DenseWeight, Epilogue, KvPool, MatMut, MatRef, attention, gated, layer_norm,
    log_sum_exp, matmul, rms_norm, rope,
};
use stonechat_compute::op::{
    Activation, AttentionArgs, GatedActivation, KvDType, KvLayout, KvRow, NormArgs, PoolId,
    Precision, QueryRow, RopeArgs, RopePairs, Rotation, RowTable,
};
use stonechat_compute::{Cpu, Isa, ThreadTeam};
use stonechat_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Five rows of 256 values.
fn rows_of(x: &[f32]) -> MatRef<'_> {
    MatRef::packed(x, 5, 256)
}

#[test]
fn ops_of_a_decode_step_do_not_allocate() {
    let (n_rows, width, d_ff) = (5, 256, 1024);
    let isa = *Isa::available().last().unwrap();
    let cpu = Cpu { isa, threads: ThreadTeam::new(2).unwrap() };
    let mut pools = [KvDType::F16, KvDType::Q8_0].map(|dtype| {
        let layout = KvLayout { n_kv_heads: 4, head_dim: 64, dtype };
        KvPool::new(layout, n_rows).unwrap()
    });
    let (angles, per_head) = (vec![0.6; n_rows * 64], vec![1.0; 4]);
    let slots: Vec<KvRow> = (0..n_rows as u32).map(|page| KvRow { page, slot: 7 }).collect();
    let rows: Vec<QueryRow> = (0..n_rows as u32)
        .map(|first_page| QueryRow { first_page, n_pages: 1, kv_start: 0, kv_len: 8 })
        .collect();
    let page_table: Vec<u32> = (0..n_rows as u32).collect();
    let positions: Vec<u32> = page_table.iter().rev().copied().collect();
    let (up, norm) = (vec![0.01; d_ff * width], vec![1.0; width]);
    let mut x = vec![0.5; n_rows * width];
    let (mut y, mut hidden) = (x.clone(), vec![0.0; n_rows * d_ff]);
    let mut step = || {
        let epilogue = Epilogue { bias: None, activation: Activation::Gelu, accumulate: false };
        let norm = NormArgs { weight: &norm[..], bias: Some(&norm[..]), eps: 1e-5 };
        layer_norm(&cpu, MatMut::packed(&mut y, n_rows, width), rows_of(&x), norm);
        rms_norm(&cpu, MatMut::packed(&mut y, n_rows, width), rows_of(&x), norm, true);
        for pairs in [RopePairs::Neox, RopePairs::Adjacent] {
            let norm = Some((&norm.weight[..64], 1e-5));
            let rotation = Some(Rotation { table: &angles[..], n_rot: 64, pairs });
            let args = RopeArgs { head_dim: 64, norm, rotation };
            rope(&cpu, MatMut::packed(&mut y, n_rows, width), args, &positions);
        }
        for pool in &mut pools {
            pool.write(&cpu, rows_of(&y), rows_of(&y), &slots);
            let args = Attention {
                q: rows_of(&y),
                kv: pool,
                rows: &rows,
                page_table: &page_table,
                op: AttentionArgs {
                    pool: PoolId(0),
                    layer: 0,
                    n_heads: 4,
                    scale: 0.125,
                    soft_cap: Some(30.0),
                    slopes: Some(&per_head[..]),
                    sinks: Some(&per_head[..]),
                    rows: RowTable::FULL,
                    precision: Precision::Bf16,
                },
            };
            attention(&cpu, MatMut::packed(&mut x, n_rows, width), args);
        }
        let out = MatMut::packed(&mut y, n_rows, width);
        gated(&cpu, out, rows_of(&x), rows_of(&x), GatedActivation::Silu);
        let out = MatMut::packed(&mut hidden, n_rows, d_ff);
        matmul(&cpu, out, rows_of(&x), DenseWeight::F32(&up), epilogue);
        std::hint::black_box(log_sum_exp(cpu.isa, &hidden));
    };
    // A thread allocates its scratch with its first task, which may be late on a busy machine: one round must be free of
    // allocations.
    let rounds: Vec<usize> = (0..20)
        .map(|_| {
            let before = ALLOCATOR.count();
            (0..100).for_each(|_| step());
            ALLOCATOR.count() - before
        })
        .collect();
    assert!(rounds.contains(&0), "allocations in rounds of 100 steps: {rounds:?}");
    assert!(ALLOCATOR.count() > 0, "the counter does not count");
}
