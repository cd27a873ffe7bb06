//! Model files, read into one tensor table over a memory map or a source of byte ranges:
//! CTranslate2 `model.bin`, whisper.cpp `.bin`, GGUF, safetensors and Hugging Face folders; GGUF
//! and whisper.cpp `.bin` are written too.
//!
//! Not here: models and math. A tensor is a name, a [`DType`], a shape and bytes.
//! Every parser accepts any byte sequence: it ends in `Ok` or `Err`, never in a panic, and
//! allocates no more than a small multiple of the size of its input.
//!
//! | file | holds |
//! |---|---|
//! | `open` | opening a file by content, a folder, readers |
//! | `model_file` | [`ModelFile`]: one parsed file and its shards, look-ups |
//! | `read_at` | [`ReadAt`]: files, buffers and byte ranges from elsewhere |
//! | `folder`, `split` | Hugging Face and CTranslate2 folders; the parts of a split GGUF model |
//! | `files`, `companions` | files by name; the files beside the weights |
//! | `format`, `detect` | [`Format`]; the format by content, or a description of foreign bytes |
//! | `ctranslate2`, `gguf`, `safetensors`, `whisper_bin` | one format each |
//! | `parsed`, `metadata`, `value`, `tensor` | the form that every format is parsed into |
//! | `tensor_data` | [`TensorData`]: bytes of a tensor, loaded on demand |
//! | `reader` | checked reads of headers, in windows |
//! | `storage`, `mmap` | the bytes of one file: memory map or reader |
//! | `atomic_file` | writing a file so that a failure leaves the old one |
//! | `summary` | the content for `inspect` |
#![deny(unsafe_code)]

mod atomic_file;
mod companions;
mod ctranslate2;
mod detect;
mod error;
mod files;
mod folder;
mod format;
mod gguf;
mod metadata;
mod mmap;
mod model_file;
mod open;
mod parsed;
mod read_at;
mod reader;
mod safetensors;
mod split;
mod storage;
mod summary;
mod tensor;
mod tensor_data;
mod value;
mod whisper_bin;

pub use atomic_file::AtomicFile;
pub use companions::COMPANIONS;
pub use error::{Error, Result};
pub use folder::{SHARD_INDEX, WEIGHTS};
pub use format::Format;
pub use gguf::GgufWriter;
pub use metadata::Metadata;
pub use model_file::ModelFile;
pub use read_at::ReadAt;
pub use stonechat_compute::DType;
pub use summary::{Summary, TensorSummary};
pub use tensor::{TensorInfo, TensorView};
pub use tensor_data::TensorData;
pub use value::{Array, Value};
pub use whisper_bin::{MelFilters, WhisperBin, WhisperBinWriter, WhisperHparams};
