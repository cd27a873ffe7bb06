//! WAV: the header by `hound`, and by a tolerant reader where `hound` refuses it.
//!
//! Own reader: `hound` and symphonia refuse files that other programs play. It takes chunks in any
//! order, a missing or unneeded pad byte after an odd chunk, sizes of 0 or 0xFFFFFFFF as streaming
//! writers leave them, RF64, f64, A-law and µ-law. Data that is cut short is decoded up to its end.
//! Compressed WAV files (ADPCM and the like) are left to the general reader.
//!
//! Samples of `hound` and of the own reader are converted here in blocks: `hound` makes a call per sample.

use std::io::{BufReader, Cursor, ErrorKind, Read, Seek, SeekFrom};

use hound::SampleFormat;

use super::sink::Sink;
use super::splice::Part;
use crate::Error;
use crate::pcm::PcmFormat;

const MAX_CHUNKS: usize = 4096;
const UNKNOWN_SIZE: u32 = u32::MAX;
const BLOCK_FRAMES: usize = 8192;
/// Sizes from here on are also what streaming writers state, who do not know theirs.
const MAX_STATED_BYTES: u64 = 0x7FFF_0000;
/// A file that is shorter by less was not cut: some writers count a header.
const LEAST_CUT_S: f64 = 0.01;

/// Encoding of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Pcm(PcmFormat),
    /// MP2 or MP3, which has a reader of its own.
    Mpeg,
}

impl Encoding {
    /// Format of the samples; `None` for MPEG.
    fn pcm(self) -> Option<PcmFormat> {
        match self {
            Self::Pcm(format) => Some(format),
            Self::Mpeg => None,
        }
    }

    fn bytes(self) -> usize {
        self.pcm().map_or(1, PcmFormat::bytes)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Pcm(PcmFormat::U8) => "pcm_u8",
            Self::Pcm(PcmFormat::S16) => "pcm_s16le",
            Self::Pcm(PcmFormat::S24) => "pcm_s24le",
            Self::Pcm(PcmFormat::S32) => "pcm_s32le",
            Self::Pcm(PcmFormat::F32) => "pcm_f32le",
            Self::Pcm(PcmFormat::F64) => "pcm_f64le",
            Self::Pcm(PcmFormat::ALaw) => "pcm_alaw",
            Self::Pcm(PcmFormat::MuLaw) => "pcm_mulaw",
            Self::Mpeg => "mp3",
        }
    }
}

/// The `fmt ` chunk.
#[derive(Debug, Clone, Copy)]
struct Format {
    encoding: Encoding,
    n_channels: u16,
    sample_rate: u32,
}

/// Format and byte range of the samples.
#[derive(Debug)]
pub(super) struct Layout {
    format: Format,
    data_start: u64,
    /// `None`: to the end of the file.
    data_bytes: Option<u64>,
}

impl Layout {
    /// The bytes of MPEG audio, if it is that.
    pub(super) fn mpeg(&self) -> Option<Part> {
        let n = self.data_bytes.unwrap_or(u64::MAX);
        (self.format.encoding == Encoding::Mpeg)
            .then_some(Part::Source { start: self.data_start, n })
    }
}

fn malformed(reason: impl Into<String>) -> Error {
    Error::Malformed { container: "wav".to_owned(), reason: reason.into() }
}

fn read_error(source: std::io::Error) -> Error {
    Error::Read { source }
}

/// The layout of the file that begins with `head`; `None` if its encoding is one for the general reader.
pub(super) fn read_layout<S: Read + Seek>(
    source: &mut S,
    head: &[u8],
) -> Result<Option<Layout>, Error> {
    match strict_layout(head) {
        Some(layout) => Ok(Some(layout)),
        None => tolerant_layout(source),
    }
}

/// The layout by `hound`, if the header ends within `head`, the samples fill their containers, and
/// the size of the data is stated.
fn strict_layout(head: &[u8]) -> Option<Layout> {
    let reader = hound::WavReader::new(Cursor::new(head)).ok()?;
    let (spec, n_samples) = (reader.spec(), reader.len());
    let encoding = match (spec.sample_format, spec.bits_per_sample) {
        (SampleFormat::Int, 8) => Encoding::Pcm(PcmFormat::U8),
        (SampleFormat::Int, 16) => Encoding::Pcm(PcmFormat::S16),
        (SampleFormat::Int, 24) => Encoding::Pcm(PcmFormat::S24),
        (SampleFormat::Int, 32) => Encoding::Pcm(PcmFormat::S32),
        (SampleFormat::Float, 32) => Encoding::Pcm(PcmFormat::F32),
        _ => return None,
    };
    let data_start = reader.into_inner().position();
    let data_bytes = u32_at(head, (data_start as usize).checked_sub(4)?);
    let filled = u64::from(n_samples) * encoding.bytes() as u64 == u64::from(data_bytes);
    let format = Format { encoding, n_channels: spec.channels, sample_rate: spec.sample_rate };
    (filled && data_bytes > 0 && data_bytes != UNKNOWN_SIZE).then(|| Layout {
        format,
        data_start,
        data_bytes: Some(data_bytes.into()),
    })
}

/// Walks the chunks; `None` if the encoding is one for the general reader.
fn tolerant_layout<S: Read + Seek>(source: &mut S) -> Result<Option<Layout>, Error> {
    let mut source = BufReader::new(source);
    let mut riff = [0u8; 12];
    source.read_exact(&mut riff).map_err(read_error)?;
    let riff_bytes = u32_at(&riff, 4);
    let mut format = None;
    let mut data = None;
    let mut long_data_bytes = None;
    let mut pos = 12u64;
    for _ in 0..MAX_CHUNKS {
        let Some((id, size)) = read_chunk_head(&mut source)? else { break };
        pos += 8;
        match &id {
            b"fmt " => {
                let mut body = Vec::new();
                source
                    .by_ref()
                    .take(u64::from(size.min(64)))
                    .read_to_end(&mut body)
                    .map_err(read_error)?;
                match parse_format(&body)? {
                    Some(parsed) => format = Some(parsed),
                    None => return Ok(None),
                }
            }
            b"ds64" => {
                let mut body = [0u8; 16];
                if source.read_exact(&mut body).is_ok() {
                    long_data_bytes = Some(u64::from_le_bytes([
                        body[8], body[9], body[10], body[11], body[12], body[13], body[14],
                        body[15],
                    ]));
                }
            }
            b"data" => {
                let bytes = match size {
                    UNKNOWN_SIZE => long_data_bytes,
                    // The writer could not seek back to set the size. A finished empty file has its RIFF size.
                    0 if riff_bytes == UNKNOWN_SIZE || u64::from(riff_bytes) + 8 < pos => None,
                    size => Some(u64::from(size)),
                };
                data = Some((pos, bytes));
                if format.is_some() || bytes.is_none() {
                    break;
                }
            }
            _ => {}
        }
        if format.is_some() && data.is_some() {
            break;
        }
        pos = skip_to_next_chunk(&mut source, pos + u64::from(size), size % 2 == 1)?;
    }
    let format = format.ok_or_else(|| malformed("expected a `fmt ` chunk, found none"))?;
    let (data_start, data_bytes) =
        data.ok_or_else(|| malformed("expected a `data` chunk, found none"))?;
    Ok(Some(Layout { format, data_start, data_bytes }))
}

/// `None` at the end of the file.
fn read_chunk_head(source: &mut impl Read) -> Result<Option<([u8; 4], u32)>, Error> {
    let mut head = [0u8; 8];
    match source.read_exact(&mut head) {
        Ok(()) => Ok(Some(([head[0], head[1], head[2], head[3]], u32_at(&head, 4)))),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(read_error(error)),
    }
}

/// Odd chunks are padded to an even length, but some writers forget it: a zero byte is the pad,
/// a printable one starts the next chunk's name.
fn skip_to_next_chunk<S: Read + Seek>(source: &mut S, end: u64, odd: bool) -> Result<u64, Error> {
    source.seek(SeekFrom::Start(end)).map_err(read_error)?;
    if !odd {
        return Ok(end);
    }
    let mut byte = [0u8];
    let is_pad = match source.read_exact(&mut byte) {
        Ok(()) => !(0x20..0x7F).contains(&byte[0]),
        Err(_) => true,
    };
    let next = end + u64::from(is_pad);
    source.seek(SeekFrom::Start(next)).map_err(read_error)?;
    Ok(next)
}

/// Source: Microsoft's `WAVEFORMATEX` and `WAVEFORMATEXTENSIBLE`.
fn parse_format(body: &[u8]) -> Result<Option<Format>, Error> {
    if body.len() < 14 {
        return Err(malformed(format!("expected a `fmt ` chunk of 16 bytes, got {}", body.len())));
    }
    let tag = u16_at(body, 0);
    let n_channels = u16_at(body, 2);
    let sample_rate = u32_at(body, 4);
    let frame_bytes = u16_at(body, 12);
    let bits = if body.len() >= 16 { u16_at(body, 14) } else { 0 };
    // The sub-format's first two bytes are the tag again.
    let tag = if tag == 0xFFFE && body.len() >= 26 { u16_at(body, 24) } else { tag };
    if n_channels == 0 {
        return Err(malformed("expected at least 1 channel, got 0"));
    }
    // The container of a sample may be wider than its valid bits, which are then the upper ones.
    let sample_bytes = if frame_bytes > 0 && frame_bytes.is_multiple_of(n_channels) {
        frame_bytes / n_channels
    } else {
        bits.div_ceil(8)
    };
    let encoding = match (tag, sample_bytes) {
        (1, 1) => Encoding::Pcm(PcmFormat::U8),
        (1, 2) => Encoding::Pcm(PcmFormat::S16),
        (1, 3) => Encoding::Pcm(PcmFormat::S24),
        (1, 4) => Encoding::Pcm(PcmFormat::S32),
        (3, 4) => Encoding::Pcm(PcmFormat::F32),
        (3, 8) => Encoding::Pcm(PcmFormat::F64),
        (6, 1) => Encoding::Pcm(PcmFormat::ALaw),
        (7, 1) => Encoding::Pcm(PcmFormat::MuLaw),
        (0x50 | 0x55, _) => Encoding::Mpeg,
        (1 | 3 | 6 | 7, got) => {
            return Err(malformed(format!(
                "expected samples of 1 to 4 bytes (floats: 4 or 8), got {got} bytes of format {tag}"
            )));
        }
        (tag, _) => {
            return match foreign_codec(tag) {
                Some(codec) => Err(Error::UnsupportedCodec {
                    container: "wav".to_owned(),
                    codec: codec.to_owned(),
                }),
                None => Ok(None),
            };
        }
    };
    Ok(Some(Format { encoding, n_channels, sample_rate }))
}

/// The name of a codec that is not decoded in a WAV file; Microsoft's numbers (`mmreg.h`).
fn foreign_codec(tag: u16) -> Option<&'static str> {
    Some(match tag {
        0x0008 | 0x2001 => "DTS",
        0x0022 => "TrueSpeech",
        0x0031 | 0x0032 => "GSM",
        0x0040 | 0x0045 | 0x0064 | 0x0140 => "G.726",
        0x0042 | 0x0111 => "G.723.1",
        0x0065 | 0x028F => "G.722",
        0x0083 => "G.729",
        0x0057 => "AMR",
        0x0058 => "AMR-WB",
        0x0092 => "AC-3 over S/PDIF",
        0x00FF | 0x1600 | 0x1602 | 0x1610 | 0x706D => "AAC",
        0x0130 => "Sipro",
        0x0160..=0x0164 | 0x000A => "Windows Media Audio",
        0x0270 => "ATRAC",
        0x2000 => "AC-3",
        0x2048 => "Sonic",
        0x566F..=0x6771 => "Vorbis",
        0xA109 => "Speex",
        0xF1AC => "FLAC",
        _ => return None,
    })
}

/// Decodes everything from the start of the data to its end or the file's.
pub(super) fn decode<S: Read + Seek>(
    source: &mut S,
    layout: &Layout,
    sink: &mut Sink<'_>,
) -> Result<(), Error> {
    let Format { encoding, n_channels, sample_rate } = layout.format;
    let n_channels = usize::from(n_channels);
    sink.source.container = "wav".to_owned();
    sink.source.codec = encoding.name().to_owned();
    sink.source.sample_rate = sample_rate;
    sink.source.channels = n_channels as u16;
    let frame_bytes = encoding.bytes() * n_channels;
    sink.total_frames = layout.data_bytes.map(|n| n / frame_bytes as u64);
    source.seek(SeekFrom::Start(layout.data_start)).map_err(read_error)?;
    let mut data = source.take(layout.data_bytes.unwrap_or(u64::MAX));
    let mut n_read = 0;
    let block_bytes = (BLOCK_FRAMES / n_channels).max(1) * frame_bytes;
    let mut block = vec![0; block_bytes];
    let mut frames = Vec::with_capacity(block_bytes / encoding.bytes());
    loop {
        let n = fill(&mut data, &mut block).map_err(read_error)?;
        frames.clear();
        // The reader of MPEG audio decodes the other files.
        if let Some(format) = encoding.pcm() {
            format.append(&block[..n], &mut frames);
        }
        sink.push(&frames, n_channels, sample_rate)?;
        n_read += n as u64;
        if n < block_bytes {
            let n_missing =
                layout.data_bytes.unwrap_or(0).saturating_sub(n_read) / frame_bytes as u64;
            let missing_s = n_missing as f64 / f64::from(sample_rate);
            if layout.data_bytes.is_some_and(|n| n < MAX_STATED_BYTES) && missing_s >= LEAST_CUT_S {
                (sink.source.is_cut, sink.source.missing_s) = (true, missing_s);
            }
            return Ok(());
        }
    }
}

/// Reads until `block` is full or the source ends; returns the number of bytes.
fn fill(source: &mut impl Read, block: &mut [u8]) -> std::io::Result<usize> {
    let mut n = 0;
    while n < block.len() {
        match source.read(&mut block[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(n)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests;
