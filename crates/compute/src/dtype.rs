//! Element types of stored tensors, with GGML's ids, names and block sizes.
//!
//! A *block* is one element of plain types, or 32, 64 or 256 consecutive elements of a row of quantized types. Layouts
//! of blocks are in `stonechat-quant`; a file parser needs only this table to size a tensor.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident = $id:expr, $name:literal, $len:expr, $bytes:expr, $llama:expr, $ggml:expr;)*) => {
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
            pub const fn block_len(self) -> usize {
                match self { $(Self::$variant => $len),* }
            }

            /// Bytes of one block.
            #[must_use]
            pub const fn block_bytes(self) -> usize {
                match self { $(Self::$variant => $bytes),* }
            }

            /// `general.file_type` (`enum llama_ftype`) of a GGUF model whose matrices are of this type; `None` for types that
            /// only single tensors have. It counts the mixes of the k-quants apart: their "small" mix is the plain type.
            #[must_use]
            pub fn llama_ftype(self) -> Option<u32> {
                match self { $(Self::$variant => $llama),* }
            }

            /// `ftype` (`enum ggml_ftype`) of a whisper.cpp file whose matrices are of this type; `None` if there is none.
            #[must_use]
            pub fn ggml_ftype(self) -> Option<u32> {
                match self { $(Self::$variant => $ggml),* }
            }
        }
    };
}

// Variant = GGML's id, name, elements and bytes of a block, llama_ftype, ggml_ftype.
dtypes! {
    F32 = 0, "f32", 1, 4, Some(0), Some(0);
    F16 = 1, "f16", 1, 2, Some(1), Some(1);
    Q4_0 = 2, "q4_0", 32, 18, Some(2), Some(2);
    Q4_1 = 3, "q4_1", 32, 20, Some(3), Some(3);
    Q5_0 = 6, "q5_0", 32, 22, Some(8), Some(8);
    Q5_1 = 7, "q5_1", 32, 24, Some(9), Some(9);
    Q8_0 = 8, "q8_0", 32, 34, Some(7), Some(7);
    Q8_1 = 9, "q8_1", 32, 36, None, None;
    Q2K = 10, "q2_k", 256, 84, Some(10), Some(10);
    Q3K = 11, "q3_k", 256, 110, Some(11), Some(11);
    Q4K = 12, "q4_k", 256, 144, Some(14), Some(12);
    Q5K = 13, "q5_k", 256, 176, Some(16), Some(13);
    Q6K = 14, "q6_k", 256, 210, Some(18), Some(14);
    Q8K = 15, "q8_k", 256, 292, None, None;
    Iq2Xxs = 16, "iq2_xxs", 256, 66, None, None;
    Iq2Xs = 17, "iq2_xs", 256, 74, None, None;
    Iq3Xxs = 18, "iq3_xxs", 256, 98, None, None;
    Iq1S = 19, "iq1_s", 256, 50, None, None;
    Iq4Nl = 20, "iq4_nl", 32, 18, Some(25), None;
    Iq3S = 21, "iq3_s", 256, 110, None, None;
    Iq2S = 22, "iq2_s", 256, 82, None, None;
    Iq4Xs = 23, "iq4_xs", 256, 136, Some(30), None;
    I8 = 24, "i8", 1, 1, None, None;
    I16 = 25, "i16", 1, 2, None, None;
    I32 = 26, "i32", 1, 4, None, None;
    I64 = 27, "i64", 1, 8, None, None;
    F64 = 28, "f64", 1, 8, None, None;
    Iq1M = 29, "iq1_m", 256, 56, None, None;
    BF16 = 30, "bf16", 1, 2, Some(32), Some(24);
    Tq1_0 = 34, "tq1_0", 256, 54, Some(36), None;
    Tq2_0 = 35, "tq2_0", 256, 66, Some(37), None;
    Mxfp4 = 39, "mxfp4", 32, 17, Some(38), None;
    Nvfp4 = 40, "nvfp4", 64, 36, Some(39), None;
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

    /// Type of the matrices in a whisper.cpp file with this [`ggml_ftype`](Self::ggml_ftype).
    #[must_use]
    pub fn from_ggml_ftype(ftype: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.ggml_ftype() == Some(ftype))
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
