//! Weights: read from the file, shape-checked, uploaded to the device.

use stonechat_compute::{DType, SharedBytes};
use stonechat_nn::op::{NormArgs, Weight};
use stonechat_nn::{Conv1d, Device, Linear, MatrixSource, Norm, Precision};

use crate::config::Config;
use crate::decoder::{Decoder, DecoderBlock};
use crate::encoder::{Encoder, EncoderBlock};
use crate::error::Error;
use crate::source::{Source, Tensor};

/// PyTorch's default, used by every Whisper layer norm.
const LAYER_NORM_EPS: f32 = 1e-5;

/// All weights of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) encoder: Encoder,
    pub(crate) decoder: Decoder,
}

impl Weights {
    /// Loads and checks every tensor; `progress` gets the fraction done, 0 to 1.
    pub(crate) fn load(
        device: &Device,
        source: &Source<'_>,
        config: &Config,
        mut progress: impl FnMut(f32),
    ) -> Result<Self, Error> {
        for (stack, n_layers) in
            [("encoder", config.n_audio_layers), ("decoder", config.n_text_layers)]
        {
            let n_found = source.count_layers(stack);
            if n_found > n_layers {
                let reason = format!(
                    "its header has {n_layers} layers of the {stack}, its tensors {n_found}"
                );
                return Err(Error::NotWhisper { reason });
            }
        }
        let loader = Loader { device, source, d_model: config.d_model };
        let n_layers = (config.n_audio_layers + config.n_text_layers + 1) as f32;
        let mut done = 0.0;
        let mut step = || {
            done += 1.0;
            progress(done / n_layers);
        };
        let encoder = Encoder {
            conv1: loader.conv("encoder.conv1", config.n_mels, 1)?,
            conv2: loader.conv("encoder.conv2", config.d_model, 2)?,
            positions: loader
                .vector("encoder.positional_embedding", &[config.n_audio_ctx, config.d_model])?,
            blocks: (0..config.n_audio_layers)
                .map(|i| loader.encoder_block(&format!("encoder.blocks.{i}")).inspect(|_| step()))
                .collect::<Result<_, _>>()?,
            norm: loader.norm("encoder.ln_post")?,
        };
        let blocks = (0..config.n_text_layers)
            .map(|i| loader.decoder_block(&format!("decoder.blocks.{i}")).inspect(|_| step()))
            .collect::<Result<_, _>>()?;
        let decoder = Decoder {
            tokens: loader.stacked(
                &[("decoder.token_embedding.weight".to_owned(), None)],
                [config.vocab_size, config.d_model],
            )?,
            positions: loader
                .vector("decoder.positional_embedding", &[config.n_text_ctx, config.d_model])?,
            blocks,
            norm: loader.norm("decoder.ln")?,
        };
        step();
        Ok(Self { encoder, decoder })
    }
}

struct Loader<'a> {
    device: &'a Device,
    source: &'a Source<'a>,
    d_model: usize,
}

impl Loader<'_> {
    fn encoder_block(&self, name: &str) -> Result<EncoderBlock, Error> {
        let d = self.d_model;
        let query = self.checked(&format!("{name}.attn.query.weight"), &[d, d])?;
        Ok(EncoderBlock {
            attn_precision: if query.dtype.is_quantized() {
                Precision::Bf16
            } else {
                Precision::F32
            },
            attn_norm: self.norm(&format!("{name}.attn_ln"))?,
            attn_qkv: self.projections(&format!("{name}.attn"), &["query", "key", "value"])?,
            attn_out: self.linear(&format!("{name}.attn.out"), [d, d])?,
            ffn_norm: self.norm(&format!("{name}.mlp_ln"))?,
            ffn_up: self.linear(&format!("{name}.mlp.0"), [4 * d, d])?,
            ffn_down: self.linear(&format!("{name}.mlp.2"), [d, 4 * d])?,
        })
    }

    fn decoder_block(&self, name: &str) -> Result<DecoderBlock, Error> {
        let d = self.d_model;
        Ok(DecoderBlock {
            attn_norm: self.norm(&format!("{name}.attn_ln"))?,
            attn_qkv: self.projections(&format!("{name}.attn"), &["query", "key", "value"])?,
            attn_out: self.linear(&format!("{name}.attn.out"), [d, d])?,
            cross_norm: self.norm(&format!("{name}.cross_attn_ln"))?,
            cross_q: self.linear(&format!("{name}.cross_attn.query"), [d, d])?,
            cross_kv: self.projections(&format!("{name}.cross_attn"), &["key", "value"])?,
            cross_out: self.linear(&format!("{name}.cross_attn.out"), [d, d])?,
            ffn_norm: self.norm(&format!("{name}.mlp_ln"))?,
            ffn_up: self.linear(&format!("{name}.mlp.0"), [4 * d, d])?,
            ffn_down: self.linear(&format!("{name}.mlp.2"), [d, 4 * d])?,
        })
    }

    fn norm(&self, name: &str) -> Result<Norm, Error> {
        Ok(Norm::Layer(NormArgs {
            weight: self.vector(&format!("{name}.weight"), &[self.d_model])?,
            bias: Some(self.vector(&format!("{name}.bias"), &[self.d_model])?),
            eps: LAYER_NORM_EPS,
        }))
    }

    /// Stacks `[D, D]` projections into one matrix; keys have no bias.
    fn projections(&self, name: &str, parts: &[&str]) -> Result<Linear, Error> {
        let part = |part: &&str| {
            let bias = (*part != "key").then(|| format!("{name}.{part}.bias"));
            (format!("{name}.{part}.weight"), bias)
        };
        self.stacked(&Vec::from_iter(parts.iter().map(part)), [self.d_model, self.d_model])
    }

    fn linear(&self, name: &str, shape: [usize; 2]) -> Result<Linear, Error> {
        self.stacked(&[(format!("{name}.weight"), Some(format!("{name}.bias")))], shape)
    }

    /// Stacks matrices of `shape`, each with the name of its bias, by rows; if some have no bias, theirs is zero.
    fn stacked(
        &self,
        names: &[(String, Option<String>)],
        shape: [usize; 2],
    ) -> Result<Linear, Error> {
        let [rows, cols] = shape;
        let parts = names.iter().map(|(weight, _)| self.checked(weight, &shape));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let (dtype, bytes) = Tensor::load_joined(&parts)?;
        let weight = self.device.load_matrix(MatrixSource {
            name: &parts[0].name,
            rows: rows * parts.len(),
            cols,
            dtype,
            bytes: &bytes,
        })?;
        if names.iter().all(|(_, bias)| bias.is_none()) {
            return Ok(Linear { weight, bias: None });
        }
        let mut values = Vec::with_capacity(rows * names.len());
        for (_, bias) in names {
            match bias {
                Some(name) => values.extend(self.floats(name, &[rows])?),
                None => values.resize(values.len() + rows, 0.0),
            }
        }
        Ok(Linear { weight, bias: Some(self.device.load_values(&values)?) })
    }

    /// A convolution; its weight is permuted from `[D, n_in, 3]` to `[D, 3, n_in]`.
    fn conv(&self, name: &str, n_in: usize, stride: usize) -> Result<Conv1d, Error> {
        let d = self.d_model;
        let stored = self.checked(&format!("{name}.weight"), &[d, n_in, 3])?;
        let width = match stored.dtype {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            dtype => {
                let expected = "f32, f16 or bf16";
                return Err(Error::TensorType { name: stored.name, dtype, expected });
            }
        };
        let loaded = stored.load()?;
        let mut bytes = Vec::with_capacity(loaded.len());
        for channel in loaded.chunks_exact(n_in * 3 * width) {
            for tap in 0..3 {
                for input in 0..n_in {
                    let at = (input * 3 + tap) * width;
                    bytes.extend_from_slice(&channel[at..at + width]);
                }
            }
        }
        drop(loaded);
        let weight = self.device.load_matrix(MatrixSource {
            name: &stored.name,
            rows: d,
            cols: 3 * n_in,
            dtype: stored.dtype,
            bytes: &SharedBytes::from(bytes),
        })?;
        let bias = Some(self.vector(&format!("{name}.bias"), &[d])?);
        Ok(Conv1d { linear: Linear { weight, bias }, stride })
    }

    fn vector(&self, name: &str, shape: &[usize]) -> Result<Weight, Error> {
        Ok(self.device.load_values(&self.floats(name, shape)?)?)
    }

    fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        self.checked(name, shape)?.to_f32()
    }

    /// Tensor with shape `expected`. Axes of length 1 are ignored: whisper.cpp stores the biases of
    /// convolutions as columns.
    fn checked(&self, name: &str, expected: &[usize]) -> Result<Tensor<'_>, Error> {
        let tensor = self.source.tensor(name)?;
        let squeezed =
            |shape: &[usize]| shape.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
        let stored = tensor.dtype.bytes_for(expected.iter().product());
        if squeezed(&tensor.shape) != squeezed(expected) || stored != tensor.n_bytes() {
            return Err(Error::Shape {
                name: tensor.name,
                expected: expected.to_vec(),
                got: tensor.shape,
            });
        }
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use stonechat_nn::Cpu;
    use stonechat_testkit::TinyWhisper;

    use super::Weights;
    use crate::config::Config;
    use crate::source::Source;

    #[test]
    fn layers_beyond_those_of_the_header_are_an_error() {
        let file = TinyWhisper::default().file();
        let source = Source::new(&file).unwrap();
        let device = Cpu::new(1).unwrap().into();
        let config = Config::read(&source).unwrap();
        Weights::load(&device, &source, &config, |_| {}).unwrap();
        for (stack, less) in [
            ("encoder", Config { n_audio_layers: 1, ..config }),
            ("decoder", Config { n_text_layers: 1, ..config }),
        ] {
            let error = Weights::load(&device, &source, &less, |_| {}).unwrap_err().to_string();
            assert!(error.contains(&format!("1 layers of the {stack}, its tensors 2")), "{error}");
        }
    }
}
