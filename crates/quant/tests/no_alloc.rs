//! A matmul with a reserved buffer allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use stonechat_compute::cpu::{Epilogue, MatMut, MatRef};
use stonechat_compute::{Cpu, DType};
use stonechat_quant::{ActivationBuffer, QuantMatrix, matmul};

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise about `layout` is the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: `p` came from `System.alloc` with this layout, by `alloc` above.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn decode_steps_do_not_allocate() {
    let cpu = Cpu::new(1).unwrap();
    let (m, n, k) = (5, 70, 512);
    let bytes = vec![0u8; DType::Q5K.bytes_for(n * k).unwrap()];
    let w = QuantMatrix::new(DType::Q5K, n, k, &bytes).unwrap();
    let x = vec![1.0; m * k];
    let mut y = vec![0.0; m * n];
    let mut activations = ActivationBuffer::new();
    let before_reserve = COUNT.get();
    activations.reserve(m, k);
    let before = COUNT.get();
    assert!(before > before_reserve, "the counter does not count");
    for rows in [m, 1, m] {
        activations.quantize(&cpu, MatRef::packed(&x[..rows * k], rows, k));
        let out = MatMut::packed(&mut y[..rows * n], rows, n);
        matmul(&cpu, out, &activations, w, Epilogue::default());
    }
    assert_eq!(COUNT.get(), before);
}
