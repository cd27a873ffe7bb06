//! Quantizing a GGUF model: one type for all matrices but that of the logits, without the `_S`, `_M` and `_L` mixes of
//! `llama-quantize`.

use std::path::Path;

use stonechat_compute::{DType, SharedBytes};
use stonechat_formats::{
    AtomicFile, Format, GgufWriter, Metadata, ModelFile, TensorInfo, TensorView,
};
use stonechat_quant::{dequantize_row, fitting_dtype, is_float, needs_importance, quantize_rows};

use crate::Error;

/// Quantizes the matrices of the GGUF file `file` to `dtype` and writes it to `path`; `progress`
/// gets the fraction done.
///
/// Norms, biases, expert routers and position tables stay as they are. The matrix of the logits
/// (`output.weight`, or `token_embd.weight` if tied) gets at least `q6_k`. Rows that are no
/// multiple of the block length get llama.cpp's fallback type. The metadata is kept, but for
/// `general.file_type`.
///
/// # Errors
/// If `file` is no GGUF file, `dtype` needs an importance matrix, a matrix cannot be dequantized,
/// or writing fails; a file at `path` is unchanged then.
pub fn quantize(
    file: &ModelFile,
    path: &Path,
    dtype: DType,
    mut progress: impl FnMut(f32),
) -> Result<(), Error> {
    if file.format() != Format::Gguf {
        return Err(Error::NotGguf { format: file.format() });
    }
    if needs_importance(dtype) {
        return Err(stonechat_quant::Error::NeedsImportance { dtype }.into());
    }
    let file_type = dtype.llama_ftype().ok_or_else(|| Error::Option {
        option: "weight type",
        expected: "a type of whole models".to_owned(),
        got: dtype.to_string(),
    })?;
    let is_tied = file.tensor("output.weight").is_none();
    let mut infos: Vec<TensorInfo> =
        file.tensors().map(|t| TensorInfo::new(t.name, t.dtype, t.shape)).collect();
    for info in &mut infos {
        info.dtype = quantized_dtype(info, dtype, is_tied);
    }
    let dtypes: Vec<DType> = infos.iter().map(|info| info.dtype).collect();
    let metadata = metadata(file.metadata(), file_type);
    let mut writer = GgufWriter::new(AtomicFile::create(path)?, &metadata, infos)?;
    let n_tensors = dtypes.len() as f32;
    for (i, (tensor, dtype)) in file.tensors().zip(dtypes).enumerate() {
        writer.write_tensor(tensor.name, &converted(&tensor, dtype)?)?;
        progress((i + 1) as f32 / n_tensors);
    }
    writer.finish()?.commit()?;
    Ok(())
}

/// Type of a tensor in a model that is quantized to `dtype`; `is_tied` if the embedding is also the
/// vocabulary projection.
#[must_use]
pub fn quantized_dtype(tensor: &TensorInfo, dtype: DType, is_tied: bool) -> DType {
    // Quantization errors of a router change which experts run; position tables are no matmul operands.
    let is_kept = ["_norm.weight", "ffn_gate_inp.weight"].iter().any(|s| tensor.name.ends_with(s))
        || ["position_embd.weight", "token_types.weight"].contains(&tensor.name.as_str());
    let is_matrix = tensor.shape.len() >= 2 && tensor.name.ends_with(".weight");
    if is_kept || !is_matrix || !is_float(tensor.dtype) {
        return tensor.dtype;
    }
    let makes_logits = tensor.name == if is_tied { "token_embd.weight" } else { "output.weight" };
    let is_coarse = dtype.is_quantized() && dtype != DType::Q8_0;
    let row_len = tensor.shape.last().copied().unwrap_or(1);
    fitting_dtype(if makes_logits && is_coarse { DType::Q6K } else { dtype }, row_len)
}

/// Metadata of the quantized model; the entries of a split model are dropped.
fn metadata(of: &Metadata, file_type: u32) -> Metadata {
    let mut metadata = Metadata::new();
    for (key, value) in of.iter().filter(|(key, _)| !key.starts_with("split.")) {
        metadata.set(key, value.clone());
    }
    metadata.set("general.file_type", file_type);
    metadata.set("general.quantization_version", 2u32);
    metadata
}

/// Bytes of the tensor, dequantized and quantized to `dtype`.
fn converted(tensor: &TensorView<'_>, dtype: DType) -> Result<SharedBytes, Error> {
    let stored = tensor.data.load()?;
    if tensor.dtype == dtype {
        return Ok(stored);
    }
    let row_len = tensor.shape.last().copied().unwrap_or(1);
    let mut values = vec![0.0; tensor.n_elements()];
    dequantize_row(tensor.dtype, &stored, &mut values)?;
    let n_bytes = dtype.bytes_for(values.len()).ok_or(stonechat_quant::Error::RowLen {
        dtype,
        block_len: dtype.block_len(),
        k: row_len,
    })?;
    let mut bytes = vec![0; n_bytes];
    quantize_rows(dtype, &values, row_len, &mut bytes)?;
    Ok(SharedBytes::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_kept_finer_than_the_rest() {
        let chosen_for = |name, shape: &[usize], is_tied| {
            quantized_dtype(&TensorInfo::new(name, DType::F32, shape), DType::Q4_0, is_tied)
        };
        assert_eq!(chosen_for("output.weight", &[2, 256], false), DType::Q6K);
        assert_eq!(chosen_for("token_embd.weight", &[2, 256], true), DType::Q6K);
        assert_eq!(chosen_for("token_embd.weight", &[2, 256], false), DType::Q4_0);
        assert_eq!(chosen_for("blk.0.attn_q.weight", &[2, 256], true), DType::Q4_0);
        assert_eq!(chosen_for("blk.0.ffn_gate_inp.weight", &[2, 256], true), DType::F32);
        assert_eq!(chosen_for("blk.0.attn_norm.weight", &[256], true), DType::F32);
        assert_eq!(chosen_for("blk.0.attn_q.bias", &[2, 256], true), DType::F32);
    }
}
