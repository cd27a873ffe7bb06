//! Export of a model to GGUF or whisper.cpp's `.bin`, with its own or other weight types.

use std::path::Path;

use stonechat_audio::LogMel;
use stonechat_compute::{DType, SharedBytes};
use stonechat_formats::{
    AtomicFile, GgufWriter, MelFilters, Metadata, ModelFile, TensorInfo, WhisperBinWriter,
    WhisperHparams,
};
use stonechat_text::Tokenizer;

use crate::config::Config;
use crate::error::Error;
use crate::model::read_tokenizer;
use crate::source::Source;
use crate::special::SpecialTokens;

/// File formats of [`export`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// GGUF version 3 with openai/whisper's tensor names.
    Gguf,
    /// whisper.cpp's `ggml-*.bin`.
    WhisperBin,
}

impl ExportFormat {
    /// Format by the extension of a path: `gguf` or `bin`.
    #[must_use]
    pub fn from_path(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "gguf" => Some(Self::Gguf),
            "bin" => Some(Self::WhisperBin),
            _ => None,
        }
    }
}

/// Role of a tensor, which decides its types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Matrix: any type.
    Matrix,
    /// Convolution: f32 or f16.
    Conv,
    /// Norm, bias or positions: f32.
    Vector,
}

/// A tensor to write.
#[derive(Debug)]
struct PlannedTensor {
    name: String,
    role: Role,
    dtype: DType,
    shape: Vec<usize>,
}

impl PlannedTensor {
    fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    fn info(&self) -> TensorInfo {
        TensorInfo::new(self.name.clone(), self.dtype, self.shape.clone())
    }
}

/// Writes the model in `file` to `path`, with matrices converted to `weights` if given; `progress` gets
/// the fraction done, 0 to 1.
///
/// In GGUF, matrices whose rows are no multiple of 256 get the nearest type with blocks of 32. A
/// whisper.cpp file holds one type only.
///
/// # Errors
/// If `file` is no Whisper model, the type does not fit the format, or writing fails; a file at `path`
/// is then unchanged.
pub fn export(
    file: &ModelFile,
    path: &Path,
    format: ExportFormat,
    weights: Option<DType>,
    mut progress: impl FnMut(f32),
) -> Result<(), Error> {
    let source = Source::new(file)?;
    let config = Config::read(&source)?;
    let special = SpecialTokens::new(config.vocab_size)?;
    let tokenizer = read_tokenizer(file, &special)?;
    let mut plan = plan(&source, &config, weights)?;
    let n_tensors = plan.len() as f32;
    let converted = |tensor: &PlannedTensor| convert(&source, &tensor.name, tensor.dtype);
    match format {
        ExportFormat::Gguf => {
            for tensor in plan.iter_mut().filter(|t| t.role == Role::Matrix) {
                tensor.dtype = stonechat_quant::fitting_dtype(tensor.dtype, tensor.row_len());
            }
            let metadata = gguf_metadata(&config, &special, &tokenizer);
            let infos = plan.iter().map(PlannedTensor::info).collect();
            let mut writer = GgufWriter::new(AtomicFile::create(path)?, &metadata, infos)?;
            for (i, tensor) in plan.iter().enumerate() {
                writer.write_tensor(&tensor.name, &converted(tensor)?)?;
                progress((i + 1) as f32 / n_tensors);
            }
            writer.finish()?.commit()?;
        }
        ExportFormat::WhisperBin => {
            let ftype = make_uniform(&mut plan, weights)?;
            let filters = LogMel::new(config.n_mels).filters();
            let n_bins = filters.len() / config.n_mels;
            let filters = MelFilters { n_mels: config.n_mels, n_bins, data: filters };
            let vocab: Vec<&[u8]> =
                (0..special.eot).map(|id| tokenizer.token_bytes(id).unwrap_or_default()).collect();
            let out = AtomicFile::create(path)?;
            let mut writer =
                WhisperBinWriter::new(out, &hparams(&config, ftype), &filters, &vocab)?;
            for (i, tensor) in plan.iter().enumerate() {
                writer.write_tensor(&tensor.info(), &converted(tensor)?)?;
                progress((i + 1) as f32 / n_tensors);
            }
            writer.finish()?.commit()?;
        }
    }
    Ok(())
}

/// Plans all tensors and their types, without the limits of the format.
fn plan(
    source: &Source<'_>,
    config: &Config,
    weights: Option<DType>,
) -> Result<Vec<PlannedTensor>, Error> {
    let mut plan = Vec::new();
    for (name, role) in tensor_names(config) {
        let stored = source.tensor(&name)?;
        let dtype = match (role, weights.unwrap_or(stored.dtype)) {
            (Role::Vector, _) => DType::F32,
            (Role::Conv, DType::F32) => DType::F32,
            (Role::Conv, _) => DType::F16,
            (Role::Matrix, dtype) => dtype,
        };
        let shape = match role {
            Role::Vector => stored.shape.into_iter().filter(|&n| n != 1).collect(),
            Role::Matrix | Role::Conv => stored.shape,
        };
        plan.push(PlannedTensor { name, role, dtype, shape });
    }
    Ok(plan)
}

/// Sets one type for all matrices, as whisper.cpp requires, and returns its `ftype`. Without
/// `weights`, mixed or unsupported types become f16.
fn make_uniform(plan: &mut [PlannedTensor], weights: Option<DType>) -> Result<u32, Error> {
    let mut matrices = plan.iter().filter(|t| t.role == Role::Matrix).map(|t| t.dtype);
    let first = matrices.next().unwrap_or(DType::F16);
    let kept =
        if matrices.all(|d| d == first) && ftype(first).is_some() { first } else { DType::F16 };
    let dtype = weights.unwrap_or(kept);
    for tensor in &mut *plan {
        match tensor.role {
            Role::Matrix if !tensor.row_len().is_multiple_of(dtype.block_len()) => {
                let name = tensor.name.clone();
                let expected = "a type with blocks of 32: rows are no multiple of 256 and a whisper.cpp file holds one type";
                return Err(Error::TensorType { name, dtype, expected });
            }
            Role::Matrix => tensor.dtype = dtype,
            Role::Conv => tensor.dtype = DType::F16,
            // whisper.cpp expects the biases of convolutions as columns.
            Role::Vector if tensor.name.contains(".conv") => tensor.shape.push(1),
            Role::Vector => {}
        }
    }
    ftype(dtype).ok_or_else(|| Error::TensorType {
        name: "every matrix".to_owned(),
        dtype,
        expected: "a type that whisper.cpp runs: f16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k to q6_k",
    })
}

/// whisper.cpp's `ftype` (`enum ggml_ftype`). No f32: whisper.cpp loads such a file, but its
/// convolution aborts without f16 kernels.
fn ftype(dtype: DType) -> Option<u32> {
    if matches!(dtype, DType::F32 | DType::BF16) { None } else { dtype.ggml_ftype() }
}

/// Converts a tensor to `dtype`.
fn convert(source: &Source<'_>, name: &str, dtype: DType) -> Result<SharedBytes, Error> {
    let tensor = source.tensor(name)?;
    if tensor.dtype == dtype {
        return tensor.load();
    }
    let values = tensor.to_f32()?;
    let row_len = tensor.shape.last().copied().unwrap_or(1);
    let unsupported = || Error::TensorType {
        name: tensor.name.clone(),
        dtype,
        expected: "a type that can be written",
    };
    let mut bytes = vec![0; dtype.bytes_for(values.len()).ok_or_else(unsupported)?];
    stonechat_quant::quantize_rows(dtype, &values, row_len, &mut bytes)
        .map_err(|_| unsupported())?;
    Ok(SharedBytes::from(bytes))
}

fn tensor_names(config: &Config) -> Vec<(String, Role)> {
    let mut names = Vec::new();
    let mut with_bias = |name: String, role| {
        names.push((format!("{name}.weight"), role));
        names.push((format!("{name}.bias"), Role::Vector));
    };
    for name in ["encoder.conv1", "encoder.conv2"] {
        with_bias(name.to_owned(), Role::Conv);
    }
    for name in ["encoder.ln_post", "decoder.ln"] {
        with_bias(name.to_owned(), Role::Vector);
    }
    let mut keys = Vec::new();
    for (stack, n_layers, attentions) in [
        ("encoder", config.n_audio_layers, &["attn"][..]),
        ("decoder", config.n_text_layers, &["attn", "cross_attn"][..]),
    ] {
        for i in 0..n_layers {
            let block = format!("{stack}.blocks.{i}");
            for attention in attentions {
                with_bias(format!("{block}.{attention}_ln"), Role::Vector);
                for part in ["query", "value", "out"] {
                    with_bias(format!("{block}.{attention}.{part}"), Role::Matrix);
                }
                keys.push((format!("{block}.{attention}.key.weight"), Role::Matrix));
            }
            with_bias(format!("{block}.mlp_ln"), Role::Vector);
            with_bias(format!("{block}.mlp.0"), Role::Matrix);
            with_bias(format!("{block}.mlp.2"), Role::Matrix);
        }
    }
    names.extend(keys);
    for stack in ["encoder", "decoder"] {
        names.push((format!("{stack}.positional_embedding"), Role::Vector));
    }
    names.push(("decoder.token_embedding.weight".to_owned(), Role::Matrix));
    names
}

fn hparams(config: &Config, ftype: u32) -> WhisperHparams {
    let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    WhisperHparams {
        n_vocab: size(config.vocab_size),
        n_audio_ctx: size(config.n_audio_ctx),
        n_audio_state: size(config.d_model),
        n_audio_head: size(config.n_audio_heads),
        n_audio_layer: size(config.n_audio_layers),
        n_text_ctx: size(config.n_text_ctx),
        n_text_state: size(config.d_model),
        n_text_head: size(config.n_text_heads),
        n_text_layer: size(config.n_text_layers),
        n_mels: size(config.n_mels),
        ftype,
    }
}

fn gguf_metadata(config: &Config, special: &SpecialTokens, tokenizer: &Tokenizer) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "whisper");
    metadata.set("general.quantization_version", 2u32);
    for (key, value) in hparams(config, 0).fields() {
        if key != "whisper.ftype" {
            metadata.set(key, value);
        }
    }
    metadata.set("tokenizer.ggml.model", "gpt2");
    let tokens: Vec<String> =
        (0..special.eot).map(|id| tokenizer.vocabulary_entry(id).unwrap_or_default()).collect();
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::ExportFormat;

    #[test]
    fn the_extension_names_the_format() {
        assert_eq!(ExportFormat::from_path(Path::new("a/B.GGUF")), Some(ExportFormat::Gguf));
        assert_eq!(
            ExportFormat::from_path(Path::new("ggml-base.bin")),
            Some(ExportFormat::WhisperBin)
        );
        assert_eq!(ExportFormat::from_path(Path::new("model")), None);
    }
}
