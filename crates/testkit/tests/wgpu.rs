//! The wgpu device against the f64 oracle, with every kernel variant, and tests beyond the suite: pages read and written,
//! recordings longer than a submission, allocations that fail.

use stonechat_compute::{DType, SharedBytes};
use stonechat_nn::op::{ConvArgs, Count, MatmulArgs, Op, Rows};
use stonechat_nn::{Activation, Cpu, Device, Error, MatrixSource, PortRange};
use stonechat_testkit::device_tests::{IMPORT, OUTPUT, body, copy_of_tokens, counts, read, step};
use stonechat_testkit::{Lcg, device_tests, suite, variants, wgpu};

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
fn pages_are_copied_in_every_pool() {
    for backend in wgpu::backends("pages_are_copied_in_every_pool") {
        device_tests::pages_are_copied_in_every_pool(&Device::from(backend));
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

/// A convolution of `n` windows.
fn convolve(device: &Device, n: usize) -> Result<Vec<f32>, Error> {
    let (rows, cols, channels, stride) = (6, 8, 5, 2);
    let mut random = Lcg::new(7);
    let weights = random.normals(channels * 3 * cols, 0.5);
    let bytes = SharedBytes::from(bytemuck::cast_slice::<f32, u8>(&weights).to_vec());
    let (name, dtype) = ("conv", DType::F32);
    let source = MatrixSource { name, rows: channels, cols: 3 * cols, dtype, bytes: &bytes };
    let weight = device.load_matrix(source)?;
    let window = |each| Rows { count: Count::Windows, each };
    let mut ops = body(window(rows / stride));
    let x = ops.import(IMPORT, window(rows), cols);
    let matmul = MatmulArgs { weight, bias: None, activation: Activation::None };
    let y = ops.op(Op::Conv1d(ConvArgs { matmul, stride }), &[x]);
    ops.output(OUTPUT, y);
    let counts = counts(&[(Count::Windows, n)]);
    let mut executable = device.compile(&ops.finish(), &counts)?;
    executable.import(IMPORT, &random.normals(n * rows * cols, 1.0));
    executable.run(&step(counts));
    Ok(read(&mut *executable, OUTPUT, n * rows / stride * channels))
}

#[test]
fn convolutions_of_several_windows_are_right_or_refused() {
    let cpu = Device::from(Cpu::new(1).expect("a CPU"));
    let expected = convolve(&cpu, 2).expect("a convolution on the CPU");
    for backend in wgpu::backends("convolutions_of_several_windows_are_right_or_refused") {
        let device = Device::from(backend);
        convolve(&device, 1).expect("a convolution of one window");
        match convolve(&device, 2) {
            Ok(got) => {
                let is_near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
                assert!(got.iter().zip(&expected).all(is_near), "{got:?}, expected {expected:?}");
            }
            Err(error) => assert!(matches!(error, Error::Unsupported { .. }), "{error}"),
        }
    }
}

#[test]
fn memory_is_free_when_nothing_uses_it() {
    for backend in wgpu::backends("memory_is_free_when_nothing_uses_it") {
        let device = Device::from(backend.clone());
        // Scratch memory grows with the rows: lists of few rows bind the memory that larger ones replace.
        let round = || {
            convolve(&device, 1).expect("a convolution of one window");
            let max = counts(&[(Count::Tokens, 64)]);
            let mut executable = device.compile(&copy_of_tokens(), &max).expect("a small program");
            for n in [1, 64, 3, 64, 1] {
                executable.import(IMPORT, &vec![n as f32; n]);
                executable.run(&step(counts(&[(Count::Tokens, n)])));
                assert_eq!(read(&mut *executable, OUTPUT, n), vec![n as f32; n]);
            }
            // Steps and copies that nobody waits for.
            executable.run(&step(counts(&[(Count::Tokens, 2)])));
            executable.fetch(&[PortRange::first(OUTPUT, 2)], true);
            drop(executable);
            backend.gpu().memory_bytes()
        };
        let first = round();
        for i in 1..20 {
            assert_eq!(round(), first, "bytes after round {i}");
        }
    }
}
