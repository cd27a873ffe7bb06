//! Tensors of a GGUF file or a Hugging Face folder by their GGUF names.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use stonechat_compute::{DType, SharedBytes};
use stonechat_formats::{Format, ModelFile, TensorData, TensorView};

use crate::model::hugging_face::Names;
use crate::{Config, Error};

/// Tensor under its GGUF name, with stacked experts and absolute norms; not loaded yet.
#[derive(Debug)]
pub(crate) struct Tensor<'a> {
    /// Name in the file, for error texts.
    pub(crate) name: String,
    pub(crate) dtype: DType,
    /// Outermost axis first.
    pub(crate) shape: Vec<usize>,
    /// Parts that follow each other: one, or one for each expert.
    parts: Vec<TensorData<'a>>,
    /// Added to each value.
    offset: f32,
}

impl<'a> Tensor<'a> {
    fn plain(view: TensorView<'a>) -> Self {
        Self {
            name: view.name.to_owned(),
            dtype: view.dtype,
            shape: view.shape.to_vec(),
            parts: vec![view.data],
            offset: 0.0,
        }
    }

    /// Bytes of the stored values.
    pub(crate) fn n_bytes(&self) -> usize {
        self.parts.iter().map(TensorData::len).sum()
    }

    /// Loads bytes `range` of the stored values: a reference to the memory map if it can be one, else
    /// new memory.
    pub(crate) fn load(&self, range: Range<usize>) -> Result<SharedBytes, Error> {
        let mut first = 0;
        let in_range = |part: &TensorData<'a>| {
            let at = |i: usize| i.saturating_sub(first).min(part.len());
            let part_range = at(range.start)..at(range.end);
            first += part.len();
            (!part_range.is_empty()).then(|| part.slice(part_range))
        };
        let parts: Vec<TensorData<'_>> = self.parts.iter().filter_map(in_range).collect();
        Ok(TensorData::joined(&parts)?)
    }

    /// Loads and dequantizes the tensor.
    pub(crate) fn to_f32(&self) -> Result<Vec<f32>, Error> {
        let mut values = vec![0.0; self.shape.iter().product()];
        let bytes = self.load(0..self.n_bytes())?;
        stonechat_quant::dequantize_row(self.dtype, &bytes, &mut values).map_err(|_| {
            let (name, dtype) = (self.name.clone(), self.dtype);
            stonechat_nn::Error::UnsupportedWeight { name, dtype, backend: "host" }
        })?;
        if self.offset != 0.0 {
            values.iter_mut().for_each(|value| *value += self.offset);
        }
        Ok(values)
    }
}

/// Model file with look-ups by GGUF names.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    file: &'a ModelFile,
    names: Option<Names>,
    /// Names looked up in a GGUF file.
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(file: &'a ModelFile, config: &Config) -> Self {
        let names = (file.format() == Format::SafeTensors).then(|| Names::of(file, config));
        Self { file, names, read: RefCell::default() }
    }

    /// The tensor with this GGUF name, if the file has it.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Tensor<'a>>, Error> {
        let Some(names) = &self.names else {
            self.read.borrow_mut().insert(name.to_owned());
            return Ok(self.file.tensor(name).map(Tensor::plain));
        };
        let Some(stored) = names.stored(name) else { return Ok(None) };
        if stored.len() == 1 {
            let Some(view) = self.file.tensor(&stored[0]) else { return Ok(None) };
            // Gemma stores RMS norm weights as `w - 1`.
            let offset = if names.is_offset_norm(name) { 1.0 } else { 0.0 };
            return Ok(Some(Tensor { offset, ..Tensor::plain(view) }));
        }
        // One tensor for each expert in the folder, stacked to `[n_experts, rows, cols]`.
        let mut stacked: Option<Tensor<'a>> = None;
        for part in &stored {
            let Some(view) = self.file.tensor(part) else { return Ok(None) };
            match &mut stacked {
                None => {
                    let mut tensor = Tensor::plain(view);
                    tensor.shape.insert(0, 1);
                    stacked = Some(tensor);
                }
                Some(tensor) => {
                    if view.dtype != tensor.dtype || *view.shape != tensor.shape[1..] {
                        return Err(Error::Shape {
                            name: part.clone(),
                            expected: tensor.shape[1..].to_vec(),
                            got: view.shape.to_vec(),
                        });
                    }
                    tensor.shape[0] += 1;
                    tensor.parts.push(view.data);
                }
            }
        }
        Ok(stacked)
    }

    /// Checks that every tensor of a GGUF file was looked up: the output would be wrong without an ignored one.
    pub(crate) fn check_read(&self, config: &Config) -> Result<(), Error> {
        let read = self.read.borrow();
        let further = format!("{}.nextn_predict_layers", config.architecture.name);
        let has_further = self.file.metadata().get(&further).is_some();
        // Blocks that predict further tokens are no part of the forward pass.
        let is_further = |name: &str| {
            let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
            let layer = layer.and_then(|layer| layer.parse::<usize>().ok());
            has_further && layer.is_some_and(|layer| layer >= config.n_layers())
        };
        let unread =
            |name: &&str| self.names.is_none() && !read.contains(*name) && !is_further(name);
        self.file.tensors().map(|tensor| tensor.name).find(unread).map_or(Ok(()), |name| {
            let (name, architecture) = (name.to_owned(), config.architecture.name);
            Err(Error::UnknownTensor { name, architecture })
        })
    }

    /// The tensor with this GGUF name.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] with the name in the file's own convention.
    pub(crate) fn require(&self, name: &str) -> Result<Tensor<'a>, Error> {
        let spelled = || match &self.names {
            Some(names) => names.stored(name).map_or(name.to_owned(), |all| all[0].clone()),
            None => name.to_owned(),
        };
        self.find(name)?.ok_or_else(|| Error::MissingTensor { name: spelled() })
    }
}
