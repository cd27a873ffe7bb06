//! A build without the `tokenizers` crate: byte-level BPE is the only `tokenizer.json` that is read.

use crate::error::{Error, Result};

/// Has no value: [`HfTokenizers::new`] is an error.
#[derive(Debug, Clone)]
pub(crate) enum HfTokenizers {}

impl HfTokenizers {
    pub(crate) fn new(_json: &[u8]) -> Result<Self> {
        Err(Error::Unsupported {
            expected: "byte-level BPE with GPT-2's pieces",
            got: "another kind, which this build does not read (feature `tokenizers`)".to_owned(),
        })
    }

    pub(crate) fn tokenize(&self, _text: &str, _add: bool, _parse: bool) -> Vec<u32> {
        match *self {}
    }

    pub(crate) fn tokenize_marked(&self, _text: &str, _marker: &str, _add: bool) -> Vec<u32> {
        match *self {}
    }

    pub(crate) fn piece(&self, _id: u32, _with_special: bool) -> Option<&[u8]> {
        match *self {}
    }

    pub(crate) fn strips_first_space(&self) -> bool {
        match *self {}
    }

    pub(crate) fn is_special(&self, _id: u32) -> bool {
        match *self {}
    }

    pub(crate) fn specials(&self) -> std::iter::Empty<(u32, &str)> {
        match *self {}
    }

    pub(crate) fn token_id(&self, _text: &str) -> Option<u32> {
        match *self {}
    }

    pub(crate) fn vocab_size(&self) -> usize {
        match *self {}
    }
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
