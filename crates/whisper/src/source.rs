//! Tensors of a model file by openai/whisper's names, for every naming convention.
//!
//! Hugging Face files have other names. CTranslate2 files also stack query, key and value into one
//! matrix, and may hold int8 rows with a scale.

use stonechat_compute::{DType, SharedBytes};
use stonechat_formats::{ModelFile, TensorView};

use crate::error::Error;

/// A tensor as stored, or a block of its rows.
#[derive(Debug)]
pub(crate) struct Tensor {
    /// Name in the file.
    pub(crate) name: String,
    pub(crate) dtype: DType,
    /// Outermost first.
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: SharedBytes,
}

impl Tensor {
    /// Converts the values to f32.
    pub(crate) fn to_f32(&self) -> Result<Vec<f32>, Error> {
        let mut values = vec![0.0; self.shape.iter().product()];
        stonechat_quant::dequantize_row(self.dtype, &self.bytes, &mut values).map_err(|_| {
            Error::TensorType {
                name: self.name.clone(),
                dtype: self.dtype,
                expected: "floats or a quantized type",
            }
        })?;
        Ok(values)
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

    /// Tensor with openai/whisper's name `name`; int8 rows become `q8_0` blocks.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let location = self.locate(name);
        let view = self.view(&location.name)?;
        let mut shape = view.shape.to_vec();
        let mut rows = 0..shape.first().copied().unwrap_or(1);
        let mut bytes = view.shared();
        if let Some((part, parts)) = location.part {
            if !rows.end.is_multiple_of(parts) {
                let expected = vec![rows.end / parts * parts];
                return Err(Error::Shape { name: location.name, expected, got: shape });
            }
            let (each, size) = (rows.end / parts, bytes.len() / parts);
            rows = part * each..(part + 1) * each;
            bytes = bytes.slice(part * size..(part + 1) * size);
            shape[0] = each;
        }
        if view.dtype == DType::I8 {
            return self.scaled_int8(location.name, shape, &bytes, rows.start);
        }
        Ok(Tensor { name: location.name, dtype: view.dtype, shape, bytes })
    }

    /// Converts CTranslate2's int8 rows, `value = int8 / scale[row]`, to `q8_0` blocks with the same
    /// int8 values and the scale rounded to f16; to f32 if a row is no whole number of blocks.
    fn scaled_int8(
        &self,
        name: String,
        shape: Vec<usize>,
        bytes: &[u8],
        first_row: usize,
    ) -> Result<Tensor, Error> {
        let scales_name = format!("{name}_scale");
        let scales = self.view(&scales_name)?;
        let n_rows = shape.first().copied().unwrap_or(1);
        let row_len: usize = shape.iter().skip(1).product();
        let stored = scales.data.as_chunks::<4>().0;
        if scales.dtype != DType::F32 || stored.len() < first_row + n_rows || row_len == 0 {
            let got = scales.shape.to_vec();
            return Err(Error::Shape { name: scales_name, expected: vec![n_rows], got });
        }
        let scale = |row: usize| 1.0 / f32::from_le_bytes(stored[first_row + row]);
        let rows = bytes.chunks_exact(row_len).enumerate();
        let (dtype, out) = if row_len.is_multiple_of(DType::Q8_0.block_len()) {
            let mut out = Vec::with_capacity(DType::Q8_0.bytes_for(bytes.len()).unwrap_or(0));
            for (row, values) in rows {
                let scale = half::f16::from_f32(scale(row)).to_le_bytes();
                for block in values.chunks_exact(DType::Q8_0.block_len()) {
                    out.extend_from_slice(&scale);
                    out.extend_from_slice(block);
                }
            }
            (DType::Q8_0, out)
        } else {
            let mut out = Vec::with_capacity(bytes.len() * 4);
            for (row, values) in rows {
                for &value in values {
                    let value = f32::from(value.cast_signed()) * scale(row);
                    out.extend_from_slice(&value.to_le_bytes());
                }
            }
            (DType::F32, out)
        };
        Ok(Tensor { name, dtype, shape, bytes: SharedBytes::from(out) })
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
