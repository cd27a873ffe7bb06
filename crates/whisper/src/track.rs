//! A stretch of a recording that is transcribed from its beginning to its end: where it stands, and
//! the segments that its windows were cut into.
//!
//! Source: openai/whisper `transcribe.py`.

use std::ops::Range;

use stonechat_audio::{LogMel, Mel};
use stonechat_text::Tokenizer;

use crate::{
    FRAMES_PER_POSITION, HOP_LENGTH, SAMPLE_RATE, Segment, SpecialTokens, TIMESTAMP_SECONDS,
    WINDOW_FRAMES, WINDOW_SAMPLES, WindowResult,
};

/// One stretch.
#[derive(Debug)]
pub(crate) struct Track<'a> {
    /// Where it lies in the recording.
    range: Range<usize>,
    /// What is in it.
    samples: &'a [f32],
    mel: Mel,
    n_frames: usize,
    /// The first frame that is not done.
    seek: usize,
    /// Segments that nobody has been told of; their ids are not final.
    pub(crate) segments: Vec<Segment>,
}

impl<'a> Track<'a> {
    /// The stretch `range` of `recording`.
    pub(crate) fn new(recording: &'a [f32], range: Range<usize>, log_mel: &LogMel) -> Self {
        let samples = &recording[range.clone()];
        let mel = log_mel.compute(samples, WINDOW_SAMPLES);
        let n_frames = mel.n_frames - WINDOW_FRAMES;
        Self { range, samples, mel, n_frames, seek: 0, segments: Vec::new() }
    }

    /// Passes over windows of digital silence; whether something is left to be heard.
    pub(crate) fn find_sound(&mut self) -> bool {
        while !self.is_done() && is_digital_silence(self.samples, self.seek, self.size()) {
            self.seek += self.size();
        }
        !self.is_done()
    }

    /// Whether nothing is left.
    pub(crate) fn is_done(&self) -> bool {
        self.seek >= self.n_frames
    }

    /// The samples of it that are done.
    pub(crate) fn done_samples(&self) -> usize {
        if self.is_done() { self.range.len() } else { self.seek * HOP_LENGTH }
    }

    /// Samples in it.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Where it ends in the recording, in samples.
    pub(crate) fn end(&self) -> usize {
        self.range.end
    }

    /// Where in the recording the window at hand begins, in samples.
    pub(crate) fn window_start(&self) -> usize {
        self.range.start + self.seek * HOP_LENGTH
    }

    /// Frames of the window at hand, without padding.
    pub(crate) fn size(&self) -> usize {
        WINDOW_FRAMES.min(self.n_frames - self.seek)
    }

    /// The window at hand, `[WINDOW_FRAMES, n_mels]`: padded with silence.
    pub(crate) fn window(&self) -> Vec<f32> {
        let frames = self.size() * self.mel.n_mels;
        let mut window = self.mel.window(self.seek, WINDOW_FRAMES);
        window[frames..].fill(0.0);
        window
    }

    /// Passes over the window at hand: nobody speaks.
    pub(crate) fn skip_window(&mut self) {
        self.seek += self.size();
    }

    /// Cuts what the window at hand was decoded to into segments at its timestamp pairs and moves on to
    /// the last complete one.
    pub(crate) fn take(
        &mut self,
        result: &WindowResult,
        special: &SpecialTokens,
        tokenizer: &Tokenizer,
    ) {
        let tokens = &result.tokens;
        let is_timestamp = |i: usize| special.is_timestamp(tokens[i]);
        let steps = |token: u32| token.saturating_sub(special.timestamp_begin) as usize;
        let size = self.size();
        let n = tokens.len();
        let single_ending = n >= 2 && !is_timestamp(n - 2) && is_timestamp(n - 1);
        let mut cuts: Vec<usize> =
            (1..n).filter(|&i| is_timestamp(i - 1) && is_timestamp(i)).collect();
        if cuts.is_empty() {
            let last = (0..n).rev().find(|&i| is_timestamp(i)).map(|i| steps(tokens[i]));
            let length = match last {
                Some(last) if last > 0 => last as f64 * TIMESTAMP_SECONDS,
                _ => seconds(size * HOP_LENGTH),
            };
            self.push_segment(result, tokens, (0.0, length), tokenizer);
            self.seek += size;
            return;
        }
        if single_ending {
            cuts.push(n);
        }
        let mut from = 0;
        for &cut in &cuts {
            let piece = &tokens[from..cut];
            let time = |token: u32| steps(token) as f64 * TIMESTAMP_SECONDS;
            let times = (time(piece[0]), time(piece[piece.len() - 1]));
            self.push_segment(result, piece, times, tokenizer);
            from = cut;
        }
        self.seek += if single_ending {
            // Nothing was said after the last stamp.
            size
        } else {
            // The rules make the last stamp positive; an advance of zero would never end.
            steps(tokens[from - 1]).max(1) * FRAMES_PER_POSITION
        };
    }

    /// `start` and `end` are seconds from the window's begin.
    fn push_segment(
        &mut self,
        result: &WindowResult,
        tokens: &[u32],
        (start, end): (f64, f64),
        tokenizer: &Tokenizer,
    ) {
        let text = tokenizer.decode(tokens);
        if start >= end || text.trim().is_empty() {
            return;
        }
        let offset = seconds(self.window_start());
        // Stamps in the padding of a window lie beyond the stretch.
        let limit = seconds(self.range.end);
        self.segments.push(Segment {
            id: self.segments.len(),
            seek: self.window_start() / HOP_LENGTH,
            start: hundredths((offset + start).min(limit)),
            end: hundredths((offset + end).min(limit)),
            text,
            tokens: tokens.to_vec(),
            temperature: result.temperature,
            avg_logprob: result.avg_logprob,
            compression_ratio: result.compression_ratio,
            no_speech_prob: result.no_speech_prob,
        });
    }
}

/// Whether the window holds nothing above the last bit of 16-bit audio. The reference hears "you"
/// in such a window; there is nothing to hear.
fn is_digital_silence(samples: &[f32], seek: usize, size: usize) -> bool {
    const LAST_BIT: f32 = 1.5 / 32768.0;
    let end = ((seek + size) * HOP_LENGTH).min(samples.len());
    samples[(seek * HOP_LENGTH).min(end)..end].iter().all(|s| s.abs() <= LAST_BIT)
}

fn seconds(samples: usize) -> f64 {
    samples as f64 / SAMPLE_RATE as f64
}

/// Times are multiples of 10 ms; this removes the rounding error of their sums.
fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
