//! The wgpu device against the f64 oracle, with every kernel variant, and tests beyond the suite: pages read and written,
//! recordings longer than a submission, allocations that fail.

use stonechat_nn::Device;
use stonechat_nn::op::Count;
use stonechat_testkit::device_tests::{IMPORT, OUTPUT, copy_of_tokens, counts, read, step};
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
        suite::run_large(&devices, &without, suite::Tolerances::F16_OR_INT8);
        backend.gpu().limit_binding_bytes(6000);
        suite::run_with(&devices, suite::Tolerances::F16_OR_INT8);
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
        let fault = &|| backend.gpu().fault("a fault".to_owned());
        device_tests::failures_are_errors_and_the_device_lives(
            &device,
            "buffers of at most",
            fault,
        );
    }
}
