//! Formats of weights in panels, see `kernels/format.cuh`. A test writes their table for the kernels, `kernels/formats.cuh`.

use stonechat_compute::DType;

use crate::block::block_formats;

/// Header of a chunk: scales and minima of 16 rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// f16 weights have none.
    None,
    /// f16 scale per 32 columns.
    Scale,
    /// f16 scale and minimum per 32 columns.
    ScaleMin,
    /// f16 d and dmin per 256 columns, 6-bit scale and minimum per 32.
    Pairs32,
    /// f16 d per 256 columns, i8 scale per 16.
    Int8x16,
    /// f16 d and dmin per 256 columns, 4-bit scale and minimum per 16.
    Nibbles16,
}

/// A format of weights in panels.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) dtype: DType,
    /// Bits of a code.
    bits: usize,
    pub(super) header: Header,
    /// Tiles of a chunk.
    pub(super) chunk_tiles: usize,
    pub(super) chunk_bytes: usize,
}

impl Format {
    const fn new(dtype: DType, bits: usize, header: Header) -> Self {
        let (chunk_tiles, header_bytes) = match header {
            Header::None => (1, 0),
            Header::Scale => (1, 64),
            Header::ScaleMin => (1, 128),
            Header::Pairs32 => (4, 256),
            Header::Int8x16 => (4, 288),
            Header::Nibbles16 => (4, 320),
        };
        // A tile has 16 x 64 codes.
        let chunk_bytes = header_bytes + chunk_tiles * 128 * bits;
        Self { dtype, bits, header, chunk_tiles, chunk_bytes }
    }

    /// Module of its kernels.
    pub(super) fn module(&self) -> &'static str {
        self.dtype.name()
    }

    /// Tiles of a super-tile.
    pub(super) fn super_tile_len(&self) -> usize {
        if self.bits == 16 { 2 } else { 4 }
    }

    /// Bytes of a super-tile of a panel.
    pub(super) fn super_tile_bytes(&self) -> usize {
        self.super_tile_len().div_ceil(self.chunk_tiles) * self.chunk_bytes
    }

    /// Groups of 8 blocks of a super-tile that have integer minima.
    pub(super) fn minimum_groups(&self) -> usize {
        match self.header {
            Header::Pairs32 => 1,
            Header::Nibbles16 => 2,
            _ => 0,
        }
    }

    /// Stages of a warp in GEMV of one row: two of wide super-tiles.
    fn row_stages(&self) -> usize {
        if self.super_tile_bytes() > 4000 { 2 } else { 3 }
    }
}

macro_rules! formats {
    ([]
        panels {
            $($variant:ident: $Block:ident {
                fallback: $fallback:ident, panel: $panel:ty { $($layout:tt)* },
                planes: $planes:tt, wgsl: $wgsl:tt, chunk_stride: $stride:literal,
                codebook: $codebook:tt, cuda: ($bits:literal, $zero:literal, $header:ident)
            };)*
        }
        $($rest:tt)*
    ) => {
        &[
            $(Format::new(DType::$variant, $bits, Header::$header),)*
            Format::new(DType::F16, 16, Header::None),
        ]
    };
}

/// Every format of weights in panels.
pub(super) const FORMATS: &[Format] = block_formats!(formats []);

/// Formats of the matrices of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Formats {
    pub(super) module: &'static str,
    pub(super) first: &'static Format,
    /// The matrices of the second format follow those of the first.
    pub(super) second: Option<&'static Format>,
}

/// Pairs of formats with a kernel for both, for files of mixed types: module, first and second type.
pub const TYPE_PAIRS: [(&str, DType, DType); 3] = [
    ("q4_k_q5_k", DType::Q4K, DType::Q5K),
    ("q4_k_q6_k", DType::Q4K, DType::Q6K),
    ("q5_k_q6_k", DType::Q5K, DType::Q6K),
];

impl Formats {
    pub(super) fn one(format: &'static Format) -> Self {
        Self { module: format.module(), first: format, second: None }
    }

    /// Formats of a group of matrices; `None` if no kernel multiplies with all of them.
    pub(super) fn of(all: &[&'static Format]) -> Option<Self> {
        let is_of = |dtypes: &[DType]| all.iter().all(|format| dtypes.contains(&format.dtype));
        if is_of(&[all[0].dtype]) {
            return Some(Self::one(all[0]));
        }
        let &(module, first, second) = TYPE_PAIRS.iter().find(|pair| is_of(&[pair.1, pair.2]))?;
        let format = |dtype| all.iter().find(|format| format.dtype == dtype).copied();
        Some(Self { module, first: format(first)?, second: Some(format(second)?) })
    }

    /// Ring buffer of a warp in the GEMV of one row: bytes of a super-tile of the larger format, and number of stages.
    pub(super) fn row_stages(&self) -> (usize, usize) {
        let all = [Some(self.first), self.second];
        let bytes = all.iter().flatten().map(|format| format.super_tile_bytes());
        let stages = all.iter().flatten().map(|format| format.row_stages());
        (bytes.max().unwrap_or(0), stages.max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::ops::Range;

    use super::*;
    use crate::block::{E2M1_TWICE, LEVELS};

    const HEADER: &str = include_str!("kernels/formats.cuh");

    /// A row of the table of the kernels.
    struct Row {
        dtype: DType,
        header: Header,
        bits: u32,
        zero: u32,
        /// Fields of GGML's block: low bits of the codes, high bits if there are some, .., scale.
        fields: &'static [Range<usize>],
        codebook: Option<(&'static str, [i8; 16])>,
    }

    macro_rules! rows {
        ([]
            panels {
                $($variant:ident: $Block:ident {
                    fallback: $fallback:ident, panel: $panel:ty { $($layout:tt)* },
                    planes: [$($field:expr),*], wgsl: $wgsl:tt, chunk_stride: $stride:literal,
                    codebook: [$($codebook:ident)?],
                    cuda: ($bits:literal, $zero:literal, $header:ident)
                };)*
            }
            $($rest:tt)*
        ) => {
            &[
                $(Row {
                    dtype: DType::$variant,
                    header: Header::$header,
                    bits: $bits,
                    zero: $zero,
                    fields: &[$($field),*],
                    codebook: [$((stringify!($codebook), $codebook))?].first().copied(),
                },)*
                Row {
                    dtype: DType::F16,
                    header: Header::None,
                    bits: 16,
                    zero: 0,
                    fields: &[0..2],
                    codebook: None,
                },
            ]
        };
    }

    /// Name of a format in the kernels.
    fn name(dtype: DType) -> String {
        dtype.name().to_uppercase()
    }

    impl Row {
        /// Initializer of `FormatInfo`.
        fn info(&self) -> String {
            let Self { dtype, header, bits, zero, fields, .. } = self;
            let header = match header {
                Header::None => "NONE",
                Header::Scale => "SCALE",
                Header::ScaleMin => "SCALE_MIN",
                Header::Pairs32 => "Q4K",
                Header::Int8x16 => "S8",
                Header::Nibbles16 => "S4",
            };
            let has_high = matches!(bits, 3 | 5 | 6);
            let high = if has_high { fields[1].start } else { 0 };
            let (low, scale) = (fields[0].start, fields[fields.len() - 1].start);
            let (len, bytes) = (dtype.block_len(), dtype.block_bytes());
            format!("{{{header}, {bits}, {zero}, {len}, {bytes}, {low}, {high}, {scale}}}")
        }
    }

    /// `kernels/formats.cuh`.
    fn header() -> Result<String, std::fmt::Error> {
        let rows: &[Row] = block_formats!(rows []);
        let mut text = String::from(
            "// Formats of weights, generated from the table in crates/quant/src/block.rs. Do not edit: run the tests of\n\
             // crates/quant/src/cuda/format.rs with UPDATE_SNAPSHOTS=1.\n#pragma once\n#include \"common.cuh\"\n\n// GGML's ids.\n",
        );
        for Row { dtype, .. } in rows {
            writeln!(text, "#define {} {}", name(*dtype), dtype.ggml_id())?;
        }
        text.push_str(
            "\n// Header of a chunk, see format.cuh.\nenum Header { NONE, SCALE, SCALE_MIN, Q4K, S8, S4 };\n\n\
             struct FormatInfo {\n    Header header;\n    int bits, zero;             // Bits of a code, code of 0.\n    \
             int block_len, block_bytes; // GGML block: elements, bytes.\n    \
             int low_at, high_at, d_at;  // Its low bits of codes, high bits of codes, scale d.\n};\n\n\
             constexpr FormatInfo format_info(int format) {\n    switch (format) {\n",
        );
        let (last, others) = rows.split_last().ok_or(std::fmt::Error)?;
        for row in others {
            writeln!(text, "    case {}: return {};", name(row.dtype), row.info())?;
        }
        writeln!(text, "    default: return {};\n    }}\n}}\n", last.info())?;
        let mut codebooks: Vec<(&str, [i8; 16])> =
            rows.iter().filter_map(|row| row.codebook).collect();
        let indices = rows.iter().filter(|row| row.codebook.is_some());
        let indices = indices.map(|row| format!("(format) == {}", name(row.dtype)));
        let indices = indices.collect::<Vec<_>>().join(" || ");
        writeln!(
            text,
            "// Whether codes are indices of a codebook.\n#define IS_CODEBOOK(format) ({indices})\n"
        )?;
        codebooks.sort_unstable();
        codebooks.dedup();
        text.push_str("DEVICE float codebook_value(int format, u32 code) {\n");
        for (book, values) in &codebooks {
            let values = values.map(|value| value.to_string()).join(", ");
            writeln!(text, "    constexpr i8 {book}[16] = {{{values}}};")?;
        }
        text.push_str("    switch (format) {\n");
        for (row, book) in rows.iter().filter_map(|row| Some((row, row.codebook?.0))) {
            writeln!(text, "    case {}: return {book}[code];", name(row.dtype))?;
        }
        text.push_str("    default: return 0.f;\n    }\n}\n");
        Ok(text)
    }

    #[test]
    fn the_header_of_the_kernels_is_that_of_the_table() {
        let expected = header().expect("a text");
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some_and(|value| !value.is_empty()) {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda/kernels/formats.cuh");
            std::fs::write(path, &expected).expect("the header is written");
            return;
        }
        assert!(HEADER == expected, "kernels/formats.cuh is old: UPDATE_SNAPSHOTS=1 writes it");
    }
}
