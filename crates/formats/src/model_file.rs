//! An open model: opening by content, and look-ups.

use std::path::{Path, PathBuf};

use stonechat_compute::DType;

use crate::detect::{Format, detect};
use crate::error::{Error, Result, printable};
use crate::files::Files;
use crate::folder::{self, Companion};
use crate::metadata::Metadata;
use crate::read_at::ReadAt;
use crate::reader::Reader;
use crate::storage::Storage;
use crate::summary::Summary;
use crate::tensor::{Place, TensorInfo, TensorTable, TensorView};
use crate::tensor_data::TensorData;
use crate::whisper_bin::WhisperBin;
use crate::{ctranslate2, gguf, safetensors, whisper_bin};

/// The content of one file, as every parser returns it.
pub(crate) struct Parsed {
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: TensorTable,
    pub(crate) whisper_bin: Option<WhisperBin>,
}

/// A model file or folder, parsed. Tensors are in a memory map, which is closed with the model and
/// the last of [`TensorData::load`], or are read from a [`ReadAt`] when they are loaded.
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
            // Empty for a bare name, which joins to that name.
            let mut folder = Files::Folder(path.parent().unwrap_or(Path::new("")));
            let opened = Self::of_storage(Storage::open(path)?).map_err(|e| e.in_file(path))?;
            let mut model = gguf::split::open_all(opened, path, &mut folder)?;
            if matches!(model.format, Format::CTranslate2 | Format::SafeTensors) {
                model.companions = folder::companions(&mut folder)?;
            }
            model
        };
        model.path = Some(path.to_owned());
        Ok(model)
    }

    /// Opens the model file that `reader` reads: the header now, each tensor when it is loaded.
    ///
    /// # Errors
    /// Any [`Error`] of the parsers; [`Error::Read`] or [`Error::Length`] if `reader` fails;
    /// [`Error::Metadata`] for one part of a split GGUF model.
    pub fn from_reader(reader: impl ReadAt + 'static) -> Result<Self> {
        let model = Self::of_storage(Storage::of_reader(Box::new(reader))?)?;
        gguf::split::check_whole(&model)?;
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

    /// Parses one file and no companions.
    pub(crate) fn of_storage(storage: Storage) -> Result<Self> {
        let mut r = Reader::new(&storage);
        let format = detect(&mut r)?;
        let parsed = match format {
            Format::CTranslate2 => ctranslate2::parse(&mut r)?,
            Format::WhisperBin => whisper_bin::parse(&mut r)?,
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
            whisper_bin: parsed.whisper_bin,
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

    /// The path given to [`Self::open`].
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

    /// Format, metadata, tensors and sizes, for printing.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary::of(self)
    }
}
