//! Opening models: a file by content, a folder, the parts of a split model, readers.

use std::path::Path;

use crate::companions::companions;
use crate::error::{Error, Result};
use crate::files::Files;
use crate::format::Format;
use crate::model_file::ModelFile;
use crate::read_at::ReadAt;
use crate::storage::Storage;
use crate::{folder, split};

impl ModelFile {
    /// Opens a model file of any format, or a Hugging Face or CTranslate2 folder. The content
    /// decides, not the name; but the other parts of a split GGUF model are found by theirs.
    ///
    /// # Errors
    /// Any [`Error`] but the writers'; it names the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(|source| Error::Io {
            action: "open",
            path: path.into(),
            source,
        })?;
        let mut model = if metadata.is_dir() {
            folder::open(&mut Files::Folder(path))?
        } else {
            // The folder of a bare name is empty.
            let mut folder = Files::Folder(path.parent().unwrap_or(Path::new("")));
            let opened = Self::from_storage(Storage::open(path)?).map_err(|e| e.in_file(path))?;
            let mut model = split::open_all(opened, path, &mut folder)?;
            if matches!(model.format(), Format::CTranslate2 | Format::SafeTensors) {
                model.set_companions(companions(&mut folder)?);
            }
            model
        };
        model.set_path(path);
        Ok(model)
    }

    /// Opens the model file that `reader` reads: the header now, each tensor when it is loaded.
    ///
    /// # Errors
    /// Any [`Error`] of the parsers; [`Error::Read`] or [`Error::Length`] if `reader` fails;
    /// [`Error::Metadata`] for one part of a split GGUF model.
    pub fn from_reader(reader: impl ReadAt + 'static) -> Result<Self> {
        let model = Self::from_storage(Storage::of_reader(Box::new(reader))?)?;
        split::check_whole(&model)?;
        Ok(model)
    }

    /// Opens the model of several files, given by their names: the weights with companions, the
    /// shards of a Hugging Face folder with their index, or the parts of a split GGUF model.
    /// Companions are read now, tensors when they are loaded.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`from_reader`](Self::from_reader); errors name the file.
    pub fn from_readers(
        readers: impl IntoIterator<Item = (String, Box<dyn ReadAt>)>,
    ) -> Result<Self> {
        folder::open(&mut Files::Readers(readers.into_iter().collect()))
    }
}
