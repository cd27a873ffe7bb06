//! The errors of this crate: expected, got, and where.

use std::io;
use std::path::PathBuf;

/// The result of reading or writing a model file.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of reading or writing a model file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// The operation: `open`, `create`, …
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A reader failed, or ended before its reported length.
    #[error("cannot read {what}, {n_bytes} bytes at offset {offset}: {source}")]
    Read {
        /// The field or tensor.
        what: String,
        /// Offset in bytes from the start of the file, or of the part that was read.
        offset: u64,
        /// Bytes that were requested.
        n_bytes: usize,
        /// The error of the source.
        source: io::Error,
    },
    /// A source of bytes has no length.
    #[error("cannot get the length of the file: {source}")]
    Length {
        /// The error of the source.
        source: io::Error,
    },
    /// Allocation for a field or tensor failed.
    #[error("cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// The field or tensor.
        what: String,
        /// Bytes that it needs.
        bytes: usize,
    },
    /// An output refused bytes.
    #[error("cannot write the model: {source}")]
    Write {
        /// The error of the output.
        source: io::Error,
    },
    /// The content is none of the formats.
    #[error(
        "not a model file: expected CTranslate2, GGUF, whisper.cpp .bin or safetensors; \
         found {found}"
    )]
    NotAModel {
        /// The kind of content, guessed from its first bytes.
        found: String,
    },
    /// The folder holds no model that this crate reads.
    #[error(
        "no model in this folder: expected model.bin, model.safetensors or \
         model.safetensors.index.json; found {found}"
    )]
    NoModelInFolder {
        /// Some names that it holds.
        found: String,
    },
    /// An unsupported version of a supported format.
    #[error("unsupported {what}: expected {expected}, got {got}")]
    Version {
        /// The kind of version: `GGUF version`, …
        what: &'static str,
        /// The versions that are read.
        expected: &'static str,
        /// The version in the file.
        got: u64,
    },
    /// The file ends too early.
    #[error(
        "file ends inside {what}: expected {expected} more bytes at offset {offset}, got {got}"
    )]
    Truncated {
        /// The field that was being read.
        what: &'static str,
        /// Offset of the field in bytes from the start of the file.
        offset: u64,
        /// Bytes that it needs.
        expected: u64,
        /// Bytes that are left.
        got: u64,
    },
    /// A field has a value that its format does not allow.
    #[error("invalid {what} at offset {offset}: expected {expected}, got {got}")]
    Invalid {
        /// The field.
        what: &'static str,
        /// Offset of the field in bytes from the start of the file.
        offset: u64,
        /// The values that the format allows.
        expected: String,
        /// The value in the file.
        got: String,
    },
    /// A tensor's description or data is wrong.
    #[error("tensor `{tensor}`: expected {expected}, got {got}")]
    Tensor {
        /// Name of the tensor, escaped and shortened.
        tensor: String,
        /// The valid description or data.
        expected: String,
        /// The one in the file.
        got: String,
    },
    /// The file has no tensor of this name.
    #[error("tensor `{tensor}` is missing")]
    MissingTensor {
        /// The name looked up.
        tensor: String,
    },
    /// A metadata entry is missing or of another type.
    #[error("metadata `{key}`: expected {expected}, got {got}")]
    Metadata {
        /// Key of the entry.
        key: String,
        /// The type or value looked up.
        expected: String,
        /// The entry in the file.
        got: String,
    },
    /// A JSON part cannot be read.
    #[error("invalid JSON in {what}: {source}")]
    Json {
        /// The part of the file.
        what: String,
        /// The error of the JSON parser.
        source: serde_json::Error,
    },
    /// Parser error with the path of its file.
    #[error("`{}`: {source}", path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// The error inside it.
        source: Box<Error>,
    },
}

impl Error {
    /// Names the file that the error is about; errors that name a path already stay as they are.
    pub(crate) fn in_file(self, path: impl Into<PathBuf>) -> Self {
        match self {
            Self::Io { .. } | Self::In { .. } => self,
            other => Self::In { path: path.into(), source: Box::new(other) },
        }
    }

    pub(crate) fn tensor(
        tensor: &str,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        Self::Tensor { tensor: printable(tensor), expected: expected.into(), got: got.into() }
    }

    pub(crate) fn metadata(key: &str, expected: impl Into<String>, got: impl Into<String>) -> Self {
        Self::Metadata { key: printable(key), expected: expected.into(), got: got.into() }
    }
}

/// Characters of a foreign string that fit in a one-line message.
const PRINTABLE_CHARS: usize = 96;

/// `text` on one line: control characters escaped, long text cut with `…`.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::new();
    for (n, c) in text.chars().enumerate() {
        if n == PRINTABLE_CHARS {
            out.push('…');
            break;
        }
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Error, PRINTABLE_CHARS, printable};

    #[test]
    fn foreign_names_stay_on_one_line() {
        assert_eq!(printable("a\nb\u{1b}[0m"), "a\\nb\\u{1b}[0m");
        let long = printable(&"é".repeat(5000));
        assert_eq!(long.chars().count(), PRINTABLE_CHARS + 1);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn a_path_is_named_once() {
        let e = Error::MissingTensor { tensor: "w".into() }.in_file("a.gguf").in_file("b.gguf");
        assert_eq!(e.to_string(), "`a.gguf`: tensor `w` is missing");
    }
}
