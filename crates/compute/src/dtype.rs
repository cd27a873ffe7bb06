//! Element types of stored tensors, with GGML's ids, names and block sizes.
//!
//! A *block* is one element of plain types, or 32, 64 or 256 consecutive elements of a row of quantized types. Layouts
//! of blocks are in `stonechat-quant`; a file parser needs only this table to size a tensor.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident = $id:expr, $name:literal, $len:expr, $bytes:expr;)*) => {
        /// Element type of a stored tensor.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DType {
            $(#[doc = concat!("GGML name `", $name, "`.")] $variant,)*
        }

        impl DType {
            /// Every type, in the order of GGML's ids.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// GGML's id (`enum ggml_type`), as written in GGUF and whisper.cpp files.
            #[must_use]
            pub fn ggml_id(self) -> u32 {
                match self { $(Self::$variant => $id),* }
            }

            /// The lower-case GGML name, for example `q4_k`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Elements in one block.
            #[must_use]
            pub fn block_len(self) -> usize {
                match self { $(Self::$variant => $len),* }
            }

            /// Bytes of one block.
            #[must_use]
            pub fn block_bytes(self) -> usize {
                match self { $(Self::$variant => $bytes),* }
            }
        }
    };
}

dtypes! {
    F32 = 0, "f32", 1, 4;
    F16 = 1, "f16", 1, 2;
    Q4_0 = 2, "q4_0", 32, 18;
    Q4_1 = 3, "q4_1", 32, 20;
    Q5_0 = 6, "q5_0", 32, 22;
    Q5_1 = 7, "q5_1", 32, 24;
    Q8_0 = 8, "q8_0", 32, 34;
    Q8_1 = 9, "q8_1", 32, 36;
    Q2K = 10, "q2_k", 256, 84;
    Q3K = 11, "q3_k", 256, 110;
    Q4K = 12, "q4_k", 256, 144;
    Q5K = 13, "q5_k", 256, 176;
    Q6K = 14, "q6_k", 256, 210;
    Q8K = 15, "q8_k", 256, 292;
    Iq2Xxs = 16, "iq2_xxs", 256, 66;
    Iq2Xs = 17, "iq2_xs", 256, 74;
    Iq3Xxs = 18, "iq3_xxs", 256, 98;
    Iq1S = 19, "iq1_s", 256, 50;
    Iq4Nl = 20, "iq4_nl", 32, 18;
    Iq3S = 21, "iq3_s", 256, 110;
    Iq2S = 22, "iq2_s", 256, 82;
    Iq4Xs = 23, "iq4_xs", 256, 136;
    I8 = 24, "i8", 1, 1;
    I16 = 25, "i16", 1, 2;
    I32 = 26, "i32", 1, 4;
    I64 = 27, "i64", 1, 8;
    F64 = 28, "f64", 1, 8;
    Iq1M = 29, "iq1_m", 256, 56;
    BF16 = 30, "bf16", 1, 2;
    Tq1_0 = 34, "tq1_0", 256, 54;
    Tq2_0 = 35, "tq2_0", 256, 66;
    Mxfp4 = 39, "mxfp4", 32, 17;
    Nvfp4 = 40, "nvfp4", 64, 36;
}

impl DType {
    /// Type with GGML's `id`; `None` for unknown and retired ids.
    #[must_use]
    pub fn from_ggml_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.ggml_id() == id)
    }

    /// Type with the GGML name `name`, case-insensitive.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of `n` consecutive elements; `None` if `n` is no whole number of blocks or the size overflows.
    #[must_use]
    pub fn bytes_for(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_len()) {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether elements are packed into blocks with shared scales.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn ids_and_names_round_trip() {
        for &t in DType::ALL {
            assert_eq!(DType::from_ggml_id(t.ggml_id()), Some(t));
            assert_eq!(DType::from_name(&t.name().to_uppercase()), Some(t));
        }
        for dead in [4, 5, 31, 32, 33, 36, 37, 38, 9999] {
            assert_eq!(DType::from_ggml_id(dead), None);
        }
    }

    #[test]
    fn sizes_reject_partial_blocks_and_overflow() {
        assert_eq!(DType::Q4K.bytes_for(512), Some(288));
        assert_eq!(DType::Q4K.bytes_for(384), None);
        assert_eq!(DType::F32.bytes_for(usize::MAX / 2), None);
    }
}
