//! GGUF files made to break a reader.

use stonechat_formats::{DType, ModelFile, TensorInfo};

/// A GGUF file put together field by field, so that any of them can lie.
struct Raw(Vec<u8>);

impl Raw {
    fn new(n_tensors: u64, n_entries: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(3).u64(n_tensors).u64(n_entries)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn string(self, text: &str) -> Self {
        let mut out = self.u64(text.len() as u64);
        out.0.extend(text.as_bytes());
        out
    }

    fn bytes(mut self, n: usize) -> Self {
        self.0.resize(self.0.len() + n, 0);
        self
    }

    fn tensor(self, name: &str, ne: &[u64], type_id: u32, offset: u64) -> Self {
        let out = self.string(name).u32(ne.len() as u32);
        ne.iter().fold(out, |out, &d| out.u64(d)).u32(type_id).u64(offset)
    }

    fn pad(self) -> Self {
        let n = self.0.len().next_multiple_of(32) - self.0.len();
        self.bytes(n)
    }

    #[track_caller]
    fn refused(self, expected: &str) {
        let e = ModelFile::from_reader(self.0).expect_err("a broken file").to_string();
        assert!(e.contains(expected), "{e}");
        assert!(!e.contains('\n'), "{e}");
    }
}

#[test]
fn a_raw_file_that_does_not_lie_is_read() {
    let raw = Raw::new(2, 1).string("k").u32(4).u32(7);
    let raw = raw.tensor("b", &[3, 2], 0, 32).tensor("a", &[32], 2, 0).pad().bytes(32 + 24);
    let model = ModelFile::from_reader(raw.0).unwrap();
    let got: Vec<TensorInfo> =
        model.tensors().map(|t| TensorInfo::new(t.name, t.dtype, t.shape)).collect();
    let expected =
        [TensorInfo::new("b", DType::F32, [2, 3]), TensorInfo::new("a", DType::Q4_0, [32])];
    assert_eq!(got, expected);
}

#[test]
fn versions() {
    for (version, expected) in [
        (0, "unsupported GGUF version: expected 2 or 3, little-endian, got 0"),
        (1, "got 1"),
        (4, "got 4"),
        (3u32.swap_bytes(), "unsupported GGUF byte order"),
    ] {
        Raw(b"GGUF".to_vec()).u32(version).u64(0).u64(0).refused(expected);
    }
}

#[test]
fn counts() {
    for n in [1 << 63, u64::MAX, 1 << 40, 100] {
        Raw::new(n, 0).bytes(200).refused("file ends inside tensor descriptions");
        Raw::new(0, n).bytes(200).refused("file ends inside metadata entries");
        Raw::new(0, 1).u64(n).bytes(40).refused("file ends inside metadata key");
        Raw::new(0, 1).string("k").u32(8).u64(n).bytes(40).refused("file ends inside string");
        for kind in [0, 4, 6, 7, 8, 9, 12] {
            let array = Raw::new(0, 1).string("k").u32(9).u32(kind).u64(n);
            array.bytes(40).refused("file ends inside array");
        }
        Raw::new(1, 0).u64(n).bytes(40).refused("file ends inside tensor name");
    }
}

#[test]
fn metadata() {
    Raw::new(0, 1).string("k").u32(13).bytes(40).refused("metadata `k`: expected a value kind");
    Raw::new(0, 1).string("k").u32(9).u32(77).u64(1).bytes(40).refused("metadata `k`");
    Raw::new(0, 1).string("k").u32(7).u32(2).refused("invalid bool at offset 37");
    let twice = Raw::new(0, 2).string("k").u32(4).u32(1).string("k").u32(4).u32(1);
    twice.refused("metadata `k`: expected one entry of this key, got a second one");
    let mut raw = Raw::new(0, 1).string("kk").u32(4).u32(1);
    raw.0[32] = 0xff;
    raw.refused("invalid metadata key at offset 32: expected UTF-8");
}

#[test]
fn arrays_within_arrays() {
    let nest = |depth: usize| {
        let raw = Raw::new(0, 1).string("k").u32(9);
        (1..depth).fold(raw, |raw, _| raw.u32(9).u64(1)).u32(0).u64(0)
    };
    assert!(ModelFile::from_reader(nest(4).0).is_ok());
    nest(5).refused("metadata `k`: expected at most 4 levels of nested arrays");
    nest(100_000).refused("metadata `k`: expected at most 4 levels of nested arrays");
}

#[test]
fn alignments() {
    for alignment in [0, 1 << 31, 24, 1 << 21] {
        let raw = Raw::new(0, 1).string("general.alignment").u32(4).u32(alignment);
        raw.refused("metadata `general.alignment`: expected a u32 that is a power of two");
    }
    let raw = Raw::new(0, 1).string("general.alignment").u32(10).u64(32);
    raw.refused("got u64 32");
    Raw::new(1, 0).tensor("t", &[4], 0, 16).pad().bytes(64).refused("a multiple of 32, got 16");
}

#[test]
fn dimensions() {
    let one = |ne: &[u64], type_id| Raw::new(1, 0).tensor("t", ne, type_id, 0).pad().bytes(64);
    one(&[0], 0).refused("tensor `t`: expected a dimension of 1 or more");
    one(&[4, 0, 4], 0).refused("expected a dimension of 1 or more");
    one(&[1, 1, 1, 1, 1], 0).refused("expected at most 4 dimensions, got 5");
    one(&[1 << 63, 2], 0).refused("fits in memory");
    one(&[u64::MAX], 0).refused("fits in memory");
    one(&[1 << 32, 1 << 32], 24).refused("fits in memory");
    one(&[1 << 31, 1 << 31, 1 << 31], 0).refused("fits in memory");
    one(&[33], 2).refused("expected rows of a multiple of 32 elements for q4_0, got shape [33]");
    one(&[16, 2], 2).refused("expected rows of a multiple of 32");
    one(&[17], 0).refused("expected 68 bytes at offset 0 of the data, got 64 bytes of data");
    let raw = Raw::new(1, 0).string("t").u32(u32::MAX).bytes(64);
    raw.refused("expected at most 4 dimensions, got 4294967295");
}

#[test]
fn every_type_is_sized() {
    for &dtype in DType::ALL {
        let (ne, id) = (3 * dtype.block_len() as u64, dtype.ggml_id());
        let n_bytes = 3 * dtype.block_bytes();
        let with = |ne, n_bytes| Raw::new(1, 0).tensor("t", &[ne], id, 0).pad().bytes(n_bytes);
        let model = ModelFile::from_reader(with(ne, n_bytes).0).expect("the size is right");
        assert_eq!(model.require("t").unwrap().data.len(), n_bytes, "{dtype}");
        with(ne, n_bytes - 1).refused(&format!("expected {n_bytes} bytes at offset 0"));
        if dtype.is_quantized() {
            let expected = format!("rows of a multiple of {} elements for", dtype.block_len());
            with(ne - 1, n_bytes).refused(&expected);
        }
    }
}

#[test]
fn every_cut_is_refused() {
    let raw = Raw::new(2, 2).string("k").u32(9).u32(8).u64(2).string("a").string("bc");
    let raw = raw.string("n").u32(4).u32(7);
    let raw = raw.tensor("w", &[256], 16, 0).tensor("v", &[8], 0, 96).pad().bytes(96 + 32);
    assert!(ModelFile::from_reader(raw.0.clone()).is_ok());
    for n in 8..raw.0.len() {
        let e = ModelFile::from_reader(raw.0[..n].to_vec()).expect_err("a cut file").to_string();
        assert!(e.contains("file ends inside") || e.contains("bytes of data"), "{n}: {e}");
    }
}

#[test]
fn types() {
    for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
        let raw = Raw::new(1, 0).tensor("blk.0.w", &[256], id, 0).pad().bytes(4096);
        raw.refused(&format!("tensor `blk.0.w`: expected a supported GGML type, got type id {id}"));
    }
}

#[test]
fn offsets() {
    let two = |a, b| {
        let raw = Raw::new(2, 0).tensor("a", &[16], 0, a).tensor("b", &[16], 0, b);
        raw.pad().bytes(128)
    };
    assert!(ModelFile::from_reader(two(64, 0).0).is_ok());
    two(0, 32).refused("tensor `b`: expected data after the end of `a`, got data that overlaps it");
    two(64, 64).refused("overlaps");
    two(0, 96).refused("tensor `b`: expected 64 bytes at offset 96 of the data");
    two(0, 1 << 63).refused("tensor `b`");
    two(0, u64::MAX - 31).refused("tensor `b`");
    let same_name = Raw::new(2, 0).tensor("a", &[8], 0, 0).tensor("a", &[8], 0, 32);
    same_name.pad().bytes(64).refused("tensor `a`: expected one tensor of this name");
}
