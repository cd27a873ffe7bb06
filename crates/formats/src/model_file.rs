//! An open model: one parsed file and its shards, and look-ups.

use std::path::{Path, PathBuf};

use stonechat_compute::DType;

use crate::companions::Companion;
use crate::detect::detect;
use crate::error::{Error, Result, printable};
use crate::files::Files;
use crate::format::Format;
use crate::metadata::Metadata;
use crate::reader::Reader;
use crate::storage::Storage;
use crate::tensor::{Place, TensorInfo, TensorTable, TensorView};
use crate::tensor_data::TensorData;
use crate::whisper_bin::WhisperBin;
use crate::{ctranslate2, gguf, safetensors, whisper_bin};

/// A model file or folder, parsed. Tensors are in a memory map, which is closed with the model and
/// the last of [`TensorData::load`], or are read from a [`ReadAt`](crate::ReadAt) when they are loaded.
#[derive(Debug)]
pub struct ModelFile {
    path: Option<PathBuf>,
    format: Format,
    version: u32,
    metadata: Metadata,
    tensors: TensorTable,
    whisper_bin: Option<WhisperBin>,
    /// The files that the table's shards count.
    shards: Vec<Storage>,
    companions: Vec<Companion>,
}

impl ModelFile {
    /// Opens one of `files`, without companions.
    pub(crate) fn open_in(files: &mut Files<'_>, name: &str) -> Result<Self> {
        let storage = files.open(name)?;
        Self::from_storage(storage).map_err(|e| e.in_file(files.path(name)))
    }

    /// Parses one file and no companions.
    pub(crate) fn from_storage(storage: Storage) -> Result<Self> {
        let mut r = Reader::new(&storage);
        let format = detect(&mut r)?;
        let mut whisper_bin = None;
        let parsed = match format {
            Format::CTranslate2 => ctranslate2::parse(&mut r)?,
            Format::WhisperBin => {
                let (parsed, bin) = whisper_bin::parse(&mut r)?;
                whisper_bin = Some(bin);
                parsed
            }
            Format::Gguf => gguf::parse(&mut r)?,
            Format::SafeTensors => safetensors::parse(&mut r)?,
        };
        if let Some(bytes) = storage.memory() {
            // Names and metadata are in memory of their own now.
            bytes.release();
        }
        Ok(Self {
            path: None,
            format,
            version: parsed.version,
            metadata: parsed.metadata,
            tensors: parsed.tensors,
            whisper_bin,
            shards: vec![storage],
            companions: Vec::new(),
        })
    }

    /// Adds the tensors of another file of the same format.
    pub(crate) fn append_shard(&mut self, other: Self) -> Result<()> {
        let shard = self.shards.len();
        self.tensors.append_shard(other.tensors, shard)?;
        self.shards.extend(other.shards);
        Ok(())
    }

    pub(crate) fn remove_metadata(&mut self, key: &str) {
        self.metadata.remove(key);
    }

    pub(crate) fn set_path(&mut self, path: &Path) {
        self.path = Some(path.to_owned());
    }

    pub(crate) fn set_companions(&mut self, companions: Vec<Companion>) {
        self.companions = companions;
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// The format's version in the file: GGUF's, CTranslate2's binary version, the quantization
    /// version of a whisper.cpp file; 0 for safetensors, which have none.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The path given to [`ModelFile::open`].
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Bytes of the model's files, companions not counted.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(Storage::len).sum()
    }

    /// The metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors in file order, CTranslate2's aliases last.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.tensors.iter().map(|entry| self.view(entry))
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.tensors.get(name).map(|entry| self.view(entry))
    }

    /// The tensor called `name`, which must exist.
    ///
    /// # Errors
    /// [`Error::MissingTensor`].
    pub fn require(&self, name: &str) -> Result<TensorView<'_>> {
        self.tensor(name).ok_or_else(|| Error::MissingTensor { tensor: printable(name) })
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.tensors().map(|tensor| tensor.data.len() as u64).sum()
    }

    /// Element types of the tensors, in descending order of their bytes.
    #[must_use]
    pub fn dtypes(&self) -> Vec<DType> {
        let mut totals: Vec<(DType, usize)> = Vec::new();
        for tensor in self.tensors() {
            match totals.iter_mut().find(|(known, _)| *known == tensor.dtype) {
                Some((_, bytes)) => *bytes += tensor.data.len(),
                None => totals.push((tensor.dtype, tensor.data.len())),
            }
        }
        totals.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.name().cmp(b.0.name())));
        totals.into_iter().map(|(dtype, _)| dtype).collect()
    }

    fn view<'a>(&'a self, (info, place): &'a (TensorInfo, Place)) -> TensorView<'a> {
        let storage = &self.shards[place.shard];
        TensorView {
            name: &info.name,
            dtype: info.dtype,
            shape: &info.shape,
            data: TensorData::new(&info.name, storage, place.range.start, place.n_bytes()),
        }
    }

    /// The content of a file that belongs to the model: `config.json`, `tokenizer.json`,
    /// `vocabulary.txt`, `vocabulary.json`, `preprocessor_config.json`,
    /// `generation_config.json`. Only CTranslate2 and safetensors models have them.
    #[must_use]
    pub fn companion(&self, file_name: &str) -> Option<&[u8]> {
        self.companions.iter().find(|c| c.name == file_name).map(|c| &*c.bytes)
    }

    /// The names and contents of the files that belong to the model.
    pub fn companions(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.companions.iter().map(|c| (c.name.as_str(), &*c.bytes))
    }

    /// Sizes, filters and tokens of a whisper.cpp file; `None` for the other formats.
    #[must_use]
    pub fn whisper_bin(&self) -> Option<&WhisperBin> {
        self.whisper_bin.as_ref()
    }
}
