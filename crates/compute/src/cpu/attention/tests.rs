//! Attention against f64 loops.

use super::{Attention, attention, uses_bf16};
use crate::cpu::test_data::{assert_close, random};
use crate::cpu::{KvPool, MatMut, MatRef};
use crate::op::{
    AttentionArgs, KvDType, KvLayout, KvRow, PAGE_LEN, PoolId, Precision, QueryRow, RowTable,
};
use crate::{Cpu, Isa, ThreadTeam};

const ONE_HEAD: AttentionArgs<&[f32]> = AttentionArgs {
    pool: PoolId(0),
    layer: 0,
    n_heads: 1,
    scale: 1.0,
    soft_cap: None,
    slopes: None,
    sinks: None,
    rows: RowTable::FULL,
    precision: Precision::F32,
};

/// A sequence of `kv_len` positions, of which the last `n_queries` are queried.
#[derive(Clone, Copy)]
struct Sequence {
    kv_len: usize,
    n_queries: usize,
    causal: bool,
    /// Maximum positions that a row sees.
    window: usize,
}

#[derive(Default)]
struct Options {
    soft_cap: Option<f32>,
    slopes: Option<Vec<f32>>,
    sinks: Option<Vec<f32>>,
    precision: Precision,
}

struct Case {
    n_heads: usize,
    layout: KvLayout,
    sequences: Vec<Sequence>,
    options: Options,
}

fn poison(pool: &mut KvPool, width: usize) {
    let nan = vec![f32::NAN; PAGE_LEN * width];
    let nan = MatRef::packed(&nan, PAGE_LEN, width);
    for page in 0..pool.n_pages() as u32 {
        let rows: Vec<KvRow> = (0..PAGE_LEN as u32).map(|slot| KvRow { page, slot }).collect();
        pool.write(&Cpu::new(1).unwrap(), nan, nan, &rows);
    }
}

fn round_bf16(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

/// One q8 block, quantized and dequantized as in 8-bit pages.
fn round_q8(x: &[f32]) -> Vec<f32> {
    let max = x.iter().fold(0.0f32, |max, v| max.max(v.abs()));
    let scale = half::f16::from_f32(max / 127.0).to_f32();
    x.iter().map(|v| (v / scale).round_ties_even().clamp(-127.0, 127.0) * scale).collect()
}

#[track_caller]
fn check(cpu: &Cpu, case: &Case) {
    let layout = case.layout;
    let c = layout.head_dim;
    let (width, kv_width) = (case.n_heads * c, layout.n_kv_heads * c);
    let group = case.n_heads / layout.n_kv_heads;
    let n_pages: usize = case.sequences.iter().map(|q| q.kv_len.div_ceil(PAGE_LEN) + 1).sum();
    let use_bf16 = uses_bf16(cpu.isa, layout, case.options.precision);
    let factor = |x: f32| f64::from(if use_bf16 { round_bf16(x) } else { x });
    let mut pool = KvPool::new(layout, n_pages).unwrap();
    poison(&mut pool, kv_width);
    let (mut rows, mut page_table) = (Vec::new(), Vec::new());
    let mut expected = Vec::new();
    let t: usize = case.sequences.iter().map(|q| q.n_queries).sum();
    let stride = width + 7;
    let q_data = random(t * stride, 9);
    let q = MatRef::new(&q_data, t, width, stride);
    let scale = 4.0 / (c as f32).sqrt();
    for (i, sequence) in case.sequences.iter().enumerate() {
        let seed = 10 * i as u64;
        let n = sequence.kv_len;
        let round = |x: Vec<f32>| -> Vec<f32> {
            match layout.dtype {
                KvDType::F32 => x,
                KvDType::F16 => x.iter().map(|&v| half::f16::from_f32(v).to_f32()).collect(),
                KvDType::Q8_0 => {
                    x.chunks(c).flat_map(|x| x.chunks(32)).flat_map(round_q8).collect()
                }
            }
        };
        let k = round(random(n * kv_width, seed + 1));
        let v = round(random(n * kv_width, seed + 2));
        let first_page = page_table.len() as u32;
        let pages = n.div_ceil(PAGE_LEN) + 1;
        // Pages from the end, so that they are not in order.
        page_table.extend((0..pages).map(|p| (n_pages - 1 - first_page as usize - p) as u32));
        let slots: Vec<KvRow> = (0..n)
            .map(|p| KvRow {
                page: page_table[first_page as usize + p / PAGE_LEN],
                slot: (p % PAGE_LEN) as u32,
            })
            .collect();
        pool.write(
            &Cpu::new(1).unwrap(),
            MatRef::packed(&k, n, kv_width),
            MatRef::packed(&v, n, kv_width),
            &slots,
        );
        for j in 0..sequence.n_queries {
            let kv_len = if sequence.causal { n - sequence.n_queries + j + 1 } else { n };
            let kv_start = kv_len.saturating_sub(sequence.window);
            let x = q.row(rows.len());
            rows.push(QueryRow {
                first_page,
                n_pages: pages as u32,
                kv_start: kv_start as u32,
                kv_len: kv_len as u32,
            });
            for h in 0..case.n_heads {
                let g = h / group;
                let at = |m: &[f32], p: usize, i: usize| factor(m[p * kv_width + g * c + i]);
                let Options { soft_cap, slopes, sinks, .. } = &case.options;
                let weights: Vec<f64> = (kv_start..kv_len)
                    .map(|p| {
                        let x = &x[h * c..][..c];
                        let score: f64 = (0..c).map(|i| factor(x[i] * scale) * at(&k, p, i)).sum();
                        let score = soft_cap.map_or(score, |cap| {
                            let cap = f64::from(cap);
                            cap * (score / cap).tanh()
                        });
                        let slope = slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[h]));
                        (score + slope * (p as f64 - (kv_len as f64 - 1.0))).exp()
                    })
                    .collect();
                let sink = sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[h]).exp());
                let sum: f64 = weights.iter().sum::<f64>() + sink;
                for i in 0..c {
                    let y: f64 =
                        weights.iter().zip(kv_start..).map(|(w, p)| w * at(&v, p, i)).sum();
                    expected.push(if weights.is_empty() { 0.0 } else { y / sum });
                }
            }
        }
    }
    let mut out = vec![f32::NAN; t * width];
    let args = Attention {
        q,
        kv: &pool,
        rows: &rows,
        page_table: &page_table,
        op: AttentionArgs {
            n_heads: case.n_heads,
            scale,
            soft_cap: case.options.soft_cap,
            slopes: case.options.slopes.as_deref(),
            sinks: case.options.sinks.as_deref(),
            precision: case.options.precision,
            ..ONE_HEAD
        },
    };
    attention(cpu, MatMut::packed(&mut out, t, width), args);
    let what = format!("{} H{} {layout:?}", cpu.isa, case.n_heads);
    // Weights are rounded, too, with a relative error of up to `2^-8`.
    assert_close(&out, &expected, if use_bf16 { 4e-3 } else { 2e-5 }, &what);
}

fn each_cpu(f: impl Fn(&Cpu)) {
    for isa in Isa::available() {
        for n_threads in [1, 2, 5] {
            f(&Cpu { isa, threads: ThreadTeam::new(n_threads).unwrap() });
        }
    }
}

fn ragged(window: usize) -> Vec<Sequence> {
    let s = |kv_len, n_queries, causal| Sequence { kv_len, n_queries, causal, window };
    vec![
        s(1, 1, true),
        s(64, 1, true),
        s(65, 1, true),
        s(130, 3, true),
        s(200, 200, true),
        s(63, 5, false),
        s(0, 2, false),
        s(129, 61, false),
    ]
}

#[test]
fn ragged_batches_match_f64() {
    each_cpu(|cpu| {
        for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
            for (n_heads, n_kv_heads, head_dim) in [(2, 2, 64), (6, 2, 24), (4, 1, 40), (1, 1, 5)] {
                let layout = KvLayout { n_kv_heads, head_dim, dtype };
                let (sequences, options) = (ragged(usize::MAX), Options::default());
                check(cpu, &Case { n_heads, layout, sequences, options });
            }
        }
    });
}

#[test]
fn windows_skip_what_lies_before_them() {
    each_cpu(|cpu| {
        for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
            for window in [1, 7, 64, 100] {
                let layout = KvLayout { n_kv_heads: 2, head_dim: 24, dtype };
                let (sequences, options) = (ragged(window), Options::default());
                check(cpu, &Case { n_heads: 4, layout, sequences, options });
            }
        }
    });
}

#[test]
fn caps_slopes_and_sinks_match_f64() {
    let heads = |from: f32, step: f32| (0..4u8).map(|h| from + step * f32::from(h)).collect();
    each_cpu(|cpu| {
        for bits in 1..8 {
            let on = |bit: u32| bits & bit != 0;
            let options = Options {
                soft_cap: on(1).then_some(1.5),
                slopes: on(2).then(|| heads(0.01, 0.25)),
                sinks: on(4).then(|| heads(-1.0, 3.0)),
                precision: Precision::F32,
            };
            let layout = KvLayout { n_kv_heads: 2, head_dim: 20, dtype: KvDType::F32 };
            let sequences = ragged(if bits == 7 { 70 } else { usize::MAX });
            check(cpu, &Case { n_heads: 4, layout, sequences, options });
        }
    });
}

#[test]
fn slots_before_every_window_are_not_read() {
    each_cpu(|cpu| {
        let layout = KvLayout { n_kv_heads: 1, head_dim: 8, dtype: KvDType::F32 };
        let mut pool = KvPool::new(layout, 2).unwrap();
        poison(&mut pool, 8);
        let ones = [1.0; 16];
        let slots = [KvRow { page: 1, slot: 2 }, KvRow { page: 1, slot: 3 }];
        let ones = MatRef::packed(&ones, 2, 8);
        pool.write(&Cpu::new(1).unwrap(), ones, ones, &slots);
        let args = Attention {
            q: ones.slice(0, 1),
            kv: &pool,
            rows: &[QueryRow { first_page: 0, n_pages: 2, kv_start: 66, kv_len: 68 }],
            page_table: &[0, 1],
            op: AttentionArgs { soft_cap: Some(10.0), slopes: Some(&[1.0]), ..ONE_HEAD },
        };
        let mut out = [0.0; 8];
        attention(cpu, MatMut::packed(&mut out, 1, 8), args);
        assert_close(&out, &[1.0; 8], 1e-6, cpu.isa.name());
    });
}

#[test]
fn prefill_blocks_may_use_bf16() {
    each_cpu(|cpu| {
        // Query counts without a remainder of a few rows, which would be a decode block in f32.
        let s = |kv_len, n_queries, causal, window| Sequence { kv_len, n_queries, causal, window };
        for dtype in [KvDType::F32, KvDType::F16] {
            for (n_heads, n_kv_heads, head_dim) in [(2, 2, 64), (6, 2, 24), (4, 1, 96), (2, 2, 10)]
            {
                for window in [usize::MAX, 9, 70] {
                    let layout = KvLayout { n_kv_heads, head_dim, dtype };
                    let sequences = vec![
                        s(204, 204, true, window),
                        s(129, 61, false, window),
                        s(101, 96, true, window),
                    ];
                    let slopes = (window == 9).then(|| vec![0.25; n_heads]);
                    let sinks = (window == 70).then(|| vec![1.0; n_heads]);
                    let soft_cap = (window == 70).then_some(1.5);
                    for precision in [Precision::AsProducts, Precision::Bf16] {
                        let (sequences, slopes) = (sequences.clone(), slopes.clone());
                        let options = Options { soft_cap, slopes, sinks: sinks.clone(), precision };
                        check(cpu, &Case { n_heads, layout, sequences, options });
                    }
                }
            }
        }
    });
}

#[test]
fn heads_of_a_kv_head_are_split_over_idle_threads() {
    each_cpu(|cpu| {
        for (n_heads, n_kv_heads) in [(8, 1), (6, 2), (3, 1)] {
            let layout = KvLayout { n_kv_heads, head_dim: 96, dtype: KvDType::F32 };
            let sequences = vec![Sequence { kv_len: 700, n_queries: 1, causal: true, window: 600 }];
            check(cpu, &Case { n_heads, layout, sequences, options: Options::default() });
        }
    });
}

#[test]
fn many_heads_of_one_kv_head_exceed_a_block() {
    each_cpu(|cpu| {
        for dtype in [KvDType::F16, KvDType::Q8_0] {
            let layout = KvLayout { n_kv_heads: 1, head_dim: 72, dtype };
            let sequences = vec![Sequence { kv_len: 100, n_queries: 3, causal: true, window: 80 }];
            check(cpu, &Case { n_heads: 71, layout, sequences, options: Options::default() });
        }
    });
}

#[test]
#[should_panic(expected = "does not fit a page table")]
fn a_row_longer_than_its_pages_is_refused() {
    let layout = KvLayout { n_kv_heads: 1, head_dim: 8, dtype: KvDType::F32 };
    let pool = KvPool::new(layout, 1).unwrap();
    let cpu = Cpu { isa: Isa::available()[0], threads: ThreadTeam::new(1).unwrap() };
    let q = [0.0; 8];
    let rows = [QueryRow { first_page: 0, n_pages: 1, kv_start: 0, kv_len: 65 }];
    let args = Attention {
        q: MatRef::packed(&q, 1, 8),
        kv: &pool,
        rows: &rows,
        page_table: &[0],
        op: ONE_HEAD,
    };
    attention(&cpu, MatMut::packed(&mut [0.0; 8], 1, 8), args);
}
