//! Flags of a token (`llama_token_attr`).

/// The flags of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Attributes(u8);

impl Attributes {
    pub(super) const UNKNOWN: Self = Self(1);
    pub(super) const UNUSED: Self = Self(1 << 1);
    pub(super) const NORMAL: Self = Self(1 << 2);
    pub(super) const CONTROL: Self = Self(1 << 3);
    pub(super) const USER_DEFINED: Self = Self(1 << 4);
    pub(super) const BYTE: Self = Self(1 << 5);
    /// White space before the token's text belongs to it.
    pub(super) const LSTRIP: Self = Self(1 << 6);
    /// White space after the token's text belongs to it.
    pub(super) const RSTRIP: Self = Self(1 << 7);

    /// Tokens that are matched as a whole before anything else.
    pub(super) const MATCHED: Self = Self::SPECIAL.with(Self::USER_DEFINED);
    /// Tokens that are matched and shown only together with special tokens.
    pub(super) const SPECIAL: Self = Self::CONTROL.with(Self::UNKNOWN);

    /// From `tokenizer.ggml.token_type`.
    pub(super) fn from_type(token_type: i32) -> Self {
        match token_type {
            1 => Self::NORMAL,
            2 => Self::UNKNOWN,
            3 => Self::CONTROL,
            4 => Self::USER_DEFINED,
            5 => Self::UNUSED,
            6 => Self::BYTE,
            _ => Self::default(),
        }
    }

    /// The flags of both.
    pub(super) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether any flag of `other` is set.
    pub(super) fn any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn set(&mut self, other: Self, value: bool) {
        self.0 = if value { self.0 | other.0 } else { self.0 & !other.0 };
    }
}
