//! The wgpu device against the f64 oracle, with every kernel variant, and tests beyond the suite: pages read and written,
//! recordings longer than a submission, allocations that fail.

use pollster::block_on;
use stonechat_nn::op::{Count, KvShape, Rows};
use stonechat_nn::{Counts, Device, KvDType, PortRange};
use stonechat_testkit::device_tests::{IMPORT, OUTPUT, body, copy_of_tokens, counts, read, step};
use stonechat_testkit::{device_tests, suite, variants, wgpu};

#[test]
fn wgpu_conforms_with_every_variant() {
    let backends = variants(wgpu::backends("wgpu_conforms_with_every_variant"));
    let devices: Vec<Device> = backends.iter().cloned().map(Device::from).collect();
    for device in &devices {
        println!("{}", device.describe());
    }
    if let Some(first) = backends.first() {
        // Split matrices in one variant, whole ones in the other.
        first.gpu().limit_binding_bytes(6000);
        suite::run(&devices);
    }
}

#[test]
fn wgpu_conforms_with_matrices() {
    let name = "wgpu_conforms_with_matrices";
    if let Some(backend) = wgpu::with_matrices(name) {
        let devices = [Device::from(backend.clone())];
        println!("{}", devices[0].describe());
        let without = Device::from(wgpu::backends(name).remove(0));
        suite::run_large(&devices, &without, suite::F16_FACTORS);
        backend.gpu().limit_binding_bytes(6000);
        suite::run_with(&devices, suite::F16_FACTORS);
    }
}

#[test]
fn pages_leave_and_enter_in_the_order_of_the_cpu() {
    for backend in wgpu::backends("pages_leave_and_enter_in_the_order_of_the_cpu") {
        device_tests::pages_leave_and_enter_in_the_order_of_the_cpu(&Device::from(backend));
    }
}

#[test]
fn steps_see_what_was_imported_before_them() {
    for backend in wgpu::backends("steps_see_what_was_imported_before_them") {
        device_tests::steps_see_what_was_imported_before_them(&Device::from(backend));
    }
}

#[test]
fn steps_of_equal_shape_run_one_list_and_give_their_own_results() {
    for backend in wgpu::backends("steps_of_equal_shape_run_one_list_and_give_their_own_results") {
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
        // The second step encodes for itself, and ahead for the third.
        let encodings: Vec<u64> = (0..5).map(|i| run(i as f32, 64).encodings).collect();
        assert_eq!(encodings, [1, 2, 1, 1, 1]);
        // A step of another shape drops the encoded list.
        assert_eq!(run(7.0, 32).encodings, 1);
        assert_eq!(run(8.0, 64).encodings, 2);
        // As many shapes as there are rows: parameters of old lists make room for new ones.
        for round in 0..3 {
            (1..=64).for_each(|n| assert_eq!(run((round * n) as f32, n).bind_groups, 0));
        }
    }
}

#[test]
fn what_cannot_be_had_is_an_error_and_the_device_lives() {
    for backend in wgpu::backends("what_cannot_be_had_is_an_error_and_the_device_lives") {
        let device = Device::from(backend.clone());
        let program = copy_of_tokens();
        let max = counts(&[(Count::Tokens, usize::MAX / 8)]);
        let error = device.compile(&program, &max).expect_err("no device has that").to_string();
        assert!(error.contains("buffers of at most"), "{error}");
        let mut ops = body(Rows::of(Count::Tokens));
        ops.pool(KvShape {
            n_layers: 1,
            n_pages: 1,
            n_kv_heads: 1,
            head_dim: 4096,
            dtype: KvDType::F16,
        });
        let error = device.compile(&ops.finish(), &Counts::default());
        let error = error.expect_err("a head too wide").to_string();
        assert!(error.contains("attention") && error.contains("4096"), "{error}");
        // The next read reports a fault, once.
        let max = counts(&[(Count::Tokens, 4)]);
        let mut executable = device.compile(&program, &max).expect("a small program");
        backend.gpu().fault("a fault".to_owned());
        let range = PortRange::first(OUTPUT, 4);
        let error = block_on(executable.read(&[range], &mut Vec::new())).expect_err("the fault");
        assert!(error.to_string().contains("a fault"));
        assert_eq!(read(&mut *executable, OUTPUT, 4), [0.0; 4]);
    }
}
