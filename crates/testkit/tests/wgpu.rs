//! The wgpu device against the f64 oracle, with every kernel variant, and tests beyond the suite: pages read and written,
//! recordings longer than a submission, allocations that fail.

use pollster::block_on;
use stonechat_nn::op::{Count, KvShape, KvWriteArgs, PoolId, Port, Rows, SlotTable};
use stonechat_nn::{
    Counts, Cpu, Device, Executable, KvDType, KvRow, PAGE_LEN, PortRange, Program, Recorder,
    SegmentName, Step,
};
use stonechat_testkit::{Lcg, suite, variants, wgpu};

/// Imported values.
const IMPORT: Port = Port::Value(0);
/// Values that are read.
const OUTPUT: Port = Port::Value(1);

/// An empty body.
fn body(rows: Rows) -> Recorder {
    let mut ops = Recorder::new();
    ops.segment(SegmentName::Body, rows);
    ops
}

/// Counts of a step.
fn counts(all: &[(Count, usize)]) -> Counts {
    let mut counts = Counts::default();
    all.iter().for_each(|&(count, n)| counts[count] = n);
    counts
}

/// A step of the body.
fn step(counts: Counts) -> Step<'static> {
    Step { segments: &[SegmentName::Body], counts, ..Step::default() }
}

/// The first `n` values of a port.
fn read(executable: &mut dyn Executable, port: Port, n: usize) -> Vec<f32> {
    let mut values = Vec::new();
    block_on(executable.read(&[PortRange::first(port, n)], &mut values)).expect("readable values");
    values
}

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

/// Rows on two pages, one of them partly filled, in descending order.
fn slots() -> Vec<KvRow> {
    let row = |page, slot: usize| KvRow { page, slot: slot as u32 };
    let mut rows: Vec<_> = (0..PAGE_LEN).map(|slot| row(2, slot)).collect();
    rows.extend((0..7).rev().map(|slot| row(1, slot)));
    rows
}

/// A pool with keys and values at [`slots`].
fn filled(device: &Device, shape: KvShape, values: &[f32]) -> Box<dyn Executable> {
    let slots = slots();
    let width = shape.n_kv_heads * shape.head_dim;
    let tokens = Rows::of(Count::Tokens);
    let mut ops = body(tokens);
    let pool = ops.pool(shape);
    let ports = [0, 1].map(Port::Value);
    let [k, v] = ports.map(|port| ops.import(port, tokens, width));
    for layer in 0..shape.n_layers {
        ops.kv_write(KvWriteArgs { pool, layer, slots: SlotTable::Tokens }, k, v);
    }
    let counts = counts(&[(Count::Tokens, slots.len())]);
    let mut executable = device.compile(&ops.finish(), &counts).expect("a small pool");
    for (port, values) in ports.into_iter().zip(values.chunks(values.len() / 2)) {
        executable.import(port, values);
    }
    executable.run(&Step { slots: [&slots, &[], &[]], ..step(counts) });
    executable
}

fn page(executable: &mut dyn Executable, page: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    block_on(executable.read_page(PoolId(0), page, &mut bytes)).expect("a readable page");
    bytes
}

#[test]
fn pages_leave_and_enter_in_the_order_of_the_cpu() {
    let cpu = Device::from(Cpu::new(1).expect("a CPU"));
    for backend in wgpu::backends("pages_leave_and_enter_in_the_order_of_the_cpu") {
        let device = Device::from(backend);
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
            let (mut host, mut gpu) =
                (filled(&cpu, shape, &values), filled(&device, shape, &values));
            for index in 0..4 {
                let expected = page(&mut *host, index);
                assert!(page(&mut *gpu, index) == expected, "{shape:?}, page {index}");
            }
            let full = page(&mut *gpu, 2);
            gpu.write_page(PoolId(0), 3, &full).expect("a page of this pool");
            assert!(page(&mut *gpu, 3) == full, "{shape:?}");
            assert!(gpu.write_page(PoolId(0), 3, &full[1..]).is_err());
        }
    }
}

#[test]
fn steps_see_what_was_imported_before_them() {
    for backend in wgpu::backends("steps_see_what_was_imported_before_them") {
        let n = 3 << 20;
        let rows = Rows::of(Count::Windows);
        let mut ops = body(rows);
        let x = ops.import(IMPORT, rows, n);
        ops.export(OUTPUT, x.columns(n - 1, 1));
        ops.output(IMPORT, x);
        let max = counts(&[(Count::Windows, 3)]);
        let device = Device::from(backend.clone());
        let mut executable = device.compile(&ops.finish(), &max).expect("12 MB a window");
        let mut values: Vec<f32> = (0..n).map(|i| i as f32).collect();
        for first_window in 0..3 {
            values[n - 1] = first_window as f32;
            executable.import(IMPORT, &values);
            executable.run(&Step { first_window, ..step(counts(&[(Count::Windows, 1)])) });
        }
        assert!(read(&mut *executable, IMPORT, n) == values);
        assert_eq!(read(&mut *executable, OUTPUT, 3), [0.0, 1.0, 2.0]);
    }
}

/// Copies a value of each token.
fn copy_of_tokens() -> Program {
    let rows = Rows::of(Count::Tokens);
    let mut ops = body(rows);
    let x = ops.import(IMPORT, rows, 1);
    ops.export(OUTPUT, x);
    ops.finish()
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
