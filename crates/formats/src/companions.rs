//! Companions: the files of a model beside its weights.

use stonechat_compute::SharedBytes;

use crate::error::Result;
use crate::files::Files;

/// File names of companions.
pub const COMPANIONS: &[&str] = &[
    "config.json",
    "tokenizer.json",
    "vocabulary.txt",
    "vocabulary.json",
    "preprocessor_config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "1_Pooling/config.json",
];

/// A file beside the weights.
#[derive(Debug)]
pub(crate) struct Companion {
    pub(crate) name: String,
    pub(crate) bytes: SharedBytes,
}

/// Loads the companions among `files`.
pub(crate) fn companions(files: &mut Files<'_>) -> Result<Vec<Companion>> {
    let mut companions = Vec::new();
    for &name in COMPANIONS {
        if files.contains(name) {
            let bytes =
                files.open(name)?.load_all(name).map_err(|e| e.in_file(files.path(name)))?;
            companions.push(Companion { name: name.to_owned(), bytes });
        }
    }
    Ok(companions)
}
