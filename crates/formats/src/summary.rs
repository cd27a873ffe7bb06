//! The content of a model file as data for printing.

use stonechat_compute::DType;

use crate::format::Format;
use crate::model_file::ModelFile;

/// Format, metadata, tensors and sizes of a model file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Summary {
    /// The format.
    pub format: Format,
    /// The format's version, as [`ModelFile::version`].
    pub version: u32,
    /// Bytes of the model's files.
    pub file_bytes: u64,
    /// Keys and values in file order; each value is one line, long ones cut.
    pub metadata: Vec<(String, String)>,
    /// The tensors in file order.
    pub tensors: Vec<TensorSummary>,
    /// Elements of all tensors, those under several names counted once.
    pub n_parameters: usize,
    /// Bytes of all tensors, those under several names counted once.
    pub tensor_bytes: usize,
    /// Names and bytes of the files that belong to the model.
    pub companions: Vec<(String, usize)>,
}

/// One tensor of a [`Summary`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorSummary {
    /// The name as the file spells it.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Bytes of data.
    pub bytes: usize,
}

impl ModelFile {
    /// Format, metadata, tensors and sizes, for printing.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut metadata: Vec<(String, String)> =
            self.metadata().iter().map(|(k, v)| (k.to_owned(), v.to_string())).collect();
        if let Some(bin) = self.whisper_bin() {
            let (n_mels, n_bins) = (bin.mel_filters.n_mels, bin.mel_filters.n_bins);
            metadata.push(("mel filters".into(), format!("{n_mels} × {n_bins} of f32")));
            metadata.push(("tokens".into(), bin.vocab.len().to_string()));
        }
        let mut seen = std::collections::HashSet::new();
        let (mut n_parameters, mut tensor_bytes) = (0, 0);
        let mut tensors = Vec::with_capacity(self.tensors().len());
        for tensor in self.tensors() {
            if seen.insert(tensor.data.place()) {
                n_parameters += tensor.n_elements();
                tensor_bytes += tensor.data.len();
            }
            tensors.push(TensorSummary {
                name: tensor.name.to_owned(),
                dtype: tensor.dtype,
                shape: tensor.shape.to_vec(),
                bytes: tensor.data.len(),
            });
        }
        Summary {
            format: self.format(),
            version: self.version(),
            file_bytes: self.file_bytes(),
            metadata,
            tensors,
            n_parameters,
            tensor_bytes,
            companions: self.companions().map(|(k, v)| (k.to_owned(), v.len())).collect(),
        }
    }
}
