//! Every container but plain WAV: demuxing and decoding through symphonia, Opus beside it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions, CODEC_ID_NULL_AUDIO};
use symphonia::core::errors::Error as MediaError;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackFlags};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;
use symphonia::core::units::{Duration, TimeBase};

use super::codec_names::{codec_name, sample_entry_name};
use super::mend;
use super::mp4_edit::{self, AudioTrack, Edit};
use super::opus::{self, OpusTrack};
use super::sink::{self, Sink};
use super::sniff;
use super::stream::SourceState;
use crate::Error;

/// Pauses between packets from this length on are silence; shorter ones are rounded times.
const LEAST_GAP_S: f64 = 0.1;
/// Maximum start time of a track, in seconds, that counts as a pause where no other data precedes the track.
const MAX_LEAD_S: f64 = 600.0;

/// Properties of the container that are read before it is opened.
pub(super) struct Open {
    /// Audio tracks of an MP4 file.
    pub(super) tracks: Vec<AudioTrack>,
    /// Numbers of the Matroska tracks that are not marked as default.
    pub(super) not_default: Vec<u64>,
    /// Number of the track to decode, from 1.
    pub(super) number: Option<usize>,
    /// Bytes of sound missing per byte that the file has.
    pub(super) lack: Option<f64>,
}

/// Packets in a row that may fail before the rest of the file is given up.
const MAX_BAD_IN_A_ROW: u32 = 512;

/// A part of the track to keep.
struct Cut {
    /// Seconds of silence before the part.
    pause_s: f64,
    /// Frames to skip before the part, from the end of the last one.
    skip: u64,
    keep: u64,
}

/// The parts of the track to keep, from the first.
struct Span(VecDeque<Cut>);

impl Span {
    /// `rate`: sample rate of the decoded frames; the header may state another one.
    fn new(edit: Option<&Edit>, decoder: &TrackDecoder, rate: u32) -> Self {
        let frames = |seconds: f64| (seconds * f64::from(rate)).round() as u64;
        let Some(edit) = edit else {
            let skip = match decoder {
                TrackDecoder::Opus(track) => track.pre_skip(),
                TrackDecoder::Other(_) => 0,
            };
            return Self([Cut { pause_s: 0.0, skip, keep: u64::MAX }].into());
        };
        let mut pos = 0;
        let cut = |part: &mp4_edit::Part| {
            let skip = frames(part.start_s).saturating_sub(pos);
            let keep = part.duration_s.map_or(u64::MAX, frames);
            pos = (pos + skip).saturating_add(keep);
            Cut { pause_s: part.pause_s, skip, keep }
        };
        Self(edit.parts.iter().map(cut).collect())
    }
}

enum TrackDecoder {
    Opus(Box<OpusTrack>),
    Other(Box<dyn AudioDecoder>),
}

/// Decodes the audio track of whatever `source` holds into `sink`.
pub(super) fn decode(
    source: Box<dyn MediaSource + '_>,
    open: Open,
    head: &[u8],
    state: &SourceState,
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
    let mut run = Run {
        sink,
        open,
        state,
        container,
        head: head.to_vec(),
        edit: None,
        total_s: None,
        n_packets: 0,
        n_decoded: 0,
        reason: String::new(),
    };
    // Each link of a chained stream needs new decoders.
    while run.decode_tracks(reader.as_mut())? {}
    run.check()
}

/// Runs foreign code; its panic becomes an error. The caller drops the data that it worked on.
pub(super) fn contain<T>(container: &str, work: impl FnOnce() -> T) -> Result<T, Error> {
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
    open: Open,
    state: &'a SourceState,
    container: String,
    head: Vec<u8>,
    edit: Option<Edit>,
    /// Length that the container states.
    total_s: Option<f64>,
    n_packets: u64,
    n_decoded: u64,
    reason: String,
}

/// Times of a track.
#[derive(Default)]
struct Clock {
    /// Seconds of a unit of the packets' times.
    unit_s: f64,
    /// Time of the first packet of any track.
    first_s: Option<f64>,
    /// End of the last packet.
    end_s: Option<f64>,
    /// Duration of the last packet that decoded.
    packet_s: f64,
    /// Silence before the next packet.
    pause_s: f64,
    /// Seconds of `pause_s` that replace damaged data.
    damage_s: f64,
}

impl Run<'_, '_> {
    /// Decodes until the end (`false`) or until the tracks change (`true`).
    fn decode_tracks(&mut self, reader: &mut dyn FormatReader) -> Result<bool, Error> {
        let (track_id, mut decoder) = self.open(reader)?;
        let unit = |track: &Track| track.time_base.map(|base| seconds(1, base));
        let units: Vec<_> = reader.tracks().iter().map(|track| (track.id, unit(track))).collect();
        let unit_of = |id: u32| units.iter().find(|unit| unit.0 == id).and_then(|unit| unit.1);
        let mut clock = Clock { unit_s: unit_of(track_id).unwrap_or(0.0), ..Clock::default() };
        let mut span = None;
        let mut frames = Vec::new();
        let mut bad_in_a_row = 0;
        while bad_in_a_row < MAX_BAD_IN_A_ROW {
            let packet = match contain(&self.container, || reader.next_packet())? {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
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
                    break;
                }
            };
            let unit_s = unit_of(packet.track_id).unwrap_or(0.0);
            clock.first_s.get_or_insert(packet.pts.get() as f64 * unit_s);
            if packet.track_id != track_id {
                continue;
            }
            let is_lost = packet.data.iter().rev().take(8).all(|&byte| byte == 0);
            if is_lost && self.state.is_padded() {
                break;
            }
            self.n_packets += 1;
            self.wait_for(&packet, &mut clock);
            let decoded =
                contain(&self.container, || decode_packet(&mut decoder, &packet, &mut frames))?;
            match decoded {
                Ok(Some((n_channels, rate))) => {
                    self.n_decoded += 1;
                    bad_in_a_row = 0;
                    self.pause(&mut clock, n_channels, rate)?;
                    clock.packet_s = (frames.len() / n_channels) as f64 / f64::from(rate);
                    let edit = self.edit.as_ref();
                    let span = span.get_or_insert_with(|| Span::new(edit, &decoder, rate));
                    self.present(span, &frames, n_channels, rate)?;
                    clock.end_s = clock.end_s.map(|end_s| end_s + clock.packet_s);
                }
                Ok(None) => {}
                Err(reason) => {
                    self.reason = reason;
                    self.sink.source.n_bad_packets += 1;
                    bad_in_a_row += 1;
                    let stated_s = packet.dur.get() as f64 * clock.unit_s;
                    let lost_s = if stated_s > 0.0 { stated_s } else { clock.packet_s };
                    clock.pause_s += lost_s;
                    clock.damage_s += lost_s;
                    clock.end_s = clock.end_s.map(|end_s| end_s + lost_s);
                }
            }
        }
        self.count_missing(&clock);
        Ok(false)
    }

    /// Adds the pause before `packet`, by the times of the container.
    fn wait_for(&self, packet: &Packet, clock: &mut Clock) {
        let start_s = packet.pts.get() as f64 * clock.unit_s;
        let is_timed = matches!(&*self.container, "mkv" | "mp4");
        let Some(end_s) = clock.end_s else {
            if is_timed {
                let first_s = clock.first_s.unwrap_or(0.0);
                // A piece of a longer recording begins late as a whole.
                let zero_s = if first_s > MAX_LEAD_S { first_s } else { 0.0 };
                clock.pause_s += (start_s - zero_s).max(0.0);
            }
            clock.end_s = Some(start_s);
            return;
        };
        if (is_timed || matches!(&*self.container, "flac" | "ogg")) && clock.unit_s > 0.0 {
            let gap_s = start_s - end_s;
            if gap_s > LEAST_GAP_S {
                clock.pause_s += gap_s;
                if !is_timed {
                    clock.damage_s += gap_s;
                }
            }
            if gap_s.abs() > LEAST_GAP_S {
                clock.end_s = Some(start_s);
            }
        }
    }

    /// Puts out the frames of the parts to keep.
    fn present(
        &mut self,
        span: &mut Span,
        mut frames: &[f32],
        n_channels: usize,
        rate: u32,
    ) -> Result<(), Error> {
        while let Some(cut) = span.0.front_mut() {
            let n_frames = (frames.len() / n_channels) as u64;
            let skip = cut.skip.min(n_frames);
            cut.skip -= skip;
            if skip == n_frames {
                return Ok(());
            }
            self.silence(std::mem::take(&mut cut.pause_s), n_channels, rate)?;
            let keep = cut.keep.min(n_frames - skip);
            cut.keep -= keep;
            let (kept, rest) =
                frames[skip as usize * n_channels..].split_at(keep as usize * n_channels);
            self.sink.push(kept, n_channels, rate)?;
            if cut.keep > 0 {
                return Ok(());
            }
            frames = rest;
            span.0.pop_front();
        }
        Ok(())
    }

    /// Puts silence where the clock pauses.
    fn pause(&mut self, clock: &mut Clock, n_channels: usize, rate: u32) -> Result<(), Error> {
        self.sink.source.missing_s += std::mem::take(&mut clock.damage_s);
        self.silence(std::mem::take(&mut clock.pause_s), n_channels, rate)
    }

    /// Emits silence; a pause longer than such a file can be is ignored.
    fn silence(&mut self, pause_s: f64, n_channels: usize, rate: u32) -> Result<(), Error> {
        let room_s = sink::max_seconds(self.state.n_bytes()) as f64 / 2.0;
        if !(pause_s > 0.0 && pause_s + self.sink.source.duration_s < room_s) {
            return Ok(());
        }
        let mut n_left = (pause_s * f64::from(rate)).round() as u64;
        let silence = vec![0.0; rate as usize * n_channels];
        while n_left > 0 {
            let n = n_left.min(rate.into());
            self.sink.push(&silence[..n as usize * n_channels], n_channels, rate)?;
            n_left -= n;
        }
        Ok(())
    }

    /// Counts what damage at the end and the cut of the file took away.
    fn count_missing(&mut self, clock: &Clock) {
        let source = &mut self.sink.source;
        source.missing_s += clock.damage_s;
        source.is_cut |=
            sniff::is_mkv(&self.head) && mend::is_cut_mkv(&self.head, self.state.n_bytes());
        let rate = f64::from(source.sample_rate.max(1));
        let total_s = self.total_s.or(self.sink.total_frames.map(|n| n as f64 / rate));
        // The readers of FLAC and WAV report no error at the end of a cut file.
        if matches!(&*self.container, "flac" | "wav") {
            source.is_cut |=
                total_s.is_some_and(|total_s| total_s > source.duration_s + LEAST_GAP_S);
        }
        if !source.is_cut {
            return;
        }
        let presented_s = self.edit.as_ref().and_then(Edit::total_s);
        let total_s = presented_s.or(total_s);
        source.missing_s += match self.open.lack {
            Some(lack) => lack * source.duration_s,
            None => total_s.map_or(0.0, |total_s| (total_s - source.duration_s).max(0.0)),
        };
    }

    /// Chooses the track: the one of the number, else one that the container marks, else the first.
    fn choose<'t>(&self, reader: &'t dyn FormatReader) -> Result<(&'t Track, Vec<String>), Error> {
        let audio: Vec<&Track> = reader
            .tracks()
            .iter()
            .filter(|track| matches!(track.codec_params, Some(CodecParameters::Audio(_))))
            .collect();
        let names = audio.iter().enumerate().map(|(index, track)| {
            let entry = self.open.tracks.iter().find(|one| one.id == track.id);
            let codec = match (&track.codec_params, entry) {
                (Some(CodecParameters::Audio(params)), Some(entry))
                    if params.codec == CODEC_ID_NULL_AUDIO =>
                {
                    sample_entry_name(entry.codec)
                }
                (Some(CodecParameters::Audio(params)), _) => codec_name(params.codec),
                _ => String::new(),
            };
            let stated = track.language.as_deref().filter(|&language| language != "und");
            let language = stated.or(entry.and_then(|entry| entry.language.as_deref()));
            let language = language.map(|language| format!(", {language}")).unwrap_or_default();
            format!("{}: {codec}{language}", index + 1)
        });
        let n_tracks = audio.len();
        let none = || match self.open.tracks.first() {
            Some(track) => Error::UnsupportedCodec {
                container: self.container.clone(),
                codec: sample_entry_name(track.codec),
            },
            None => Error::NoAudioTrack { container: self.container.clone() },
        };
        if n_tracks == 0 {
            return Err(none());
        }
        let is_marked = |track: &&&Track| match &*self.container {
            "mp4" => self.open.tracks.iter().any(|one| one.id == track.id && one.is_enabled),
            "mkv" => !self.open.not_default.contains(&track.id.into()),
            _ => track.flags.contains(TrackFlags::DEFAULT),
        };
        let track = match self.open.number {
            Some(number) => number.checked_sub(1).and_then(|index| audio.get(index)),
            None => audio.iter().find(is_marked).or(audio.first()),
        };
        let got = self.open.number.unwrap_or_default();
        let track = track.ok_or(Error::NoSuchTrack { n_tracks, got })?;
        Ok((*track, names.collect()))
    }

    /// Chooses the track and makes its decoder.
    fn open(&mut self, reader: &dyn FormatReader) -> Result<(u32, TrackDecoder), Error> {
        let (track, names) = self.choose(reader)?;
        let Some(CodecParameters::Audio(params)) = track.codec_params.clone() else {
            return Err(Error::NoAudioTrack { container: self.container.clone() });
        };
        if names.len() > 1 {
            let audio = reader
                .tracks()
                .iter()
                .filter(|one| matches!(one.codec_params, Some(CodecParameters::Audio(_))));
            let before = audio.take_while(|one| one.id != track.id).count();
            (self.sink.source.track, self.sink.source.tracks) = (before + 1, names);
        }
        let entry = self.open.tracks.iter().find(|one| one.id == track.id);
        self.edit = entry.and_then(|one| one.edit.clone());
        let unsupported = |container: &str| Error::UnsupportedCodec {
            container: container.to_owned(),
            codec: match entry {
                Some(one) if params.codec == CODEC_ID_NULL_AUDIO => sample_entry_name(one.codec),
                _ => codec_name(params.codec),
            },
        };
        // Fragmented files state 0.
        let stated_s = |duration: Option<Duration>, base: Option<TimeBase>| {
            let total_s = duration.zip(base).map(|(n, base)| seconds(n.get(), base));
            total_s.filter(|&total_s| total_s > 0.0)
        };
        let info = reader.media_info();
        self.total_s = stated_s(track.duration, track.time_base)
            .or_else(|| stated_s(info.duration, info.time_base))
            .or(entry.and_then(|one| one.fragments_s));
        // An Opus header may state the sample rate of the encoder's input, not of the decoded audio.
        let is_opus = params.codec == CODEC_ID_OPUS;
        let rate = if is_opus { Some(opus::RATE) } else { params.sample_rate }.map(f64::from);
        let by_time = self.total_s.zip(rate).map(|(total_s, rate)| (total_s * rate) as u64);
        self.sink.total_frames = track.num_frames.filter(|&n| n > 0 && !is_opus).or(by_time);
        let decoder = if is_opus {
            let stated = params.extra_data.as_deref().unwrap_or_default();
            let n_channels = params.channels.as_ref().map_or(1, |channels| channels.count());
            let delay = track.delay.unwrap_or(0);
            // CAF files of Apple have a header of their own.
            let plain = opus::plain_head(n_channels, delay);
            let is_plain = self.container == "caf" && !stated.starts_with(b"OpusHead");
            let head = if is_plain { &plain[..] } else { stated };
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
            let made = contain(&self.container, make)?.map_err(|_| unsupported(&self.container))?;
            made.codec_info().short_name.clone_into(&mut self.sink.source.codec);
            TrackDecoder::Other(made)
        };
        Ok((track.id, decoder))
    }

    fn check(self) -> Result<(), Error> {
        if self.n_packets == 0 && self.sink.source.is_cut {
            let reason = "expected audio, got a file that was cut before it or before its index";
            return Err(Error::Malformed { container: self.container, reason: reason.to_owned() });
        }
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

/// Seconds of `n` units of `base`.
fn seconds(n: u64, base: TimeBase) -> f64 {
    n as f64 * f64::from(base.numer.get()) / f64::from(base.denom.get())
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
