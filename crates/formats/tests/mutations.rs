//! Damaged files of every format: any bytes end in `Ok` or `Err`, and memory stays in
//! proportion to the file.

#[path = "support/sample_files.rs"]
mod sample_files;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use proptest::prelude::{ProptestConfig, any, prop, prop_assert, proptest};
use stonechat_formats::ModelFile;

thread_local! {
    /// The largest allocation that this thread made since it was reset.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, which records the largest allocation.
struct Watching;

fn note(size: usize) {
    // A thread that is ending has no cell any more and runs no test.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(size)));
}

// SAFETY: every call goes to `System` with the arguments it came with.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps `alloc`'s contract, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` in `alloc` or `realloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        // SAFETY: `ptr` came from `System` with this layout; the caller vouches for `new_size`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// The largest single allocation that a file of `n` bytes may cause: tables of the smallest
/// items that the formats allow grow to a few times the file.
fn allowance(n: usize) -> usize {
    16 * n + 4096
}

/// Parses `bytes` and touches everything in the result. True if it was a model.
fn parse(bytes: Vec<u8>) -> (bool, usize) {
    LARGEST.set(0);
    let result = ModelFile::from_reader(bytes);
    let ok = match &result {
        Ok(model) => {
            for tensor in model.tensors() {
                let bytes = tensor.dtype.bytes_for(tensor.n_elements());
                assert_eq!(bytes, Some(tensor.data.len()), "{}", tensor.name);
            }
            let summary = model.summary();
            assert_eq!(summary.tensors.len(), model.tensors().len());
            true
        }
        Err(e) => {
            let text = e.to_string();
            assert!(!text.is_empty() && !text.contains('\n') && text.len() < 2000, "{text}");
            false
        }
    };
    (ok, LARGEST.get())
}

#[test]
fn the_samples_are_models() {
    for (name, bytes) in sample_files::all() {
        let n = bytes.len();
        let (ok, largest) = parse(bytes);
        assert!(ok, "{name}");
        assert!(largest <= allowance(n), "{name}: {largest} bytes for a file of {n}");
    }
}

#[test]
fn every_truncation_is_refused_or_whole() {
    for (name, bytes) in sample_files::all() {
        for n in 0..bytes.len() {
            let (ok, largest) = parse(bytes[..n].to_vec());
            assert!(largest <= allowance(n), "{name} cut at {n}: {largest} bytes");
            // A whisper.cpp file ends wherever a tensor ends, and a GGUF's padding may be gone.
            let may_end_early = name == "whisper_bin" || name == "gguf";
            assert!(!ok || may_end_early, "{name} cut at {n} of {}", bytes.len());
        }
    }
}

#[test]
fn every_byte_set_to_its_extremes() {
    for (name, bytes) in sample_files::all() {
        for i in 0..bytes.len() {
            for value in [0x00, 0x01, 0x7f, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[i] = value;
                let (_, largest) = parse(damaged);
                let allowed = allowance(bytes.len());
                assert!(largest <= allowed, "{name}[{i}] = {value}: {largest} bytes");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn damage(
        which in 0..7usize,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        wide in prop::option::of((any::<prop::sample::Index>(), any::<u64>())),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (_, mut bytes) = sample_files::all().swap_remove(which);
        for (at, value) in flips {
            let n = bytes.len();
            bytes[at.index(n)] ^= value;
        }
        if let Some((at, value)) = wide {
            // A whole length or count at once.
            let at = at.index(bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let n = bytes.len();
        let (_, largest) = parse(bytes);
        prop_assert!(largest <= allowance(n), "{} bytes for a file of {}", largest, n);
    }

    #[test]
    fn noise_behind_a_magic(
        which in 0..4usize,
        noise in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let heads: [&[u8]; 4] =
            [b"GGUF\x03\0\0\0", b"lmgg", b"\x80\0\0\0\0\0\0\0{", b"\x06\0\0\0\x02\0a\0"];
        let mut bytes = heads[which].to_vec();
        bytes.extend(noise);
        let n = bytes.len();
        let (_, largest) = parse(bytes);
        prop_assert!(largest <= allowance(n), "{} bytes for a file of {}", largest, n);
    }
}
