//! Layers of a language model on a GPU.

use std::fmt;
use std::str::FromStr;

use stonechat_formats::ModelFile;
use stonechat_llm::{Config, StateOptions, bytes_of_layers, layers_that_fit};

use super::gpu::RESERVED_BYTES;
use super::name::{Device, ParseError};
use crate::Error;

/// Layers of a language model on a GPU; the others are on the CPU. The output counts as the last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuLayers {
    /// As many as fit the free memory of the GPU, else its total memory, if the driver does not report free memory; all layers if it
    /// reports neither.
    Auto,
    /// All layers.
    All,
    /// The last layers.
    Last(usize),
}

impl FromStr for GpuLayers {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            _ => text.parse().map(Self::Last).map_err(|_| ParseError {
                expected: "a number of layers, auto or all",
                got: text.to_owned(),
            }),
        }
    }
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::All => f.write_str("all"),
            Self::Last(n) => n.fmt(f),
        }
    }
}

impl GpuLayers {
    /// Default: all on a GPU that is named, as many as fit on one that [`Device::Auto`] chooses.
    #[must_use]
    pub fn default_on(device: Device) -> Self {
        if device == Device::Auto { Self::Auto } else { Self::All }
    }

    /// Number of layers of the model in `file` on `gpu`, at most [`total`](Self::total), with a state of these sizes and
    /// `beside` bytes of other models.
    ///
    /// # Errors
    /// If the file has no configuration of a supported model, or [`Error::GpuMemory`] if the layers that were asked for
    /// take more than the free memory of the GPU, or than all of one that tells no more.
    pub(crate) fn count(
        self,
        gpu: &stonechat_nn::Device,
        file: &ModelFile,
        config: &Config,
        options: &StateOptions,
        beside: u64,
    ) -> Result<usize, Error> {
        let all = Self::total(config);
        let asked = if let Self::Last(n) = self { n.min(all) } else { all };
        // Other programs, and models that are open, use memory as well.
        let available = gpu.free_memory_bytes().or_else(|| gpu.total_memory_bytes());
        let Some(available) = available else { return Ok(asked) };
        let bytes_left = available.saturating_sub(RESERVED_BYTES + beside);
        if self == Self::Auto {
            let n = layers_that_fit(gpu, file, options, bytes_left)?;
            tracing::info!("{n} of {all} layers fit in {available} bytes of GPU memory");
            return Ok(n);
        }
        let needed = bytes_of_layers(gpu, file, options, asked)? + beside;
        if needed <= available {
            return Ok(asked);
        }
        let fitting = layers_that_fit(gpu, file, options, bytes_left)?;
        Err(Error::GpuMemory { gpu: gpu.describe(), asked, all, needed, available, fitting })
    }

    /// Number of layers of a model, with the output as one.
    #[must_use]
    pub fn total(config: &Config) -> usize {
        config.n_layers() + 1
    }
}

#[cfg(test)]
mod tests {
    use stonechat_formats::ModelFile;
    use stonechat_llm::{Config, StateOptions};
    use stonechat_testkit::{Adapted, Reference};

    use super::{GpuLayers, RESERVED_BYTES};
    use crate::Error;

    #[test]
    fn layers_fit_the_free_memory() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
        let file = ModelFile::open(path).unwrap();
        let config = Config::from_file(&file).unwrap();
        let state = StateOptions::new(64);
        let all = GpuLayers::total(&config);
        let count = |layers: GpuLayers, free: u64| {
            let gpu = Adapted::with_memory(Reference, 80 << 30, free);
            layers.count(&gpu, &file, &config, &state, 0)
        };
        assert_eq!(count(GpuLayers::Auto, 80 << 30).unwrap(), all);
        // Another program uses the rest.
        assert_eq!(count(GpuLayers::Auto, RESERVED_BYTES).unwrap(), 0);
        assert_eq!(count(GpuLayers::All, 1 << 30).unwrap(), all);
        let error = count(GpuLayers::All, 1000).unwrap_err();
        assert!(matches!(error, Error::GpuMemory { available: 1000, .. }), "{error}");
    }

    #[test]
    fn layers_are_counted_or_named() {
        assert_eq!("0".parse(), Ok(GpuLayers::Last(0)));
        assert_eq!("20".parse(), Ok(GpuLayers::Last(20)));
        assert_eq!("auto".parse(), Ok(GpuLayers::Auto));
        assert_eq!("all".parse(), Ok(GpuLayers::All));
        let all = [GpuLayers::Auto, GpuLayers::All, GpuLayers::Last(7)];
        assert_eq!(all.map(|layers| layers.to_string()), ["auto", "all", "7"]);
        for wrong in ["", "-1", "most", "2.5", "99999999999999999999999"] {
            let error = wrong.parse::<GpuLayers>().unwrap_err().to_string();
            assert_eq!(error, format!("expected a number of layers, auto or all, got `{wrong}`"));
        }
    }
}
