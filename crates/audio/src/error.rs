//! The error type of this crate.

use std::io;

/// Error of reading or examining audio.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be opened.
    #[error("cannot open `{path}`: {source}")]
    Open {
        /// The path as given.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A folder or device where a file was expected.
    #[error("`{path}`: expected an audio file, got {got}")]
    NotAFile {
        /// The path as given.
        path: String,
        /// The kind of file.
        got: &'static str,
    },
    /// Reading failed half-way.
    #[error("cannot read the audio: {source}")]
    Read {
        /// The error of the system.
        source: io::Error,
    },
    /// The bytes are no audio container known here.
    #[error("expected audio (WAV, FLAC, MP3, OGG, M4A/MP4, MKV/WebM, AIFF, CAF), got {got}")]
    NotAudio {
        /// The kind of content, guessed from its first bytes.
        got: String,
    },
    /// A container that is recognised but not read.
    #[error("{container} is not supported; convert it to WAV, FLAC, MP3, OGG or M4A first")]
    UnsupportedContainer {
        /// Name of the container.
        container: &'static str,
    },
    /// A codec that is recognised but not decoded.
    #[error("{container} file: codec {codec} is not supported")]
    UnsupportedCodec {
        /// Name of the container.
        container: String,
        /// Name or number of the codec.
        codec: String,
    },
    /// A container or codec that only an installed `ffmpeg` decodes, and there is none.
    #[error(
        "{what} needs `ffmpeg`, found none in PATH: install it, or convert the file to WAV, FLAC, MP3, OGG or M4A"
    )]
    NeedsFfmpeg {
        /// The container or codec.
        what: String,
    },
    /// The installed `ffmpeg` did not decode the file.
    #[error("{what} through `ffmpeg`: {reason}")]
    Ffmpeg {
        /// The container or codec.
        what: String,
        /// Last line that `ffmpeg` printed, or the error of the system.
        reason: String,
    },
    /// A number of an audio track that the container does not have.
    #[error("expected an audio track from 1 to {n_tracks}, got {got}")]
    NoSuchTrack {
        /// Audio tracks of the container.
        n_tracks: usize,
        /// The number given.
        got: usize,
    },
    /// The container has no audio track.
    #[error("{container} file: expected an audio track, found none")]
    NoAudioTrack {
        /// Name of the container.
        container: String,
    },
    /// Malformed header.
    #[error("{container} file: {reason}")]
    Malformed {
        /// Name of the container.
        container: String,
        /// Expected and got.
        reason: String,
    },
    /// None of the packets could be decoded.
    #[error("{container} file: none of {n_packets} {codec} packets could be decoded ({reason})")]
    NothingDecoded {
        /// Name of the container.
        container: String,
        /// Name of the codec.
        codec: String,
        /// Packets tried.
        n_packets: u64,
        /// The error of the last one.
        reason: String,
    },
    /// A decoder panicked: the file is damaged in a way that the decoder does not expect.
    #[error("{container} file: the decoder failed ({reason}); the file may be damaged")]
    DecoderFailed {
        /// Name of the container.
        container: String,
        /// First line of the panic message.
        reason: String,
    },
    /// Far more audio than such a file can hold, as only damaged or hostile files unpack to.
    #[error("expected at most {max_s} seconds of audio in {file_bytes} bytes, got more")]
    Inflated {
        /// The limit.
        max_s: u64,
        /// Size of the file.
        file_bytes: u64,
    },
    /// A stream of more bytes than are read.
    #[error("expected at most {max_bytes} bytes of encoded audio, got more")]
    StreamTooLong {
        /// The limit.
        max_bytes: u64,
    },
    /// A sample rate outside the range of the resampler.
    #[error("expected a sample rate of 1000 to 768000 Hz, got {got} Hz")]
    SampleRate {
        /// The rate found.
        got: u32,
    },
    /// A number of interleaved channels outside the range.
    #[error("expected 1 to 64 channels, got {got}")]
    Channels {
        /// The number given.
        got: usize,
    },
    /// Samples of floats that are no audio.
    #[error("expected finite samples, got {got}")]
    NotFinite {
        /// The first value that is not finite.
        got: f32,
    },
    /// Channel index out of range.
    #[error("expected a channel from 1 to {n_channels}, got {got}")]
    NoSuchChannel {
        /// Channels of the audio.
        n_channels: usize,
        /// The channel given.
        got: u16,
    },
    /// More audio than is taken at once.
    #[error("expected at most {max_s} seconds of audio, got more")]
    TooLong {
        /// The limit.
        max_s: u64,
    },
    /// Decoding was cancelled.
    #[error("decoding was cancelled")]
    Cancelled,
    /// Mel filters of the wrong size.
    #[error("expected {n_mels} x {n_bins} mel filter weights, got {got}")]
    Filters {
        /// Mel bands expected.
        n_mels: usize,
        /// Bins per band.
        n_bins: usize,
        /// Weights given.
        got: usize,
    },
    /// An option of voice activity detection outside its range.
    #[error("vad {option}: expected {expected}, got {got}")]
    VadOption {
        /// The option.
        option: &'static str,
        /// The range.
        expected: &'static str,
        /// The value.
        got: String,
    },
    /// No weights of voice activity detection, or unusable ones.
    #[error("VAD weights: expected {expected}, got {got}")]
    VadWeights {
        /// The weights, or the call that sets them.
        expected: &'static str,
        /// The weights given.
        got: String,
    },
    /// The requested kernels do not run on this processor.
    #[error(transparent)]
    Compute(#[from] stonechat_compute::Error),
}
