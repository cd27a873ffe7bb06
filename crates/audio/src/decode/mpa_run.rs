//! MPEG audio files to samples.

use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::io::MediaSource;
use symphonia::core::packet::Packet;
use symphonia::core::units::{Duration, Timestamp};

use super::container::contain;
use super::mpa::{Frames, Header, Info, Item};
use super::sink::Sink;
use super::sniff;
use crate::Error;

/// The longest damage that is filled with silence, in seconds.
const MAX_GAP_S: u64 = 60;

/// State of a part of the file: the frames from one Xing, Info or VBRI header to the next.
#[derive(Default)]
struct Position {
    info: Info,
    /// Frames with sound so far.
    n_frames: u64,
    /// Samples to drop.
    skip: usize,
    /// Samples to emit before the stated padding.
    left: Option<u64>,
    /// Samples in the place of the padding, which are sound if more frames come.
    held: Vec<f32>,
    /// Bytes of the frames so far.
    n_bytes: u64,
}

impl Position {
    fn new(info: Info) -> Self {
        Self { info, skip: info.delay as usize, ..Self::default() }
    }
}

/// Decodes all parts of `source`, of `n_bytes` bytes if known, into `sink`.
pub(super) fn decode(
    source: Box<dyn MediaSource + '_>,
    n_bytes: Option<u64>,
    sink: &mut Sink<'_>,
) -> Result<(), Error> {
    let mut frames = Frames::new(source);
    let mut run =
        Run { sink, decoder: None, part: Position::default(), n_decoded: 0, n_packets: 0 };
    let mut head = Vec::new();
    loop {
        let item = frames.next_item().map_err(|source| Error::Read { source })?;
        match item {
            None => break,
            Some(Item::Part(info)) => run.begin(info),
            Some(Item::Frame(header, frame, n_junk)) => {
                if head.is_empty() {
                    head = frame.iter().take(8).copied().collect();
                    run.set_total(&header, frame.len(), n_bytes);
                }
                run.frame(&header, frame, n_junk)?;
            }
        }
    }
    run.count_missing();
    if run.n_packets == 0 && head.is_empty() {
        return Err(Error::NotAudio { got: "no MPEG audio frames".to_owned() });
    }
    if run.n_decoded == 0 {
        return Err(Error::NothingDecoded {
            container: run.sink.source.container.clone(),
            codec: run.sink.source.codec.clone(),
            n_packets: run.n_packets,
            reason: sniff::describe(&head),
        });
    }
    Ok(())
}

struct Run<'a, 'b> {
    sink: &'a mut Sink<'b>,
    /// Decoder, with the header of its format.
    decoder: Option<(Header, Box<dyn AudioDecoder>)>,
    part: Position,
    n_decoded: u64,
    n_packets: u64,
}

impl Run<'_, '_> {
    fn begin(&mut self, info: Info) {
        self.count_missing();
        self.part = Position::new(info);
        // The next part has nothing of the bits that the last one left.
        self.decoder = None;
    }

    /// Counts the frames that the part lacks at its end.
    fn count_missing(&mut self) {
        let Some(n_frames) = self.part.info.n_frames else { return };
        let Some((header, _)) = &self.decoder else { return };
        // One more is a way of counting the first header.
        let n_missing = n_frames.saturating_sub(self.part.n_frames);
        if n_missing > 1 && self.part.n_frames > 0 {
            self.sink.source.is_cut = true;
            self.sink.source.missing_s +=
                n_missing as f64 * f64::from(header.n_frames) / f64::from(header.rate);
        }
    }

    fn set_total(&mut self, header: &Header, frame_bytes: usize, n_bytes: Option<u64>) {
        let by_size = n_bytes.map(|n| n / (frame_bytes as u64).max(1));
        let n_frames = self.part.info.n_frames.or(by_size);
        self.sink.total_frames = n_frames.map(|n| n.saturating_mul(header.n_frames.into()));
    }

    fn frame(&mut self, header: &Header, frame: &[u8], n_junk: u64) -> Result<(), Error> {
        let name = ["mp1", "mp2", "mp3"][usize::from(header.layer - 1)];
        name.clone_into(&mut self.sink.source.container);
        name.clone_into(&mut self.sink.source.codec);
        self.n_packets += 1;
        let n_channels = usize::from(header.n_channels);
        let n_samples = usize::from(header.n_frames);
        if self.part.n_frames > 0 && n_junk > 0 {
            self.fill_gap(header, n_junk)?;
        }
        self.part.n_bytes += frame.len() as u64;
        self.part.n_frames += 1;
        let format = |h: &Header| (h.layer, h.rate, h.n_channels);
        if self.decoder.as_ref().is_none_or(|(made_for, _)| format(made_for) != format(header)) {
            let mut params = AudioCodecParameters::new();
            params.for_codec(header.codec()).with_sample_rate(header.rate);
            let options = AudioDecoderOptions::default().gapless(false);
            let make = || symphonia::default::get_codecs().make_audio_decoder(&params, &options);
            let made = contain(name, make)?.map_err(|_| Error::UnsupportedCodec {
                container: name.to_owned(),
                codec: name.to_owned(),
            })?;
            self.decoder = Some((*header, made));
        }
        let Some((_, decoder)) = &mut self.decoder else { return Ok(()) };
        let duration = Duration::new(n_samples as u64);
        let packet = Packet::new(0, Timestamp::new(0), duration, frame);
        let mut samples = Vec::new();
        let decoded = contain(name, || {
            decoder.decode(&packet).map(|buffer| buffer.copy_to_vec_interleaved(&mut samples))
        })?;
        match decoded {
            Ok(()) if samples.len() == n_samples * n_channels => self.n_decoded += 1,
            _ => {
                self.sink.source.n_bad_packets += 1;
                self.sink.source.missing_s += n_samples as f64 / f64::from(header.rate);
                samples.clear();
                samples.resize(n_samples * n_channels, 0.0);
            }
        }
        self.push(&samples, header)
    }

    /// Silence in the place of `n_junk` bytes that are no frames.
    fn fill_gap(&mut self, header: &Header, n_junk: u64) -> Result<(), Error> {
        let mean = (self.part.n_bytes / self.part.n_frames).max(1);
        let n_lost = (n_junk + mean / 2) / mean;
        let n_samples = n_lost.saturating_mul(header.n_frames.into());
        if n_lost == 0 || n_samples > MAX_GAP_S * u64::from(header.rate) {
            return Ok(());
        }
        self.part.n_frames += n_lost;
        self.sink.source.n_bad_packets += n_lost;
        self.sink.source.missing_s += n_samples as f64 / f64::from(header.rate);
        let silence = vec![0.0; n_samples as usize * usize::from(header.n_channels)];
        self.push(&silence, header)
    }

    /// Gives out samples but for those that the encoder added.
    fn push(&mut self, samples: &[f32], header: &Header) -> Result<(), Error> {
        let n_channels = usize::from(header.n_channels);
        let part = &mut self.part;
        if part.left.is_none() {
            // The header is wrong if the part has only its stated padding.
            let total = part.info.n_frames.map(|n| n.saturating_mul(header.n_frames.into()));
            let added = part.info.delay + part.info.padding;
            part.left = Some(total.and_then(|n| n.checked_sub(added)).unwrap_or(u64::MAX));
        }
        let n_skipped = (part.skip * n_channels).min(samples.len());
        part.skip -= n_skipped / n_channels;
        let samples = &samples[n_skipped..];
        let held = std::mem::take(&mut part.held);
        let left = part.left.unwrap_or(u64::MAX);
        let stated = part.info.n_frames.unwrap_or(u64::MAX);
        if part.n_frames > stated {
            // More frames than stated: what seemed padding is sound.
            part.left = Some(u64::MAX);
            self.sink.push(&held, n_channels, header.rate)?;
            return self.sink.push(samples, n_channels, header.rate);
        }
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(samples.len() / n_channels);
        part.left = Some(if left == u64::MAX { left } else { left - n as u64 });
        let (sound, padding) = samples.split_at(n * n_channels);
        part.held = [held.as_slice(), padding].concat();
        self.sink.push(sound, n_channels, header.rate)
    }
}
