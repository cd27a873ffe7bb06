//! Tensors of a GGUF file or a Hugging Face folder by their GGUF names.

use std::cell::RefCell;
use std::collections::BTreeSet;

use stonechat_compute::{DType, SharedBytes};
use stonechat_formats::{Format, ModelFile, TensorView};

use crate::hugging_face::Names;
use crate::{Config, Error};

/// Tensor under its GGUF name, with stacked experts and absolute norms.
#[derive(Debug)]
pub(crate) struct Tensor {
    /// Name in the file, for error texts.
    pub(crate) name: String,
    pub(crate) dtype: DType,
    /// Outermost axis first.
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: SharedBytes,
}

impl Tensor {
    /// Dequantizes the tensor.
    pub(crate) fn to_f32(&self) -> Result<Vec<f32>, Error> {
        let mut values = vec![0.0; self.shape.iter().product()];
        stonechat_quant::dequantize_row(self.dtype, &self.bytes, &mut values).map_err(|_| {
            let (name, dtype) = (self.name.clone(), self.dtype);
            stonechat_nn::Error::UnsupportedWeight { name, dtype, backend: "host" }
        })?;
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
        let names = (file.format() == Format::SafeTensors).then(|| Names::of(config));
        Self { file, names, read: RefCell::default() }
    }

    /// The tensor with this GGUF name, if the file has it.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Tensor>, Error> {
        let Some(names) = &self.names else {
            self.read.borrow_mut().insert(name.to_owned());
            return Ok(self.file.tensor(name).map(plain));
        };
        let Some(stored) = names.stored(name) else { return Ok(None) };
        if stored.len() == 1 {
            let Some(view) = self.file.tensor(&stored[0]) else { return Ok(None) };
            let mut tensor = plain(view);
            if names.is_offset_norm(name) {
                // Gemma stores RMS norm weights as `w - 1`.
                let values: Vec<f32> = tensor.to_f32()?.iter().map(|v| v + 1.0).collect();
                tensor.dtype = DType::F32;
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                tensor.bytes = SharedBytes::from(bytes);
            }
            return Ok(Some(tensor));
        }
        // One tensor for each expert in the folder, stacked to `[n_experts, rows, cols]`.
        let mut stacked: Option<Tensor> = None;
        let mut parts = Vec::with_capacity(stored.len());
        for part in &stored {
            let Some(view) = self.file.tensor(part) else { return Ok(None) };
            parts.push(view.shared());
            match &mut stacked {
                None => {
                    let mut tensor = plain(view);
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
                }
            }
        }
        Ok(stacked.map(|tensor| Tensor { bytes: SharedBytes::joined(&parts), ..tensor }))
    }

    /// Checks that every tensor of a GGUF file was looked up: the output would be wrong without an ignored one.
    pub(crate) fn check_read(&self, config: &Config) -> Result<(), Error> {
        let read = self.read.borrow();
        let unread = |name: &&str| self.names.is_none() && !read.contains(*name);
        self.file.tensors().map(|tensor| tensor.name).find(unread).map_or(Ok(()), |name| {
            let (name, architecture) = (name.to_owned(), config.architecture.name);
            Err(Error::UnknownTensor { name, architecture })
        })
    }

    /// The tensor with this GGUF name.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] with the name in the file's own convention.
    pub(crate) fn require(&self, name: &str) -> Result<Tensor, Error> {
        let spelled = || match &self.names {
            Some(names) => names.stored(name).map_or(name.to_owned(), |all| all[0].clone()),
            None => name.to_owned(),
        };
        self.find(name)?.ok_or_else(|| Error::MissingTensor { name: spelled() })
    }
}

fn plain(view: TensorView<'_>) -> Tensor {
    Tensor {
        name: view.name.to_owned(),
        dtype: view.dtype,
        shape: view.shape.to_vec(),
        bytes: view.shared(),
    }
}
