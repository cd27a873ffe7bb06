//! Layers of a language model on a GPU.

use std::fmt;
use std::str::FromStr;

use stonechat_llm::Config;

use super::name::{Device, ParseError};

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

    /// Number of layers of a model, with the output as one.
    #[must_use]
    pub fn total(config: &Config) -> usize {
        config.n_layers() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::GpuLayers;

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
