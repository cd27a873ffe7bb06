//! Tokenizers: text to token ids and back, for every model of the workspace.
//!
//! What it is: byte-level BPE over a vocabulary read from a model's own files, and a streaming
//! detokenizer. What it is not: it reads no file itself (callers pass bytes), and it knows no
//! model; the numbering of special tokens belongs to the model crates, which look them up by
//! their text or add them with [`Tokenizer::with_special`].
//!
//! File map: `tokenizer` the public type; `vocab` ids and bytes; `byte_map` GPT-2's printable
//! form of bytes; `bpe` the merge loop; `pretokenize` splitting text into pieces; `hf_json` and
//! `vocabulary_list` the file formats; `detokenize` streaming.
#![forbid(unsafe_code)]

mod bpe;
mod byte_map;
mod detokenize;
mod error;
mod hf_json;
mod pretokenize;
mod tokenizer;
mod vocab;
mod vocabulary_list;

pub use detokenize::StreamDecoder;
pub use error::{Error, Result};
pub use tokenizer::Tokenizer;
