//! Pooling of hidden states to an embedding.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// Pooling of the hidden states of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// No pooling: one vector a token.
    None,
    /// Mean over the tokens.
    Mean,
    /// First token.
    Cls,
    /// Last token.
    Last,
}

impl Pooling {
    /// Pooling of `pooling_type` in a GGUF file; `None` for another type.
    pub(crate) fn from_gguf(code: usize) -> Option<Self> {
        match code {
            1 => Some(Self::Mean),
            2 => Some(Self::Cls),
            3 => Some(Self::Last),
            _ => None,
        }
    }
}

impl FromStr for Pooling {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "none" => Ok(Self::None),
            "mean" => Ok(Self::Mean),
            "cls" => Ok(Self::Cls),
            "last" => Ok(Self::Last),
            _ => Err(Error::Option {
                option: "pooling",
                expected: "none, mean, cls or last".to_owned(),
                got: name.to_owned(),
            }),
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Pooling;

    #[test]
    fn poolings_have_names() {
        for pooling in [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last] {
            assert_eq!(pooling.to_string().parse::<Pooling>().unwrap(), pooling);
        }
        assert!("rank".parse::<Pooling>().is_err());
    }
}
