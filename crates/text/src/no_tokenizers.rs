//! A build without the `tokenizers` crate: byte-level BPE is the only `tokenizer.json` that is read.

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

pub(crate) fn read(_json: &[u8]) -> Result<Tokenizer> {
    Err(Error::Unsupported {
        expected: "byte-level BPE",
        got: "another kind, which this build does not read (feature `tokenizers`); the model's GGUF file loads in every build"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use crate::Tokenizer;

    #[test]
    fn the_error_names_the_feature() {
        for json in ["{\"model\": {\"type\": \"Unigram\"}}", "[1]"] {
            let error = Tokenizer::from_hf_json(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("(feature `tokenizers`)"), "{error}");
        }
    }
}
