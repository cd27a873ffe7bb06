//! Ports: values that the host writes before a step or reads after it.

use std::fmt;

/// Values that the host writes or reads, by name. A program names its ports; devices compare them only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    name: &'static str,
    index: Option<usize>,
}

impl Port {
    /// `[Q, 2k]`: top-k logits, then their tokens. Tokens of the next step may refer to them.
    pub const TOP_K: Self = Self::new("TopK");
    /// `[P, V]`: logits.
    pub const LOGITS: Self = Self::new("Logits");
    /// `[R, 1]`: log-sum-exp of logits.
    pub const LOG_SUM_EXP: Self = Self::new("LogSumExp");
    /// `[H, D]`: hidden states after the last norm.
    pub const HIDDEN: Self = Self::new("Hidden");
    /// `[T, D]`: the residual stream between two stages of a model.
    pub const STREAM: Self = Self::new("Stream");

    /// The port of a name.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, index: None }
    }

    /// Port `index` of those that share a name.
    #[must_use]
    pub const fn at(self, index: usize) -> Self {
        Self { index: Some(index), ..self }
    }

    /// Port `index` of a program without a model.
    #[must_use]
    pub const fn value(index: usize) -> Self {
        Self::new("Value").at(index)
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, index } = self;
        match index {
            Some(index) => write!(f, "{name}({index})"),
            None => write!(f, "{name}"),
        }
    }
}
