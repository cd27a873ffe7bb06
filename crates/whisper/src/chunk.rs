//! State of one chunk: its spectrogram, its current window, and the segments decoded so far.
//!
//! ```text
//! chunk   |██████████████████████████████████████░░░░░░░░|   frames of 10 ms, one window of padding
//!         0                  seek                n_frames
//! window                     |──────── 3000 frames ─────|
//! ```
//!
//! `seek` moves to the last timestamp of each window, or past it if nothing follows. A chunk is done
//! at `n_frames`.
//!
//! Source: openai/whisper `transcribe.py`.

mod missed_speech;

use std::ops::Range;

use stonechat_audio::vad::STEP;
use stonechat_audio::{Mel, Vad, VadOptions};
use stonechat_text::Tokenizer;
use unicode_general_category::{GeneralCategory, get_general_category};

use crate::options::Options;
use crate::prompt::History;
use crate::search::FinishReason;
use crate::special::SpecialTokens;
use crate::times::{frames, hundredths, seconds};
use crate::transcript::Segment;
use crate::window::WindowResult;
use crate::words::speech_end;
use crate::{
    FRAMES_PER_POSITION, HOP_LENGTH, SAMPLE_RATE, TIMESTAMP_SECONDS, WINDOW_FRAMES, chunking,
};

/// Samples at the end of a batched chunk that are searched for the end of speech: longer than a
/// sentence that the model leaves to a further window.
const TAIL_SAMPLES: usize = 10 * SAMPLE_RATE;
/// Frames by which the last timestamp may precede the end of speech: timestamps tend to be early.
const MAX_EARLY_FRAMES: usize = 100;

/// Maximum tokens of a character: one per byte.
const MAX_CHAR_TOKENS: usize = 4;

/// One chunk of a recording.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Sample range in the audio source.
    range: Range<usize>,
    /// Spectrogram of the range and of a window of silence after it.
    mel: Mel,
    /// Frames without that silence.
    n_frames: usize,
    /// First frame of the current window.
    seek: usize,
    /// Whether it was cut from a longer recording or clip for batched decoding.
    is_batched: bool,
    /// End of the last speech of a batched chunk, in frames; see [`min_end_timestamp`](Self::min_end_timestamp).
    pub(crate) speech_end: Option<usize>,
    /// Whether the samples are nothing but speech; see [`split_at_missed_speech`](Self::split_at_missed_speech).
    pub(crate) is_speech: bool,
    /// Frames at which windows are cut, descending: pauses, and places in windows whose text left speech out. The last is the end
    /// of the current window.
    cuts: Vec<usize>,
    /// End of the last segment or word, in seconds of the audio source.
    pub(crate) last_speech: f64,
    /// Earlier text for the prompt of the current window.
    pub(crate) history: History,
    /// Segments that were not collected yet; their ids are provisional.
    pub(crate) segments: Vec<Segment>,
}

impl Chunk {
    /// A chunk before its first window; `mel` holds the samples `range` and a window of silence.
    pub(crate) fn new(range: Range<usize>, mel: Mel, is_batched: bool) -> Self {
        let n_frames = mel.n_frames - WINDOW_FRAMES;
        let last_speech = seconds(range.start);
        Self {
            range,
            mel,
            n_frames,
            is_batched,
            speech_end: None,
            is_speech: false,
            cuts: Vec::new(),
            seek: 0,
            last_speech,
            history: History::default(),
            segments: Vec::new(),
        }
    }

    /// Cuts the windows in pauses of `samples`, if `is_cut`: a text without timestamps does not say where it ends, and the words
    /// that a window cuts are lost.
    #[must_use]
    pub(crate) fn with_windows_cut(mut self, is_cut: bool, samples: &[f32]) -> Self {
        if is_cut {
            let windows = chunking::cut(samples, self.range.clone(), usize::MAX);
            let ends = windows.iter().rev().skip(1).map(|window| window.end - self.range.start);
            self.cuts = ends.map(|end| end / HOP_LENGTH).collect();
        }
        self
    }

    /// Whether the times of its words tell where the text of a window ends. That of a recording of one window is all of its text.
    pub(crate) fn seeks_last_word(&self, options: &Options) -> bool {
        let is_one_window = !self.is_batched && self.n_frames <= WINDOW_FRAMES;
        options.without_timestamps && !options.word_timestamps && !is_one_window
    }

    /// Earliest timestamp token that may end the text of the current window; `None` if any may.
    pub(crate) fn min_end_timestamp(&self, special: &SpecialTokens) -> Option<u32> {
        let end = self.speech_end.filter(|_| self.remaining_frames() == self.window_frames())?;
        let steps = end.saturating_sub(self.seek + MAX_EARLY_FRAMES) / FRAMES_PER_POSITION;
        Some(special.timestamp_begin + steps as u32)
    }

    /// Skips windows of digital silence; false if that reaches the end.
    pub(crate) fn skip_silence(&mut self, audio: &[f32]) -> bool {
        let samples = &audio[self.range.clone()];
        while !self.is_done() && is_digital_silence(samples, self.seek, self.window_frames()) {
            self.skip_window();
        }
        !self.is_done()
    }

    /// Whether no window is left.
    pub(crate) fn is_done(&self) -> bool {
        self.seek >= self.n_frames
    }

    /// Samples before the current window.
    pub(crate) fn done_samples(&self) -> usize {
        if self.is_done() { self.range.len() } else { self.seek * HOP_LENGTH }
    }

    /// End of the chunk, in samples of the audio source.
    pub(crate) fn end(&self) -> usize {
        self.range.end
    }

    /// Start of the current window, in samples of the audio source.
    pub(crate) fn window_start(&self) -> usize {
        self.range.start + self.seek * HOP_LENGTH
    }

    /// Start of the current window, in seconds of the audio source.
    pub(crate) fn window_start_seconds(&self) -> f64 {
        seconds(self.window_start())
    }

    /// Frames of the current window without padding.
    pub(crate) fn window_frames(&self) -> usize {
        let end = self.cuts.last().map_or(self.n_frames, |&cut| cut.min(self.n_frames));
        WINDOW_FRAMES.min(end - self.seek)
    }

    /// Frames from the start of the current window to the end of the chunk.
    pub(crate) fn remaining_frames(&self) -> usize {
        self.n_frames - self.seek
    }

    /// Spectrogram of the current window, `[WINDOW_FRAMES, n_mels]`. The padding is zero as in the
    /// reference; in a batched chunk it is the spectrogram of silence, which makes fewer errors
    /// where most windows are padded.
    pub(crate) fn window_mel(&self) -> Vec<f32> {
        let n_values = self.window_frames() * self.mel.n_mels;
        let mut window = self.mel.window(self.seek, WINDOW_FRAMES);
        if !self.is_batched {
            window[n_values..].fill(0.0);
        } else if !self.cuts.is_empty() {
            let silence = &self.mel.data[self.mel.data.len() - self.mel.n_mels..];
            window[n_values..]
                .chunks_mut(silence.len())
                .for_each(|frame| frame.copy_from_slice(silence));
        }
        window
    }

    /// Skips the current window, which holds no speech.
    pub(crate) fn skip_window(&mut self) {
        self.advance(self.window_frames());
    }

    fn advance(&mut self, n_frames: usize) {
        self.seek += n_frames;
        self.cuts.retain(|&cut| cut > self.seek);
    }

    /// Splits the tokens of the current window into segments at pairs of timestamps.
    ///
    /// ```text
    /// <|0.00|> text <|2.40|><|2.40|> text <|5.00|><|5.00|> text…   two segments, advance to 5.00
    /// <|0.00|> text <|2.40|><|2.40|> text <|5.00|>                  two segments, advance a window
    /// <|0.00|> text…                                                one segment, advance a window
    /// ```
    pub(crate) fn split_segments(
        &self,
        result: &WindowResult,
        special: &SpecialTokens,
        tokenizer: &Tokenizer,
    ) -> WindowSegments {
        let tokens = &result.tokens;
        let is_timestamp = |i: usize| special.is_timestamp(tokens[i]);
        let steps = |token: u32| token.saturating_sub(special.timestamp_begin) as usize;
        let n = tokens.len();
        let single_ending = n >= 2 && !is_timestamp(n - 2) && is_timestamp(n - 1);
        let is_open = !single_ending;
        let mut splits: Vec<usize> =
            (1..n).filter(|&i| is_timestamp(i - 1) && is_timestamp(i)).collect();
        if splits.is_empty() {
            let last = (0..n).rev().find(|&i| is_timestamp(i)).map(|i| steps(tokens[i]));
            let length = match last {
                Some(last) if last > 0 => last as f64 * TIMESTAMP_SECONDS,
                _ => seconds(self.window_frames() * HOP_LENGTH),
            };
            let segments = vec![self.segment(result, 0..n, (0.0, length), tokenizer)];
            return WindowSegments { segments, advance: self.window_frames(), is_open };
        }
        if single_ending {
            splits.push(n);
        }
        let mut segments = Vec::with_capacity(splits.len());
        let mut from = 0;
        for &split in &splits {
            let own = &tokens[from..split];
            let time = |token: u32| steps(token) as f64 * TIMESTAMP_SECONDS;
            let times = (time(own[0]), time(own[own.len() - 1]));
            segments.push(self.segment(result, from..split, times, tokenizer));
            from = split;
        }
        let is_last =
            self.min_end_timestamp(special).is_some() && result.finish == FinishReason::Eot;
        if is_last && from + 1 < n {
            // Text after the last pair, without an end timestamp of its own.
            let start = steps(tokens[from]) as f64 * TIMESTAMP_SECONDS;
            let times = (start, seconds(self.window_frames() * HOP_LENGTH));
            segments.push(self.segment(result, from..n, times, tokenizer));
        }
        let advance = if single_ending || is_last {
            // No speech follows in this window.
            self.window_frames()
        } else {
            // The rules make the last timestamp positive; an advance of zero would never end.
            steps(tokens[from - 1]).max(1) * FRAMES_PER_POSITION
        };
        WindowSegments { segments, advance, is_open }
    }

    /// Segment of the tokens `range`; `start` and `end` are seconds from the start of the window.
    fn segment(
        &self,
        result: &WindowResult,
        range: Range<usize>,
        (start, end): (f64, f64),
        tokenizer: &Tokenizer,
    ) -> Segment {
        let tokens = &result.tokens[range.clone()];
        let probability = |&logprob: &f32| f64::from(logprob).exp();
        Segment {
            id: 0,
            seek: self.window_start() / HOP_LENGTH,
            start: self.window_start_seconds() + start,
            end: self.window_start_seconds() + end,
            text: tokenizer.decode(tokens),
            tokens: tokens.to_vec(),
            token_texts: token_texts(tokens, tokenizer),
            token_probabilities: result.logprobs[range].iter().map(probability).collect(),
            token_times: Vec::new(),
            temperature: result.temperature,
            avg_logprob: result.avg_logprob,
            compression_ratio: result.compression_ratio,
            no_speech_prob: result.no_speech_prob,
            words: None,
            speaker: None,
        }
    }

    /// Keeps the segments of the current window that are not empty, and moves to the next window.
    pub(crate) fn push_segments(&mut self, new: WindowSegments) {
        // Timestamps in the padding of a window lie past the end of the chunk.
        let limit = seconds(self.range.end);
        for mut segment in new.segments {
            if segment.start >= segment.end || has_no_word(&segment.text) {
                continue;
            }
            segment.id = self.segments.len();
            segment.start = hundredths(segment.start.min(limit));
            segment.end = hundredths(segment.end.min(limit));
            self.segments.push(segment);
        }
        self.advance(new.advance);
    }
}

/// Finds the end of the last speech of a chunk, in frames, with the VAD. The model tends to end the last window of a chunk after
/// a whole sentence and leave the rest to a further window.
pub(crate) fn find_speech_end(samples: &[f32], vad: &Vad, options: &VadOptions) -> Option<usize> {
    let tail = samples.len().saturating_sub(TAIL_SAMPLES);
    let probabilities = vad.probabilities(&samples[tail..]);
    let last = probabilities.iter().rposition(|&p| p >= options.threshold);
    last.map(|step| (tail + (step + 1) * STEP).min(samples.len()) / HOP_LENGTH)
}

/// Whether a text is nothing but dots and other marks of punctuation, as the model gives of noise.
fn has_no_word(text: &str) -> bool {
    use GeneralCategory::{
        ClosePunctuation, ConnectorPunctuation, DashPunctuation, FinalPunctuation,
        InitialPunctuation, OpenPunctuation, OtherPunctuation,
    };
    text.chars().all(|c| {
        let is_mark = matches!(
            get_general_category(c),
            ClosePunctuation
                | ConnectorPunctuation
                | DashPunctuation
                | FinalPunctuation
                | InitialPunctuation
                | OpenPunctuation
                | OtherPunctuation
        );
        is_mark || c.is_whitespace()
    })
}

/// Texts of tokens: one that ends amid a character has none, and the one that completes the character has all of it.
fn token_texts(tokens: &[u32], tokenizer: &Tokenizer) -> Vec<String> {
    let mut first = 0;
    let mut texts = Vec::with_capacity(tokens.len());
    for end in 1..=tokens.len() {
        let text = tokenizer.decode_with_special(&tokens[first..end]);
        let is_split = text.ends_with(char::REPLACEMENT_CHARACTER)
            && end < tokens.len()
            && end - first < MAX_CHAR_TOKENS;
        texts.push(if is_split { String::new() } else { text });
        first = if is_split { first } else { end };
    }
    texts
}

/// Segments of one window.
#[derive(Debug)]
pub(crate) struct WindowSegments {
    pub(crate) segments: Vec<Segment>,
    /// Frames from the start of this window to that of the next.
    pub(crate) advance: usize,
    /// Whether speech may follow the last segment.
    is_open: bool,
}

impl WindowSegments {
    /// Ends a window that starts at `offset` seconds, and its last segment, `end` seconds after its start.
    pub(crate) fn end_at(&mut self, offset: f64, end: f64) {
        self.advance = frames(end).clamp(1, self.advance.max(1));
        if let Some(last) = self.segments.last_mut() {
            last.end = offset + end;
        }
    }

    /// Sets the advance to the end of the last word of a window that starts at `offset` seconds.
    pub(crate) fn advance_to_last_word(&mut self, offset: f64) {
        let end = speech_end(&self.segments).filter(|&end| self.is_open && end > offset);
        if let Some(end) = end {
            self.advance = frames(end - offset).max(1);
        }
    }
}

/// Whether no sample of the window exceeds the last bit of 16-bit audio. The reference transcribes
/// such a window as "you".
fn is_digital_silence(samples: &[f32], seek: usize, n_frames: usize) -> bool {
    const LAST_BIT: f32 = 1.5 / 32768.0;
    let end = ((seek + n_frames) * HOP_LENGTH).min(samples.len());
    samples[(seek * HOP_LENGTH).min(end)..end].iter().all(|s| s.abs() <= LAST_BIT)
}

#[cfg(test)]
mod tests;
