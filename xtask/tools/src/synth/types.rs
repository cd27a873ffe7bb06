//! Types of the tensors.

use std::fmt;
use std::str::FromStr;

use stonechat_formats::DType;

use super::{Plan, Values, blocks};

/// A choice of types for a whole model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Types {
    name: &'static str,
    /// Type of most matrices.
    dtype: DType,
    /// Type of the value and down projections of the layers that llama.cpp gives more bits.
    finer: DType,
    /// Type of experts, if it is not that of the other matrices.
    experts: Option<DType>,
    /// GGUF's `general.file_type` (`enum llama_ftype`).
    file_type: u32,
}

/// Mixtures that are no single type.
const MIXTURES: [Types; 3] = [
    Types { name: "q4_k_m", dtype: DType::Q4K, finer: DType::Q6K, experts: None, file_type: 15 },
    Types { name: "q5_k_m", dtype: DType::Q5K, finer: DType::Q6K, experts: None, file_type: 17 },
    Types {
        name: "mxfp4_moe",
        dtype: DType::Q8_0,
        finer: DType::Q8_0,
        experts: Some(DType::Mxfp4),
        file_type: 38,
    },
];

impl Types {
    /// Sets the type of every tensor of `plan` and the file's type.
    pub(super) fn assign(self, plan: &mut Plan) {
        let is_tied = !plan.tensors.iter().any(|tensor| tensor.info.name == "output.weight");
        let layers = plan.tensors.iter().filter_map(|tensor| layer_of(&tensor.info.name));
        let n_layers = layers.max().map_or(0, |last| last + 1);
        for tensor in plan.tensors.iter_mut().filter(|tensor| tensor.values == Values::Random) {
            let has_more_bits = ["attn_v.weight", "ffn_down.weight", "ffn_down_exps.weight"]
                .iter()
                .any(|part| tensor.info.name.ends_with(part))
                && layer_of(&tensor.info.name).is_some_and(|layer| more_bits(layer, n_layers));
            let dtype = match self.experts {
                Some(dtype) if tensor.info.shape.len() == 3 => dtype,
                _ if has_more_bits => self.finer,
                _ => self.dtype,
            };
            tensor.info.dtype = stonechat_llm::quantized_dtype(&tensor.info, dtype, is_tied);
        }
        plan.metadata.set("general.file_type", self.file_type);
        plan.metadata.set("general.quantization_version", 2u32);
    }
}

/// The layer of a language model that a tensor belongs to.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Whether a layer gets the finer type: the first and the last eighth, and each third between.
///
/// Source: `use_more_bits` of llama.cpp's `src/llama-quant.cpp`.
fn more_bits(layer: usize, n_layers: usize) -> bool {
    let eighth = n_layers / 8;
    layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl FromStr for Types {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let is_named = |types: &&Self| types.name.eq_ignore_ascii_case(name);
        if let Some(&mixture) = MIXTURES.iter().find(is_named) {
            return Ok(mixture);
        }
        let single = |dtype: DType| {
            let file_type = dtype.llama_ftype().filter(|_| blocks::can_fill(dtype))?;
            Some(Self { name: dtype.name(), dtype, finer: dtype, experts: None, file_type })
        };
        DType::from_name(name).and_then(single).ok_or_else(|| {
            let names = DType::ALL.iter().filter_map(|&dtype| single(dtype)).map(|t| t.name);
            let known: Vec<&str> = MIXTURES.iter().map(|t| t.name).chain(names).collect();
            format!("expected one of {}", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_28_layers_get_more_bits() {
        let finer: Vec<usize> = (0..28).filter(|&layer| more_bits(layer, 28)).collect();
        assert_eq!(finer, [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]);
    }

    #[test]
    fn names_of_types() {
        assert_eq!("Q4_K_M".parse::<Types>().unwrap().finer, DType::Q6K);
        assert_eq!("q8_0".parse::<Types>().unwrap().finer, DType::Q8_0);
        for unknown in ["", "q4_k_x", "iq1_s", "i32", "q8_k"] {
            let error = unknown.parse::<Types>().unwrap_err();
            assert!(
                error.starts_with("expected one of q4_k_m, q5_k_m, mxfp4_moe, f32, "),
                "{error}"
            );
        }
    }
}
