//! Reading whisper.cpp's `.bin`.

use stonechat_compute::DType;

use super::{MAGIC, MAX_DIMS, MelFilters, QNT_VERSION, QNT_VERSION_FACTOR};
use super::{WhisperBin, WhisperHparams};
use crate::error::{Error, Result, printable};
use crate::metadata::Metadata;
use crate::parsed::Parsed;
use crate::reader::Reader;
use crate::tensor::{Place, TensorInfo, TensorTable};

/// Maximum number of tokens; bounds the memory of a hostile list of empty ones.
const MAX_TOKENS: u64 = 1 << 20;

pub(crate) fn parse(r: &mut Reader<'_>) -> Result<(Parsed, WhisperBin)> {
    r.take(MAGIC.len(), "magic")?;
    let (hparams, version) = hparams(r)?;
    let mut metadata = Metadata::new();
    for (key, value) in hparams.fields() {
        metadata.set(key, value);
    }
    let mel_filters = mel_filters(r)?;
    let vocab = vocab(r)?;
    let mut tensors = TensorTable::default();
    while r.remaining() > 0 {
        let (info, place) = tensor(r)?;
        tensors.push(info, place)?;
    }
    let parsed = Parsed { version, metadata, tensors };
    Ok((parsed, WhisperBin { hparams, mel_filters, vocab }))
}

/// The sizes, and the quantization version that is stored in `ftype`.
fn hparams(r: &mut Reader<'_>) -> Result<(WhisperHparams, u32)> {
    let hparams = WhisperHparams {
        n_vocab: r.size_i32("n_vocab")?,
        n_audio_ctx: r.size_i32("n_audio_ctx")?,
        n_audio_state: r.size_i32("n_audio_state")?,
        n_audio_head: r.size_i32("n_audio_head")?,
        n_audio_layer: r.size_i32("n_audio_layer")?,
        n_text_ctx: r.size_i32("n_text_ctx")?,
        n_text_state: r.size_i32("n_text_state")?,
        n_text_head: r.size_i32("n_text_head")?,
        n_text_layer: r.size_i32("n_text_layer")?,
        n_mels: r.size_i32("n_mels")?,
        ftype: r.size_i32("ftype")?,
    };
    let version = hparams.ftype / QNT_VERSION_FACTOR;
    let hparams = WhisperHparams { ftype: hparams.ftype % QNT_VERSION_FACTOR, ..hparams };
    if hparams.dtype()?.is_quantized() && version != QNT_VERSION {
        let what = "whisper.cpp quantization version";
        return Err(Error::Version { what, expected: "2", got: version.into() });
    }
    Ok((hparams, version))
}

fn mel_filters(r: &mut Reader<'_>) -> Result<MelFilters> {
    let n_mels = r.size_i32("number of mel bands")?;
    let n_bins = r.size_i32("number of frequency bins")?;
    // Two factors below 2^31 cannot overflow.
    let n_values = u64::from(n_mels) * u64::from(n_bins);
    let n_values = r.fits(n_values, size_of::<f32>(), "mel filters")?;
    let bytes = r.take(n_values * size_of::<f32>(), "mel filters")?;
    let (values, _) = bytes.as_chunks();
    let data = values.iter().map(|&v| f32::from_le_bytes(v)).collect();
    Ok(MelFilters { n_mels: n_mels as usize, n_bins: n_bins as usize, data })
}

fn vocab(r: &mut Reader<'_>) -> Result<Vec<Vec<u8>>> {
    let offset = r.pos();
    let count = u64::from(r.size_i32("number of tokens")?);
    if count > MAX_TOKENS {
        return Err(Error::Invalid {
            what: "number of tokens",
            offset,
            expected: format!("at most {MAX_TOKENS}"),
            got: count.to_string(),
        });
    }
    let count = r.fits(count, size_of::<u32>(), "tokens")?;
    let mut vocab = Vec::with_capacity(count);
    for _ in 0..count {
        let len = r.u32("token length")?;
        vocab.push(r.take_u64(len.into(), "token")?.to_vec());
    }
    Ok(vocab)
}

/// A tensor's description and the place of its data.
fn tensor(r: &mut Reader<'_>) -> Result<(TensorInfo, Place)> {
    let offset = r.pos();
    let n_dims = r.size_i32("number of dimensions")?;
    let name_len = r.size_i32("tensor name length")?;
    let type_id = r.size_i32("tensor type")?;
    if n_dims > MAX_DIMS {
        return Err(Error::Invalid {
            what: "number of dimensions",
            offset,
            expected: format!("at most {MAX_DIMS}"),
            got: n_dims.to_string(),
        });
    }
    let mut shape = Vec::with_capacity(n_dims as usize);
    for _ in 0..n_dims {
        shape.push(r.size_i32("dimension")? as usize);
    }
    shape.reverse();
    let offset = r.pos();
    let name = r.take_u64(name_len.into(), "tensor name")?;
    let name = std::str::from_utf8(name).map(str::to_owned).map_err(|_| Error::Invalid {
        what: "tensor name",
        offset,
        expected: "UTF-8".into(),
        got: printable(&String::from_utf8_lossy(name)),
    })?;
    if shape.contains(&0) {
        return Err(Error::tensor(&name, "dimensions of 1 or more", format!("{shape:?}")));
    }
    let dtype = DType::from_ggml_id(type_id).ok_or_else(|| {
        Error::tensor(&name, "a supported GGML type", format!("type id {type_id}"))
    })?;
    let info = TensorInfo { name, dtype, shape };
    let n_bytes = info.data_bytes()?;
    let place = Place::new(r.pos(), n_bytes);
    if n_bytes as u64 > r.remaining() {
        let expected = format!("{n_bytes} bytes at offset {}", r.pos());
        return Err(Error::tensor(&info.name, expected, format!("{} bytes", r.remaining())));
    }
    r.skip(n_bytes, "tensor data")?;
    Ok((info, place))
}
