//! Configuration of a model file of any format.

use stonechat_formats::{Format, ModelFile};

use crate::Error;
use crate::model::config::Config;
use crate::model::{gguf, hugging_face};

impl Config {
    /// Reads the configuration of a GGUF file or a Hugging Face folder.
    ///
    /// # Errors
    /// If the architecture does not run here or an entry is missing or impossible.
    pub fn from_file(file: &ModelFile) -> Result<Self, Error> {
        let config = match file.format() {
            Format::Gguf => gguf::config(file)?,
            Format::SafeTensors => hugging_face::config(file)?,
            other => {
                return Err(Error::Architecture {
                    got: format!("{other:?} file"),
                    expected: "a GGUF file or a Hugging Face folder".to_owned(),
                });
            }
        };
        config.validate()?;
        Ok(config)
    }
}
