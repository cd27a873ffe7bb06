//! Files that jobs read: what they hold, whisper.cpp's for engines that read no other, and one recording made of several.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use stonechat_benches::protocol::{ModelKind, Reply};
use stonechat_compute::DType;
use stonechat_formats::ModelFile;
use stonechat_whisper::{ExportFormat, export};

/// Kind of the model in a file.
pub(super) fn inspect(model: &Path) -> Result<Reply> {
    let file = ModelFile::open(model)?;
    let kind = match (
        stonechat_whisper::Config::from_file(&file),
        stonechat_llm::Config::from_file(&file),
    ) {
        (Ok(_), _) => ModelKind::Speech,
        (_, Ok(_)) => ModelKind::Text,
        (Err(speech), Err(text)) => bail!("no speech model ({speech}), no language model ({text})"),
    };
    let dtype = main_dtype(&file);
    Ok(Reply::Model { kind, dtype: dtype.to_string(), is_quantized: dtype.is_quantized() })
}

/// The type that most bytes of a file have.
pub(super) fn main_dtype(file: &ModelFile) -> DType {
    let bytes = |dtype| -> usize {
        file.tensors().filter(|t| t.dtype == dtype).map(|t| t.data.len()).sum()
    };
    DType::ALL.iter().copied().max_by_key(|&dtype| bytes(dtype)).unwrap_or(DType::F32)
}

/// Writes the speech model at `model` to `to`.
pub(super) fn convert(model: &Path, to: &Path, dtype: Option<&str>) -> Result<()> {
    let dtype = match dtype {
        Some(name) => {
            Some(DType::from_name(name).with_context(|| format!("unknown weight type `{name}`"))?)
        }
        None => None,
    };
    let file = ModelFile::open(model)?;
    export(&file, to, ExportFormat::WhisperBin, dtype, |_| {})?;
    Ok(())
}

/// Writes all of `audio` to `to`, one after the other: 16 kHz mono 32-bit float WAV.
pub(super) fn join(audio: &[PathBuf], to: &Path) -> Result<()> {
    let mut samples = Vec::new();
    for file in audio {
        let decoded = stonechat_audio::decode_file(file);
        samples.extend(decoded.with_context(|| file.display().to_string())?.samples);
    }
    u32::try_from(4 * samples.len()).context("the recording is too long for WAV")?;
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: stonechat_audio::SAMPLE_RATE,
        bits_per_sample: 32,
        sample_format: hound::SampleFormat::Float,
    };
    let mut out = hound::WavWriter::create(to, spec)?;
    for sample in samples {
        out.write_sample(sample)?;
    }
    Ok(out.finalize()?)
}
