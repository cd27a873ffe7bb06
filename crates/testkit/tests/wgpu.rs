//! The wgpu backend against the f64 oracle, with every kernel variant, and tests beyond the suite: pages read and written,
//! recordings longer than a submission, allocations that fail.

use pollster::block_on;
use stonechat_nn::{Backend, Cpu, KvDType, KvRow, KvShape, PAGE_LEN, View};
use stonechat_testkit::{Lcg, suite, variants, wgpu};

#[test]
fn wgpu_conforms_with_every_variant() {
    let backends = variants(wgpu::backends("wgpu_conforms_with_every_variant"));
    for backend in &backends {
        println!("{}", backend.describe());
    }
    if let Some(first) = backends.first() {
        // Split matrices in one variant, whole ones in the other.
        first.gpu().limit_binding_bytes(6000);
        suite::run(&backends);
    }
}

#[test]
fn wgpu_conforms_with_matrices() {
    let name = "wgpu_conforms_with_matrices";
    if let Some(backend) = wgpu::with_matrices(name) {
        println!("{}", backend.describe());
        let without = &wgpu::backends(name)[0];
        suite::run_large(std::slice::from_ref(&backend), without, suite::F16_FACTORS);
        backend.gpu().limit_binding_bytes(6000);
        suite::run_with(&[backend], suite::F16_FACTORS);
    }
}

/// Rows on two pages, one of them partly filled, in descending order.
fn slots() -> Vec<KvRow> {
    let row = |page, slot: usize| KvRow { page, slot: slot as u32 };
    let mut rows: Vec<_> = (0..PAGE_LEN).map(|slot| row(2, slot)).collect();
    rows.extend((0..7).rev().map(|slot| row(1, slot)));
    rows
}

fn filled<B: Backend>(backend: &B, shape: KvShape, values: &[f32]) -> B::Kv {
    let rows = slots();
    let width = shape.n_kv_heads * shape.head_dim;
    let mut kv = backend.kv(shape).expect("a small pool");
    let (k, v) = values.split_at(values.len() / 2);
    for layer in 0..shape.n_layers {
        let upload = |values: &[f32]| {
            let mut buffer = backend.alloc(values.len()).expect("a small buffer");
            backend.write(&mut buffer, 0, values);
            buffer
        };
        let (k, v) = (upload(k), upload(v));
        let view = |buffer| View::packed(buffer, rows.len(), width);
        backend.kv_write(&mut kv, layer, view(&k), view(&v), &rows);
    }
    kv
}

fn page<B: Backend>(backend: &B, kv: &B::Kv, page: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    block_on(backend.kv_read_page(kv, page, &mut bytes)).expect("a readable page");
    bytes
}

#[test]
fn pages_leave_and_enter_in_the_order_of_the_cpu() {
    let cpu = Cpu::new(1).expect("a CPU");
    for backend in wgpu::backends("pages_leave_and_enter_in_the_order_of_the_cpu") {
        for (dtype, head_dim) in [
            (KvDType::F32, 20),
            (KvDType::F16, 64),
            (KvDType::F16, 5),
            (KvDType::Q8_0, 64),
            (KvDType::Q8_0, 40),
        ] {
            let shape = KvShape { n_layers: 2, n_pages: 4, n_kv_heads: 3, head_dim, dtype };
            // Multiples of 1/127 of the largest value, so that quantization has no ties.
            let n = 2 * slots().len() * 3 * head_dim;
            let mut random = Lcg::new(head_dim as u64);
            let values: Vec<f32> = (0..n)
                .map(|i| if i % 4 == 0 { 127.0 } else { (random.next_u32() % 255) as f32 - 127.0 })
                .collect();
            let (host, mut device) =
                (filled(&cpu, shape, &values), filled(&backend, shape, &values));
            for index in 0..4 {
                let expected = page(&cpu, &host, index);
                assert!(page(&backend, &device, index) == expected, "{shape:?}, page {index}");
            }
            let full = page(&backend, &device, 2);
            backend.kv_write_page(&mut device, 3, &full).expect("a page of this pool");
            assert!(page(&backend, &device, 3) == full, "{shape:?}");
            assert!(backend.kv_write_page(&mut device, 3, &full[1..]).is_err());
        }
    }
}

#[test]
fn recordings_may_be_longer_than_a_submission() {
    for backend in wgpu::backends("recordings_may_be_longer_than_a_submission") {
        let before = backend.counters();
        let n = 3 << 20;
        let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let mut buffer = backend.alloc(n).expect("12 MB");
        let mut sums = backend.alloc(2).expect("a small buffer");
        // Every copy sees the writes recorded before it.
        for round in 0..3 {
            backend.write(&mut buffer, 0, &values);
            backend.write(&mut buffer, n - 1, &[round as f32]);
            backend.copy(&mut sums, round % 2, View::packed(&buffer, 1, 1));
        }
        let mut got = vec![0.0; n];
        block_on(backend.read(&buffer, 0, &mut got)).expect("a readable buffer");
        assert!(got[..n - 1] == values[..n - 1]);
        assert_eq!(got[n - 1], 2.0);
        assert!((backend.counters() - before).submissions > 8);
    }
}

#[test]
fn equal_recordings_are_encoded_ahead_and_give_their_own_results() {
    for backend in wgpu::backends("equal_recordings_are_encoded_ahead_and_give_their_own_results") {
        let mut x = backend.alloc(64).expect("a small buffer");
        let mut y = backend.alloc(128).expect("a small buffer");
        let before = backend.counters();
        let mut step = |value: f32, n: usize| {
            backend.write(&mut x, 0, &vec![value; n]);
            backend.copy(&mut y, 64 - n, View::packed(&x, 1, n));
            let mut got = vec![0.0; n];
            block_on(backend.read(&y, 64 - n, &mut got)).expect("a readable buffer");
            assert!(got.iter().all(|got| *got == value), "{got:?} of {value}");
        };
        // The third step is the first that repeats two equal ones.
        (0..5).for_each(|i| step(i as f32, 64));
        let steady = backend.counters() - before;
        assert_eq!((steady.submissions, steady.repeats), (5, 3));
        // Other commands are encoded again.
        step(7.0, 32);
        step(8.0, 64);
        assert_eq!((backend.counters() - before).repeats, 3);
    }
}

#[test]
fn what_cannot_be_had_is_an_error_and_the_device_lives() {
    for backend in wgpu::backends("what_cannot_be_had_is_an_error_and_the_device_lives") {
        let error = backend.alloc(usize::MAX / 8).expect_err("no device has that").to_string();
        assert!(error.contains("buffers of at most"), "{error}");
        let shape =
            KvShape { n_layers: 1, n_pages: 1, n_kv_heads: 1, head_dim: 4096, dtype: KvDType::F16 };
        let error = backend.kv(shape).expect_err("a head too wide").to_string();
        assert!(error.contains("attention") && error.contains("4096"), "{error}");
        // The next read reports a fault, once.
        backend.gpu().fault("a fault".to_owned());
        let buffer = backend.alloc(4).expect("a small buffer");
        let mut values = [1.0; 4];
        let error = block_on(backend.read(&buffer, 0, &mut values)).expect_err("the fault");
        assert!(error.to_string().contains("a fault"));
        block_on(backend.read(&buffer, 0, &mut values)).expect("a device that lives");
        assert_eq!(values, [0.0; 4]);
    }
}
