//! Every container but plain WAV: demuxing and decoding through symphonia, Opus beside it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as MediaError;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;

use super::mp4_edit::Edit;
use super::opus::{self, OpusTrack};
use super::sink::Sink;
use super::sniff;
use crate::Error;

/// Packets in a row that may fail before the rest of the file is given up.
const MAX_BAD_IN_A_ROW: u32 = 512;

/// The frames of the track to keep: `skip..skip + keep`.
struct Span {
    skip: u64,
    keep: u64,
}

impl Span {
    /// `rate` is that of the decoded frames, which the header may state wrongly.
    fn new(edit: Option<Edit>, decoder: &TrackDecoder, rate: u32) -> Self {
        let frames = |seconds: f64| (seconds * f64::from(rate)).round() as u64;
        let keep = edit.and_then(|edit| edit.duration_s).map_or(u64::MAX, frames);
        let skip = match (decoder, edit) {
            (_, Some(edit)) => frames(edit.start_s),
            (TrackDecoder::Opus(track), None) => track.pre_skip(),
            (TrackDecoder::Other(_), None) => 0,
        };
        Self { skip, keep }
    }

    fn cut<'a>(&mut self, frames: &'a [f32], n_channels: usize) -> &'a [f32] {
        let n_frames = (frames.len() / n_channels) as u64;
        let skip = self.skip.min(n_frames);
        self.skip -= skip;
        let keep = self.keep.min(n_frames - skip);
        self.keep -= keep;
        &frames[skip as usize * n_channels..(skip + keep) as usize * n_channels]
    }
}

enum TrackDecoder {
    Opus(Box<OpusTrack>),
    Other(Box<dyn AudioDecoder>),
}

/// Decodes the audio track of whatever `source` holds into `sink`.
pub(super) fn decode(
    source: Box<dyn MediaSource + '_>,
    edit: Option<Edit>,
    head: &[u8],
    sink: &mut Sink<'_>,
) -> Result<(), Error> {
    let stream = MediaSourceStream::new(source, Default::default());
    let probe = || {
        symphonia::default::get_probe().probe(
            &Hint::new(),
            stream,
            FormatOptions::default(),
            MetadataOptions::default(),
        )
    };
    let mut reader = contain(container_name(head).unwrap_or("audio"), probe)?
        .map_err(|error| probe_error(&error, head))?;
    let container = match reader.format_info().short_name {
        "wave" => "wav",
        "isomp4" => "mp4",
        "matroska" => "mkv",
        name => name,
    };
    let container = container.to_owned();
    sink.source.container.clone_from(&container);
    let mut run = Run { sink, edit, container, n_packets: 0, n_decoded: 0, reason: String::new() };
    // Each link of a chained stream needs new decoders.
    while run.decode_tracks(reader.as_mut())? {}
    run.check()
}

/// Runs foreign code; its panic becomes an error. The caller drops the data that it worked on.
fn contain<T>(container: &str, work: impl FnOnce() -> T) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        Error::DecoderFailed {
            container: container.to_owned(),
            reason: text.lines().next().unwrap_or_default().to_owned(),
        }
    })
}

fn container_name(head: &[u8]) -> Option<&'static str> {
    let known = [
        (&b"fLaC"[..], 0, "flac"),
        (b"OggS", 0, "ogg"),
        (b"ftyp", 4, "mp4"),
        (b"\x1A\x45\xDF\xA3", 0, "mkv"),
        (b"FORM", 0, "aiff"),
        (b"caff", 0, "caf"),
        (b"WAVE", 8, "wav"),
    ];
    let is_at = |(magic, at, _): &(&[u8], usize, _)| {
        head.get(*at..).is_some_and(|rest| rest.starts_with(magic))
    };
    known.into_iter().find(is_at).map(|(_, _, name)| name)
}

/// The error of a failed probe: a damaged header, or no audio at all.
fn probe_error(error: &MediaError, head: &[u8]) -> Error {
    match container_name(head) {
        Some(name) => Error::Malformed {
            container: name.to_owned(),
            reason: format!("expected a complete header, got: {error}"),
        },
        None => Error::NotAudio { got: sniff::describe(head) },
    }
}

struct Run<'a, 'b> {
    sink: &'a mut Sink<'b>,
    edit: Option<Edit>,
    container: String,
    n_packets: u64,
    n_decoded: u64,
    reason: String,
}

impl Run<'_, '_> {
    /// Decodes until the end (`false`) or until the tracks change (`true`).
    fn decode_tracks(&mut self, reader: &mut dyn FormatReader) -> Result<bool, Error> {
        let (track_id, mut decoder) = self.open(reader)?;
        let mut span = None;
        let mut frames = Vec::new();
        let mut bad_in_a_row = 0;
        while bad_in_a_row < MAX_BAD_IN_A_ROW {
            let packet = match contain(&self.container, || reader.next_packet())? {
                Ok(Some(packet)) if packet.track_id == track_id => packet,
                Ok(Some(_)) => continue,
                Ok(None) => return Ok(false),
                Err(MediaError::ResetRequired) => return Ok(true),
                Err(MediaError::DecodeError(reason)) => {
                    reason.clone_into(&mut self.reason);
                    self.sink.source.n_bad_packets += 1;
                    bad_in_a_row += 1;
                    continue;
                }
                // The end of a file that was cut short looks like a read error.
                Err(error) => {
                    self.reason = error.to_string();
                    return Ok(false);
                }
            };
            self.n_packets += 1;
            let decoded =
                contain(&self.container, || decode_packet(&mut decoder, &packet, &mut frames))?;
            match decoded {
                Ok(Some((n_channels, rate))) => {
                    self.n_decoded += 1;
                    bad_in_a_row = 0;
                    let span = span.get_or_insert_with(|| Span::new(self.edit, &decoder, rate));
                    self.sink.push(span.cut(&frames, n_channels), n_channels, rate)?;
                }
                Ok(None) => {}
                Err(reason) => {
                    self.reason = reason;
                    self.sink.source.n_bad_packets += 1;
                    bad_in_a_row += 1;
                }
            }
        }
        Ok(false)
    }

    /// Chooses the track and makes its decoder.
    fn open(&mut self, reader: &dyn FormatReader) -> Result<(u32, TrackDecoder), Error> {
        let audio = |track: &Track| match &track.codec_params {
            Some(CodecParameters::Audio(params)) => Some(params.clone()),
            _ => None,
        };
        let track = reader
            .default_track(TrackType::Audio)
            .or_else(|| reader.first_track(TrackType::Audio))
            .ok_or_else(|| Error::NoAudioTrack { container: self.container.clone() })?;
        let params = audio(track)
            .ok_or_else(|| Error::NoAudioTrack { container: self.container.clone() })?;
        self.sink.total_frames = track.num_frames;
        let decoder = if params.codec == CODEC_ID_OPUS {
            let head = params.extra_data.as_deref().unwrap_or_default();
            let is_mp4 = self.container == "mp4";
            let made = contain(&self.container, || OpusTrack::new(head, is_mp4))?;
            let track = made.ok_or_else(|| Error::Malformed {
                container: self.container.clone(),
                reason: "expected a valid Opus header, got none".to_owned(),
            })?;
            "opus".clone_into(&mut self.sink.source.codec);
            TrackDecoder::Opus(Box::new(track))
        } else {
            let make = || {
                symphonia::default::get_codecs()
                    .make_audio_decoder(&params, &AudioDecoderOptions::default())
            };
            let made =
                contain(&self.container, make)?.map_err(|error| Error::UnsupportedCodec {
                    container: self.container.clone(),
                    codec: format!("{} ({error})", params.codec),
                })?;
            made.codec_info().short_name.clone_into(&mut self.sink.source.codec);
            TrackDecoder::Other(made)
        };
        Ok((track.id, decoder))
    }

    fn check(self) -> Result<(), Error> {
        if self.n_decoded == 0 && (self.n_packets > 0 || self.sink.source.n_bad_packets > 0) {
            return Err(Error::NothingDecoded {
                container: self.container,
                codec: self.sink.source.codec.clone(),
                n_packets: self.n_packets.max(self.sink.source.n_bad_packets),
                reason: self.reason,
            });
        }
        Ok(())
    }
}

/// Fills `frames` (interleaved) and gives their channels and rate; `None` for an empty packet.
fn decode_packet(
    decoder: &mut TrackDecoder,
    packet: &Packet,
    frames: &mut Vec<f32>,
) -> Result<Option<(usize, u32)>, String> {
    frames.clear();
    match decoder {
        TrackDecoder::Opus(track) => {
            let n_channels = track.n_channels();
            let decoded = track.decode(&packet.data)?;
            let trim_end = (packet.trim_end.get() as usize).saturating_mul(n_channels);
            frames.extend_from_slice(&decoded[..decoded.len().saturating_sub(trim_end)]);
            Ok(Some((n_channels, opus::RATE)))
        }
        TrackDecoder::Other(decoder) => {
            let buffer = decoder.decode(packet).map_err(|error| error.to_string())?;
            let n_channels = buffer.spec().channels().count();
            let rate = buffer.spec().rate();
            buffer.copy_to_vec_interleaved(frames);
            Ok((n_channels > 0).then_some((n_channels, rate)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_one_line() {
        let error = contain("ogg", || panic!("{} is out of range\nand more", 3)).map(|()| 0);
        let message = error.unwrap_err().to_string();
        assert_eq!(
            message,
            "ogg file: the decoder failed (3 is out of range); the file may be damaged"
        );
        assert_eq!(contain("ogg", || 7).unwrap(), 7);
    }
}
