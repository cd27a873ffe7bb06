//! GB/s of weights through the kernels of few rows, per format and shape.
//!
//! ```text
//! cargo bench -p stonechat-benches --bench quant -- q5_1-gemv
//! STONECHAT_ISA=avx2 cargo bench -p stonechat-benches --bench quant -- 2048x512
//! ```
//!
//! Weights are random; a group's name has the kernel, a function's name M x N x K. Quantizing the
//! activations is part of what is timed.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use stonechat_compute::cpu::{Epilogue, MatMut, MatRef};
use stonechat_compute::{Cpu, DType};
use stonechat_quant::{
    ActivationBuffer, PackedMatmul, PackedMatrix, QuantMatrix, dequantize_rows, gemv_blocks,
    kernel_name, matmul_packed, needs_importance, quantize_rows,
};

/// `(N, K)`: attention, the two feed-forward matrices and the vocabulary of Whisper's base model.
const SHAPES: [(usize, usize); 5] =
    [(512, 512), (2048, 512), (512, 2048), (2048, 2048), (51865, 512)];

fn random(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    std::iter::repeat_with(next).take(n).collect()
}

/// Packed rows: the same 64 repeated, since packing K types takes long.
fn weights(dtype: DType, n: usize, k: usize) -> Vec<u8> {
    let few = n.min(64);
    let row_bytes = dtype.bytes_for(k).expect("K is a multiple of 256");
    let mut bytes = vec![0; few * row_bytes];
    if needs_importance(dtype) {
        // Any bytes are blocks; without this bit f16 scales are finite.
        let values = random(bytes.len());
        bytes.iter_mut().zip(values).for_each(|(b, v)| *b = (v * 128.0) as i8 as u8 & 0xbf);
    } else {
        quantize_rows(dtype, &random(few * k), k, &mut bytes).expect("whole rows");
    }
    bytes.iter().copied().cycle().take(n * row_bytes).collect()
}

fn products(c: &mut Criterion) {
    let cpu = Cpu::new(0).expect("threads");
    for dtype in DType::ALL.iter().copied().filter(|&dtype| QuantMatrix::holds(dtype)) {
        let kernel = match PackedMatrix::zeroed(cpu.isa, dtype, 0, 0).expect("memory") {
            Some(packed) => packed.kernel_name(1),
            None => kernel_name(cpu.isa, dtype),
        };
        let mut group = c.benchmark_group(format!("{kernel}, {} threads", cpu.threads.n_threads()));
        for (n, k) in SHAPES {
            let bytes = weights(dtype, n, k);
            let rows = QuantMatrix::new(dtype, n, k, &bytes).expect("whole rows");
            let packed = PackedMatrix::zeroed(cpu.isa, dtype, n, k).expect("memory");
            let packed = packed.map(|mut packed| {
                packed.pack(&cpu, 0, &bytes);
                packed
            });
            group.throughput(Throughput::Bytes(bytes.len() as u64));
            for m in [1, 5] {
                let x = random(m * k);
                let mut y = vec![0.0; m * n];
                let mut activations = ActivationBuffer::new();
                group.bench_function(format!("{m}x{n}x{k}"), |b| {
                    b.iter(|| {
                        activations.quantize(&cpu, MatRef::packed(black_box(&x), m, k));
                        let (out, epilogue) = (MatMut::packed(&mut y, m, n), Epilogue::default());
                        match &packed {
                            Some(w) => {
                                let product = PackedMatmul { out, w, rows: 0..n, epilogue };
                                matmul_packed(&cpu, &activations, [Some(product)]);
                            }
                            None => gemv_blocks(&cpu, out, &activations, rows, epilogue),
                        }
                    });
                });
            }
        }
        group.finish();
    }
}

fn unpacking(c: &mut Criterion) {
    let cpu = Cpu::new(1).expect("threads");
    let (n, k) = (512, 512);
    let mut group = c.benchmark_group(format!("dequantize on {}", cpu.isa));
    for dtype in DType::ALL.iter().copied().filter(|&dtype| QuantMatrix::holds(dtype)) {
        let bytes = weights(dtype, n, k);
        let mut out = vec![0.0; n * k];
        group.throughput(Throughput::Elements((n * k) as u64));
        group.bench_function(dtype.name(), |b| {
            b.iter(|| dequantize_rows(cpu.isa, dtype, black_box(&bytes), &mut out));
        });
    }
    group.finish();
}

criterion_group!(benches, products, unpacking);
criterion_main!(benches);
