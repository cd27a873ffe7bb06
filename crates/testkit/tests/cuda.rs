//! The CUDA device against the f64 oracle, with and without dependent launches, and tests beyond the suite.
#![cfg(feature = "cuda")]

use std::sync::Arc;

use stonechat_audio::{LogMel, Mel};
use stonechat_compute::cuda::ops::all_reduce::{
    Sum, all_gather, all_reduce, all_reduce_norm, connect,
};
use stonechat_compute::cuda::ops::{Output, Rows as DeviceRows, rows};
use stonechat_compute::cuda::{Buffer, CommandList, Communicator, CopyRange, Gpu, HostCopies};
use stonechat_compute::{DType, SharedBytes};
use stonechat_nn::op::{Count, MatmulArgs, NormArgs, Op, Port, Rows, Tensor, Weight};
use stonechat_nn::{
    Activation, CudaGroup, Device, Executable, GatedActivation, LogMelKernel, MatrixSource,
    PortRange, Recorder,
};
use stonechat_quant::cuda::MAX_GEMV_ROWS;
use stonechat_testkit::device_tests::{IMPORT, OUTPUT, body, copy_of_tokens, counts, read, step};
use stonechat_testkit::suite::{Part, Tolerances};
use stonechat_testkit::{Lcg, Reference, cuda, device_tests, random_weights, suite};

/// Runs `check` on the first GPU, with and without dependent launches.
#[expect(clippy::print_stdout, reason = "says what was tested")]
fn on_gpu(test: &str, check: impl FnOnce(&[Device])) {
    let mut backends = cuda::backends(test);
    let devices: Vec<Device> = backends.by_ref().map(Device::from).collect();
    for device in &devices {
        println!("{}", device.describe());
    }
    if !devices.is_empty() {
        check(&devices);
    }
}

fn conforms(test: &str, part: Part) {
    on_gpu(test, |devices| part.run(devices, Tolerances::F16));
}

#[test]
fn rows_conform() {
    conforms("rows_conform", Part::Rows);
}

#[test]
fn products_of_few_rows_conform() {
    conforms("products_of_few_rows_conform", Part::ProductsOfFewRows);
}

#[test]
fn products_of_many_rows_conform() {
    conforms("products_of_many_rows_conform", Part::ProductsOfManyRows);
}

#[test]
fn logits_conform() {
    conforms("logits_conform", Part::Logits);
}

#[test]
fn attention_conforms() {
    conforms("attention_conforms", Part::Attention);
}

#[test]
fn layers_conform() {
    conforms("layers_conform", Part::Layers);
}

#[test]
fn experts_conform() {
    conforms("experts_conform", Part::Experts);
}

#[test]
fn large_products_and_attention_of_many_heads_conform() {
    on_gpu("large_products_and_attention_of_many_heads_conform", |devices| {
        suite::run_large(devices, &Device::from(Reference), Tolerances::F16);
    });
}

#[test]
fn pages_leave_and_enter_in_the_order_of_the_cpu() {
    for backend in cuda::backends("pages_leave_and_enter_in_the_order_of_the_cpu") {
        device_tests::pages_leave_and_enter_in_the_order_of_the_cpu(&Device::from(backend));
    }
}

#[test]
fn pages_are_copied_in_every_pool() {
    for backend in cuda::backends("pages_are_copied_in_every_pool") {
        device_tests::pages_are_copied_in_every_pool(&Device::from(backend));
    }
}

#[test]
fn steps_see_what_was_imported_before_them() {
    for backend in cuda::backends("steps_see_what_was_imported_before_them") {
        device_tests::steps_see_what_was_imported_before_them(&Device::from(backend));
    }
}

#[test]
fn steps_of_equal_shape_run_one_graph_and_give_their_own_results() {
    let name = "steps_of_equal_shape_run_one_graph_and_give_their_own_results";
    for backend in cuda::backends(name) {
        let device = Device::from(backend.clone());
        let max = counts(&[(Count::Tokens, 64)]);
        let mut executable = device.compile(&copy_of_tokens(), &max).expect("a small program");
        let mut run = |value: f32, n: usize| {
            let before = backend.counters();
            executable.import(IMPORT, &vec![value; n]);
            executable.run(&step(counts(&[(Count::Tokens, n)])));
            let got = read(&mut *executable, OUTPUT, n);
            assert!(got.iter().all(|got| *got == value), "{got:?} of {value}");
            backend.counters() - before
        };
        // The first step launches its kernels, the second one makes the graph.
        let made: Vec<[u64; 3]> = (0..4)
            .map(|i| run(i as f32, 64))
            .map(|made| [made.lists, made.graphs, made.graph_launches])
            .collect();
        assert_eq!(made, [[1, 0, 0], [0, 1, 1], [0, 0, 1], [0, 0, 1]]);
        for round in 0..3 {
            (1..=64).for_each(|n| assert_eq!(run((round * n) as f32, n).buffers, 0));
        }
    }
}

#[test]
fn allocations_that_fail_are_errors_and_the_device_lives() {
    for backend in cuda::backends("allocations_that_fail_are_errors_and_the_device_lives") {
        let device = Device::from(backend.clone());
        let fault = &|| backend.gpu().fault("a fault".to_owned());
        device_tests::failures_are_errors_and_the_device_lives(&device, "cannot allocate", fault);
    }
}

/// Columns of the group of three of [`products_of_a_layer`].
const GROUP_COLUMNS: [usize; 3] = [304, 48, 40];

/// Products of a layer of `d` columns: a norm, a group of three, a norm, a gated pair, one onto the input of the norm.
fn products_of_a_layer(device: &Device, dtype: DType, d: usize) -> Box<dyn Executable> {
    let (mut random, f) = (Lcg::new(d as u64), 768);
    let mut weights = |n: usize, k: usize| {
        let bytes = random_weights(dtype, &mut random, (n, k), 1.0 / (k as f32).sqrt());
        let bytes = &SharedBytes::from(bytes);
        let source = MatrixSource { name: "test", rows: n, cols: k, dtype, bytes };
        device.load_matrix(source).expect("a supported type")
    };
    let mut ops = body(Rows::of(Count::Tokens));
    let norm = |ops: &mut Recorder, x: Tensor| {
        let weight = device.load_values(&vec![1.5; d]).expect("a few values");
        ops.op(Op::RmsNorm(NormArgs { weight, bias: None, eps: 1e-5 }), &[x])
    };
    let product = |ops: &mut Recorder, x: Tensor, weight: Weight| {
        let args = MatmulArgs { weight, bias: None, activation: Activation::None };
        ops.op(Op::Matmul(args), &[x])
    };
    let x = ops.import(IMPORT, Rows::of(Count::Tokens), d);
    let x = ops.add(x, x);
    let h = norm(&mut ops, x);
    let group = GROUP_COLUMNS.map(|n| weights(n, d));
    for (i, weight) in group.into_iter().enumerate() {
        let y = product(&mut ops, h, weight);
        ops.output(Port::value(1 + i), y);
    }
    let h = norm(&mut ops, x);
    let [gate, up] = [0, 1].map(|_| product(&mut ops, h, weights(f, d)));
    let hidden = ops.op(Op::Gated(GatedActivation::Silu), &[gate, up]);
    let y = product(&mut ops, hidden, weights(d, f));
    let sum = ops.add(x, y);
    ops.output(Port::value(4), sum);
    let max = counts(&[(Count::Tokens, MAX_GEMV_ROWS)]);
    device.compile(&ops.finish(), &max).expect("a small program")
}

#[test]
fn rows_of_a_batch_have_the_bits_of_single_rows() {
    for backend in cuda::backends("rows_of_a_batch_have_the_bits_of_single_rows") {
        let device = Device::from(backend);
        let is_own = |dtype: &&DType| device.stored_dtype(**dtype) == **dtype;
        let types = DType::ALL.iter().filter(|dtype| dtype.is_quantized() || **dtype == DType::F16);
        for &dtype in types.filter(is_own) {
            // Parts of several units, of one, or none; a last unit of fewer tiles.
            for d in if dtype.block_len() == 256 { [2304, 1536] } else { [2304, 1376] } {
                let [q, k, v] = GROUP_COLUMNS;
                let (columns, mut layer) = ([q, k, v, d], products_of_a_layer(&device, dtype, d));
                let values = random(7, MAX_GEMV_ROWS * d);
                let mut run = |first: usize, n: usize| {
                    layer.import(IMPORT, &values[first * d..][..n * d]);
                    layer.run(&step(counts(&[(Count::Tokens, n)])));
                    let ranges = columns.iter().enumerate();
                    let ranges: Vec<_> = ranges
                        .map(|(i, cols)| PortRange::first(Port::value(1 + i), n * cols))
                        .collect();
                    let mut results = Vec::new();
                    pollster::block_on(layer.read(&ranges, &mut results)).expect("results");
                    results
                };
                let rows = [0, 1, 8, 17, 31, 40, 63, 64, 127];
                let single = rows.map(|row| run(row, 1));
                for n in [2, 8, 9, 16, 17, 32, 33, 64, 65, MAX_GEMV_ROWS] {
                    let batch = run(0, n);
                    for (row, single) in rows.iter().zip(&single).filter(|(row, _)| **row < n) {
                        let mut of_row = Vec::new();
                        let mut rest = &batch[..];
                        for cols in columns {
                            of_row.extend_from_slice(&rest[row * cols..][..cols]);
                            rest = &rest[n * cols..];
                        }
                        let is_equal = bits(&of_row) == bits(single);
                        assert!(is_equal, "{dtype}, {d} columns: row {row} of {n}");
                    }
                }
            }
        }
    }
}

/// A block has a row of a few, a warp one of many.
#[test]
fn norms_of_many_rows_have_the_bits_of_single_rows() {
    const ROWS: usize = 300;
    for backend in cuda::backends("norms_of_many_rows_have_the_bits_of_single_rows") {
        let device = Device::from(backend);
        for (d, has_bias) in [64, 576, 1280, 2048].map(|d| [(d, false), (d, true)]).concat() {
            let mut random_values = Lcg::new(d as u64);
            let mut values = |n: usize| random_values.normals(n, 1.0);
            let mut load = |n: usize| device.load_values(&values(n)).expect("a few values");
            let args = NormArgs { weight: load(d), bias: has_bias.then(|| load(d)), eps: 1e-5 };
            let mut ops = body(Rows::of(Count::Tokens));
            let x = ops.import(IMPORT, Rows::of(Count::Tokens), d);
            let norms = [Op::LayerNorm(args.clone()), Op::RmsNorm(NormArgs { bias: None, ..args })];
            for (i, norm) in norms.into_iter().enumerate() {
                let y = ops.op(norm, &[x]);
                ops.output(Port::value(1 + 2 * i), y);
                let sum = ops.add(x, y);
                ops.output(Port::value(2 + 2 * i), sum);
            }
            let max = counts(&[(Count::Tokens, ROWS)]);
            let mut norms = device.compile(&ops.finish(), &max).expect("a small program");
            let rows = values(ROWS * d);
            let mut run = |first: usize, n: usize| {
                norms.import(IMPORT, &rows[first * d..][..n * d]);
                norms.run(&step(counts(&[(Count::Tokens, n)])));
                (1..=4).map(|i| bits(&read(&mut *norms, Port::value(i), n * d))).collect::<Vec<_>>()
            };
            let all = run(0, ROWS);
            for row in [0, 1, 130, ROWS - 1] {
                let single = run(row, 1);
                for (all, single) in all.iter().zip(&single) {
                    assert!(
                        all[row * d..][..d] == single[..],
                        "{d} columns, bias {has_bias}: row {row}"
                    );
                }
            }
        }
    }
}

#[test]
fn groups_have_the_bits_of_single_products() {
    const D: usize = 1536;
    for backend in cuda::backends("groups_have_the_bits_of_single_products") {
        let device = Device::from(backend);
        // Alike, or of mixed files.
        let types = [
            [DType::Q4K; 3],
            [DType::F16; 3],
            [DType::Q4K, DType::Q4K, DType::Q6K],
            [DType::Q5K, DType::Q4K, DType::Q4K],
            [DType::Q6K, DType::Q5K, DType::Q6K],
            [DType::Q4K, DType::Q5K, DType::Q6K],
        ];
        for (types, n_rows) in types.iter().flat_map(|types| [1, 2, 200, 300].map(|n| (types, n))) {
            let mut random_values = Lcg::new(5);
            let columns = types.iter().zip(GROUP_COLUMNS);
            let weights = columns.map(|(&dtype, n)| {
                let bytes = random_weights(dtype, &mut random_values, (n, D), 0.02);
                let bytes = &SharedBytes::from(bytes);
                let source = MatrixSource { name: "test", rows: n, cols: D, dtype, bytes };
                device.load_matrix(source).expect("a supported type")
            });
            let weights: Vec<_> = weights.collect();
            let values = random(9, n_rows * D);
            let run = |weights: &[Weight]| {
                let mut ops = body(Rows::of(Count::Tokens));
                let x = ops.import(IMPORT, Rows::of(Count::Tokens), D);
                for (i, weight) in weights.iter().enumerate() {
                    let (weight, activation) = (weight.clone(), Activation::None);
                    let args = MatmulArgs { weight, bias: None, activation };
                    let y = ops.op(Op::Matmul(args), &[x]);
                    ops.output(Port::value(1 + i), y);
                }
                let of_step = counts(&[(Count::Tokens, n_rows)]);
                let mut products = device.compile(&ops.finish(), &of_step).expect("a program");
                products.import(IMPORT, &values);
                products.run(&step(of_step));
                let ranges = weights.iter().enumerate().map(|(i, weight)| {
                    PortRange::first(Port::value(1 + i), n_rows * weight.info().rows)
                });
                let mut results = Vec::new();
                let ranges: Vec<_> = ranges.collect();
                pollster::block_on(products.read(&ranges, &mut results)).expect("results");
                bits(&results)
            };
            let single: Vec<u32> =
                weights.iter().flat_map(|w| run(std::slice::from_ref(w))).collect();
            assert!(single.iter().any(|&bits| bits != 0));
            assert!(run(&weights) == single, "{types:?}, {n_rows} rows");
        }
    }
}

/// A rank with its own values.
struct TestRank {
    gpu: Gpu,
    x: Buffer,
    out: Buffer,
    list: CommandList,
}

impl TestRank {
    /// Memory with `x`, and for `n_out` results.
    fn new(gpu: &Gpu, x: &[f32], n_out: usize) -> Self {
        let buffer = |n: usize| Buffer::new(gpu, 4 * n).expect("memory");
        let (memory, out) = (buffer(x.len()), buffer(n_out));
        gpu.upload(&memory, 0, bytemuck::cast_slice(x)).expect("an upload");
        Self { gpu: gpu.clone(), x: memory, out, list: CommandList::new(gpu) }
    }

    /// Sum over all ranks.
    fn sum(&self, rows: usize, cols: usize) -> Sum {
        let x = DeviceRows { address: self.x.address(), rows, cols, stride: cols };
        Sum { x, out: self.out.address(), accumulate: false, has_own_rows: false }
    }

    fn results(&self) -> Vec<u32> {
        contents(&self.gpu, &self.out)
    }
}

fn contents(gpu: &Gpu, buffer: &Buffer) -> Vec<u32> {
    let mut copies = HostCopies::new(gpu, buffer.bytes()).expect("memory");
    let range = CopyRange { src: buffer, offset: 0, len: buffer.bytes() };
    copies.enqueue(gpu, &[range]).expect("a copy");
    bytemuck::pod_collect_to_vec(copies.wait(gpu).expect("results"))
}

/// Runs the lists of all ranks in turn.
fn run(ranks: &mut [TestRank]) {
    let mut lists: Vec<_> = ranks.iter_mut().map(|rank| &mut rank.list).collect();
    CommandList::run_in_turn(&mut lists).expect("a run");
}

fn group_of(group: &CudaGroup) -> (Vec<Gpu>, Arc<Communicator>) {
    let gpus: Vec<Gpu> = group.ranks().iter().map(|rank| rank.gpu().clone()).collect();
    let communicator = connect(&gpus).expect("memory");
    (gpus, communicator)
}

fn random(seed: u64, n: usize) -> Vec<f32> {
    let mut random = Lcg::new(seed);
    (0..n).map(|_| random.next_u32() as f32 / 2e9 - 1.0).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn sums_over_ranks_have_the_bits_of_sums_in_their_order() {
    for group in cuda::groups("sums_over_ranks_have_the_bits_of_sums_in_their_order") {
        let (gpus, communicator) = group_of(&group);
        // One-shot up to 131,072 values, else two-phase.
        for n in [1, 2, 3, 65, 4096, 100_001, 131_072, 131_073, 300_002, 5_000_003] {
            let terms: Vec<_> = (0..gpus.len()).map(|rank| random(rank as u64, n)).collect();
            let sum = |i: usize| terms.iter().map(|x| x[i]).reduce(|sum, x| sum + x);
            let sums: Vec<f32> = (0..n).filter_map(sum).collect();
            let ranks = gpus.iter().zip(&terms).enumerate().map(|(i, (gpu, x))| {
                let mut rank = TestRank::new(gpu, x, n);
                let (sum, own) = (rank.sum(1, n), communicator.rank(i));
                all_reduce(&mut rank.list, &own, sum);
                all_reduce(&mut rank.list, &own, Sum { accumulate: true, ..sum });
                rank
            });
            let mut ranks: Vec<TestRank> = ranks.collect();
            let expected = bits(&sums.iter().map(|sum| sum + sum).collect::<Vec<_>>());
            // Launches, then a graph.
            for round in 0..4 {
                run(&mut ranks);
                for (i, rank) in ranks.iter().enumerate() {
                    assert!(rank.results() == expected, "{n} values, round {round}, rank {i}");
                }
                assert!(!communicator.has_timed_out());
            }
        }
    }
}

#[test]
fn norms_of_sums_over_ranks_have_the_bits_of_sums_and_norms() {
    for group in cuda::groups("norms_of_sums_over_ranks_have_the_bits_of_sums_and_norms") {
        let (gpus, communicator) = group_of(&group);
        for (rows, cols) in [(1, 64), (65, 64), (67, 192), (300, 4096), (130, 8192)] {
            let weights = random(100, cols);
            let ranks = gpus.iter().enumerate().map(|(i, gpu)| {
                let upload = |values: &[f32]| {
                    let buffer = Buffer::new(gpu, 4 * values.len()).expect("memory");
                    gpu.upload(&buffer, 0, bytemuck::cast_slice(values)).expect("an upload");
                    buffer
                };
                let own = communicator.rank(i);
                let mut rank = TestRank::new(gpu, &random(i as u64, rows * cols), rows * cols);
                let (weight, fused_out) = (upload(&weights), upload(&vec![0.0; rows * cols]));
                let [operand, fused_operand] =
                    [(); 2].map(|()| Buffer::new(gpu, 2 * rows * cols).expect("memory"));
                let (list, eps) = (&mut rank.list, 1e-5);
                let x = DeviceRows { address: rank.x.address(), rows, cols, stride: cols };
                let sum = Sum { x, out: rank.out.address(), accumulate: true, has_own_rows: false };
                all_reduce(list, &own, sum);
                let norm = NormArgs { weight: weight.address(), bias: None, eps };
                let out = Output::default().with_operand(operand.address());
                rows::rms_norm(list, out, DeviceRows { address: sum.out, ..x }, norm, false);
                all_reduce(list, &own, sum);
                let sum = Sum { out: fused_out.address(), ..sum };
                all_reduce_norm(list, &own, sum, (fused_operand.address(), norm));
                all_reduce(list, &own, Sum { has_own_rows: true, ..sum });
                (rank, weight, [operand, fused_operand], fused_out)
            });
            let ranks: Vec<_> = ranks.collect();
            let (mut ranks, others): (Vec<_>, Vec<_>) = ranks
                .into_iter()
                .map(|(rank, weight, operands, out)| (rank, (weight, operands, out)))
                .unzip();
            for round in 0..3 {
                run(&mut ranks);
                for (i, (rank, (_, operands, fused_out))) in ranks.iter().zip(&others).enumerate() {
                    let [operand, fused_operand] =
                        operands.each_ref().map(|buffer| contents(&rank.gpu, buffer));
                    assert!(operand.iter().any(|&pair| pair != 0));
                    let place = format!("{rows}x{cols}, round {round}, rank {i}");
                    assert!(operand == fused_operand, "{place}: norms");
                    assert!(rank.results() == contents(&rank.gpu, fused_out), "{place}: sums");
                }
                assert!(!communicator.has_timed_out());
            }
        }
    }
}

#[test]
fn columns_of_ranks_are_gathered_side_by_side() {
    for group in cuda::groups("columns_of_ranks_are_gathered_side_by_side") {
        let (gpus, communicator) = group_of(&group);
        for (n_rows, width) in [(1, 1), (1, 70_001), (3, 129), (7, 40_000)] {
            // Rank r has r more columns than the first.
            let cols: Vec<usize> = (0..gpus.len()).map(|rank| width + rank).collect();
            let first_cols: Vec<usize> =
                (0..=gpus.len()).map(|rank| cols[..rank].iter().sum()).collect();
            let all = first_cols[gpus.len()];
            let parts = cols.iter().enumerate();
            let parts: Vec<_> =
                parts.map(|(rank, cols)| random(rank as u64, n_rows * cols)).collect();
            let row = |r: usize| {
                parts.iter().zip(&cols).flat_map(move |(part, &cols)| &part[r * cols..][..cols])
            };
            let expected: Vec<f32> = (0..n_rows).flat_map(row).copied().collect();
            let ranks = gpus.iter().zip(&parts).enumerate().map(|(i, (gpu, x))| {
                let mut rank = TestRank::new(gpu, x, n_rows * all);
                let (address, cols) = (rank.x.address(), cols[i]);
                let x = DeviceRows { address, rows: n_rows, cols, stride: cols };
                let out = rank.out.address();
                all_gather(&mut rank.list, &communicator.rank(i), out, x, &first_cols);
                rank
            });
            let mut ranks: Vec<TestRank> = ranks.collect();
            for round in 0..4 {
                run(&mut ranks);
                for (i, rank) in ranks.iter().enumerate() {
                    let is_equal = rank.results() == bits(&expected);
                    assert!(is_equal, "{n_rows}x{width}, round {round}, rank {i}");
                }
            }
        }
    }
}

#[test]
fn a_rank_that_does_not_send_is_an_error_and_the_others_live() {
    for group in cuda::groups("a_rank_that_does_not_send_is_an_error_and_the_others_live") {
        let (gpus, communicator) = group_of(&group);
        let mut ranks: Vec<TestRank> = gpus
            .iter()
            .enumerate()
            .map(|(i, gpu)| {
                let mut rank = TestRank::new(gpu, &[1.0; 300_000], 300_000);
                for n in [1000, 300_000] {
                    let sum = rank.sum(1, n);
                    all_reduce(&mut rank.list, &communicator.rank(i), sum);
                }
                rank
            })
            .collect();
        let (first, _) = ranks.split_at_mut(1);
        run(first);
        let _ = first[0].results();
        assert!(communicator.has_timed_out());
        let error = communicator.reset().expect_err("a rank did not send").to_string();
        assert!(error.contains("waited 2 s for the values of another rank"), "{error}");
        assert!(!communicator.has_timed_out());
        run(&mut ranks);
        let expected = bits(&vec![ranks.len() as f32; 300_000]);
        assert!(ranks.iter().all(|rank| rank.results() == expected));
        assert!(!communicator.has_timed_out());
    }
}

/// Noise and a tone with silence between, whose loudness differs.
fn speech_like(n: usize) -> Vec<f32> {
    let mut random = Lcg::new(n as u64);
    let sample = |i: usize| {
        let noise = random.uniform();
        let loudness = [0.0, 0.3, 0.01, 0.9, 0.0, 0.1][i / 12_000 % 6];
        let tone = (std::f64::consts::TAU * 437.0 / 16_000.0 * i as f64).sin() as f32;
        loudness * (0.6 * tone + 0.1 * noise)
    };
    (0..n).map(sample).collect()
}

fn device_mel(
    log_mel: &LogMel,
    kernel: &dyn LogMelKernel,
    samples: &[f32],
    padding_samples: usize,
) -> Mel {
    let log_powers = |samples: &[f32], out: &mut [f32]| kernel.log_powers(samples, out);
    let mel = log_mel.compute_with(samples, padding_samples, log_powers, |chunks, task| {
        chunks.iter_mut().for_each(task);
    });
    mel.expect("a spectrogram")
}

/// Largest difference of two spectrograms of equal shape.
fn largest_difference(a: &Mel, b: &Mel) -> f32 {
    assert_eq!((a.n_frames, a.n_mels, a.data.len()), (b.n_frames, b.n_mels, b.data.len()));
    a.data.iter().zip(&b.data).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn spectrograms_are_those_of_the_host() {
    for backend in cuda::backends("spectrograms_are_those_of_the_host") {
        let device = Device::from(backend);
        for n_mels in [80, 128, 3] {
            let log_mel = LogMel::new(n_mels);
            let kernel = device.load_log_mel(&log_mel.tables()).expect("memory");
            let kernel = kernel.expect("a kernel");
            let mut worst = 0.0f32;
            for n in [1, 150, 200, 201, 400, 519, 520, 1960, 480_000, 1_000_001] {
                let samples = speech_like(n);
                for padding in [0, 160, 480_000] {
                    let got = device_mel(&log_mel, &*kernel, &samples, padding);
                    let difference = largest_difference(&got, &log_mel.compute(&samples, padding));
                    assert!(difference <= 1e-4, "{n} and {padding}: {difference}");
                    worst = worst.max(difference);
                }
            }
            println!("{n_mels} mels: largest difference {worst:e}");
            // Equal bits, whichever results were in memory before.
            let samples = speech_like(1_000_001);
            let [a, b] = [0, 1].map(|_| device_mel(&log_mel, &*kernel, &samples, 0));
            assert_eq!(a, b);
            let mut frame = vec![0.0; n_mels];
            let top = kernel.log_powers(&[0.0; 400], &mut frame).expect("a frame");
            assert!(frame.iter().chain([&top]).all(|x| (x + 10.0).abs() < 1e-5), "{frame:?} {top}");
        }
    }
}

#[test]
fn spectrograms_are_computed_beside_steps() {
    for backend in cuda::backends("spectrograms_are_computed_beside_steps") {
        let device = Device::from(backend);
        let log_mel = LogMel::new(80);
        let kernel = device.load_log_mel(&log_mel.tables()).expect("memory").expect("a kernel");
        let samples = speech_like(2_000_000);
        let expected = device_mel(&log_mel, &*kernel, &samples, 0);
        let max = counts(&[(Count::Tokens, 64)]);
        std::thread::scope(|scope| {
            let mel = || {
                (0..10).for_each(|_| {
                    assert_eq!(device_mel(&log_mel, &*kernel, &samples, 0), expected);
                });
            };
            let threads = [scope.spawn(mel), scope.spawn(mel)];
            // New shapes and executables: graphs are captured and memory is allocated meanwhile.
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                let mut executable = device.compile(&copy_of_tokens(), &max).expect("a program");
                for i in 0..192 {
                    let (n, value) = (1 + i / 3, i as f32);
                    executable.import(IMPORT, &vec![value; n]);
                    executable.run(&step(counts(&[(Count::Tokens, n)])));
                    let got = read(&mut *executable, OUTPUT, n);
                    assert!(got.iter().all(|got| *got == value), "{got:?} of {value}");
                }
            }
        });
    }
}
