//! Writing whisper.cpp's `.bin`.

use std::io::Write;

use super::{MAGIC, MAX_DIMS, MelFilters, QNT_VERSION, QNT_VERSION_FACTOR, WhisperHparams};
use crate::error::{Error, Result};
use crate::tensor::TensorInfo;

/// Writes a file that whisper.cpp loads: the header at construction, then each tensor as it is passed.
#[derive(Debug)]
pub struct WhisperBinWriter<W> {
    out: W,
    hparams: WhisperHparams,
}

impl<W: Write> WhisperBinWriter<W> {
    /// Writes the header: sizes, filters and the tokens' bytes by id, special tokens left out.
    ///
    /// # Errors
    /// [`Error::Metadata`] for a value that the format cannot hold, [`Error::Write`] if `out`
    /// fails.
    pub fn new<T: AsRef<[u8]>>(
        out: W,
        hparams: &WhisperHparams,
        mel_filters: &MelFilters,
        vocab: &[T],
    ) -> Result<Self> {
        let quantized = hparams.dtype()?.is_quantized();
        if mel_filters.n_mels.checked_mul(mel_filters.n_bins) != Some(mel_filters.data.len()) {
            return Err(Error::metadata(
                "mel filters",
                format!("{} × {} values", mel_filters.n_mels, mel_filters.n_bins),
                mel_filters.data.len().to_string(),
            ));
        }
        let mut writer = Self { out, hparams: *hparams };
        writer.bytes(&MAGIC)?;
        let version = if quantized { QNT_VERSION } else { 0 };
        for (key, value) in hparams.fields() {
            let stored =
                if key == "whisper.ftype" { version * QNT_VERSION_FACTOR + value } else { value };
            writer.size(key, stored as usize)?;
        }
        writer.size("number of mel bands", mel_filters.n_mels)?;
        writer.size("number of frequency bins", mel_filters.n_bins)?;
        for value in &mel_filters.data {
            writer.bytes(&value.to_le_bytes())?;
        }
        writer.size("number of tokens", vocab.len())?;
        for token in vocab {
            writer.size("token length", token.as_ref().len())?;
            writer.bytes(token.as_ref())?;
        }
        Ok(writer)
    }

    /// Writes a tensor of the type [`WhisperHparams::stored_dtype`].
    ///
    /// # Errors
    /// [`Error::Tensor`] for a type or shape that whisper.cpp would not load or data of another
    /// size, [`Error::Write`] if the output fails.
    pub fn write_tensor(&mut self, info: &TensorInfo, data: &[u8]) -> Result<()> {
        let TensorInfo { name, dtype, shape } = info;
        if shape.is_empty() || shape.len() > MAX_DIMS as usize || shape.contains(&0) {
            let expected = "1 to 4 dimensions of 1 or more";
            return Err(Error::tensor(name, expected, format!("{shape:?}")));
        }
        let stored = self.hparams.stored_dtype(name, shape)?;
        if *dtype != stored {
            let expected = format!("{stored} in a whisper.cpp file of {}", self.hparams.dtype()?);
            return Err(Error::tensor(name, expected, dtype.to_string()));
        }
        let n_bytes = info.data_bytes()?;
        if data.len() != n_bytes {
            let got = format!("{} bytes", data.len());
            return Err(Error::tensor(name, format!("{n_bytes} bytes of data"), got));
        }
        self.size("number of dimensions", shape.len())?;
        self.size("tensor name length", name.len())?;
        self.size("tensor type", dtype.ggml_id() as usize)?;
        for &dim in shape.iter().rev() {
            self.size(name, dim)?;
        }
        self.bytes(name.as_bytes())?;
        self.bytes(data)
    }

    /// Flushes the output and returns it.
    ///
    /// # Errors
    /// [`Error::Write`] if the output fails.
    pub fn finish(mut self) -> Result<W> {
        self.out.flush().map_err(|source| Error::Write { source })?;
        Ok(self.out)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|source| Error::Write { source })
    }

    /// A count or size, which the format keeps in an `i32`.
    fn size(&mut self, what: &str, value: usize) -> Result<()> {
        let value = i32::try_from(value)
            .map_err(|_| Error::metadata(what, "less than 2^31", value.to_string()))?;
        self.bytes(&value.to_le_bytes())
    }
}
