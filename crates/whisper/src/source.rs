//! Tensors of a model file by openai/whisper's names, for every naming convention.
//!
//! Hugging Face files have other names. CTranslate2 files also stack query, key and value into one
//! matrix, and may hold int8 rows with a scale.

use std::ops::Range;
use std::slice;

use stonechat_compute::{DType, SharedBytes};
use stonechat_formats::{ModelFile, TensorData, TensorView};

use crate::error::Error;

/// Bytes of int8 rows that are converted at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A tensor, or a block of rows of a stored one; not loaded yet.
#[derive(Debug)]
pub(crate) struct Tensor<'a> {
    /// Name in the file.
    pub(crate) name: String,
    /// Type of the loaded values.
    pub(crate) dtype: DType,
    /// Outermost first.
    pub(crate) shape: Vec<usize>,
    stored: TensorData<'a>,
    /// f32 scale of each row, if int8 rows are stored.
    scales: Option<TensorData<'a>>,
}

impl Tensor<'_> {
    /// Bytes of the loaded values.
    pub(crate) fn n_bytes(&self) -> Option<usize> {
        match self.scales {
            None => Some(self.stored.len()),
            Some(_) => self.dtype.bytes_for(self.stored.len()),
        }
    }

    /// Loads the values: a reference to the memory map if it can be one, else new memory.
    pub(crate) fn load(&self) -> Result<SharedBytes, Error> {
        Ok(Self::load_joined(slice::from_ref(self))?.1)
    }

    /// Loads and concatenates tensors; mixed types become f32.
    pub(crate) fn load_joined(parts: &[Self]) -> Result<(DType, SharedBytes), Error> {
        let dtype = parts[0].dtype;
        let is_mixed = parts.iter().any(|part| part.dtype != dtype);
        if !is_mixed && parts.iter().all(|part| part.scales.is_none()) {
            let stored: Vec<TensorData<'_>> = parts.iter().map(|part| part.stored).collect();
            return Ok((dtype, TensorData::joined(&stored)?));
        }
        let mut bytes = Vec::with_capacity(parts.iter().filter_map(Self::n_bytes).sum());
        for part in parts {
            match part.scales {
                _ if is_mixed => {
                    bytes.extend(part.to_f32()?.into_iter().flat_map(f32::to_le_bytes))
                }
                None => bytes.extend_from_slice(&part.stored.load()?),
                Some(scales) => part.convert_int8(&scales.load()?, &mut bytes)?,
            }
        }
        Ok((if is_mixed { DType::F32 } else { dtype }, SharedBytes::from(bytes)))
    }

    /// Loads the values and converts them to f32.
    pub(crate) fn to_f32(&self) -> Result<Vec<f32>, Error> {
        let mut values = vec![0.0; self.shape.iter().product()];
        stonechat_quant::dequantize_row(self.dtype, &self.load()?, &mut values).map_err(|_| {
            Error::TensorType {
                name: self.name.clone(),
                dtype: self.dtype,
                expected: "floats or a quantized type",
            }
        })?;
        Ok(values)
    }

    /// Converts CTranslate2's int8 rows, `value = int8 / scale[row]`, and appends them to `out`:
    /// `q8_0` blocks with the same int8 values and the scale rounded to f16, or f32.
    fn convert_int8(&self, scales: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let row_len: usize = self.shape.iter().skip(1).product();
        let chunk_rows = (CHUNK_BYTES / row_len).max(1);
        let mut chunk = vec![0; self.stored.len().min(chunk_rows * row_len)];
        for (i, scales) in scales.as_chunks::<4>().0.chunks(chunk_rows).enumerate() {
            let start = i * chunk_rows * row_len;
            let chunk = &mut chunk[..scales.len() * row_len];
            self.stored.slice(start..start + chunk.len()).read_into(chunk)?;
            for (&scale, row) in scales.iter().zip(chunk.chunks_exact(row_len)) {
                let scale = 1.0 / f32::from_le_bytes(scale);
                if self.dtype == DType::Q8_0 {
                    let scale = half::f16::from_f32(scale).to_le_bytes();
                    for block in row.chunks_exact(DType::Q8_0.block_len()) {
                        out.extend_from_slice(&scale);
                        out.extend_from_slice(block);
                    }
                } else {
                    for &value in row {
                        let value = f32::from(value.cast_signed()) * scale;
                        out.extend_from_slice(&value.to_le_bytes());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Naming conventions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    OpenAi,
    HuggingFace { prefix: &'static str },
    CTranslate2,
}

/// Location of a tensor in the file.
#[derive(Debug, PartialEq, Eq)]
struct Location {
    name: String,
    /// Index and number of equal row blocks, if it is one of several stacked tensors.
    part: Option<(usize, usize)>,
}

/// The tensors of a Whisper file.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    file: &'a ModelFile,
    naming: Naming,
}

impl<'a> Source<'a> {
    pub(crate) fn new(file: &'a ModelFile) -> Result<Self, Error> {
        let has = |name: &str| file.tensor(name).is_some();
        let naming = if has("encoder/conv1/weight") {
            Naming::CTranslate2
        } else if has("model.encoder.layers.0.self_attn.q_proj.weight") {
            Naming::HuggingFace { prefix: "model." }
        } else if has("encoder.layers.0.self_attn.q_proj.weight") {
            Naming::HuggingFace { prefix: "" }
        } else if has("encoder.blocks.0.attn.query.weight") {
            Naming::OpenAi
        } else {
            let reason = "no Whisper encoder among its tensors".to_owned();
            return Err(Error::NotWhisper { reason });
        };
        Ok(Self { file, naming })
    }

    pub(crate) fn file(&self) -> &'a ModelFile {
        self.file
    }

    /// Whether the file has CTranslate2's names.
    pub(crate) fn is_ctranslate2(&self) -> bool {
        self.naming == Naming::CTranslate2
    }

    /// Shape of the tensor with openai/whisper's name `name`.
    pub(crate) fn shape(&self, name: &str) -> Result<Vec<usize>, Error> {
        let location = self.locate(name);
        let mut shape = self.view(&location.name)?.shape.to_vec();
        if let (Some((_, parts)), Some(rows)) = (location.part, shape.first_mut()) {
            *rows /= parts;
        }
        Ok(shape)
    }

    /// Number of layers of `stack` (`encoder` or `decoder`).
    pub(crate) fn count_layers(&self, stack: &str) -> usize {
        let exists = |i: &usize| {
            let name = format!("{stack}.blocks.{i}.attn_ln.weight");
            self.file.tensor(&self.locate(&name).name).is_some()
        };
        (0..).take_while(exists).count()
    }

    /// Tensor with openai/whisper's name `name`; int8 rows become `q8_0` blocks, or f32 if a row is no
    /// whole number of blocks.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor<'a>, Error> {
        let location = self.locate(name);
        let view = self.view(&location.name)?;
        let mut shape = view.shape.to_vec();
        let mut rows = 0..shape.first().copied().unwrap_or(1);
        let mut stored = view.data;
        if let Some((part, parts)) = location.part {
            if !rows.end.is_multiple_of(parts) {
                let expected = vec![rows.end / parts * parts];
                return Err(Error::Shape { name: location.name, expected, got: shape });
            }
            let (each, size) = (rows.end / parts, stored.len() / parts);
            rows = part * each..(part + 1) * each;
            stored = stored.slice(part * size..(part + 1) * size);
            shape[0] = each;
        }
        let (dtype, scales) = match view.dtype {
            DType::I8 => {
                let row_len: usize = shape.iter().skip(1).product();
                let scales = self.scales(&location.name, rows, row_len)?;
                let is_blocks = row_len.is_multiple_of(DType::Q8_0.block_len());
                (if is_blocks { DType::Q8_0 } else { DType::F32 }, Some(scales))
            }
            dtype => (dtype, None),
        };
        Ok(Tensor { name: location.name, dtype, shape, stored, scales })
    }

    /// f32 scales of `rows` of the int8 tensor `name`.
    fn scales(
        &self,
        name: &str,
        rows: Range<usize>,
        row_len: usize,
    ) -> Result<TensorData<'a>, Error> {
        let name = format!("{name}_scale");
        let view = self.view(&name)?;
        let (start, end) = (rows.start * size_of::<f32>(), rows.end * size_of::<f32>());
        if view.dtype != DType::F32 || view.data.len() < end || row_len == 0 {
            let got = view.shape.to_vec();
            return Err(Error::Shape { name, expected: vec![rows.len()], got });
        }
        Ok(view.data.slice(start..end))
    }

    fn view(&self, name: &str) -> Result<TensorView<'a>, Error> {
        self.file.tensor(name).ok_or_else(|| Error::MissingTensor { name: name.to_owned() })
    }

    fn locate(&self, name: &str) -> Location {
        match self.naming {
            Naming::OpenAi => Location { name: name.to_owned(), part: None },
            Naming::HuggingFace { prefix } => {
                Location { name: format!("{prefix}{}", hugging_face(name)), part: None }
            }
            Naming::CTranslate2 => ctranslate2(name),
        }
    }
}

/// Replaces parts of an openai/whisper name by `table`; other parts stay.
fn rename(name: &str, table: &[(&str, &str)]) -> String {
    let mut name = name.to_owned();
    for (from, to) in table {
        name = name.replace(from, to);
    }
    name
}

fn hugging_face(name: &str) -> String {
    rename(
        name,
        &[
            ("positional_embedding", "embed_positions.weight"),
            ("token_embedding", "embed_tokens"),
            ("ln_post.", "layer_norm."),
            ("decoder.ln.", "decoder.layer_norm."),
            (".blocks.", ".layers."),
            (".cross_attn_ln.", ".encoder_attn_layer_norm."),
            (".cross_attn.", ".encoder_attn."),
            (".attn_ln.", ".self_attn_layer_norm."),
            (".attn.", ".self_attn."),
            (".mlp_ln.", ".final_layer_norm."),
            (".mlp.0.", ".fc1."),
            (".mlp.2.", ".fc2."),
            (".query.", ".q_proj."),
            (".key.", ".k_proj."),
            (".value.", ".v_proj."),
            (".out.", ".out_proj."),
        ],
    )
}

fn ctranslate2(name: &str) -> Location {
    let stacked = [
        (".cross_attn.query.", ".attention.linear_0.", None),
        (".cross_attn.key.", ".attention.linear_1.", Some((0, 2))),
        (".cross_attn.value.", ".attention.linear_1.", Some((1, 2))),
        (".cross_attn.out.", ".attention.linear_2.", None),
        (".attn.query.", ".self_attention.linear_0.", Some((0, 3))),
        (".attn.key.", ".self_attention.linear_0.", Some((1, 3))),
        (".attn.value.", ".self_attention.linear_0.", Some((2, 3))),
        (".attn.out.", ".self_attention.linear_1.", None),
    ];
    let mut part = None;
    let mut name = name.to_owned();
    for (from, to, block) in stacked {
        if name.contains(from) {
            name = name.replace(from, to);
            part = block;
            break;
        }
    }
    let mut name = rename(
        &name,
        &[
            ("positional_embedding", "position_encodings.encodings"),
            ("token_embedding", "embeddings"),
            ("ln_post.", "layer_norm."),
            ("decoder.ln.", "decoder.layer_norm."),
            (".blocks.", ".layer_"),
            (".cross_attn_ln.", ".attention.layer_norm."),
            (".attn_ln.", ".self_attention.layer_norm."),
            (".mlp_ln.", ".ffn.layer_norm."),
            (".mlp.0.", ".ffn.linear_0."),
            (".mlp.2.", ".ffn.linear_1."),
            (".", "/"),
        ],
    );
    if name.contains("layer_norm/") {
        name = rename(&name, &[("/weight", "/gamma"), ("/bias", "/beta")]);
    }
    Location { name, part }
}

#[cfg(test)]
mod tests {
    use super::{Location, ctranslate2, hugging_face};

    #[test]
    fn names_of_hugging_face() {
        for (openai, hf) in [
            ("encoder.conv1.bias", "encoder.conv1.bias"),
            ("encoder.positional_embedding", "encoder.embed_positions.weight"),
            ("encoder.ln_post.weight", "encoder.layer_norm.weight"),
            ("encoder.blocks.3.attn.out.bias", "encoder.layers.3.self_attn.out_proj.bias"),
            ("decoder.token_embedding.weight", "decoder.embed_tokens.weight"),
            ("decoder.ln.bias", "decoder.layer_norm.bias"),
            (
                "decoder.blocks.0.cross_attn_ln.bias",
                "decoder.layers.0.encoder_attn_layer_norm.bias",
            ),
            (
                "decoder.blocks.0.cross_attn.key.weight",
                "decoder.layers.0.encoder_attn.k_proj.weight",
            ),
            ("decoder.blocks.1.mlp_ln.weight", "decoder.layers.1.final_layer_norm.weight"),
            ("decoder.blocks.1.mlp.2.weight", "decoder.layers.1.fc2.weight"),
        ] {
            assert_eq!(hugging_face(openai), hf);
        }
    }

    #[test]
    fn names_of_ctranslate2() {
        for (openai, name, part) in [
            ("encoder.conv2.weight", "encoder/conv2/weight", None),
            ("encoder.positional_embedding", "encoder/position_encodings/encodings", None),
            ("encoder.ln_post.weight", "encoder/layer_norm/gamma", None),
            (
                "encoder.blocks.3.attn_ln.bias",
                "encoder/layer_3/self_attention/layer_norm/beta",
                None,
            ),
            (
                "encoder.blocks.3.attn.key.weight",
                "encoder/layer_3/self_attention/linear_0/weight",
                Some((1, 3)),
            ),
            (
                "decoder.blocks.0.cross_attn.value.bias",
                "decoder/layer_0/attention/linear_1/bias",
                Some((1, 2)),
            ),
            (
                "decoder.blocks.0.cross_attn.out.bias",
                "decoder/layer_0/attention/linear_2/bias",
                None,
            ),
            (
                "decoder.blocks.0.cross_attn_ln.weight",
                "decoder/layer_0/attention/layer_norm/gamma",
                None,
            ),
            ("decoder.blocks.0.mlp.0.bias", "decoder/layer_0/ffn/linear_0/bias", None),
            ("decoder.token_embedding.weight", "decoder/embeddings/weight", None),
        ] {
            assert_eq!(ctranslate2(openai), Location { name: name.to_owned(), part });
        }
    }
}
