//! Files and byte streams to 16 kHz mono.
//!
//! The container is recognised by its bytes, never by a file name. Packets are decoded, mixed down
//! and resampled one after another, so that only the 16 kHz result grows (64 kB a second).
//!
//! - Downmix: the mean of all channels (for stereo as ffmpeg's `-ac 1`), unless [`Channels`] says
//!   otherwise.
//! - Track: the container's default audio track, else its first one.
//! - A packet that does not decode is counted and replaced by silence; it is an error only if none decodes.
//! - A file cut short is decoded up to its end; a valid container without audio gives 0 samples.
//! - Times are those of the file: audio that starts late begins with silence, pauses are silence.
//! - Metadata is skipped by its length, whatever is in it.
//! - Formats that are not read here are left to an installed `ffmpeg`, for files by their path only.
//! - Encoder delay and padding are removed where the file states them: LAME tags, Opus pre-skip, MP4
//!   edit lists and `iTunSMPB` tags. (Not the padding after the end of an MKV track.)
//! - The decoders are third-party code. A panic of one becomes [`Error::DecoderFailed`] (the process's
//!   panic hook still runs; on targets that abort on panic, such as wasm32, it stays a panic).
//! - The decoded length is limited by the size of the file ([`Error::Inflated`]) and to 24 hours.
//! - A stream is decoded while it arrives. Only containers whose reader must seek (MP4, AIFF, CAF,
//!   compressed WAV) are read into memory first.
//!
//! File map: `sniff` detection by the first bytes, `container_name` its names in messages; `stream` streams as sources; `wav` WAV files;
//! `mpa_run` and `mpa` MP3 files; `container` every other container through symphonia, with `opus` and
//! `mp4_edit` for the parts that it lacks, and `mkv_tracks`, `splice`, `mend` and `ogg` for what it refuses; `sink` downmix, resampling, limits and progress.

mod codec_names;
mod container;
mod container_name;
#[cfg(not(target_arch = "wasm32"))]
mod ffmpeg;
mod mend;
mod mkv_tracks;
mod mp4_edit;
mod mpa;
mod mpa_run;
mod ogg;
mod opus;
mod sink;
mod sniff;
mod splice;
mod stream;
mod wav;

use std::fmt;
use std::io::{Cursor, Read, Seek, SeekFrom};
#[cfg(not(target_arch = "wasm32"))]
use std::path::{Path, PathBuf};
use std::sync::Arc;

use symphonia::core::io::MediaSource;

use crate::{Error, SAMPLE_RATE};
pub use container_name::container_name;
use sink::Sink;
use splice::{Part, Spliced};
use stream::{SourceState, StreamSource};

/// Default limit of a stream, which may be held in memory until it ends.
const MAX_STREAM_BYTES: u64 = 4 << 30;

/// File extensions of the containers decoded here, in lower case, to find recordings in a folder.
/// Decoding goes by the content alone.
pub static EXTENSIONS: &[&str] = &[
    "3g2", "3gp", "aac", "adts", "aif", "aifc", "aiff", "bwf", "caf", "f4a", "f4v", "flac", "m4a",
    "m4b", "m4r", "m4v", "mka", "mkv", "mov", "mp1", "mp2", "mp2a", "mp3", "mp4", "mpga", "oga",
    "ogg", "opus", "rf64", "wav", "wave", "weba", "webm",
];

/// Channels to decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Channels {
    /// Mean of all channels.
    #[default]
    Mix,
    /// All channels, each by itself.
    Each,
    /// Channel of this number; the first is 1.
    One(u16),
}

/// Decoded audio.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Audio {
    /// 16 kHz mono, nominally in -1..1.
    pub samples: Vec<f32>,
    /// Container, codec and format of the source.
    pub source: SourceInfo,
}

impl Audio {
    /// Length in seconds.
    pub fn duration_s(&self) -> f64 {
        self.samples.len() as f64 / f64::from(SAMPLE_RATE)
    }
}

/// Container, codec and format of a source.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct SourceInfo {
    /// Short name of the container, such as `wav` or `ogg`.
    pub container: String,
    /// Short name of the codec, such as `pcm_s16le` or `vorbis`.
    pub codec: String,
    /// Sample rate in Hz; 0 if nothing was decoded.
    pub sample_rate: u32,
    /// Channels before the downmix; 0 if nothing was decoded.
    pub channels: u16,
    /// Seconds decoded.
    pub duration_s: f64,
    /// Packets that did not decode.
    pub n_bad_packets: u64,
    /// Seconds missing: those of damaged packets, which are silence, and those after the end of a file that was cut.
    pub missing_s: f64,
    /// Whether the file is shorter than its headers state.
    pub is_cut: bool,
    /// Audio tracks, such as `1: aac, eng`, if there are several.
    pub tracks: Vec<String>,
    /// Number of the decoded one of several tracks, from 1; else 0.
    pub track: usize,
    /// Whether an installed `ffmpeg` decoded it.
    pub is_through_ffmpeg: bool,
}

/// Progress of decoding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Seconds decoded.
    pub decoded_s: f64,
    /// Total seconds, if the container states them.
    pub total_s: Option<f64>,
}

/// Decodes with limits and a progress callback; [`decode_file`] and its siblings are the short forms.
#[derive(Default)]
pub struct Decoder<'a> {
    channels: Channels,
    max_bytes: Option<u64>,
    max_seconds: Option<u64>,
    track: Option<usize>,
    #[cfg(not(target_arch = "wasm32"))]
    path: Option<PathBuf>,
    on_progress: Option<Box<dyn FnMut(Progress) + 'a>>,
    is_cancelled: Option<Box<dyn Fn() -> bool + 'a>>,
}

impl fmt::Debug for Decoder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("channels", &self.channels)
            .field("max_bytes", &self.max_bytes)
            .field("max_seconds", &self.max_seconds)
            .field("has_progress", &self.on_progress.is_some())
            .finish()
    }
}

impl<'a> Decoder<'a> {
    /// A decoder without a callback.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `on_progress` after about every second of audio.
    #[must_use]
    pub fn on_progress(mut self, on_progress: impl FnMut(Progress) + 'a) -> Self {
        self.on_progress = Some(Box::new(on_progress));
        self
    }

    /// Sets the most bytes of encoded audio; default 4 GiB of a stream.
    #[must_use]
    pub fn max_bytes(mut self, n: u64) -> Self {
        self.max_bytes = Some(n);
        self
    }

    /// Sets the most seconds of audio; default 24 hours.
    #[must_use]
    pub fn max_seconds(mut self, n: u64) -> Self {
        self.max_seconds = Some(n);
        self
    }

    /// Chooses the audio track; the first is 1. Default is the one that the container marks, else the first.
    #[must_use]
    pub fn track(mut self, number: usize) -> Self {
        self.track = Some(number);
        self
    }

    /// Sets a check that ends decoding with [`Error::Cancelled`], called with each packet.
    #[must_use]
    pub fn cancelled_by(mut self, is_cancelled: impl Fn() -> bool + 'a) -> Self {
        self.is_cancelled = Some(Box::new(is_cancelled));
        self
    }

    /// Chooses the channels. [`file`](Self::file), [`bytes`](Self::bytes) and [`reader`](Self::reader)
    /// return the first result only: use [`Channels::Each`] with the `_channels` methods.
    #[must_use]
    pub fn channels(mut self, channels: Channels) -> Self {
        self.channels = channels;
        self
    }

    /// Decodes the file at `path`; an installed `ffmpeg` decodes formats that are not read here.
    ///
    /// # Errors
    /// If it cannot be opened or read, is no audio, or nothing in it decodes.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn file(self, path: impl AsRef<Path>) -> Result<Audio, Error> {
        self.file_channels(path).map(first)
    }

    /// Decodes the file at `path`; with [`Channels::Each`] there is one result a channel, all of one
    /// length, else one.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    #[cfg(not(target_arch = "wasm32"))]
    pub fn file_channels(mut self, path: impl AsRef<Path>) -> Result<Vec<Audio>, Error> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let open_error = |source| Error::Open { path: name.clone(), source };
        let file_type = std::fs::metadata(path).map_err(open_error)?.file_type();
        if file_type.is_dir() {
            return Err(Error::NotAFile { path: name, got: "a folder" });
        }
        let file = std::fs::File::open(path).map_err(open_error)?;
        if file_type.is_file() {
            self.path = Some(path.to_owned());
            self.seekable(file)
        } else {
            // Pipes and devices cannot seek.
            self.reader_channels(file)
        }
    }

    /// Decodes a file held in memory.
    ///
    /// # Errors
    /// If it is no audio, or nothing in it decodes.
    pub fn bytes(self, bytes: Vec<u8>) -> Result<Audio, Error> {
        self.seekable(Cursor::new(bytes)).map(first)
    }

    /// Decodes a stream such as standard input or an upload while it arrives.
    ///
    /// # Errors
    /// If it cannot be read, is no audio, or nothing in it decodes.
    pub fn reader(self, reader: impl Read + Send) -> Result<Audio, Error> {
        self.reader_channels(reader).map(first)
    }

    /// Decodes a stream as [`file_channels`](Self::file_channels) does a file.
    ///
    /// # Errors
    /// As [`reader`](Self::reader).
    pub fn reader_channels(self, reader: impl Read + Send) -> Result<Vec<Audio>, Error> {
        let state = SourceState::new(0);
        let max_bytes = self.max_bytes.unwrap_or(MAX_STREAM_BYTES);
        let source = StreamSource::new(reader, Arc::clone(&state), max_bytes);
        let result = self.source(Box::new(source), &state);
        // An error of the stream looks like damage or the end of the file to a demuxer.
        state.check()?;
        result
    }

    fn seekable(self, mut source: impl MediaSource) -> Result<Vec<Audio>, Error> {
        let n_bytes = source.seek(SeekFrom::End(0)).map_err(|source| Error::Read { source })?;
        if let Some(max_bytes) = self.max_bytes.filter(|&max_bytes| n_bytes > max_bytes) {
            return Err(Error::StreamTooLong { max_bytes });
        }
        rewind(&mut source)?;
        self.source(Box::new(source), &SourceState::new(n_bytes))
    }

    fn source<'s>(
        self,
        source: Box<dyn MediaSource + 's>,
        state: &Arc<SourceState>,
    ) -> Result<Vec<Audio>, Error> {
        let track = self.track;
        #[cfg(not(target_arch = "wasm32"))]
        let path = self.path.clone();
        let mut sink = Sink::new(Arc::clone(state), self);
        let result = decode_source(source, state, track, &mut sink);
        #[cfg(not(target_arch = "wasm32"))]
        let result = match (result, path) {
            (Err(error), Some(path)) => match ffmpeg::foreign(&error) {
                Some(wanted) if track != Some(0) => {
                    ffmpeg::decode(&path, track, &wanted, &mut sink)
                }
                _ => Err(error),
            },
            (result, _) => result,
        };
        result.map(|()| sink.finish())
    }
}

/// Decodes what `source` holds into `sink`.
fn decode_source<'s>(
    source: Box<dyn MediaSource + 's>,
    state: &Arc<SourceState>,
    track: Option<usize>,
    sink: &mut Sink<'_>,
) -> Result<(), Error> {
    let (mut source, head) = skip_tags(source, state)?;
    sniff::refuse_non_audio(&head)?;
    if track.is_some_and(|number| number != 1) && !(sniff::is_mp4(&head) || sniff::is_mkv(&head)) {
        return Err(Error::NoSuchTrack { n_tracks: 1, got: track.unwrap_or_default() });
    }
    if sniff::is_wav(&head) {
        match wav::read_layout(&mut source, &head)? {
            Some(layout) => {
                state.set_seekable(false);
                if let Some(part) = layout.mpeg() {
                    let mut source = Box::new(Spliced::new(source, vec![part], state));
                    rewind(&mut source)?;
                    mpa_run::decode(source, None, sink)?;
                    "wav".clone_into(&mut sink.source.container);
                    return Ok(());
                }
                return wav::decode(&mut source, &layout, sink);
            }
            None => rewind(&mut source)?,
        }
    }
    if mpa::header(&head).is_some() {
        state.set_seekable(false);
        let n_bytes = source.byte_len();
        return mpa_run::decode(source, n_bytes, sink);
    }
    let is_sequential = sniff::is_sequential(&head);
    if !is_sequential {
        source.seek(SeekFrom::End(0)).map_err(|source| Error::Read { source })?;
        rewind(&mut source)?;
    }
    let mended = mend::mend(&mut source, &head)?;
    let (mut is_cut, mut lack) = (false, None);
    if let Some(mended) = mended {
        (is_cut, lack) = (mended.is_cut, mended.lack);
        source = Box::new(Spliced::new(source, mended.parts, state));
    }
    let tracks = if sniff::is_mp4(&head) { mp4_edit::read(&mut source) } else { Vec::new() };
    rewind(&mut source)?;
    let mut not_default = Vec::new();
    if sniff::is_mkv(&head) {
        not_default = mkv_tracks::not_default(&mut source);
        rewind(&mut source)?;
        // The demuxer looks for an index at the end of what can seek, and fails without one.
        source = Box::new(Spliced::new(source, vec![Part::rest(0)], state));
    } else if ogg::has_long_comment(&mut source, &head)? {
        source = Box::new(ogg::ShortComments::new(source));
    }
    if is_sequential {
        state.set_seekable(false);
    }
    sink.source.is_cut = is_cut;
    let open = container::Open { tracks, not_default, number: track, lack };
    container::decode(source, open, &head, state, sink)
}

/// `source` after its leading `ID3v2` tags, and the first bytes there.
fn skip_tags<'s>(
    mut source: Box<dyn MediaSource + 's>,
    state: &Arc<SourceState>,
) -> Result<(Box<dyn MediaSource + 's>, Vec<u8>), Error> {
    let mut head = sniff::read_head(&mut source)?;
    let mut pos = 0;
    while let Some(n) = mpa::id3_bytes(&head) {
        pos += n;
        source.seek(SeekFrom::Start(pos)).map_err(|source| Error::Read { source })?;
        head.clear();
        let mut next = source.as_mut().take(sniff::HEAD_BYTES);
        next.read_to_end(&mut head).map_err(|source| Error::Read { source })?;
    }
    if pos == 0 {
        return Ok((source, head));
    }
    let mut source = Box::new(Spliced::new(source, vec![Part::rest(pos)], state));
    rewind(&mut source)?;
    // Zeros after a tag belong to it.
    if head.first() == Some(&0) {
        let start = mpa::zeros(&mut source).map_err(|source| Error::Read { source })?;
        if let Some(at) = start {
            source = Box::new(Spliced::new(source, vec![Part::rest(at)], state));
            head = sniff::read_head(&mut source)?;
        }
        rewind(&mut source)?;
    }
    Ok((source, head))
}

/// The first signal; a sink gives at least one.
fn first(signals: Vec<Audio>) -> Audio {
    signals.into_iter().next().unwrap_or_else(|| unreachable!("a sink has a lane"))
}

fn rewind(source: &mut impl Seek) -> Result<(), Error> {
    source.seek(SeekFrom::Start(0)).map(drop).map_err(|source| Error::Read { source })
}

/// Decodes the file at `path` to 16 kHz mono.
///
/// # Errors
/// As [`Decoder::file`].
#[cfg(not(target_arch = "wasm32"))]
pub fn decode_file(path: impl AsRef<Path>) -> Result<Audio, Error> {
    Decoder::new().file(path)
}

/// Decodes a file held in memory to 16 kHz mono.
///
/// # Errors
/// As [`Decoder::bytes`].
pub fn decode_bytes(bytes: Vec<u8>) -> Result<Audio, Error> {
    Decoder::new().bytes(bytes)
}

/// Decodes a stream such as standard input to 16 kHz mono.
///
/// # Errors
/// As [`Decoder::reader`].
pub fn decode_reader(reader: impl Read + Send) -> Result<Audio, Error> {
    Decoder::new().reader(reader)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod media_tests;
