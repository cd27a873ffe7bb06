//! Tests of devices beyond the conformance suite, for any GPU.

use pollster::block_on;
use stonechat_nn::op::{Count, KvShape, KvWriteArgs, PoolId, Port, Rows, SlotTable};
use stonechat_nn::{
    Counts, Cpu, Device, Executable, KvDType, KvRow, PAGE_LEN, PageCopy, PortRange, Program,
    Recorder, SegmentName, Step,
};

use crate::Lcg;

/// Imported values.
pub const IMPORT: Port = Port::value(0);
/// Values that are read.
pub const OUTPUT: Port = Port::value(1);

/// An empty body.
#[must_use]
pub fn body(rows: Rows) -> Recorder {
    let mut ops = Recorder::new();
    ops.segment(SegmentName::Body, rows);
    ops
}

/// Counts of a step.
#[must_use]
pub fn counts(all: &[(Count, usize)]) -> Counts {
    let mut counts = Counts::default();
    all.iter().for_each(|&(count, n)| counts[count] = n);
    counts
}

/// A step of the body.
#[must_use]
pub fn step(counts: Counts) -> Step<'static> {
    Step { segments: &[SegmentName::Body], counts, ..Step::default() }
}

/// The first `n` values of a port.
///
/// # Panics
/// If the device failed.
pub fn read(executable: &mut dyn Executable, port: Port, n: usize) -> Vec<f32> {
    let mut values = Vec::new();
    block_on(executable.read(&[PortRange::first(port, n)], &mut values)).expect("readable values");
    values
}

/// Rows on two pages, one of them partly filled, in descending order.
fn slots() -> Vec<KvRow> {
    let row = |page, slot: usize| KvRow { page, slot: slot as u32 };
    let mut rows: Vec<_> = (0..PAGE_LEN).map(|slot| row(2, slot)).collect();
    rows.extend((0..7).rev().map(|slot| row(1, slot)));
    rows
}

/// Pools with keys and values at [`slots`]: the first channels of `values`, which have the width of the widest pool.
fn filled(device: &Device, shapes: &[KvShape], values: &[f32]) -> Box<dyn Executable> {
    let slots = slots();
    let tokens = Rows::of(Count::Tokens);
    let mut ops = body(tokens);
    let ports = [0, 1].map(Port::value);
    let [k, v] = ports.map(|port| ops.import(port, tokens, values.len() / 2 / slots.len()));
    for shape in shapes {
        let pool = ops.pool(*shape);
        let [k, v] = [k, v].map(|x| x.columns(0, shape.n_kv_heads * shape.head_dim));
        for layer in 0..shape.n_layers {
            ops.kv_write(KvWriteArgs { pool, layer, slots: SlotTable::TOKENS }, k, v);
        }
    }
    let counts = counts(&[(Count::Tokens, slots.len())]);
    let mut executable = device.compile(&ops.finish(), &counts).expect("a small pool");
    for (port, values) in ports.into_iter().zip(values.chunks(values.len() / 2)) {
        executable.import(port, values);
    }
    executable.run(&Step { slots: [&slots, &[], &[]], ..step(counts) });
    executable
}

fn page(executable: &mut dyn Executable, pool: usize, page: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    block_on(executable.read_page(PoolId(pool), page, &mut bytes)).expect("a readable page");
    bytes
}

/// Pages read from and written to the device have the layout of the CPU's.
///
/// # Panics
/// If the layouts differ.
pub fn pages_leave_and_enter_in_the_order_of_the_cpu(device: &Device) {
    let cpu = Device::from(Cpu::new(1).expect("a CPU"));
    {
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
                (filled(&cpu, &[shape], &values), filled(device, &[shape], &values));
            for index in 0..4 {
                let expected = page(&mut *host, 0, index);
                assert!(page(&mut *gpu, 0, index) == expected, "{shape:?}, page {index}");
            }
            let full = page(&mut *gpu, 0, 2);
            gpu.write_page(PoolId(0), 3, &full).expect("a page of this pool");
            assert!(page(&mut *gpu, 0, 3) == full, "{shape:?}");
            assert!(gpu.write_page(PoolId(0), 3, &full[1..]).is_err());
        }
    }
}

/// A page of the sequences is copied in every layer of every pool.
///
/// # Panics
/// If it is not.
pub fn pages_are_copied_in_every_pool(device: &Device) {
    let dtype = KvDType::F16;
    let narrow = KvShape { n_layers: 2, n_pages: 4, n_kv_heads: 1, head_dim: 64, dtype };
    let wide = KvShape { n_layers: 1, n_kv_heads: 3, ..narrow };
    let values = Lcg::new(1).normals(2 * slots().len() * 3 * 64, 1.0);
    let mut executable = filled(device, &[narrow, wide], &values);
    let copies = [PageCopy { from: 2, to: 0 }, PageCopy { from: 1, to: 3 }];
    executable.run(&Step { copies: &copies, ..step(Counts::default()) });
    for PageCopy { from, to } in copies {
        let [narrow, wide] = [0, 1].map(|pool| page(&mut *executable, pool, to));
        // A head of 64 keys and values of 64 channels has 16 KiB.
        assert_eq!((narrow.len(), wide.len()), (2 << 14, 3 << 14));
        assert!(narrow.iter().chain(&wide).any(|&byte| byte != 0), "page {to} is empty");
        let sources = [0, 1].map(|pool| page(&mut *executable, pool, from));
        assert!(sources == [narrow, wide], "page {from} to {to}");
    }
}

/// Steps see the values imported before them, large ones, too.
///
/// # Panics
/// If a step sees other values.
pub fn steps_see_what_was_imported_before_them(device: &Device) {
    {
        let n = 3 << 20;
        let rows = Rows::of(Count::Windows);
        let mut ops = body(rows);
        let x = ops.import(IMPORT, rows, n);
        ops.export(OUTPUT, x.columns(n - 1, 1));
        ops.output(IMPORT, x);
        let max = counts(&[(Count::Windows, 3)]);
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
#[must_use]
pub fn copy_of_tokens() -> Program {
    let rows = Rows::of(Count::Tokens);
    let mut ops = body(rows);
    let x = ops.import(IMPORT, rows, 1);
    ops.export(OUTPUT, x);
    ops.finish()
}

/// Memory and heads that no device has are errors; the next read reports a fault, "a fault", that `fault` causes, once. The device
/// works afterwards.
///
/// # Panics
/// If not. `too_large` is part of the error of memory that no device has.
pub fn failures_are_errors_and_the_device_lives(
    device: &Device,
    too_large: &str,
    fault: &dyn Fn(),
) {
    let program = copy_of_tokens();
    let max = counts(&[(Count::Tokens, usize::MAX / 8)]);
    let error = device.compile(&program, &max).expect_err("no device has that").to_string();
    assert!(error.contains(too_large), "{error}");
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
    fault();
    let range = PortRange::first(OUTPUT, 4);
    let error = block_on(executable.read(&[range], &mut Vec::new())).expect_err("the fault");
    assert!(error.to_string().contains("a fault"));
    assert_eq!(read(&mut *executable, OUTPUT, 4), [0.0; 4]);
}
