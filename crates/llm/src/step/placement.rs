//! Placement of layers: what each device of a model holds, and how many layers fit a device.

use std::fmt;
use std::ops::Range;

use stonechat_formats::ModelFile;
use stonechat_nn::Device;

use crate::{Config, Error, StateOptions};

/// Layers and bytes of a model on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// Name of the device.
    pub device: &'static str,
    /// Layers, from 0.
    pub layers: Range<usize>,
    /// Whether the device has the embedding.
    pub has_input: bool,
    /// Whether the device has the vocabulary projection.
    pub has_output: bool,
    /// Bytes of weights, in the types that the device stores.
    pub weight_bytes: u64,
    /// Bytes of the KV cache.
    pub kv_bytes: u64,
}

impl fmt::Display for Placement {
    /// Device, embedding, layers and output, without the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = match self.layers.len() {
            0 => None,
            1 => Some(format!("layer {}", self.layers.start)),
            _ => Some(format!("layers {} to {}", self.layers.start, self.layers.end - 1)),
        };
        let input = self.has_input.then(|| "embedding".to_owned());
        let output = self.has_output.then(|| "output".to_owned());
        let parts: Vec<_> = [input, layers, output].into_iter().flatten().collect();
        write!(f, "{}: {}", self.device, parts.join(", "))
    }
}

/// Number of the model's last layers that fit `bytes` of device memory with a state of these sizes. As in llama.cpp,
/// the output counts as the last of `n_layers + 1` layers; `n_layers + 1` includes the embedding.
///
/// Memory other than weights and KV cache is estimated.
///
/// # Errors
/// If the file has no configuration of a supported model.
pub fn layers_that_fit(
    device: &Device,
    file: &ModelFile,
    options: &StateOptions,
    bytes: u64,
) -> Result<usize, Error> {
    let config = Config::from_file(file)?;
    let sizes = LayerBytes::new(device, file, &config, options);
    let left = bytes.saturating_sub(activations(&config, options));
    let mut numbers = (1..=config.n_layers + 1).rev();
    Ok(numbers.find(|&n| sizes.of_last(n) <= left).unwrap_or(0))
}

/// Bytes of the weights and the KV cache of a model's last `n` layers on a device, counted as by [`layers_that_fit`].
///
/// # Errors
/// If the file has no configuration of a supported model.
pub fn bytes_of_layers(
    device: &Device,
    file: &ModelFile,
    options: &StateOptions,
    n: usize,
) -> Result<u64, Error> {
    let config = Config::from_file(file)?;
    Ok(LayerBytes::new(device, file, &config, options).of_last(n))
}

/// Bytes of the parts of a model on a device.
struct LayerBytes {
    /// Weights and KV cache of each layer.
    layers: Vec<u64>,
    /// Embedding; 0 if the output is the same.
    input: u64,
    /// Output and all that belongs to no layer.
    output: u64,
}

impl LayerBytes {
    fn new(device: &Device, file: &ModelFile, config: &Config, options: &StateOptions) -> Self {
        let n_layers = config.n_layers;
        let (mut embedding, mut output, mut others) = (0, 0, 0);
        let mut layers = vec![options.kv_shape(config, 1).bytes(); n_layers];
        for tensor in file.tensors() {
            let stored = device.stored_dtype(tensor.dtype).bytes_for(tensor.n_elements());
            let bytes = stored.unwrap_or(tensor.data.len()) as u64;
            match layer_of(tensor.name) {
                Some(layer) if layer < n_layers => layers[layer] += bytes,
                _ if is_embedding(tensor.name) => embedding += bytes,
                _ if is_output(tensor.name) => output += bytes,
                _ => others += bytes,
            }
        }
        // A tied projection is a copy of the embedding, and free if the embedding is on the same device.
        let (output, input) = if output == 0 { (embedding, 0) } else { (output, embedding) };
        Self { layers, input, output: output + others }
    }

    /// Of the last `n` layers.
    fn of_last(&self, n: usize) -> u64 {
        if n == 0 {
            return 0;
        }
        let layers: u64 = self.layers.iter().rev().take(n - 1).sum();
        let input = if n > self.layers.len() { self.input } else { 0 };
        layers + self.output + input
    }
}

/// Estimate of activation memory: twice the f32 buffers of a state.
fn activations(config: &Config, options: &StateOptions) -> u64 {
    let widths =
        3 * config.d_model + 2 * config.q_width() + 2 * config.kv_width() + 3 * config.d_ff;
    let rows = options.n_batch * widths;
    let outputs = options.n_outputs * (config.d_model + config.vocab_size);
    8 * (rows + outputs) as u64
}

/// Layer of a tensor by its name: `blk.3.` (GGUF) or `model.layers.3.` (Hugging Face).
fn layer_of(name: &str) -> Option<usize> {
    name.split('.').find_map(|part| part.parse().ok())
}

fn is_embedding(name: &str) -> bool {
    matches!(name, "token_embd.weight" | "model.embed_tokens.weight")
}

fn is_output(name: &str) -> bool {
    matches!(name, "output.weight" | "lm_head.weight")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stonechat_nn::Cpu;

    use super::*;

    fn model(name: &str) -> ModelFile {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/golden/llm");
        ModelFile::open(folder.join(name)).unwrap()
    }

    #[test]
    fn as_many_layers_fit_as_there_is_room_for() {
        let cpu = Device::from(Cpu::new(1).unwrap());
        for name in ["llama.gguf", "llama-hf", "llama-bias-tied.gguf", "gemma3.gguf"] {
            let file = model(name);
            let n_layers = Config::from_file(&file).unwrap().n_layers;
            let fit = |n_ctx, bytes| {
                let options = StateOptions { n_batch: 1, ..StateOptions::new(n_ctx) };
                layers_that_fit(&cpu, &file, &options, bytes).unwrap()
            };
            assert_eq!((fit(64, 0), fit(64, u64::MAX)), (0, n_layers + 1), "{name}");
            // From nothing to everything one layer at a time, the later the longer the context is.
            let [short, long] = [64, 4096]
                .map(|n_ctx| (0..500).map(|kb| fit(n_ctx, kb * 1000)).collect::<Vec<_>>());
            assert!(short.is_sorted(), "{name}");
            for n in 0..=n_layers + 1 {
                assert!(short.contains(&n), "{name}: never {n} of {n_layers} layers");
            }
            let options = StateOptions { n_batch: 1, ..StateOptions::new(64) };
            let bytes = |n| bytes_of_layers(&cpu, &file, &options, n).unwrap();
            assert!((0..=n_layers).all(|n| bytes(n) <= bytes(n + 1)), "{name}");
            for n in 1..=n_layers + 1 {
                let config = Config::from_file(&file).unwrap();
                let all = bytes(n) + activations(&config, &options);
                assert!(fit(64, all) >= n && fit(64, all - 1) < n, "{name}: {n} layers");
            }
            assert!(long != short && long.iter().zip(&short).all(|(l, s)| l <= s), "{name}");
        }
    }

    #[test]
    fn placements_name_their_parts() {
        let all = Placement {
            device: "cpu",
            layers: 0..3,
            has_input: true,
            has_output: true,
            weight_bytes: 1,
            kv_bytes: 1,
        };
        assert_eq!(all.to_string(), "cpu: embedding, layers 0 to 2, output");
        let one = Placement { layers: 2..3, has_input: false, ..all.clone() };
        assert_eq!(one.to_string(), "cpu: layer 2, output");
        let none = Placement { layers: 3..3, has_input: false, ..all };
        assert_eq!(none.to_string(), "cpu: output");
    }
}
