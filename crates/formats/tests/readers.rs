//! Models through readers of byte ranges: the same content as from a memory map, bounded reads, and
//! errors that tell what was read.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/sample_files.rs"]
mod sample_files;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use proptest::prelude::{ProptestConfig, any, prop, prop_assert_eq, proptest};
use sample_files::{pattern, safetensors_of};
use stonechat_formats::{
    DType, Error, GgufWriter, Metadata, ModelFile, ReadAt, TensorData, TensorInfo, WhisperBinWriter,
};

/// Longest read of a header without a longer field.
const MAX_WINDOW: usize = 256 << 10;

/// Records the ranges that are read; fails from offset `end` on.
#[derive(Debug)]
struct Recording {
    bytes: Vec<u8>,
    end: usize,
    reads: Mutex<Vec<(usize, usize)>>,
}

impl Recording {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        let end = bytes.len();
        Self::ending_at(end, bytes)
    }

    /// A reader with the length of `bytes` that ends early.
    fn ending_at(end: usize, bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { bytes, end, reads: Mutex::default() })
    }

    /// Offsets and lengths of the reads since the last call.
    fn reads(&self) -> Vec<(usize, usize)> {
        std::mem::take(&mut *self.reads.lock().unwrap())
    }
}

impl ReadAt for Recording {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let (start, end) = (offset as usize, offset as usize + buf.len());
        assert!(end <= self.bytes.len(), "read {start}..{end} of {}", self.bytes.len());
        self.reads.lock().unwrap().push((start, buf.len()));
        if end > self.end {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was lost"));
        }
        buf.copy_from_slice(&self.bytes[start..end]);
        Ok(())
    }
}

/// A source without a length.
#[derive(Debug)]
struct Endless;

impl ReadAt for Endless {
    fn len(&self) -> io::Result<u64> {
        Err(io::Error::other("the length is unknown"))
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        panic!("nothing is read without a length")
    }
}

/// An empty folder under the build's scratch space.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readers").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[track_caller]
fn assert_same(got: &ModelFile, expected: &ModelFile) {
    assert_eq!(got.format(), expected.format());
    assert_eq!(got.version(), expected.version());
    assert_eq!(got.metadata(), expected.metadata());
    assert_eq!(got.file_bytes(), expected.file_bytes());
    assert_eq!(got.weight_bytes(), expected.weight_bytes());
    assert_eq!(format!("{:?}", got.whisper_bin()), format!("{:?}", expected.whisper_bin()));
    assert_eq!(format!("{:?}", got.summary()), format!("{:?}", expected.summary()));
    assert!(got.companions().eq(expected.companions()));
    assert_eq!(got.tensors().len(), expected.tensors().len());
    for (a, b) in got.tensors().zip(expected.tensors()) {
        assert_eq!((a.name, a.dtype, a.shape), (b.name, b.dtype, b.shape));
        let (a, b) = (a.data.load().unwrap(), b.data.load().unwrap());
        assert!(*a == *b && a.as_ptr().addr().is_multiple_of(64));
    }
}

#[test]
fn every_format_reads_the_same_as_from_a_map() {
    let folder = scratch("formats");
    for (i, (name, bytes)) in sample_files::all().into_iter().enumerate() {
        let path = folder.join(format!("{i}-{name}"));
        fs::write(&path, &bytes).unwrap();
        let mapped = ModelFile::open(&path).unwrap();
        assert_same(&ModelFile::from_reader(File::open(&path).unwrap()).unwrap(), &mapped);
        assert_same(&ModelFile::from_reader(bytes).unwrap(), &mapped);
    }
}

/// Tensors of 1.2 MB, 40 kB and 128 bytes.
fn large_tensors() -> Vec<TensorInfo> {
    vec![
        TensorInfo::new("a.weight", DType::F32, [300, 1000]),
        TensorInfo::new("b.weight", DType::F32, [10, 1000]),
        TensorInfo::new("c.weight", DType::F32, [32]),
        TensorInfo::new("d.weight", DType::F32, [300, 1000]),
    ]
}

fn data(info: &TensorInfo) -> Vec<u8> {
    pattern(info.data_bytes().unwrap())
}

/// A GGUF file with a header of 1.3 MB.
fn large_gguf() -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "test");
    metadata.set("tokens", (0..100_000).map(|i| format!("{i:05}")).collect::<Vec<_>>());
    let infos = large_tensors();
    let mut writer = GgufWriter::new(Vec::new(), &metadata, infos.clone()).unwrap();
    infos.iter().for_each(|info| writer.write_tensor(&info.name, &data(info)).unwrap());
    writer.finish().unwrap()
}

fn large_safetensors() -> Vec<u8> {
    let mut entries = Vec::new();
    let mut end = 0;
    for info in large_tensors() {
        let (begin, shape) = (end, format!("{:?}", info.shape));
        end += info.data_bytes().unwrap();
        let (name, offsets) = (info.name, format!("[{begin},{end}]"));
        entries.push(format!(
            r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#
        ));
    }
    safetensors_of(&format!("{{{}}}", entries.join(",")), end)
}

fn large_whisper_bin() -> Vec<u8> {
    let (hparams, filters) =
        (sample_files::whisper_hparams(DType::F32), sample_files::whisper_mel_filters());
    let vocab: Vec<Vec<u8>> = (0..100_000u32).map(|i| i.to_string().into_bytes()).collect();
    let mut writer = WhisperBinWriter::new(Vec::new(), &hparams, &filters, &vocab).unwrap();
    large_tensors().iter().for_each(|info| writer.write_tensor(info, &data(info)).unwrap());
    writer.finish().unwrap()
}

fn large_ctranslate2() -> Vec<u8> {
    let mut out = 6u32.to_le_bytes().to_vec();
    let string = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u16 + 1).to_le_bytes());
        out.extend(text.as_bytes());
        out.push(0);
    };
    string(&mut out, "TestSpec");
    out.extend(1u32.to_le_bytes());
    out.extend((large_tensors().len() as u32).to_le_bytes());
    for info in large_tensors() {
        string(&mut out, &info.name);
        out.push(info.shape.len() as u8);
        info.shape.iter().for_each(|&d| out.extend((d as u32).to_le_bytes()));
        out.push(0);
        out.extend((info.data_bytes().unwrap() as u32).to_le_bytes());
        out.extend(data(&info));
    }
    out.extend(0u32.to_le_bytes());
    out
}

#[test]
fn headers_are_read_in_windows_and_tensors_once() {
    // The bytes read at opening, other than the header itself, are less than a window for each run of
    // header bytes: one in GGUF and safetensors, one before each tensor in the others.
    for (name, bytes, n_gaps) in [
        ("GGUF", large_gguf(), 1),
        ("safetensors", large_safetensors(), 1),
        ("whisper.cpp .bin", large_whisper_bin(), 4),
        ("CTranslate2", large_ctranslate2(), 5),
    ] {
        let reader = Recording::new(bytes.clone());
        let model = ModelFile::from_reader(reader.clone()).unwrap();
        let reads = reader.reads();
        assert!(reads.iter().all(|&(_, n)| n <= MAX_WINDOW), "{name}: {reads:?}");
        assert!(reads.windows(2).all(|r| r[0].0 + r[0].1 <= r[1].0), "{name}: {reads:?}");
        let n_read: usize = reads.iter().map(|&(_, n)| n).sum();
        let header = bytes.len() - model.weight_bytes() as usize;
        // Windows double, so the last one is about as long as those before it, up to the limit.
        let allowed = header + header.min(MAX_WINDOW) + n_gaps * (8 << 10);
        assert!(n_read <= allowed, "{name}: {n_read} bytes for a header of {header}: {reads:?}");

        for tensor in model.tensors() {
            let loaded = tensor.data.load().unwrap();
            let reads = reader.reads();
            assert!(matches!(*reads, [(_, n)] if n == loaded.len()), "{name}: {reads:?}");
            assert_eq!(*loaded, bytes[reads[0].0..][..reads[0].1], "{}", tensor.name);
        }
    }
}

#[test]
fn a_range_of_a_tensor_is_read_alone() {
    let reader = Recording::new(large_gguf());
    let model = ModelFile::from_reader(reader.clone()).unwrap();
    let tensor = model.require("a.weight").unwrap().data;
    let whole = tensor.load().unwrap();
    let (start, _) = reader.reads().pop().unwrap();

    assert_eq!(*tensor.slice(400..800).slice(1..300).load().unwrap(), whole[401..700]);
    assert_eq!(reader.reads(), [(start + 401, 299)]);
    let mut buf = [0; 10];
    tensor.slice(5..15).read_into(&mut buf).unwrap();
    assert_eq!(buf, whole[5..15]);
    assert_eq!(reader.reads(), [(start + 5, 10)]);

    let parts = [tensor.slice(100..200), tensor.slice(0..7), tensor.slice(200..200)];
    let joined = TensorData::joined(&parts).unwrap();
    assert!(joined.is_whole() && *joined == *[&whole[100..200], &whole[..7]].concat());
    let n_read: usize = reader.reads().iter().map(|&(_, n)| n).sum();
    assert_eq!(n_read, 107);
    assert!(TensorData::joined(&[]).unwrap().is_empty());
}

#[test]
fn a_map_is_not_copied() {
    let path = scratch("map").join("model.gguf");
    fs::write(&path, large_gguf()).unwrap();
    let model = ModelFile::open(&path).unwrap();
    let tensor = model.require("a.weight").unwrap().data;
    let whole = tensor.load().unwrap();
    assert_eq!(tensor.load().unwrap().as_ptr(), whole.as_ptr());
    let parts = [tensor.slice(0..100), tensor.slice(100..250)];
    assert_eq!(TensorData::joined(&parts).unwrap().as_ptr_range(), whole[..250].as_ptr_range());
    let mut buf = vec![0; tensor.len()];
    tensor.read_into(&mut buf).unwrap();
    assert_eq!(buf, *whole, "released pages are read again");
}

#[test]
fn failures_tell_what_was_read_and_where() {
    let e = ModelFile::from_reader(Endless).unwrap_err().to_string();
    assert_eq!(e, "cannot get the length of the file: the length is unknown");

    let bytes = large_gguf();
    let e = ModelFile::from_reader(Recording::ending_at(100, bytes.clone())).unwrap_err();
    assert!(matches!(&e, Error::Read { offset: 0, n_bytes: 4096, .. }), "{e:?}");
    let expected = "cannot read the first bytes, 4096 bytes at offset 0: the connection was lost";
    assert_eq!(e.to_string(), expected);
    let e = ModelFile::from_reader(Recording::ending_at(20_000, bytes.clone())).unwrap_err();
    let Error::Read { offset, n_bytes, .. } = e else { panic!("{e:?}") };
    assert!((12_000..20_000).contains(&offset) && offset + n_bytes as u64 > 20_000, "{e:?}");

    let model = ModelFile::from_reader(Recording::ending_at(bytes.len() - 1, bytes)).unwrap();
    assert!(model.require("a.weight").unwrap().data.load().is_ok());
    let last = model.require("d.weight").unwrap().data;
    for result in [
        last.load().map(|_| ()),
        last.read_into(&mut vec![0; last.len()]),
        TensorData::joined(&[last.slice(0..4), last]).map(|_| ()),
    ] {
        let e = result.unwrap_err().to_string();
        let start = "cannot read tensor `d.weight`, 1200000 bytes at offset ";
        assert!(e.starts_with(start) && e.ends_with(": the connection was lost"), "{e}");
    }

    // A file that was cut after it was opened.
    let path = scratch("cut").join("model.gguf");
    fs::write(&path, large_gguf()).unwrap();
    let model = ModelFile::from_reader(File::open(&path).unwrap()).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(1_500_000).unwrap();
    let e = model.require("d.weight").unwrap().data.load().unwrap_err();
    let eof = |e: &Error| matches!(e, Error::Read { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof);
    assert!(eof(&e), "{e:?}");
    let beyond = vec![0u8; 4].read_at(&mut [0; 2], u64::MAX).unwrap_err();
    assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
}

/// Readers of every file of `folder`.
fn readers_of(folder: &Path) -> Vec<(String, Box<dyn ReadAt>)> {
    let reader = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        let file: Box<dyn ReadAt> = Box::new(File::open(entry.path()).unwrap());
        (entry.file_name().into_string().unwrap(), file)
    };
    fs::read_dir(folder).unwrap().map(reader).collect()
}

type NamedBytes = (&'static str, Vec<u8>);

/// Readers of buffers with names.
fn buffers(files: &[NamedBytes]) -> Vec<(String, Box<dyn ReadAt>)> {
    let reader = |(name, bytes): &NamedBytes| {
        let bytes: Box<dyn ReadAt> = Box::new(bytes.clone());
        ((*name).to_owned(), bytes)
    };
    files.iter().map(reader).collect()
}

#[track_caller]
fn refused(files: &[NamedBytes], expected: &str) {
    let e = ModelFile::from_readers(buffers(files)).unwrap_err().to_string();
    assert!(e.contains(expected), "{e}");
}

fn shard(name: &str) -> Vec<u8> {
    let entry = format!(r#"{{"{name}":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}}"#);
    safetensors_of(&entry, 8)
}

#[test]
fn folders_read_the_same_through_readers() {
    let index = br#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#;
    let folders: [(&str, &str, &[NamedBytes]); 3] = [
        (
            "ctranslate2",
            "",
            &[
                ("model.bin", sample_files::ctranslate2(6)),
                ("config.json", b"{}".to_vec()),
                ("vocabulary.txt", b"a\nb\n".to_vec()),
                ("README.md", b"text".to_vec()),
            ],
        ),
        (
            "shards",
            "",
            &[
                ("model.safetensors.index.json", index.to_vec()),
                ("1.safetensors", shard("a")),
                ("2.safetensors", shard("b")),
                ("tokenizer.json", b"{}".to_vec()),
            ],
        ),
        (
            "split",
            "m-00001-of-00002.gguf",
            &[("m-00001-of-00002.gguf", part(0, "a")), ("m-00002-of-00002.gguf", part(1, "b"))],
        ),
    ];
    for (name, opened, files) in folders {
        let folder = scratch(name);
        for (name, bytes) in files {
            fs::write(folder.join(name), bytes).unwrap();
        }
        let mapped = ModelFile::open(folder.join(opened)).unwrap();
        assert_same(&ModelFile::from_readers(readers_of(&folder)).unwrap(), &mapped);
    }
}

/// Part `no` of a split GGUF model of 2 tensors.
fn part(no: u16, tensor: &str) -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.set("split.no", no);
    metadata.set("split.count", 2u16);
    metadata.set("split.tensors.count", 2i32);
    let info = TensorInfo::new(tensor, DType::F32, [3]);
    let mut writer = GgufWriter::new(Vec::new(), &metadata, vec![info.clone()]).unwrap();
    writer.write_tensor(tensor, &data(&info)).unwrap();
    writer.finish().unwrap()
}

#[test]
fn readers_of_no_model_are_refused() {
    refused(&[], "found nothing");
    refused(&[("config.json", b"{}".to_vec())], "found config.json");
    refused(&[("model.bin", b"text".to_vec())], "`model.bin`: not a model file");
    refused(
        &[("a.gguf", sample_files::gguf()), ("b.gguf", sample_files::gguf())],
        "a.gguf and b.gguf, which are not one model",
    );
    refused(
        &[("m-00001-of-00002.gguf", part(0, "a"))],
        "cannot open `m-00002-of-00002.gguf`: all 2 parts of a split model must be in one folder",
    );
    let index = br#"{"weight_map":{"a":"1.safetensors"}}"#.to_vec();
    refused(
        &[("model.safetensors.index.json", index)],
        "cannot open `1.safetensors`: no reader of this name",
    );
    let alone = ModelFile::from_readers(buffers(&[("any.gguf", sample_files::gguf())])).unwrap();
    assert_eq!(alone.tensors().len(), 4);
    let e = ModelFile::from_reader(part(1, "b")).unwrap_err().to_string();
    assert!(e.contains("part 2 of 2"), "{e}");
}

#[test]
fn a_reader_may_end_anywhere() {
    for (name, bytes) in sample_files::all() {
        let whole = ModelFile::from_reader(bytes.clone()).unwrap();
        for end in 0..bytes.len() {
            // The length says more than there is.
            let Ok(model) = ModelFile::from_reader(Recording::ending_at(end, bytes.clone())) else {
                continue;
            };
            for (tensor, expected) in model.tensors().zip(whole.tensors()) {
                match tensor.data.load() {
                    Ok(data) => assert_eq!(*data, *expected.data.load().unwrap(), "{name}"),
                    Err(e) => assert!(matches!(e, Error::Read { .. }), "{name} at {end}: {e}"),
                }
            }
        }
    }
}

/// Content or error of a model; `path` is removed from the error.
fn outcome(model: Result<ModelFile, Error>, path: Option<&Path>) -> Result<String, String> {
    let model = model.map_err(|e| match (e, path) {
        (Error::In { source, .. }, Some(_)) => source.to_string(),
        (e, _) => e.to_string(),
    })?;
    let tensors: Vec<_> = model.tensors().map(|t| t.data.load().unwrap().to_vec()).collect();
    Ok(format!("{:?} {:?} {tensors:?}", model.summary(), model.whisper_bin()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn damaged_files_end_alike(
        which in 0..7usize,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (_, mut bytes) = sample_files::all().swap_remove(which);
        for (at, value) in flips {
            let n = bytes.len();
            bytes[at.index(n)] ^= value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readers-damaged");
        fs::write(&path, &bytes).unwrap();
        let mapped = outcome(ModelFile::open(&path), Some(&path));
        prop_assert_eq!(outcome(ModelFile::from_reader(bytes), None), mapped);
    }
}
