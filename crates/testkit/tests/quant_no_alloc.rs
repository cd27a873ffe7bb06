//! A matmul with reserved activations does not allocate.

use stonechat_compute::cpu::{Epilogue, MatMut, MatRef};
use stonechat_compute::{Cpu, DType};
use stonechat_quant::{ActivationBuffer, QuantMatrix, gemv_blocks};
use stonechat_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

#[test]
fn decode_steps_do_not_allocate() {
    let cpu = Cpu::new(1).unwrap();
    let (m, n, k) = (5, 70, 512);
    let bytes = vec![0u8; DType::Iq3S.bytes_for(n * k).unwrap()];
    let w = QuantMatrix::new(DType::Iq3S, n, k, &bytes).unwrap();
    let x = vec![1.0; m * k];
    let mut y = vec![0.0; m * n];
    let mut activations = ActivationBuffer::new();
    let before_reserve = ALLOCATOR.thread_count();
    activations.reserve(m, k);
    let before = ALLOCATOR.thread_count();
    assert!(before > before_reserve, "the counter does not count");
    for rows in [m, 1, m] {
        activations.quantize(&cpu, MatRef::packed(&x[..rows * k], rows, k));
        let out = MatMut::packed(&mut y[..rows * n], rows, n);
        gemv_blocks(&cpu, out, &activations, w, Epilogue::default());
    }
    assert_eq!(ALLOCATOR.thread_count(), before);
}
