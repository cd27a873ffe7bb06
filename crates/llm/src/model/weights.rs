//! Reading a file into checked, device-resident weights.

use std::cell::Cell;
use std::ops::Range;

use stonechat_compute::DType;
use stonechat_formats::ModelFile;
use stonechat_nn::op::{MoeArgs, NormArgs, Weight};
use stonechat_nn::{Activation, Device, GatedActivation, Linear, MatrixSource, Norm, Precision};

use crate::model::arch::{FeedForward, NormKind, QkNorm, Residual};
use crate::model::hugging_face;
use crate::model::layer::{ExpertsConfig, FfnConfig, LayerConfig};
use crate::model::rope::RopeFreqFactors;
use crate::model::source::{Source, Tensor};
use crate::{Config, Error};

/// Layers of a pipeline stage, and which ends of the model belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StageLayers {
    pub(crate) layers: Range<usize>,
    /// Whether the stage starts with the embedding.
    pub(crate) has_input: bool,
    /// Whether the stage ends with the vocabulary projection.
    pub(crate) has_output: bool,
}

/// Weights of a pipeline stage.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) layers: Range<usize>,
    /// Embedding, if the stage is the model's start.
    pub(crate) input: Option<Input>,
    pub(crate) blocks: Vec<Block>,
    /// Vocabulary projection, if the stage is the model's end.
    pub(crate) output: Option<Output>,
    /// `[H]`: ALiBi slopes.
    pub(crate) alibi_slopes: Option<Weight>,
    pub(crate) rope_freq_factors: RopeFreqFactors,
    /// Bytes on the device, in the types that it stores.
    pub(crate) bytes: u64,
}

/// Tokens to the residual stream.
#[derive(Debug)]
pub(crate) struct Input {
    /// `[V, D]`.
    pub(crate) token_embd: Weight,
    pub(crate) norm: Option<Norm>,
}

/// Residual stream to logits.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) norm: Norm,
    /// The norm of the rows that become logits, with the factor of logits in its weight.
    pub(crate) logits_norm: Norm,
    /// `[V, D]`; `None` if tied to the embedding of the same stage.
    pub(crate) matrix: Option<Weight>,
    /// `[V]`.
    pub(crate) bias: Option<Weight>,
}

/// Weights of a layer.
#[derive(Debug)]
pub(crate) struct Block {
    /// `None` if attention reads the residual stream.
    pub(crate) attn_norm: Option<Norm>,
    pub(crate) attn_q: Linear,
    pub(crate) attn_k: Linear,
    pub(crate) attn_v: Linear,
    /// `[C]`, or `[H*C]` for a norm of the whole width.
    pub(crate) attn_q_norm: Option<Weight>,
    /// `[C]`, or `[G*C]` for a norm of the whole width.
    pub(crate) attn_k_norm: Option<Weight>,
    /// `[H]`.
    pub(crate) attn_sinks: Option<Weight>,
    /// [`Precision::AsProducts`] if `attn_output` is quantized, else f32.
    pub(crate) attn_precision: Precision,
    pub(crate) attn_output: Linear,
    pub(crate) post_attn_norm: Option<Norm>,
    /// `None` if the FFN reads the normed input of attention (parallel residual with one norm) or the residual stream.
    pub(crate) ffn_norm: Option<Norm>,
    pub(crate) ffn: Ffn,
    pub(crate) post_ffn_norm: Option<Norm>,
}

/// FFN of a layer.
#[derive(Debug)]
pub(crate) enum Ffn {
    Gated { gate: Linear, up: Linear, down: Linear, activation: GatedActivation },
    Plain { up: Linear, down: Linear, activation: Activation },
    Experts { router: Linear, experts: MoeArgs },
}

impl Weights {
    /// Loads the tensors of `stage` and checks their shapes. Calls `step` after each layer, the embedding and the
    /// output.
    pub(crate) fn load(
        device: &Device,
        (file, source): (&ModelFile, &Source<'_>),
        config: &Config,
        stage: StageLayers,
        step: &mut dyn FnMut(),
    ) -> Result<Self, Error> {
        let loader = Loader { device, source, config, bytes: Cell::new(0) };
        let StageLayers { layers, has_input, has_output } = stage;
        let input = has_input.then(|| loader.input().inspect(|_| step())).transpose()?;
        let block = |i| loader.block(&format!("blk.{i}"), &config.layers[i]).inspect(|_| step());
        let blocks = layers.clone().map(block).collect::<Result<_, _>>()?;
        let output = || loader.output(has_input).inspect(|_| step());
        Ok(Self {
            layers,
            input,
            blocks,
            output: has_output.then(output).transpose()?,
            alibi_slopes: match config.alibi_slopes() {
                Some(slopes) => Some(loader.upload(&slopes)?),
                None => None,
            },
            rope_freq_factors: RopeFreqFactors {
                always: loader.freq_factors("rope_freqs.weight")?,
                short: match hugging_face::freq_factors(file, "short_factor") {
                    None => loader.freq_factors("rope_factors_short.weight")?,
                    found => found,
                },
                long: match hugging_face::freq_factors(file, "long_factor") {
                    None => loader.freq_factors("rope_factors_long.weight")?,
                    found => found,
                },
            },
            bytes: loader.bytes.get(),
        })
    }
}

struct Loader<'a> {
    device: &'a Device,
    source: &'a Source<'a>,
    config: &'a Config,
    /// Bytes uploaded so far.
    bytes: Cell<u64>,
}

impl Loader<'_> {
    fn input(&self) -> Result<Input, Error> {
        let normed = self.config.architecture.norm_embeddings;
        Ok(Input {
            token_embd: self.token_embd()?,
            norm: normed.then(|| self.norm("token_embd_norm")).transpose()?,
        })
    }

    fn output(&self, has_input: bool) -> Result<Output, Error> {
        let (vocab, d) = (self.config.vocab_size, self.config.d_model);
        let (norm, scale) = (self.norm("output_norm")?, self.config.logit_scale);
        Ok(Output {
            logits_norm: match scale {
                1.0 => norm.clone(),
                _ => self.scaled_norm("output_norm", scale)?,
            },
            norm,
            matrix: match self.source.find("output.weight")? {
                Some(tensor) => Some(self.upload_matrix(&tensor, vocab, d)?),
                None if has_input => None,
                None => Some(self.token_embd()?),
            },
            bias: self.optional_vector("output.bias", vocab)?,
        })
    }

    fn token_embd(&self) -> Result<Weight, Error> {
        self.matrix("token_embd.weight", self.config.vocab_size, self.config.d_model)
    }

    fn block(&self, name: &str, layer: &LayerConfig) -> Result<Block, Error> {
        let config = self.config;
        let arch = config.architecture;
        let (q_width, kv_width) = (config.q_width(layer), config.kv_width(layer));
        let [attn_q, attn_k, attn_v] =
            self.attention_inputs(name, [q_width, kv_width, kv_width])?;
        let qk_norm = |part: &str, width: usize| {
            let norm = |kind| {
                let len = if kind == QkNorm::Width { width } else { config.kv(layer).head_dim };
                self.vector(&format!("{name}.{part}.weight"), len)
            };
            layer.qk_norm.map(norm).transpose()
        };
        let post_norm = |part: &str| {
            let norm = || self.post_norm(&format!("{name}.{part}"));
            layer.post_norms.then(norm).transpose()
        };
        // Falcon: `attn_norm_2` is the norm of attention, `attn_norm` that of the FFN.
        let second = format!("{name}.attn_norm_2");
        let has_second = self.source.find(&format!("{second}.weight"))?.is_some();
        let first = format!("{name}.attn_norm");
        let norm = |name: &str| self.norm(name).map(Some);
        let (attn_norm, ffn_norm) = match arch.residual {
            _ if !layer.pre_norms => (None, None),
            Residual::Parallel if has_second => (norm(&second)?, norm(&first)?),
            Residual::Parallel => (norm(&first)?, None),
            Residual::Sequential => (norm(&first)?, norm(&format!("{name}.{}", arch.ffn_norm))?),
        };
        let output = self.source.find(&format!("{name}.attn_output.weight"))?;
        Ok(Block {
            attn_norm,
            attn_precision: match output {
                Some(tensor) if tensor.dtype.is_quantized() => Precision::AsProducts,
                _ => Precision::F32,
            },
            attn_q,
            attn_k,
            attn_v,
            attn_q_norm: qk_norm("attn_q_norm", q_width)?,
            attn_k_norm: qk_norm("attn_k_norm", kv_width)?,
            attn_sinks: layer
                .sinks
                .then(|| self.vector(&format!("{name}.attn_sinks.weight"), layer.n_heads))
                .transpose()?,
            attn_output: self.linear(&format!("{name}.attn_output"), config.d_model, q_width)?,
            post_attn_norm: post_norm("post_attention_norm")?,
            ffn_norm,
            ffn: self.ffn(name, &layer.ffn)?,
            post_ffn_norm: post_norm("post_ffw_norm")?,
        })
    }

    /// Query, key and value projections, from three tensors or from one fused `attn_qkv`.
    fn attention_inputs(&self, name: &str, widths: [usize; 3]) -> Result<[Linear; 3], Error> {
        let d = self.config.d_model;
        if self.source.find(&format!("{name}.attn_qkv.weight"))?.is_some() {
            let parts = self.fused(&format!("{name}.attn_qkv"), &widths, d)?;
            return parts.try_into().map_err(|_| unreachable!("as many parts as widths"));
        }
        let [q, k, v] = widths;
        Ok([
            self.linear(&format!("{name}.attn_q"), q, d)?,
            self.linear(&format!("{name}.attn_k"), k, d)?,
            self.linear(&format!("{name}.attn_v"), v, d)?,
        ])
    }

    fn ffn(&self, name: &str, ffn: &FfnConfig) -> Result<Ffn, Error> {
        let d = self.config.d_model;
        let (f, kind) = match ffn {
            FfnConfig::Dense { d_ff, kind } => (*d_ff, *kind),
            FfnConfig::Experts(experts) => return self.experts(name, experts),
        };
        let down = self.linear(&format!("{name}.ffn_down"), d, f)?;
        let activation = match kind {
            FeedForward::Plain(activation) => {
                let up = self.linear(&format!("{name}.ffn_up"), f, d)?;
                return Ok(Ffn::Plain { up, down, activation });
            }
            FeedForward::Gated(activation) => activation,
        };
        if self.source.find(&format!("{name}.ffn_gate.weight"))?.is_some() {
            let gate = self.linear(&format!("{name}.ffn_gate"), f, d)?;
            return Ok(Ffn::Gated {
                gate,
                up: self.linear(&format!("{name}.ffn_up"), f, d)?,
                down,
                activation,
            });
        }
        // Phi 3: `ffn_up` is `[2F, D]`, the gate in its first `F` rows.
        let mut parts = self.fused(&format!("{name}.ffn_up"), &[f, f], d)?.into_iter();
        match (parts.next(), parts.next()) {
            (Some(gate), Some(up)) => Ok(Ffn::Gated { gate, up, down, activation }),
            _ => unreachable!("as many parts as widths"),
        }
    }

    fn experts(&self, name: &str, experts: &ExpertsConfig) -> Result<Ffn, Error> {
        let &ExpertsConfig { n_experts: n, n_used, routing, d_ff: f, activation } = experts;
        let d = self.config.d_model;
        let matrix = |part: &str, rows: usize, cols: usize| {
            let tensor = self.checked(&format!("{name}.{part}.weight"), &[n, rows, cols])?;
            self.upload_rows(&tensor, 0, n * rows, cols)
        };
        let bias = |part: &str, rows: usize| {
            let name = format!("{name}.{part}.bias");
            match self.source.find(&name)? {
                Some(_) => self.upload(&self.checked(&name, &[n, rows])?.to_f32()?).map(Some),
                None => Ok(None),
            }
        };
        let experts = MoeArgs {
            gate: matrix("ffn_gate_exps", f, d)?,
            up: matrix("ffn_up_exps", f, d)?,
            down: matrix("ffn_down_exps", d, f)?,
            gate_bias: bias("ffn_gate_exps", f)?,
            up_bias: bias("ffn_up_exps", f)?,
            down_bias: bias("ffn_down_exps", d)?,
            n_experts: n,
            n_used,
            routing,
            activation,
        };
        Ok(Ffn::Experts { router: self.linear(&format!("{name}.ffn_gate_inp"), n, d)?, experts })
    }

    /// Norm of the residual stream.
    fn norm(&self, name: &str) -> Result<Norm, Error> {
        self.scaled_norm(name, 1.0)
    }

    /// Norm of the residual stream times `scale`.
    fn scaled_norm(&self, name: &str, scale: f32) -> Result<Norm, Error> {
        let (d, eps) = (self.config.d_model, self.config.stream_eps());
        let scaled = |name: &str| {
            let mut values = self.checked(name, &[d])?.to_f32()?;
            values.iter_mut().for_each(|value| *value *= scale);
            self.upload(&values)
        };
        let (weight, bias) = (scaled(&format!("{name}.weight"))?, format!("{name}.bias"));
        Ok(match self.config.architecture.norm {
            NormKind::Rms => Norm::Rms(NormArgs { weight, bias: None, eps }),
            NormKind::Layer => {
                let has_bias = self.source.find(&bias)?.is_some();
                let bias = has_bias.then(|| scaled(&bias)).transpose()?;
                Norm::Layer(NormArgs { weight, bias, eps })
            }
        })
    }

    /// RMS norm of the outputs of attention or FFN.
    fn post_norm(&self, name: &str) -> Result<Norm, Error> {
        let weight = self.vector(&format!("{name}.weight"), self.config.d_model)?;
        Ok(Norm::Rms(NormArgs { weight, bias: None, eps: self.config.norm_eps }))
    }

    /// Matrix `[rows, cols]` with its bias `[rows]`, if the file has one.
    fn linear(&self, name: &str, rows: usize, cols: usize) -> Result<Linear, Error> {
        let weight = self.matrix(&format!("{name}.weight"), rows, cols)?;
        Ok(Linear { weight, bias: self.optional_vector(&format!("{name}.bias"), rows)? })
    }

    /// Matrices `[width, cols]` of a fused tensor `[sum(widths), cols]`, in order of its rows, with their biases.
    fn fused(&self, name: &str, widths: &[usize], cols: usize) -> Result<Vec<Linear>, Error> {
        let total = widths.iter().sum();
        let tensor = self.checked(&format!("{name}.weight"), &[total, cols])?;
        let bias_name = format!("{name}.bias");
        let bias = match self.source.find(&bias_name)? {
            Some(_) => Some(self.checked(&bias_name, &[total])?.to_f32()?),
            None => None,
        };
        let mut first = 0;
        widths
            .iter()
            .map(|&rows| {
                let from = first;
                first += rows;
                Ok(Linear {
                    weight: self.upload_rows(&tensor, from, rows, cols)?,
                    bias: match &bias {
                        Some(values) => Some(self.upload(&values[from..from + rows])?),
                        None => None,
                    },
                })
            })
            .collect()
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Weight, Error> {
        self.upload_matrix(&self.source.require(name)?, rows, cols)
    }

    fn upload_matrix(
        &self,
        tensor: &Tensor<'_>,
        rows: usize,
        cols: usize,
    ) -> Result<Weight, Error> {
        check(tensor, &[rows, cols])?;
        self.upload_rows(tensor, 0, rows, cols)
    }

    /// Uploads rows `from .. from + rows` of a tensor whose shape was checked.
    fn upload_rows(
        &self,
        tensor: &Tensor<'_>,
        from: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Weight, Error> {
        let row_bytes = tensor.dtype.bytes_for(cols).filter(|_| whole_blocks(tensor.dtype, cols));
        let row_bytes = row_bytes.ok_or_else(|| Error::Shape {
            name: tensor.name.clone(),
            expected: vec![rows, cols.next_multiple_of(tensor.dtype.block_len())],
            got: tensor.shape.clone(),
        })?;
        let bytes = &tensor.load(from * row_bytes..(from + rows) * row_bytes)?;
        let (name, dtype) = (&tensor.name, tensor.dtype);
        self.count(self.device.stored_dtype(dtype).bytes_for(rows * cols).unwrap_or(bytes.len()));
        Ok(self.device.load_matrix(MatrixSource { name, rows, cols, dtype, bytes })?)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Weight, Error> {
        self.upload(&self.checked(name, &[len])?.to_f32()?)
    }

    fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Weight>, Error> {
        match self.source.find(name)? {
            Some(_) => self.vector(name, len).map(Some),
            None => Ok(None),
        }
    }

    /// RoPE frequency factors `[R/2]`, if the file has them.
    fn freq_factors(&self, name: &str) -> Result<Option<Vec<f32>>, Error> {
        let rope = self.config.layers.iter().find_map(|layer| layer.rope);
        let (Some(rope), Some(tensor)) = (rope, self.source.find(name)?) else {
            return Ok(None);
        };
        check(&tensor, &[rope.n_rot / 2])?;
        tensor.to_f32().map(Some)
    }

    fn upload(&self, values: &[f32]) -> Result<Weight, Error> {
        self.count(size_of_val(values));
        Ok(self.device.load_values(values)?)
    }

    fn count(&self, bytes: usize) {
        self.bytes.update(|all| all + bytes as u64);
    }

    fn checked(&self, name: &str, expected: &[usize]) -> Result<Tensor<'_>, Error> {
        let tensor = self.source.require(name)?;
        check(&tensor, expected)?;
        Ok(tensor)
    }
}

/// Checks the shape of a tensor, and that its bytes are those of the shape.
fn check(tensor: &Tensor<'_>, expected: &[usize]) -> Result<(), Error> {
    let stored = tensor.dtype.bytes_for(expected.iter().product());
    if tensor.shape == expected && stored == Some(tensor.n_bytes()) {
        return Ok(());
    }
    Err(Error::Shape {
        name: tensor.name.clone(),
        expected: expected.to_vec(),
        got: tensor.shape.clone(),
    })
}

fn whole_blocks(dtype: DType, cols: usize) -> bool {
    cols.is_multiple_of(dtype.block_len())
}
