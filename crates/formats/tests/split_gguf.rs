//! Split GGUF models: any part opens the whole, and parts that do not fit are refused.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use stonechat_compute::SharedBytes;
use stonechat_formats::{DType, GgufWriter, Metadata, ModelFile, TensorData, TensorInfo, Value};

/// Tensors by size; the data differs from tensor to tensor.
fn tensors(lens: &[usize]) -> Vec<(TensorInfo, Vec<u8>)> {
    let tensor = |(i, &len): (usize, &usize)| {
        let info = TensorInfo::new(format!("blk.{i}.w"), DType::I8, [len]);
        (info, (0..len).map(|j| (i * 31 + j * 7) as u8).collect())
    };
    lens.iter().enumerate().map(tensor).collect()
}

fn write(metadata: &Metadata, tensors: &[(TensorInfo, Vec<u8>)]) -> Vec<u8> {
    let infos = tensors.iter().map(|(info, _)| info.clone()).collect();
    let mut writer = GgufWriter::new(Vec::new(), metadata, infos).expect("a small file");
    for (info, data) in tensors {
        writer.write_tensor(&info.name, data).expect("the next tensor");
    }
    writer.finish().expect("all tensors")
}

fn whole_metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", 3u32);
    metadata
}

/// The entries of a part as `gguf-split` writes them.
fn part_metadata(no: u16, count: u16, n_tensors: i32) -> Metadata {
    let mut metadata = if no == 0 { whole_metadata() } else { Metadata::new() };
    metadata.set("split.no", Value::U16(no));
    metadata.set("split.count", Value::U16(count));
    metadata.set("split.tensors.count", Value::I32(n_tensors));
    metadata
}

/// The parts of a model of these tensors, cut before the tensors `cuts`.
fn parts(tensors: &[(TensorInfo, Vec<u8>)], cuts: &[usize]) -> Vec<Vec<u8>> {
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([tensors.len()]);
    let count = cuts.len() as u16 + 1;
    let part = |(no, (start, end)): (usize, (usize, usize))| {
        write(&part_metadata(no as u16, count, tensors.len() as i32), &tensors[start..end])
    };
    starts.zip(ends).enumerate().map(part).collect()
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the scratch space is writable");
    folder
}

fn part_path(folder: &Path, no: usize, count: usize) -> PathBuf {
    folder.join(format!("m-{:05}-of-{count:05}.gguf", no + 1))
}

/// Writes the parts into an emptied folder.
fn write_parts(name: &str, parts: &[Vec<u8>]) -> PathBuf {
    let folder = scratch(name);
    for (no, bytes) in parts.iter().enumerate() {
        fs::write(part_path(&folder, no, parts.len()), bytes)
            .expect("the scratch space is writable");
    }
    folder
}

fn load(data: TensorData<'_>) -> SharedBytes {
    data.load().expect("the file can be read")
}

fn assert_same(got: &ModelFile, expected: &ModelFile) {
    assert_eq!(got.metadata(), expected.metadata());
    assert_eq!(got.tensors().len(), expected.tensors().len());
    for (a, b) in got.tensors().zip(expected.tensors()) {
        assert_eq!((a.name, a.dtype, a.shape), (b.name, b.dtype, b.shape));
        assert_eq!(*load(a.data), *load(b.data));
        let found = got.require(a.name).expect("listed above").data;
        assert_eq!(*load(found), *load(b.data));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_part_opens_the_whole(
        lens in prop::collection::vec(1usize..200, 1..9),
        cuts in prop::collection::vec(0usize..9, 1..5),
    ) {
        let tensors = tensors(&lens);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(lens.len())).collect();
        cuts.sort_unstable();
        let whole = ModelFile::from_reader(write(&whole_metadata(), &tensors)).expect("whole");
        let parts = parts(&tensors, &cuts);
        let folder = write_parts("any_part", &parts);
        for no in 0..parts.len() {
            let path = part_path(&folder, no, parts.len());
            let model = ModelFile::open(&path).expect("all parts are there");
            prop_assert_eq!(model.path(), Some(path.as_path()));
            prop_assert_eq!(model.file_bytes(), parts.iter().map(|part| part.len() as u64).sum::<u64>());
            assert_same(&model, &whole);
        }
    }
}

#[track_caller]
fn refused(path: &Path, expected: &str) {
    let e = ModelFile::open(path).expect_err("an incomplete model").to_string();
    assert!(e.contains(expected), "{e}");
    assert!(!e.contains('\n'), "{e}");
}

fn three() -> Vec<Vec<u8>> {
    parts(&tensors(&[10, 20, 30]), &[1, 2])
}

#[test]
fn a_missing_part_is_named() {
    let folder = write_parts("missing_part", &three());
    fs::remove_file(part_path(&folder, 1, 3)).unwrap();
    for no in [0, 2] {
        let path = part_path(&folder, no, 3);
        refused(&path, "m-00002-of-00003.gguf`: all 3 parts of a split model must be in one");
    }
}

#[test]
fn a_foreign_part_is_named() {
    let folder = write_parts("foreign_part", &three());
    let with = |no: usize, bytes: &[u8], expected: &str| {
        fs::write(part_path(&folder, no, 3), bytes).unwrap();
        refused(&part_path(&folder, 0, 3), expected);
        refused(&part_path(&folder, 0, 3), &format!("m-{:05}-of-00003.gguf`: ", no + 1));
        fs::write(part_path(&folder, no, 3), &three()[no]).unwrap();
    };
    let [first, second, _] = <[Vec<u8>; 3]>::try_from(three()).unwrap();
    with(1, &first, "expected part 2 of 3 with 3 tensors, got part 1 of 3 with 3 tensors");
    with(2, &second, "expected part 3 of 3 with 3 tensors, got part 2 of 3");
    let other = tensors(&[10, 20, 30, 40]);
    with(2, &parts(&other, &[1, 2])[2], "got part 3 of 3 with 4 tensors");
    with(2, &write(&part_metadata(2, 3, 3), &other[..1]), "tensor `blk.0.w`: expected one tensor");
    with(1, &write(&whole_metadata(), &other), "expected a part of a split model, got a whole one");
    with(1, b"some text", "not a model file");
    assert!(ModelFile::open(part_path(&folder, 1, 3)).is_ok());
}

#[test]
fn counts_are_checked() {
    let mut few = three();
    few[2] = write(&part_metadata(2, 3, 3), &[]);
    let folder = write_parts("counts", &few);
    refused(
        &part_path(&folder, 0, 3),
        "metadata `split.tensors.count`: expected 3 tensors in all parts, got 2",
    );

    let e = ModelFile::from_reader(three().remove(1)).unwrap_err().to_string();
    assert_eq!(
        e,
        "metadata `split.count`: expected a model in one file, or all its parts, got part 2 of 3"
    );
    let beyond = write(&part_metadata(3, 3, 3), &[]);
    let e = ModelFile::from_reader(beyond).unwrap_err().to_string();
    assert_eq!(e, "metadata `split.no`: expected a number below 3, got 3");
    let one = write(&part_metadata(0, 1, 2), &tensors(&[4, 5]));
    assert_eq!(ModelFile::from_reader(one).unwrap().tensors().len(), 2);
}

#[test]
fn a_renamed_part_is_refused() {
    let folder = write_parts("renamed_part", &three());
    let renamed = folder.join("model.gguf");
    fs::rename(part_path(&folder, 0, 3), &renamed).unwrap();
    refused(&renamed, "expected a file name that ends in -00001-of-00003.gguf, got model.gguf");
    let swapped = folder.join("other-00002-of-00003.gguf");
    fs::rename(part_path(&folder, 2, 3), &swapped).unwrap();
    refused(&swapped, "ends in -00003-of-00003.gguf, got other-00002-of-00003.gguf");
}

#[test]
fn a_count_without_files_costs_nothing() {
    let folder = scratch("large_count");
    let path = folder.join("m-00001-of-65535.gguf");
    fs::write(&path, write(&part_metadata(0, u16::MAX, 1), &tensors(&[4]))).unwrap();
    refused(&path, "m-00002-of-65535.gguf`: all 65535 parts");
}
