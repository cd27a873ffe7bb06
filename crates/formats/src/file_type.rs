//! Numbers by which files name the type of most of their weights.
//!
//! GGUF's `general.file_type` is llama.cpp's `enum llama_ftype`, whisper.cpp's `ftype` is GGML's `enum ggml_ftype`: equal
//! for the first types, but `llama_ftype` counts the mixes of the k-quants apart (its "small" mix is the plain type).

use stonechat_compute::DType;

/// A type with its number in either file; `None` where that file has none.
struct FileType {
    dtype: DType,
    llama: Option<u32>,
    ggml: Option<u32>,
}

const fn row(dtype: DType, llama: Option<u32>, ggml: Option<u32>) -> FileType {
    FileType { dtype, llama, ggml }
}

const FILE_TYPES: [FileType; 19] = [
    row(DType::F32, Some(0), Some(0)),
    row(DType::F16, Some(1), Some(1)),
    row(DType::Q4_0, Some(2), Some(2)),
    row(DType::Q4_1, Some(3), Some(3)),
    row(DType::Q8_0, Some(7), Some(7)),
    row(DType::Q5_0, Some(8), Some(8)),
    row(DType::Q5_1, Some(9), Some(9)),
    row(DType::Q2K, Some(10), Some(10)),
    row(DType::Q3K, Some(11), Some(11)),
    row(DType::Q4K, Some(14), Some(12)),
    row(DType::Q5K, Some(16), Some(13)),
    row(DType::Q6K, Some(18), Some(14)),
    row(DType::Iq4Nl, Some(25), None),
    row(DType::Iq4Xs, Some(30), None),
    row(DType::BF16, Some(32), Some(24)),
    row(DType::Tq1_0, Some(36), None),
    row(DType::Tq2_0, Some(37), None),
    row(DType::Mxfp4, Some(38), None),
    row(DType::Nvfp4, Some(39), None),
];

/// `general.file_type` (`enum llama_ftype`) of a GGUF model whose matrices are `dtype`; `None` for types that only
/// single tensors have.
#[must_use]
pub fn llama_ftype(dtype: DType) -> Option<u32> {
    FILE_TYPES.iter().find(|row| row.dtype == dtype)?.llama
}

/// `ftype` (`enum ggml_ftype`) of a whisper.cpp file whose matrices are `dtype`; `None` if there is none.
#[must_use]
pub fn ggml_ftype(dtype: DType) -> Option<u32> {
    FILE_TYPES.iter().find(|row| row.dtype == dtype)?.ggml
}

/// The type of the matrices in a whisper.cpp file with this `ftype`.
pub(crate) fn dtype_of_ggml_ftype(ftype: u32) -> Option<DType> {
    FILE_TYPES.iter().find(|row| row.ggml == Some(ftype)).map(|row| row.dtype)
}
