//! The CUDA device against the f64 oracle, with and without dependent launches, and tests beyond the suite.
#![cfg(feature = "cuda")]

use stonechat_nn::Device;
use stonechat_nn::op::Count;
use stonechat_testkit::device_tests::{IMPORT, OUTPUT, copy_of_tokens, counts, read, step};
use stonechat_testkit::{Reference, cuda, device_tests, suite};

#[test]
fn cuda_conforms() {
    let devices: Vec<Device> =
        cuda::backends("cuda_conforms").into_iter().map(Device::from).collect();
    for device in &devices {
        println!("{}", device.describe());
    }
    if !devices.is_empty() {
        suite::run_with(&devices, suite::F16_FACTORS);
        let oracle = Device::from(Reference);
        suite::run_large(&devices, &oracle, suite::F16_FACTORS);
    }
}

#[test]
fn pages_leave_and_enter_in_the_order_of_the_cpu() {
    for backend in cuda::backends("pages_leave_and_enter_in_the_order_of_the_cpu") {
        device_tests::pages_leave_and_enter_in_the_order_of_the_cpu(&Device::from(backend));
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
